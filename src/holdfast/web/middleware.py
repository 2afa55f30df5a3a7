"""Checks that every request must pass, and security headers that every response carries.

The Host header must name this site: otherwise a foreign page could resolve its own name to our address and read
responses as same-origin (DNS rebinding). A request that changes something must come from our own pages: its Origin must
equal the Host. Programs send no Origin; they send a token.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.responses import Problem, new_problem, problem_response

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityMiddleware:
    """Wraps the whole site: checks Host and Origin, adds security headers."""

    def __init__(
        self, site: ASGIApp, hosts: Iterable[str], *, loopback_only: bool, close: Callable[[], None] = lambda: None
    ) -> None:
        self._site = site
        self.close = close
        """Close the database connections. The ASGI lifespan does it too, where the server supports it."""
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._site(scope, receive, send)
            return
        problem = self._check(scope["method"], Headers(scope=scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (self._site if problem is None else problem_response(problem))(scope, receive, send_with_headers)

    def _check(self, method: str, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self.allows_host(host):
            detail = f"host {host[:100]!r} is not allowed: add it with --allow-host, or hosts=[…]"
            return new_problem(421, detail, "foreign_host")
        if method in SAFE_METHODS:
            return None
        origin = headers.get("origin")
        if origin is not None and not _same_origin(origin, host):
            return new_problem(403, "cross-origin requests may not change anything", "foreign_origin")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return new_problem(403, "cross-site requests may not change anything", "cross_site")
        return None

    def allows_host(self, host: str) -> bool:
        """Return whether a Host header names this site. An IP address can't be another site's name."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._loopback_only


def _same_origin(origin: str, host: str) -> bool:
    """Compare the Origin with the Host. The scheme may differ: a proxy in front of us may terminate TLS."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
