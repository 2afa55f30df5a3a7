"""The HTTP server of `holdfast dashboard`: uvicorn, with timeouts for clients that send or read slowly.

uvicorn itself waits forever for a request, its body, and a client that doesn't read the response. A connection whose
client is too slow is dropped here, and the number of connections is bounded, in total and by client.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.telemetry import log
from holdfast.web.clients import ClientAddresses
from holdfast.web.middleware import SecurityMiddleware

HEAD_TIMEOUT_S = 10.0
"""How long a client may take to send the request line and the headers."""
BODY_TIMEOUT_S = 30.0
"""How long a client may take to send the body."""
WRITE_TIMEOUT_S = 30.0
"""How long a client may leave a part of a response unread that the kernel can't buffer."""
MAX_CONNECTIONS = 2500
MAX_CONNECTIONS_PER_CLIENT = 200
"""Trusted proxies, which connect on behalf of many clients, are excepted."""
SHUTDOWN_TIMEOUT_S = 2
"""Open requests aren't awaited any longer."""
MAX_OPEN_FILES = 8192


class DashboardServer(uvicorn.Server):
    """Ends the open streams of a site when it shuts down, instead of waiting for their clients."""

    def __init__(self, config: uvicorn.Config, stop_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop_streams = stop_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop_streams()
        await super().shutdown(sockets)


def server(site: SecurityMiddleware, clients: ClientAddresses) -> uvicorn.Server:
    """Create the server of a site. `clients` knows the trusted proxies."""

    class Protocol(TimedProtocol):
        is_proxy = staticmethod(clients.is_proxy)

    return DashboardServer(
        uvicorn.Config(
            site,
            http=Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        ),
        site.stop_streams,
    )


def allow_many_connections() -> None:
    """Raise this process's limit of open files as far as it may go: each connection needs one."""
    try:
        import resource
    except ImportError:  # not on this platform
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class TimedProtocol(H11Protocol):
    """One connection. uvicorn's own timer covers the time between requests."""

    is_proxy: Callable[[str], bool]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._phase: tuple[Any, object] = (None, None)
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._is_one_too_many():
            self._drop("too many connections")
            return
        transport.set_write_buffer_limits(high=0)  # report whatever the kernel doesn't take
        self._watch_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel(self._write_timer)
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self._drop, "response not read")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel(self._write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel(self._read_timer)
        self._cancel(self._write_timer)
        super().connection_lost(exc)

    def _is_one_too_many(self) -> bool:
        if len(self.connections) > MAX_CONNECTIONS:
            return True
        host = self._host()
        if self.is_proxy(host):
            return False
        of_client = [each for each in self.connections if isinstance(each, TimedProtocol) and each._host() == host]
        return len(of_client) > MAX_CONNECTIONS_PER_CLIENT

    def _host(self) -> str:
        return self.client[0] if self.client else ""

    def _watch_request(self) -> None:
        """Start the timer of the part of the request that is to come next: its head, its body, or nothing."""
        state = self.conn.their_state
        phase = state, self.cycle
        # Between two requests uvicorn's timer runs, until the first byte of the next one arrives.
        is_idle = state is h11.IDLE and self.timeout_keep_alive_task is not None
        if phase == self._phase and not is_idle and self._read_timer is not None:
            return
        self._cancel(self._read_timer)
        self._phase, self._read_timer = phase, None
        if state is h11.SEND_BODY:
            self._read_timer = self.loop.call_later(BODY_TIMEOUT_S, self._drop, "request body too slow")
        elif state is h11.IDLE and not is_idle:
            self._read_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._drop, "request head too slow")

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()

    def _drop(self, reason: str) -> None:
        log.client_dropped(self._host(), reason)
        self.transport.abort()
