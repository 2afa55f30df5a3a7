"""Serve MCP over HTTP (streamable HTTP, without sessions), protected like the dashboard and the REST API.

Each request carries its token. Without a token, a server for local use gives its users the roles that it was started
with, until a token is created.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.control import Control
from holdfast.model.access import Role
from holdfast.web.auth import Authenticator, Principal, SiteContext
from holdfast.web.clients import ClientAddresses
from holdfast.web.mcp.server import RequestContext, mcp_server
from holdfast.web.middleware import SecurityMiddleware
from holdfast.web.refusals import RefusalRecorder
from holdfast.web.request_limits import RequestLimits
from holdfast.web.request_threads import RequestThreads
from holdfast.web.responses import error_response

PATH = "/mcp"
PRINCIPAL = "holdfast.principal"


def mcp_site(
    app: Holdfast,
    control: Control,
    *,
    token: str | None = None,
    unlocked: bool = False,
    roles: tuple[Role, ...] = ("viewer",),
    hosts: Iterable[str] = (),
    proxies: Iterable[str] = (),
) -> SecurityMiddleware:
    """Build the server as an ASGI application, with the parameters of `dashboard`.

    `roles`: those of local users while no token exists.
    """
    threads = RequestThreads()
    context = SiteContext(
        app, control, Authenticator(control, token, unlocked=unlocked), threads, RefusalRecorder(control.audit)
    )
    manager = StreamableHTTPSessionManager(
        mcp_server(context, _principal_of),
        stateless=True,
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the middleware does it
    )

    def close() -> None:
        threads.close()
        control.close()

    @asynccontextmanager
    async def lifespan(_site: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield
        await asyncio.to_thread(close)

    site = Starlette(routes=[Route(PATH, _Endpoint(context, manager, roles))], lifespan=lifespan)
    return SecurityMiddleware(
        RequestLimits(site),
        ["localhost", *hosts],
        loopback_only=unlocked,
        clients=ClientAddresses(proxies),
        close=close,
    )


class _Endpoint:
    """Identifies the client of a request before MCP handles it."""

    def __init__(self, context: SiteContext, manager: StreamableHTTPSessionManager, roles: tuple[Role, ...]) -> None:
        self._context = context
        self._manager = manager
        self._roles = roles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            principal = await self._context.threads.run(self._context.authenticator.authenticate, request)
        except Exception as error:
            await error_response(error, request)(scope, receive, send)
            return
        if principal.method == "open":
            principal = dataclasses.replace(principal, roles=self._roles)
        await self._manager.handle_request({**scope, PRINCIPAL: principal}, receive, send)


def _principal_of(ctx: RequestContext) -> Principal:
    assert isinstance(ctx.request, Request)
    principal: Principal = ctx.request.scope[PRINCIPAL]
    return principal
