"""The whole site as one ASGI application."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.app import Holdfast
from holdfast.control import Control
from holdfast.control.open import IN_MEMORY, reopen_store
from holdfast.errors import ConfigError
from holdfast.web.api import audit, budgets, interaction, resources, runs, tokens, topics
from holdfast.web.api.live import LIVE, LIVE_RUN, LiveUpdates
from holdfast.web.api.metrics import CONTENT_TYPE, exposition, replica_gauges
from holdfast.web.api.openapi import document
from holdfast.web.api.operation import PREFIX, Handler, route
from holdfast.web.api.streams import STREAM_RUN, StreamEndpoint
from holdfast.web.auth import Authenticator, SiteContext, authorize, client_of
from holdfast.web.clients import ClientAddresses
from holdfast.web.health import HealthEndpoints
from holdfast.web.links import link_routes
from holdfast.web.middleware import SecurityMiddleware
from holdfast.web.pages.page import error_page
from holdfast.web.pages.routes import LOGIN, OIDC_CALLBACK, page_routes
from holdfast.web.refusals import RefusalRecorder, record_refusal
from holdfast.web.request_limits import RequestLimits
from holdfast.web.request_threads import RequestThreads
from holdfast.web.responses import RequestError, error_response, json_response
from holdfast.web.sign_in import SignIn

if TYPE_CHECKING:
    from holdfast.web.oidc import OidcClient

READ_TIMEOUT_S = 5.0
STREAMS = (LIVE, LIVE_RUN, STREAM_RUN)
OPERATIONS = (
    *runs.OPERATIONS,
    *interaction.OPERATIONS,
    *budgets.OPERATIONS,
    *resources.OPERATIONS,
    *topics.OPERATIONS,
    *tokens.OPERATIONS,
    *audit.OPERATIONS,
)


def dashboard(
    app: Holdfast,
    *,
    token: str | None = None,
    unlocked: bool = False,
    hosts: Iterable[str] = (),
    proxies: Iterable[str] = (),
    sign_in: SignIn | None = None,
    read_url: str | None = None,
) -> SecurityMiddleware:
    """Build the dashboard and the API of an app as an ASGI application, to be served or mounted.

    `token`, or `$HOLDFAST_TOKEN`, grants all permissions and has at least 32 characters; `holdfast token create`
    creates others. `unlocked`: until a token is created, every user of this machine has all permissions. That applies
    only to requests that a server on a loopback address receives itself, not through a proxy or a mount. `hosts`: the
    host names it is reached by, besides localhost and IP addresses. `proxies`: addresses or networks of reverse proxies
    whose X-Forwarded-For header names the client. `sign_in`: how people sign in without a token. `read_url`:
    a replica of the PostgreSQL server, for lists, statistics and metrics.
    """
    hosts, proxies = list(hosts), list(proxies)
    if unlocked and (hosts or sign_in is not None):
        raise ConfigError("unlocked=True is for local use only: omit it, or omit hosts and sign_in")
    if sign_in is not None and sign_in.identity_header is not None and not proxies:
        raise ConfigError("an identity header needs proxies=[…]: the addresses from which it is believed")
    clients = ClientAddresses(proxies)
    control = _control(app)
    replica = None if read_url is None else _replica(app, read_url)
    token = token or os.environ.get("HOLDFAST_TOKEN") or None
    threads = RequestThreads()
    authenticator = Authenticator(control, token, unlocked=unlocked, sign_in=sign_in, clients=clients)
    refusals, oidc = RefusalRecorder(control.audit), _oidc_client(app, control, sign_in)
    context = SiteContext(app, control, authenticator, threads, refusals, oidc, replica)

    def close() -> None:
        threads.close()
        context.reads.close()
        control.close()

    @asynccontextmanager
    async def lifespan(_site: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(close)

    live, streams = LiveUpdates(context), StreamEndpoint(context, app._client.streams.followers)

    def stop_streams() -> None:
        live.slots.stop()
        streams.stop()

    api = [*HealthEndpoints(context).routes(), *_api_routes(context, live, streams)]
    routes = [*api, *link_routes(context), *page_routes(context)]
    site = Starlette(routes=routes, exception_handlers={HTTPException: _routing_error}, lifespan=lifespan)
    site.state.oidc = context.oidc is not None
    limited = RequestLimits(site)
    return SecurityMiddleware(
        limited,
        ["localhost", *hosts],
        loopback_only=unlocked,
        clients=clients,
        link_host=app.links.host,
        close=close,
        stop_streams=stop_streams,
    )


def _oidc_client(app: Holdfast, control: Control, sign_in: SignIn | None) -> OidcClient | None:
    if sign_in is None or sign_in.oidc is None:
        return None
    from holdfast.web.oidc import OidcClient

    if app.links.public_url is None:
        raise ConfigError("OpenID Connect needs the address of the dashboard: set $HOLDFAST_PUBLIC_URL, or public_url=")
    key = hashlib.sha256(b"holdfast oidc\0" + control.identity.encode()).digest()
    return OidcClient(sign_in.oidc, key, app.links.public_url + OIDC_CALLBACK, app.links.public_url + LOGIN)


def _control(app: Holdfast) -> Control:
    """Use separate connections, so that a slow page doesn't delay the app; an in-memory database has only one."""
    if app.url == IN_MEMORY:
        return Control(app.store, app.registry, app.links)
    return Control(reopen_store(app.store, app.url, read_timeout_s=READ_TIMEOUT_S), app.registry, app.links)


def _replica(app: Holdfast, url: str) -> Control:
    """Open the control of a replica. It is connected to with its first use, so it may be unreachable at the start."""
    store = reopen_store(app.store, url, migrate=False, read_timeout_s=READ_TIMEOUT_S)
    if {app.store.database.dialect.name, store.database.dialect.name} != {"postgres"}:
        raise ConfigError("a read URL is for PostgreSQL: it names a replica of the app's server")
    return Control(store, app.registry, app.links)


def _api_routes(context: SiteContext, live: LiveUpdates, streams: StreamEndpoint) -> list[BaseRoute]:
    return [
        Route(f"{PREFIX}/openapi.json", _openapi(context), name="openapi"),
        Route(PREFIX + LIVE.path, live.runs, name=LIVE.name),
        Route(PREFIX + LIVE_RUN.path, live.run, name=LIVE_RUN.name),
        Route(PREFIX + STREAM_RUN.path, streams.stream, name=STREAM_RUN.name),
        Route("/metrics", _metrics(context), name="metrics"),
        *(route(context, operation) for operation in OPERATIONS),
    ]


def _openapi(context: SiteContext) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            authorize(await context.threads.run(context.authenticator.authenticate, request), "read")
            return json_response(document(OPERATIONS, STREAMS, request.scope.get("root_path", "")))
        except Exception as error:
            return error_response(error, request)

    return handle


def _metrics(context: SiteContext) -> Handler:
    async def handle(request: Request) -> Response:
        principal = None
        try:
            principal = await context.threads.run(context.authenticator.authenticate, request)
            authorize(principal, "read", all_tenants=True)
            read = await context.threads.run(context.reads.run, exposition)
            text = read.value + (replica_gauges(read.lag_s) if context.reads.has_replica else "")
            return Response(text, media_type=CONTENT_TYPE)
        except Exception as error:
            await record_refusal(context, principal, "api", "GET /metrics", client_of(request), error)
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
