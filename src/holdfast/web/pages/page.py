"""Pages and form actions as data, and the routes that serve them.

A page is a GET and changes nothing. An action is a POST from one of our own forms, with the CSRF token of the login; it
redirects to the page to show next, or changes nothing and shows a page itself, such as one that asks for confirmation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.control import Control
from holdfast.control.audit import acting
from holdfast.errors import ConfigError
from holdfast.model.access import Permission
from holdfast.model.run import RunInfo
from holdfast.telemetry import log
from holdfast.web.auth import Principal, SiteContext, authorize, client_of, same_secret
from holdfast.web.pages.render import render
from holdfast.web.refusals import record_refusal
from holdfast.web.responses import MAX_BODY_BYTES, RequestError, check_decoded_size, problem_from, read_body

FORM = "application/x-www-form-urlencoded"
MAX_FIELDS = 500


@dataclass(frozen=True, slots=True)
class PageRequest:
    """An authorized request for a page or a form action."""

    context: SiteContext
    principal: Principal
    path: dict[str, str]
    query: QueryParams
    form: Mapping[str, str] = field(default_factory=dict)
    replica: Control | None = None
    """What a page that may lag reads from, if not from the primary."""

    @property
    def control(self) -> Control:
        return self.replica or self.context.control

    @property
    def id(self) -> UUID:
        return self.control.runs.parse_id(self.path["id"])

    def run(self) -> RunInfo[Any]:
        """Read the run that the path names, if the principal may see it."""
        return self.principal.run(self.control, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSpec:
    """A page. `do` returns the values for the template, the address of another page, or a page with a status.

    Not available to tokens that are limited to a tenant, tasks or queues (`all_tenants`), or to tasks or queues
    (`all_tasks`).
    """

    path: str
    template: str
    section: str
    do: Callable[[PageRequest], dict[str, Any] | str | PageContent]
    all_tenants: bool = False
    all_tasks: bool = False
    requires: Permission = "read"
    may_lag: bool = False
    """Whether it may read from a replica, which is a little behind: what lists, counts or summarizes."""


@dataclass(frozen=True, slots=True)
class PageContent:
    """A page with a status, such as one that an action shows instead of changing something."""

    template: str
    values: dict[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FormAction:
    """A form's target, available like a page. `do` returns the address of the page to show next, or a page."""

    path: str
    do: Callable[[PageRequest], str | PageContent]
    all_tenants: bool = False
    all_tasks: bool = False
    requires: Permission = "operate"


def page_route(context: SiteContext, page: PageSpec) -> Route:
    async def handle(request: Request) -> Response:
        principal = None
        try:
            principal = await context.threads.run(context.authenticator.authenticate, request)
            authorize(principal, page.requires, all_tenants=page.all_tenants, all_tasks=page.all_tasks)
            page_request = PageRequest(context, principal, dict(request.path_params), request.query_params)
            values, lag_s = await _content(page, page_request)
            if isinstance(values, str):
                return RedirectResponse(request.scope.get("root_path", "") + values, 303)
            if isinstance(values, PageContent):
                values_, status = {"section": page.section, **values.values}, values.status
                return render(request, principal, values.template, status, **values_)
            return render(request, principal, page.template, **{"section": page.section, "lag_s": lag_s, **values})
        except Exception as error:
            return await refusal_page(context, error, request, principal)

    return Route(page.path, handle, methods=["GET"])


async def _content(page: PageSpec, request: PageRequest) -> tuple[dict[str, Any] | str | PageContent, float | None]:
    """Return what a page shows, and how many seconds that is behind; None if the primary was read."""
    context = request.context
    if not page.may_lag:
        return await context.threads.run(page.do, request), None
    return await context.threads.run(context.reads.run, lambda control: page.do(replace(request, replica=control)))


def action_route(context: SiteContext, action: FormAction) -> Route:
    async def handle(request: Request) -> Response:
        principal = None
        try:
            principal = await context.threads.run(context.authenticator.authenticate, request)
            authorize(principal, action.requires, all_tenants=action.all_tenants, all_tasks=action.all_tasks)
            form = await read_form(request)
            if not same_secret(form.get("csrf_token", ""), principal.csrf_token):
                raise RequestError(403, "this form has expired: go back, reload the page and try again", "csrf_token")
            page_request = PageRequest(context, principal, dict(request.path_params), request.query_params, form)
            with acting(principal.by, "dashboard", client_of(request), principal.tenant):
                next_page = await context.threads.run(action.do, page_request)
            context.reads.changed()
            if isinstance(next_page, PageContent):
                return render(request, principal, next_page.template, next_page.status, **next_page.values)
            log.operator_action(f"{request.method} {request.url.path}", principal.by)
            return RedirectResponse(request.scope.get("root_path", "") + next_page, 303)
        except Exception as error:
            return await refusal_page(context, error, request, principal)

    return Route(action.path, handle, methods=["POST"])


async def read_form(request: Request, max_bytes: int = MAX_BODY_BYTES) -> dict[str, str]:
    """Read a form. Browsers send an Origin header with every form; the middleware compares it with the Host."""
    if request.headers.get("origin") is None:
        raise RequestError(403, "a form must be sent from this site, with an Origin header", "no_origin")
    return parse_form(await read_body(request, FORM, max_bytes))


def parse_form(body: bytes) -> dict[str, str]:
    """Decode the body of a form."""
    text = body.decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise RequestError(422, "the form cannot be decoded", "invalid") from None


def parse_json(text: str, what: str) -> Any:
    """Decode a field of a form that holds JSON; None if it is empty."""
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(check_decoded_size(text.encode()))
    except msgspec.DecodeError as error:
        raise ConfigError(f'{what} must be JSON, such as {{"ok": true}} or "text": {error}') from None


def parse_time(text: str, what: str) -> datetime:
    """Parse a time as browsers send it: UTC, unless it has an offset."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{what} must be a time such as 2026-11-16T08:00, not {text[:60]!r}") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


async def refusal_page(
    context: SiteContext, error: Exception, request: Request, principal: Principal | None
) -> Response:
    """Show an error page; record that the client lacks the right, if that is the error."""
    line = f"{request.method} {request.url.path}"
    await record_refusal(context, principal, "dashboard", line, client_of(request), error)
    return error_page(error, request, principal)


def error_page(error: Exception, request: Request, principal: Principal | None = None) -> Response:
    """Show the login page to unauthenticated clients, an error page to all others."""
    problem = problem_from(error, f"{request.method} {request.url.path}")
    if problem.status == 401:
        next_page = _path(request) if request.method == "GET" else "/"
        answer = render(request, None, "login.html", 401, next_page=next_page, invalid=False)
    else:
        answer = render(request, principal, "problem.html", problem.status, problem=problem)
    answer.headers.update(error.headers if isinstance(error, RequestError) else {})
    return answer


def _path(request: Request) -> str:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return f"{path}?{request.url.query}" if request.url.query else path
