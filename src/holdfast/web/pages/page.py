"""Pages and actions as data, and the way from a request to them and back.

A page is got and changes nothing. An action is posted by one of our own forms, which brings along the key that only our
own pages know; it answers with the address of the page to show next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.control import Control
from holdfast.model.run import RunInfo
from holdfast.store.run_reader import run_id
from holdfast.telemetry import log
from holdfast.web.api.operation import authorize
from holdfast.web.auth import Principal, SiteContext, same_secret
from holdfast.web.pages.render import page
from holdfast.web.responses import RequestError, problem_from, read_body

FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 500


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Somebody at a page, or with a form."""

    context: SiteContext
    principal: Principal
    names: dict[str, str]
    query: QueryParams
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def control(self) -> Control:
        return self.context.control

    def run(self) -> RunInfo[Any]:
        """The run in the path, if the visitor may see it."""
        return self.principal.run(self.control, self.id)

    @property
    def id(self) -> UUID:
        return run_id(self.names["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSpec:
    """What is shown at an address. `do` gives the values for the template, or the address of another page."""

    path: str
    template: str
    section: str
    do: Callable[[PageRequest], dict[str, Any] | str]
    all_tenants: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FormAction:
    """What a form does. `do` gives the address of the page that follows."""

    path: str
    do: Callable[[PageRequest], str]
    all_tenants: bool = False


def page_route(context: SiteContext, shown: PageSpec) -> Route:
    async def handle(request: Request) -> Response:
        principal = None
        try:
            principal = await asyncio.to_thread(context.authenticator.of, request)
            authorize(principal, "read", all_tenants=shown.all_tenants)
            visit = PageRequest(context, principal, dict(request.path_params), request.query_params)
            values = await asyncio.to_thread(shown.do, visit)
            if isinstance(values, str):
                return RedirectResponse(request.scope.get("root_path", "") + values, 303)
            return page(request, principal, shown.template, **{"section": shown.section, **values})
        except Exception as error:
            return error_page(error, request, principal)

    return Route(shown.path, handle, methods=["GET"])


def action_route(context: SiteContext, action: FormAction) -> Route:
    async def handle(request: Request) -> Response:
        principal = None
        try:
            principal = await asyncio.to_thread(context.authenticator.of, request)
            authorize(principal, "operate", all_tenants=action.all_tenants)
            form = await form_of(request)
            if not same_secret(form.get("csrf_token", ""), principal.csrf_token):
                raise RequestError(
                    403, "this form is out of date: go back, load the page anew, and try again", "csrf_token"
                )
            visit = PageRequest(context, principal, dict(request.path_params), request.query_params, form)
            following = await asyncio.to_thread(action.do, visit)
            log.operator_action(f"{request.method} {request.url.path}", principal.by)
            return RedirectResponse(request.scope.get("root_path", "") + following, 303)
        except Exception as error:
            return error_page(error, request, principal)

    return Route(action.path, handle, methods=["POST"])


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that one of our own pages sent. Browsers say where a form comes from."""
    if request.headers.get("origin") is None:
        raise RequestError(403, "a form must come from this very site, and say so (Origin)", "no_origin")
    text = (await read_body(request, FORM)).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise RequestError(422, "the form can't be read", "invalid") from None


def _path(request: Request) -> str:
    """The address within the dashboard, with its filters."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return f"{path}?{request.url.query}" if request.url.query else path


def error_page(error: Exception, request: Request, principal: Principal | None) -> Response:
    """What is shown instead: the login to those who aren't known, else what went wrong."""
    problem = problem_from(error, f"{request.method} {request.url.path}")
    headers = error.headers if isinstance(error, RequestError) else {}
    if problem.status == 401:
        following = _path(request) if request.method == "GET" else "/"
        answer = page(request, None, "login.html", 401, following=following, wrong=False)
    else:
        answer = page(request, principal, "problem.html", problem.status, problem=problem)
    answer.headers.update(headers)
    return answer
