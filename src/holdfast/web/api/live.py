"""Live updates as server-sent events: notify a page that a run or a list has changed.

An event says *that* something changed and carries a short summary; the client then requests the rest. Each listener
polls the database about once a second, and the number of listeners is bounded. A stream ends after five minutes; the
browser reconnects, and its credentials are checked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast.web.auth import Principal, SiteContext, authorize
from holdfast.web.responses import RequestError, error_response

POLL_INTERVAL_S = 1.0
MAX_LISTENERS = 100
STREAM_DURATION_S = 300.0
KEEPALIVE_INTERVAL_S = 15.0

_encode = msgspec.json.Encoder(enc_hook=str).encode


class LiveUpdates:
    """Streams changes to a bounded number of listeners."""

    def __init__(self, context: SiteContext) -> None:
        self._context = context
        self._listeners = 0
        self._versions: dict[str | None, tuple[float, str]] = {}
        self._lock = threading.Lock()

    async def run(self, request: Request) -> Response:
        """Stream changes of one run until it ends."""

        def poll(principal: Principal) -> tuple[Any, bool]:
            info = principal.run(self._context.control, self._context.control.runs.parse_id(request.path_params["id"]))
            version = self._context.control.runs.pulse(info.id)
            return {"id": info.id, "state": info.state, "progress": info.progress, "version": version}, info.final

        return await self._respond(request, poll)

    async def runs(self, request: Request) -> Response:
        """Stream changes of the newest runs, queues, gates and workers."""

        def poll(principal: Principal) -> tuple[Any, bool]:
            return {"version": self._version(principal.tenant)}, False

        return await self._respond(request, poll)

    def _version(self, tenant: str | None) -> str:
        """Return a hash that changes when the lists change; all listeners of a tenant share one poll."""
        with self._lock:
            at, version = self._versions.get(tenant, (0.0, ""))
            if time.monotonic() - at < POLL_INTERVAL_S / 2:
                return version
            control = self._context.control
            seen: list[Any] = [
                (run.id, run.state, run.attempt, run.progress) for run in control.runs.page(tenant=tenant, limit=50)
            ]
            seen.append([(gate.id, gate.until) for gate in control.gates.open(tenant, 100)])
            if tenant is None:
                seen += [control.counts.overview(), control.queues.paused()]
                seen.append([(each.session, each.state, each.runs) for each in control.workers.list()])
            version = hashlib.sha256(_encode(seen)).hexdigest()[:16]
            recent = dict(list(self._versions.items())[-MAX_LISTENERS:])
            self._versions = {**recent, tenant: (time.monotonic(), version)}
            return version

    async def _respond(self, request: Request, poll: Callable[[Principal], tuple[Any, bool]]) -> Response:
        try:
            principal = await asyncio.to_thread(self._context.authenticator.authenticate, request)
            authorize(principal, "read", all_tenants=False)
            first, final = await asyncio.to_thread(poll, principal)
            if self._listeners >= MAX_LISTENERS:
                detail = f"the limit of {MAX_LISTENERS} live connections is reached; retry later"
                raise RequestError(503, detail, "too_many", {"retry-after": "30"})
        except Exception as error:
            return error_response(error, request)
        stream = self._stream(request, principal, poll, first, final)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _stream(
        self,
        request: Request,
        principal: Principal,
        poll: Callable[[Principal], tuple[Any, bool]],
        last: Any,
        final: bool,
    ) -> AsyncIterator[bytes]:
        self._listeners += 1
        end = time.monotonic() + STREAM_DURATION_S
        sent_at = time.monotonic()
        try:
            yield b"retry: 3000\n\n" + _event("now", last)
            while not final and time.monotonic() < end and not await request.is_disconnected():
                await asyncio.sleep(POLL_INTERVAL_S)
                try:
                    current, final = await asyncio.to_thread(poll, principal)
                except Exception:  # the run was pruned or the database is unavailable: the client reconnects
                    return
                if current != last:
                    last, sent_at = current, time.monotonic()
                    yield _event("changed", current)
                elif time.monotonic() - sent_at > KEEPALIVE_INTERVAL_S:
                    sent_at = time.monotonic()
                    yield b": keepalive\n\n"
            if final:
                yield _event("over", last)
        finally:
            self._listeners -= 1


def _event(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode(data) + b"\n\n"
