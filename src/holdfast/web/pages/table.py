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
from holdfast.store.reader import run_id
from holdfast.telemetry import log
from holdfast.web.answers import body_of
from holdfast.web.api.table import admit
from holdfast.web.pages.render import page
from holdfast.web.place import Place
from holdfast.web.problems import Refusal, problem_of
from holdfast.web.visitors import Visitor, same_secret

FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 500


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody at a page, or with a form."""

    place: Place
    visitor: Visitor
    names: dict[str, str]
    query: QueryParams
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def control(self) -> Control:
        return self.place.control

    def run(self) -> RunInfo[Any]:
        """The run in the path, if the visitor may see it."""
        return self.visitor.run(self.control, self.id)

    @property
    def id(self) -> UUID:
        return run_id(self.names["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is shown at an address. `do` gives the values for the template, or the address of another page."""

    path: str
    template: str
    section: str
    do: Callable[[Visit], dict[str, Any] | str]
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What a form does. `do` gives the address of the page that follows."""

    path: str
    do: Callable[[Visit], str]
    whole: bool = False


def page_route(place: Place, shown: Page) -> Route:
    async def handle(request: Request) -> Response:
        visitor = None
        try:
            visitor = await asyncio.to_thread(place.visitors.of, request)
            admit(visitor, "read", whole=shown.whole)
            visit = Visit(place, visitor, dict(request.path_params), request.query_params)
            values = await asyncio.to_thread(shown.do, visit)
            if isinstance(values, str):
                return RedirectResponse(request.scope.get("root_path", "") + values, 303)
            return page(request, visitor, shown.template, **{"section": shown.section, **values})
        except Exception as error:
            return refused_page(error, request, visitor)

    return Route(shown.path, handle, methods=["GET"])


def action_route(place: Place, action: Action) -> Route:
    async def handle(request: Request) -> Response:
        visitor = None
        try:
            visitor = await asyncio.to_thread(place.visitors.of, request)
            admit(visitor, "operate", whole=action.whole)
            form = await form_of(request)
            if not same_secret(form.get("form_key", ""), visitor.form_key):
                raise Refusal(403, "this form is out of date: go back, load the page anew, and try again", "form_key")
            visit = Visit(place, visitor, dict(request.path_params), request.query_params, form)
            following = await asyncio.to_thread(action.do, visit)
            log.acted(f"{request.method} {request.url.path}", visitor.by)
            return RedirectResponse(request.scope.get("root_path", "") + following, 303)
        except Exception as error:
            return refused_page(error, request, visitor)

    return Route(action.path, handle, methods=["POST"])


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that one of our own pages sent. Browsers say where a form comes from."""
    if request.headers.get("origin") is None:
        raise Refusal(403, "a form must come from this very site, and say so (Origin)", "no_origin")
    text = (await body_of(request, FORM)).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Refusal(422, "the form can't be read", "invalid") from None


def _path(request: Request) -> str:
    """The address within the dashboard, with its filters."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return f"{path}?{request.url.query}" if request.url.query else path


def refused_page(error: Exception, request: Request, visitor: Visitor | None) -> Response:
    """What is shown instead: the login to those who aren't known, else what went wrong."""
    problem = problem_of(error, f"{request.method} {request.url.path}")
    headers = error.headers if isinstance(error, Refusal) else {}
    if problem.status == 401:
        following = _path(request) if request.method == "GET" else "/"
        answer = page(request, None, "login.html", 401, following=following, wrong=False)
    else:
        answer = page(request, visitor, "problem.html", problem.status, problem=problem)
    answer.headers.update(headers)
    return answer
