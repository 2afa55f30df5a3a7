"""Runs in Django's admin: a list with filters, and a page per run. Runs can be retried and cancelled, nothing else.

Runs aren't read by Django's ORM, so that this works with every `HOLDFAST` setting. The views of `ModelAdmin` that need
a table are replaced; its URLs, permissions and log entries are used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from holdfast.control import Control
from holdfast.control.bulk import ACTION_STATES, BulkAction
from holdfast.control.history_text import describe_entry, entry_label
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.integrations.django.conf import the_app
from holdfast.integrations.django.models import Run
from holdfast.model.names import counted
from holdfast.model.run import RUN_STATES, RunInfo

PAGE_SIZE = 50
MAX_NODES = 200
MAX_ACTOR_CHARS = 200
FILTERS = ("state", "task", "queue", "key", "error")
VIEW, CHANGE = "holdfast.view_run", "holdfast.change_run"
DONE: dict[BulkAction, str] = {"retry": "retried", "cancel": "cancelled"}
_View = TypeVar("_View", bound=Callable[..., HttpResponse])


@dataclass(frozen=True)
class ActionPreview:
    """What an action would do with one run, or why it can't be done."""

    id: UUID
    info: RunInfo[Any] | None
    is_possible: bool
    text: str
    repeats: Sequence[str] = ()
    """Effects that may happen twice."""


