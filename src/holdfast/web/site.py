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
from holdfast.web.api import bulk, resources, runs
from holdfast.web.api.live import LiveUpdates
from holdfast.web.api.metrics import CONTENT_TYPE, exposition
from holdfast.web.api.openapi import document
from holdfast.web.api.operation import PREFIX, Handler, authorize, error_response, route
from holdfast.web.auth import Authenticator, SiteContext
from holdfast.web.middleware import SecurityMiddleware
from holdfast.web.pages.page import error_page
from holdfast.web.pages.routes import page_routes
from holdfast.web.responses import RequestError, json_response

READ_SECONDS = 5.0
OPERATIONS = (*runs.OPERATIONS, *bulk.OPERATIONS, *resources.OPERATIONS)


def dashboard(
    app: Holdfast, *, token: str | None = None, unlocked: bool = False, hosts: Iterable[str] = ()
) -> SecurityMiddleware:
    """The dashboard and the API of an app, to be served, or mounted in another ASGI application.

    `token`, or `$HOLDFAST_TOKEN`, has all rights; `holdfast token create` makes others. `unlocked`: as long as there
    is no token at all, everybody who reaches it may operate, and it answers to this machine's own names only. `hosts`:
    the names by which it is reached, beside localhost and addresses written as numbers.
    """
    control = _control(app)
    context = SiteContext(
        app, control, Authenticator(control, token or os.environ.get("HOLDFAST_TOKEN") or None, unlocked=unlocked)
    )

    @asynccontextmanager
    async def until_it_ends(_site: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(control.close)

    routes = [*_api_routes(context), *page_routes(context)]
    site = Starlette(routes=routes, exception_handlers={HTTPException: _refused_by_router}, lifespan=until_it_ends)
    return SecurityMiddleware(site, ["localhost", *hosts], loopback_only=unlocked, close=control.close)


def _control(app: Holdfast) -> Control:
    """On connections of its own, so that a slow page holds up nobody; what is only in memory has just one."""
    if app.url == IN_MEMORY:
        return Control(app.store, app.registry)
    database = open_database(app.url, app.store.database.dialect.schema)
    database.read_timeout_s = READ_SECONDS
    return Control(app.store.with_database(database), app.registry)


def _api_routes(context: SiteContext) -> list[BaseRoute]:
    live = LiveUpdates(context)
    return [
        Route(f"{PREFIX}/openapi.json", _openapi(context), name="openapi"),
        Route(f"{PREFIX}/live", live.runs, name="live"),
        Route(f"{PREFIX}/runs/{{id}}/live", live.run, name="live_run"),
        Route("/metrics", _metrics(context), name="metrics"),
        *(route(context, operation) for operation in OPERATIONS),
    ]


def _openapi(context: SiteContext) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            authorize(await asyncio.to_thread(context.authenticator.of, request), "read", all_tenants=False)
            return json_response(document(OPERATIONS, request.scope.get("root_path", "")))
        except Exception as error:
            return error_response(error, request)

    return handle


def _metrics(context: SiteContext) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            authorize(await asyncio.to_thread(context.authenticator.of, request), "read", all_tenants=True)
            return Response(await asyncio.to_thread(exposition, context.control), media_type=CONTENT_TYPE)
        except Exception as error:
            return error_response(error, request)

    return handle


async def _refused_by_router(request: Request, error: Exception) -> Response:
    """There is no such route, or not with this method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(getattr(error, "headers", None) or {})
    refusal = RequestError(
        status, f"{request.method} {request.url.path[:200]} isn't answered here", "no_route", headers
    )
    if _for_a_browser(request):
        return error_page(refusal, request, None)
    return error_response(refusal, request)


def _for_a_browser(request: Request) -> bool:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return "text/html" in request.headers.get("accept", "") and not path.startswith(PREFIX)
