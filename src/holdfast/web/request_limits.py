"""Bounds on what one request, one client and all clients together can occupy, whichever server is used.

`server.py` adds what only a server can do: timeouts for headers and for connections.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.clients import CLIENT
from holdfast.web.responses import new_problem, problem_response

MAX_REQUESTS = 120
MAX_REQUESTS_PER_CLIENT = 40
SEND_TIMEOUT_S = 60.0
"""How long a client may leave a part of a response unread."""
STREAMS = ("/live", "/stream")
"""The end of the paths of event streams, which have bounds of their own."""


class ClientTooSlow(Exception):
    """The client doesn't read the response."""


class RequestLimits:
    """Limits the number of concurrent requests, and the time that sending may take. For one event loop."""

    def __init__(self, site: ASGIApp) -> None:
        self._site = site
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._site(scope, receive, send)
            return

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await send(message)
            except TimeoutError:
                raise ClientTooSlow from None

        names = [] if scope["path"].endswith(STREAMS) else ["all", f"client {scope.get(CLIENT, 'unknown')}"]
        if names and (self._open[names[0]] >= MAX_REQUESTS or self._open[names[1]] >= MAX_REQUESTS_PER_CLIENT):
            detail = (
                f"too many concurrent requests: at most {MAX_REQUESTS} in total and {MAX_REQUESTS_PER_CLIENT} per"
                " client; retry later"
            )
            headers = {"retry-after": "1", "connection": "close"}  # its body may never come
            busy = problem_response(new_problem(503, detail, "too_many_requests"), headers)
            await busy(scope, receive, send_in_time)
            return
        self._open.update(names)
        try:
            await self._site(scope, receive, send_in_time)
        finally:
            self._open -= Counter(names)  # drops those that are zero
