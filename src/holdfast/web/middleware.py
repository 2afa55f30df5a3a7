"""What every request must pass, whatever its route, and what every answer says to browsers.

The Host must be one of ours: else a page elsewhere could give its own name our address, and read us as itself. What
changes something must come from our own pages: its Origin is our Host. (A program has no Origin; it has a token.)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.responses import TITLES, Problem, problem_response

SAFE = ("GET", "HEAD", "OPTIONS")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityMiddleware:
    """Stands before the whole site."""

    def __init__(
        self, site: ASGIApp, hosts: Iterable[str], *, loopback_only: bool, close: Callable[[], None] = lambda: None
    ) -> None:
        self._site = site
        self.close = close
        """Close its connections to the database; who serves it by itself needn't."""
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._site(scope, receive, send)
            return
        error_response = self._refused(scope["method"], Headers(scope=scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (self._site if error_response is None else problem_response(error_response))(
            scope, receive, send_with_headers
        )

    def _refused(self, method: str, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self.knows(host):
            return _problem(
                421,
                f"this isn't the dashboard of {host[:100]!r}: allow it with --allow-host, or hosts=[…]",
                "foreign_host",
            )
        if method in SAFE:
            return None
        origin = headers.get("origin")
        if origin is not None and not _same(origin, host):
            return _problem(403, "what changes something must come from this very site", "foreign_origin")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _problem(403, "what changes something must come from this very site", "cross_site")
        return None

    def knows(self, host: str) -> bool:
        """Whether a Host header names us. An address written as numbers can't be anybody else's name."""
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


def _same(origin: str, host: str) -> bool:
    """Whether an Origin is that of our Host. The scheme may differ: a proxy in front of us may speak TLS."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _problem(status: int, detail: str, code: str) -> Problem:
    return Problem(title=TITLES[status], status=status, detail=detail, code=code)
