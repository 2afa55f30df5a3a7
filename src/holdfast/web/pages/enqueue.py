"""The form that enqueues a run of a task, with a field for each of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.errors import BadArguments, ConfigError
from holdfast.model.metadata import parse_metadata
from holdfast.task.signature import Signature
from holdfast.task.task import Task
from holdfast.web.api.runs import requested_task
from holdfast.web.pages.forms import form_fields, read_form
from holdfast.web.pages.page import FormAction, PageContent, PageRequest, PageSpec
from holdfast.web.pages.render import link
from holdfast.web.responses import RequestError

TEXT_OPTIONS = ("queue", "key", "unique", "if_taken", "debounce")
SECONDS_OPTIONS = {"delay": "the delay", "max_delay": "the longest delay", "start_by": "the time to start"}
MORE_OPTIONS = ("unique", "if_taken", "debounce", "max_delay", "start_by", "metadata")
"""Those that the form shows only when asked for."""


def _show(request: PageRequest) -> dict[str, Any] | str:
    name = request.query.get("task", "").strip()
    if name:
        return _values(_task(request, name))
    scope, registry = request.principal.scope, request.context.app.registry
    tasks = [each for each in request.control.tasks.list() if scope.covers_lane(each.queue, each.name)]
    return {"task": None, "tasks": [each for each in tasks if isinstance(registry.get(each.name).signature, Signature)]}


def _enqueue(request: PageRequest) -> str | PageContent:
    form = request.form
    name = form.get("task", "").strip()
    task = _task(request, name)
    schema = _signature(task).json_schema()
    submitted = read_form(schema, form) if schema["properties"] else None
    problems = dict(submitted.problems) if submitted else {}
    if problems:
        return PageContent("enqueue.html", _values(task, form, problems), 422)
    try:
        options = _options(request)
        allowed = requested_task(request, name, False, options.get("queue"), options.get("priority"))
        given = submitted.value if submitted else {}
        positional = _signature(task).positional_only
        args = [given[each] for each in positional if each in given]
        made = allowed.options(**options).request(*args, **{k: v for k, v in given.items() if k not in positional})
        shown = {each: options[each] for each in (*TEXT_OPTIONS, "tenant") if each in options}
        with request.control.audit.record("enqueue run", task.name, **shown):
            run = request.context.app.enqueue_many([made])[0]
    except (BadArguments, ConfigError) as error:
        return PageContent("enqueue.html", _values(task, form, {"": str(error)}), 422)
    return link(f"/runs/{run.id}", did="created" if run.created else _existed(options))


def _existed(options: Mapping[str, Any]) -> str:
    """Say what a call that created no run did."""
    takes_arguments = "debounce" in options or options.get("if_taken") == "replace"
    return "replaced" if takes_arguments and "key" not in options else "existed"


def _options(request: PageRequest) -> dict[str, Any]:
    form = {name: text.strip() for name, text in request.form.items()}
    options: dict[str, Any] = {name: form[name] for name in TEXT_OPTIONS if form.get(name)}
    tenant = request.principal.tenant or form.get("tenant")
    if tenant:
        options["tenant"] = tenant
    if form.get("priority"):
        options["priority"] = _whole(form["priority"], "the priority")
    for name, what in SECONDS_OPTIONS.items():
        if form.get(name):
            options[name] = timedelta(seconds=_whole(form[name], what))
    metadata = parse_metadata(line for line in form.get("metadata", "").splitlines() if line.strip())
    if metadata:
        options["metadata"] = metadata
    tags = [tag.strip() for tag in form.get("tags", "").split(",") if tag.strip()]
    return options | ({"tags": tags} if tags else {})


def _whole(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{what} must be a whole number, not {text[:40]!r}") from None


def _task(request: PageRequest, name: str) -> Task[..., Any]:
    """Return a task that the app declares and the token covers; others appear not to exist."""
    registry = request.context.app.registry
    registry.load()
    task = registry.names().get(name)
    if task is None or not request.principal.scope.covers_lane(task.declaration.queue, task.name):
        raise RequestError(404, f"this app declares no task {name[:100]!r}", "not_found")
    _signature(task)
    return task


def _signature(task: Task[..., Any]) -> Signature:
    if not isinstance(task.signature, Signature):
        raise RequestError(404, f"task {task.name} has no form: its code is elsewhere, or it is a machine", "not_found")
    return task.signature


def _values(
    task: Task[..., Any],
    form: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the values for the template. `form`: what was entered; without it, the defaults."""
    schema = _signature(task).json_schema()
    fields = form_fields(schema) if schema["properties"] else []
    entered = {each.name: each.default if form is None else form.get(f"field:{each.name}", "") for each in fields}
    return {
        "section": "tasks",
        "task": task,
        "declared": task.declaration,
        "fields": fields,
        "entered": entered,
        "options": dict(form or {}),
        "more_options": any((form or {}).get(name) for name in MORE_OPTIONS),
        "problems": problems or {},
    }


PAGES = (PageSpec(path="/enqueue", template="enqueue.html", section="tasks", do=_show),)
ACTIONS = (FormAction(path="/enqueue", do=_enqueue),)
