"""Live changes as server-sent events: that a run, or what a list shows, isn't any more what it was.

An event says only *that* something changed, and how it looks now in few words; who listens asks again for the rest. The
database is looked at once in a while per listener, and the number of listeners is bounded. A stream ends by itself
after some minutes, and the browser comes back with its credentials checked anew.
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

from holdfast.store.run_reader import run_id
from holdfast.web.api.operation import authorize, error_response
from holdfast.web.auth import Principal, SiteContext
from holdfast.web.responses import RequestError

LOOK_SECONDS = 1.0
MOST_LISTENERS = 100
STREAM_SECONDS = 300.0
SILENCE_SECONDS = 15.0

_encode = msgspec.json.Encoder(enc_hook=str).encode


class LiveUpdates:
    """Streams of changes, to a bounded number of listeners."""

    def __init__(self, context: SiteContext) -> None:
        self._place = context
        self._listeners = 0
        self._looked: dict[str | None, tuple[float, str]] = {}
        self._looking = threading.Lock()

    async def run(self, request: Request) -> Response:
        """Changes of one run; its end ends the stream."""

        def look(principal: Principal) -> tuple[Any, bool]:
            info = principal.run(self._place.control, run_id(request.path_params["id"]))
            version = self._place.control.runs.pulse(info.id)
            return {"id": info.id, "state": info.state, "progress": info.progress, "version": version}, info.final

        return await self._answer(request, look)

    async def runs(self, request: Request) -> Response:
        """Changes of the newest runs, and of what queues hold."""

        def look(principal: Principal) -> tuple[Any, bool]:
            return {"version": self._version(principal.tenant)}, False

        return await self._answer(request, look)

    def _version(self, tenant: str | None) -> str:
        """What is another one as soon as something has changed; looked for once for all who listen."""
        with self._looking:
            at, version = self._looked.get(tenant, (0.0, ""))
            if time.monotonic() - at < LOOK_SECONDS / 2:
                return version
            control = self._place.control
            told: list[Any] = [
                (run.id, run.state, run.attempt, run.progress) for run in control.runs.page(tenant=tenant, limit=50)
            ]
            told.append([(gate.id, gate.until) for gate in control.gates.open(tenant, 100)])
            if tenant is None:
                told += [control.counts.overview(), control.queues.paused()]
                told.append([(each.session, each.state, each.runs) for each in control.workers.list()])
            version = hashlib.sha256(_encode(told)).hexdigest()[:16]
            self._looked = {**dict(list(self._looked.items())[-MOST_LISTENERS:]), tenant: (time.monotonic(), version)}
            return version

    async def _answer(self, request: Request, look: Callable[[Principal], tuple[Any, bool]]) -> Response:
        try:
            principal = await asyncio.to_thread(self._place.authenticator.of, request)
            authorize(principal, "read", all_tenants=False)
            first, over = await asyncio.to_thread(look, principal)
            if self._listeners >= MOST_LISTENERS:
                raise RequestError(
                    503, f"{MOST_LISTENERS} listen already: ask again later", "too_many", {"retry-after": "30"}
                )
        except Exception as error:
            return error_response(error, request)
        stream = self._stream(request, principal, look, first, over)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _stream(
        self,
        request: Request,
        principal: Principal,
        look: Callable[[Principal], tuple[Any, bool]],
        seen: Any,
        over: bool,
    ) -> AsyncIterator[bytes]:
        self._listeners += 1
        end = time.monotonic() + STREAM_SECONDS
        spoke = time.monotonic()
        try:
            yield b"retry: 3000\n\n" + _event("now", seen)
            while not over and time.monotonic() < end and not await request.is_disconnected():
                await asyncio.sleep(LOOK_SECONDS)
                try:
                    now, over = await asyncio.to_thread(look, principal)
                except Exception:  # pruned, or the database is away: who listens comes back and is told
                    return
                if now != seen:
                    seen, spoke = now, time.monotonic()
                    yield _event("changed", now)
                elif time.monotonic() - spoke > SILENCE_SECONDS:
                    spoke = time.monotonic()
                    yield b": still here\n\n"
            if over:
                yield _event("over", seen)
        finally:
            self._listeners -= 1


def _event(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode(data) + b"\n\n"
