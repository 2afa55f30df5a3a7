"""Checks that every request must pass, and security headers that every response carries.

The Host header must name this site: otherwise a foreign page could resolve its own name to our address and read
responses as same-origin (DNS rebinding). A request that changes something must come from our own pages: its Origin must
equal the Host. Programs send no Origin; they send a token.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import ConfigError
from holdfast.model.signed_tokens import TOKEN_PARAMETER
from holdfast.web.clients import CLIENT, DIRECT, ClientAddresses, is_direct
from holdfast.web.responses import Problem, new_problem, problem_response

LINKS = "/links/"
"""How the paths of signed links begin."""
STREAM = "/stream"
"""How the path of a stream ends, for which there are signed URLs, too."""
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
_TOKEN = re.compile(rb"((?:^|&)%s=)[^&]*" % TOKEN_PARAMETER.encode())
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.(?!-)[a-z0-9_-]{1,63})*")


class SecurityMiddleware:
    """Wraps the whole site: checks Host and Origin, adds security headers."""

    def __init__(
        self,
        site: ASGIApp,
        hosts: Iterable[str],
        *,
        loopback_only: bool,
        clients: ClientAddresses,
        link_host: str | None = None,
        close: Callable[[], None] = lambda: None,
        stop_streams: Callable[[], None] = lambda: None,
    ) -> None:
        self._site = site
        self.stop_streams = stop_streams
        """End all open streams, on the event loop. The server does it before it shuts down."""
        self.close = close
        """Close the database connections. The ASGI lifespan does it too, where the server supports it."""
        self._hosts = frozenset(map(check_host, hosts))
        self._loopback_only = loopback_only
        self._clients = clients
        self._link_host = link_host
        if link_host is not None and not loopback_only:
            self._hosts |= {link_host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._site(scope, receive, send)
            return
        is_link = scope["path"].removeprefix(scope.get("root_path", "")).startswith(LINKS) or (
            scope["path"].endswith(STREAM) and _TOKEN.search(scope.get("query_string", b"")) is not None
        )
        problem = self._check(scope["method"], Headers(scope=scope), is_link=is_link)
        own_scope = {**scope, DIRECT: is_direct(scope), CLIENT: self._clients.of(scope)}
        # The server that calls this site logs the URL in its own scope when it sends the response.
        scope["query_string"] = _TOKEN.sub(rb"\1***", scope.get("query_string", b""))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (self._site if problem is None else problem_response(problem))(own_scope, receive, send_with_headers)

    def _check(self, method: str, headers: Headers, *, is_link: bool) -> Problem | None:
        """Return why a request isn't allowed.

        A signed link carries its permission in its URL, so no other site can borrow the user's: the public host name is
        allowed, even if the site itself is for local use, and the origin `null`, which browsers send with forms of a
        page whose referrer policy is `no-referrer`.
        """
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not (self.allows_host(host) or (is_link and self._is_link_host(host))):
            detail = f"host {host[:100]!r} is not allowed: add it with --allow-host, or hosts=[…]"
            return new_problem(421, detail, "foreign_host")
        if method in SAFE_METHODS:
            return None
        origin = headers.get("origin")
        if origin is not None and not _same_origin(origin, host) and not (is_link and origin == "null"):
            return new_problem(403, "cross-origin requests may not change anything", "foreign_origin")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return new_problem(403, "cross-site requests may not change anything", "cross_site")
        return None

    def _is_link_host(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        return found is not None and found["name"].strip("[]").lower() == self._link_host

    def allows_host(self, host: str) -> bool:
        """Return whether a Host header names this site. An IP address can't be another site's name."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found["name"].lower()
        if name in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return address.is_loopback or not self._loopback_only


def check_host(host: str) -> str:
    """Return an allowed host name as Host headers write it, if it is one: without scheme, port and path."""
    name = host.lower() if isinstance(host, str) else ""
    try:
        address = ipaddress.ip_address(name.strip("[]"))
        return f"[{address}]" if address.version == 6 else str(address)
    except ValueError:
        if _HOST_NAME.fullmatch(name):
            return name
    raise ConfigError(f"{str(host)[:100]!r} is not a host name: use a name such as ops.example.org, without a port")


def _same_origin(origin: str, host: str) -> bool:
    """Compare the Origin with the Host. The scheme may differ: a proxy in front of us may terminate TLS."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