@admin.register(Run)
class RunAdmin(admin.ModelAdmin):  # type: ignore[misc]  # Django is untyped here
    """Shows runs to users who "Can view runs", and lets those who "Can retry and cancel runs" do that."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return bool(request.user.has_perm(CHANGE))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return bool(request.user.has_perm(VIEW) or request.user.has_perm(CHANGE))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    # Views

    def changelist_view(self, request: HttpRequest, extra_context: Mapping[str, Any] | None = None) -> HttpResponse:
        """List runs, newest first, or act on the selected ones."""
        _require(self.has_view_permission(request))
        if request.method == "POST":
            return self._act(request, request.POST.getlist("run"))
        given = {name: request.GET.get(name, "").strip() for name in (*FILTERS, "id", "after")}
        context: dict[str, Any] = {"title": "Runs", "given": given, "states": RUN_STATES, "runs": []}
        try:
            filters: Any = {name: given[name] or None for name in (*FILTERS, "after")}
            prefix = given["id"].replace("-", "").lower() or None
            page = _control().runs.page(**filters, id_prefix=prefix, limit=PAGE_SIZE)
        except HoldfastError as error:
            messages.error(request, str(error))
        else:
            older, newest = request.GET.copy(), request.GET.copy()
            newest.pop("after", None)
            if page.after is not None:
                older["after"] = page.after
            context |= {
                "runs": [(info, _short(info.args)) for info in page],
                "is_partial": page.partial,
                "older": None if page.after is None else older.urlencode(),
                "newest": newest.urlencode() if given["after"] else None,
            }
        return self._page(request, "list", context, extra_context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002 - Django's signature
        extra_context: Mapping[str, Any] | None = None,
    ) -> HttpResponse:
        """Show one run, or act on it."""
        _require(self.has_view_permission(request))
        id = _run_id(object_id)
        if request.method == "POST":
            return self._act(request, [object_id])
        control = _control()
        try:
            details = control.runs.details(id)
            reasons = [] if details.info.final else control.whys.why(id).reasons
        except RunNotFound as error:
            raise Http404(str(error)) from None
        except HoldfastError as error:
            messages.error(request, str(error))
            return HttpResponseRedirect(self._url("changelist"))
        state = details.info.state
        context = {
            "title": f"Run {id}",
            "info": details.info,
            "details": details,
            "args": _pretty(details.args),
            "result": _pretty(details.info.result) if state == "done" else None,
            "reasons": list(map(str, reasons)),
            "nodes": details.graph.nodes[:MAX_NODES] if details.graph else [],
            "more_nodes": details.graph is not None and len(details.graph.nodes) > MAX_NODES,
            "history": [(entry, entry_label(entry), describe_entry(entry)) for entry in details.history],
            "actions": [verb for verb in DONE if state in ACTION_STATES[verb]],
        }
        return self._page(request, "detail", context, extra_context)

    def history_view(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        object_id: str,
        extra_context: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> HttpResponse:
        """Redirect to the page of the run, which has its history."""
        return HttpResponseRedirect(self._url("change", _run_id(object_id)))

    def delete_view(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        object_id: str,  # noqa: ARG002
        extra_context: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> HttpResponse:
        """Refuse: runs are deleted when their retention ends."""
        raise PermissionDenied

    # Actions

    def _act(self, request: HttpRequest, runs: Sequence[str]) -> HttpResponse:
        """Retry or cancel runs after a confirmation, which shows what will happen."""
        _require(self.has_change_permission(request))
        verb, back = request.POST.get("action"), request.get_full_path()
        if verb not in DONE or not runs:
            messages.warning(request, "Nothing was changed: select runs and an action.")
            return HttpResponseRedirect(back)
        action, ids = cast(BulkAction, verb), [_run_id(run) for run in dict.fromkeys(runs[:PAGE_SIZE])]
        if "confirmed" not in request.POST:
            control = _control()
            previews = [_preview(control, action, id) for id in ids]
            context = {
                "title": "Are you sure?",
                "action": action,
                "previews": previews,
                "count": counted(sum(each.is_possible for each in previews), "run"),
                "is_possible": any(each.is_possible for each in previews),
                "back": back,
            }
            return self._page(request, "confirm", context, None)
        changed = [id for id in ids if self._change(request, action, id)]
        if changed:
            messages.success(request, f"{counted(len(changed), 'run')} {DONE[action]}.")
        return HttpResponseRedirect(back)

    def _change(self, request: HttpRequest, action: BulkAction, id: UUID) -> bool:
        """Retry or cancel one run. Report it to the user if that failed."""
        by, runs = f"{request.user.get_username()} (Django admin)"[-MAX_ACTOR_CHARS:], _control().runs
        try:
            if runs.retry(id, by) if action == "retry" else runs.cancel(id, None, by):
                self.log_change(request, Run(id=id), f"{DONE[action].capitalize()}.")
                return True
            messages.warning(request, f"Run {id} wasn't {DONE[action]}: it is {runs.info(id).state}.")
        except HoldfastError as error:
            messages.error(request, str(error))
        return False

    # Pages

    def _url(self, view: str, *args: object) -> str:
        return str(reverse(f"admin:holdfast_run_{view}", args=args, current_app=self.admin_site.name))

    def _page(
        self, request: HttpRequest, name: str, context: Mapping[str, Any], extra: Mapping[str, Any] | None
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        shared = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "may_change": self.has_change_permission(request),
        }
        return TemplateResponse(request, f"admin/holdfast/run/{name}.html", {**shared, **context, **(extra or {})})


def _require(is_permitted: bool) -> None:
    if not is_permitted:
        raise PermissionDenied


def _control() -> Control:
    app = the_app()
    return Control(app.store, app.registry)


def _run_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Http404(f"{text!r} is not the id of a run") from None


def _preview(control: Control, action: BulkAction, id: UUID) -> ActionPreview:
    info = None
    try:
        info = control.runs.info(id)
        if info.state not in ACTION_STATES[action]:
            return ActionPreview(id, info, False, f"can't be {DONE[action]}: it is {info.state}")
        if action == "cancel":
            return ActionPreview(id, info, True, f"is {info.state}, and is cancelled with its children")
        preview = control.runs.preview_retry(id)
    except HoldfastError as error:
        return ActionPreview(id, info, False, str(error))
    return ActionPreview(id, info, True, preview.summary, preview.may_repeat)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _short(value: Any, size: int = 100) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= size else f"{text[: size - 1]}…"
