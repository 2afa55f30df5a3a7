"""The whole site as one ASGI application."""

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
from holdfast.control.open import IN_MEMORY, reopen_store
from holdfast.errors import ConfigError
from holdfast.web.api import budgets, interaction, resources, runs, tokens, topics
from holdfast.web.api.live import LiveUpdates
from holdfast.web.api.metrics import CONTENT_TYPE, exposition
from holdfast.web.api.openapi import document
from holdfast.web.api.operation import PREFIX, Handler, route
from holdfast.web.api.streams import StreamEndpoint
from holdfast.web.auth import Authenticator, SiteContext, authorize
from holdfast.web.clients import ClientAddresses
from holdfast.web.links import link_routes
from holdfast.web.middleware import SecurityMiddleware
from holdfast.web.pages.page import error_page
from holdfast.web.pages.routes import page_routes
from holdfast.web.request_limits import RequestLimits
from holdfast.web.request_threads import RequestThreads
from holdfast.web.responses import RequestError, error_response, json_response

READ_TIMEOUT_S = 5.0
OPERATIONS = (
    *runs.OPERATIONS,
    *interaction.OPERATIONS,
    *budgets.OPERATIONS,
    *resources.OPERATIONS,
    *topics.OPERATIONS,
    *tokens.OPERATIONS,
)


def dashboard(
    app: Holdfast,
    *,
    token: str | None = None,
    unlocked: bool = False,
    hosts: Iterable[str] = (),
    proxies: Iterable[str] = (),
) -> SecurityMiddleware:
    """Build the dashboard and the API of an app as an ASGI application, to be served or mounted.

    `token`, or `$HOLDFAST_TOKEN`, grants all permissions and has at least 32 characters; `holdfast token create`
    creates others. `unlocked`: until a token is created, every user of this machine has all permissions. That applies
    only to requests that a server on a loopback address receives itself, not through a proxy or a mount. `hosts`: the
    host names it is reached by, besides localhost and IP addresses. `proxies`: addresses or networks of reverse proxies
    whose X-Forwarded-For header names the client.
    """
    hosts = list(hosts)
    if unlocked and hosts:
        raise ConfigError("unlocked=True is for local use only: omit it, or omit hosts")
    control = _control(app)
    token = token or os.environ.get("HOLDFAST_TOKEN") or None
    threads = RequestThreads()
    context = SiteContext(app, control, Authenticator(control, token, unlocked=unlocked), threads)

    def close() -> None:
        threads.close()
        control.close()

    @asynccontextmanager
    async def lifespan(_site: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(close)

    live, streams = LiveUpdates(context), StreamEndpoint(context, app._client.streams.followers)

    def stop_streams() -> None:
        live.slots.stop()
        streams.stop()

    routes = [*_api_routes(context, live, streams), *link_routes(context), *page_routes(context)]
    site = Starlette(routes=routes, exception_handlers={HTTPException: _routing_error}, lifespan=lifespan)
    limited = RequestLimits(site)
    return SecurityMiddleware(
        limited,
        ["localhost", *hosts],
        loopback_only=unlocked,
        clients=ClientAddresses(proxies),
        link_host=app.links.host,
        close=close,
        stop_streams=stop_streams,
    )


def _control(app: Holdfast) -> Control:
    """Use separate connections, so that a slow page doesn't delay the app; an in-memory database has only one."""
    if app.url == IN_MEMORY:
        return Control(app.store, app.registry, app.links)
    return Control(reopen_store(app.store, app.url, read_timeout_s=READ_TIMEOUT_S), app.registry, app.links)


def _api_routes(context: SiteContext, live: LiveUpdates, streams: StreamEndpoint) -> list[BaseRoute]:
    return [
        Route(f"{PREFIX}/openapi.json", _openapi(context), name="openapi"),
        Route(f"{PREFIX}/live", live.runs, name="live"),
        Route(f"{PREFIX}/runs/{{id}}/live", live.run, name="live_run"),
        Route(f"{PREFIX}/runs/{{id}}/stream", streams.stream, name="stream_run"),
        Route("/metrics", _metrics(context), name="metrics"),
        *(route(context, operation) for operation in OPERATIONS),
    ]


def _openapi(context: SiteContext) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            authorize(await context.threads.run(context.authenticator.authenticate, request), "read")
            return json_response(document(OPERATIONS, request.scope.get("root_path", "")))
        except Exception as error:
            return error_response(error, request)

    return handle


def _metrics(context: SiteContext) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            authorize(await context.threads.run(context.authenticator.authenticate, request), "read", all_tenants=True)
            return Response(await context.threads.run(exposition, context.control), media_type=CONTENT_TYPE)
        except Exception as error:
            return error_response(error, request)

    return handle


async def _routing_error(request: Request, error: Exception) -> Response:
    """Answer a request without a matching route or method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(getattr(error, "headers", None) or {})
    detail = f"no route for {request.method} {request.url.path[:200]}"
    answer = error_page if _from_browser(request) else error_response
    return answer(RequestError(status, detail, "no_route", headers), request)


def _from_browser(request: Request) -> bool:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return "text/html" in request.headers.get("accept", "") and not path.startswith(PREFIX)
