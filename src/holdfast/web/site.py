"""The whole site as one ASGI application: routes from the tables of the API and the pages, behind the guard."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.app import Holdfast
from holdfast.control import Control
from holdfast.control.open import IN_MEMORY
from holdfast.database import open_database
from holdfast.web.answers import json_answer
from holdfast.web.api import many, others, runs
from holdfast.web.api.live import Live
from holdfast.web.api.metrics import CONTENT_TYPE, exposition
from holdfast.web.api.openapi import document
from holdfast.web.api.table import PREFIX, Handler, admit, refused, route
from holdfast.web.guard import Guard
from holdfast.web.pages.routes import page_routes
from holdfast.web.pages.table import refused_page
from holdfast.web.place import Place
from holdfast.web.problems import Refusal
from holdfast.web.visitors import Visitors

READ_SECONDS = 5.0
OPERATIONS = (*runs.OPERATIONS, *many.OPERATIONS, *others.OPERATIONS)


def dashboard(app: Holdfast, *, token: str | None = None, unlocked: bool = False, hosts: Iterable[str] = ()) -> Guard:
    """The dashboard and the API of an app, to be served, or mounted in another ASGI application.

    `token`, or `$HOLDFAST_TOKEN`, has all rights; `holdfast token create` makes others. `unlocked`: as long as there
    is no token at all, everybody who reaches it may operate, and it answers to this machine's own names only. `hosts`:
    the names by which it is reached, beside localhost and addresses written as numbers.
    """
    control = _control(app)
    place = Place(app, control, Visitors(control, token or os.environ.get("HOLDFAST_TOKEN") or None, unlocked=unlocked))

    @asynccontextmanager
    async def until_it_ends(_site: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(control.close)

    routes = [*_api_routes(place), *page_routes(place)]
    site = Starlette(routes=routes, exception_handlers={HTTPException: _refused_by_router}, lifespan=until_it_ends)
    return Guard(site, ["localhost", *hosts], loopback_only=unlocked, close=control.close)


def _control(app: Holdfast) -> Control:
    """On connections of its own, so that a slow page holds up nobody; what is only in memory has just one."""
    if app.url == IN_MEMORY:
        return Control(app.store, app.registry)
    database = open_database(app.url, app.store.database.dialect.schema)
    database.read_timeout_s = READ_SECONDS
    return Control(app.store.beside(database), app.registry)


def _api_routes(place: Place) -> list[BaseRoute]:
    live = Live(place)
    return [
        Route(f"{PREFIX}/openapi.json", _openapi(place), name="openapi"),
        Route(f"{PREFIX}/live", live.runs, name="live"),
        Route(f"{PREFIX}/runs/{{id}}/live", live.run, name="live_run"),
        Route("/metrics", _metrics(place), name="metrics"),
        *(route(place, operation) for operation in OPERATIONS),
    ]


def _openapi(place: Place) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            admit(await asyncio.to_thread(place.visitors.of, request), "read", whole=False)
            return json_answer(document(OPERATIONS, request.scope.get("root_path", "")))
        except Exception as error:
            return refused(error, request)

    return handle


def _metrics(place: Place) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            admit(await asyncio.to_thread(place.visitors.of, request), "read", whole=True)
            return Response(await asyncio.to_thread(exposition, place.control), media_type=CONTENT_TYPE)
        except Exception as error:
            return refused(error, request)

    return handle


async def _refused_by_router(request: Request, error: Exception) -> Response:
    """There is no such route, or not with this method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(getattr(error, "headers", None) or {})
    refusal = Refusal(status, f"{request.method} {request.url.path[:200]} isn't answered here", "no_route", headers)
    if _for_a_browser(request):
        return refused_page(refusal, request, None)
    return refused(refusal, request)


def _for_a_browser(request: Request) -> bool:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return "text/html" in request.headers.get("accept", "") and not path.startswith(PREFIX)
