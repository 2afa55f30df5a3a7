"""Live updates as server-sent events: notify a page that a run or a list has changed.

An event says *that* something changed and carries a short summary; the client then requests the rest. Each listener
polls the database about once a second. Each poll also checks the credentials again, so that a logout or a revocation
ends the stream. The number of listeners is bounded, in total, by token and by client. A stream ends after five minutes,
and the browser reconnects.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.control import Control
from holdfast.model.access import AccessScope
from holdfast.model.run import RunState
from holdfast.web.api.event_streams import EventStream, StreamLimits, StreamOperation, StreamSlots
from holdfast.web.auth import Principal, SiteContext, authorize
from holdfast.web.responses import error_response

POLL_INTERVAL_S = 1.0
MAX_LISTENERS = 100
MAX_LISTENERS_PER_TOKEN = 50
MAX_LISTENERS_PER_CLIENT = 12
"""The same token at one address, or one login."""
STREAM_DURATION_S = 300.0
KEEPALIVE_INTERVAL_S = 15.0

_encode = msgspec.json.Encoder(enc_hook=str).encode


class ListChange(msgspec.Struct, frozen=True):
    """Sent to a page of lists: another version means that the lists have changed."""

    version: str


class RunChange(msgspec.Struct, frozen=True):
    """Sent to the page of a run."""

    id: UUID
    state: RunState
    progress: Any
    version: str


LIVE = StreamOperation(
    path="/live",
    name="live",
    summary="Follow changes of the newest runs, queues, gates and workers.",
    description="`now` comes first, and `changed` with each change. The stream ends after five minutes: connect again.",
    events={"now": ListChange, "changed": ListChange},
)
LIVE_RUN = StreamOperation(
    path="/runs/{id}/live",
    name="live_run",
    summary="Follow the state and the progress of a run.",
    description="`now` comes first, `changed` with each change, `over` when the run has ended. The stream ends after"
    " five minutes: connect again.",
    events={"now": RunChange, "changed": RunChange, "over": RunChange},
)


def _lists(control: Control, scope: AccessScope) -> list[Any]:
    """Read what the lists begin with."""
    seen: list[Any] = [
        (run.id, run.state, run.attempt, run.progress) for run in control.runs.page(scope=scope, limit=50)
    ]
    seen.append([(gate.id, gate.until) for gate in control.gates.open(scope, 100)])
    if not scope.is_limited:
        seen += [control.counts.overview(), control.queues.paused()]
        seen.append([(each.session, each.state, each.runs) for each in control.workers.list()])
    return seen


class LiveUpdates:
    """Streams changes to a bounded number of listeners."""

    def __init__(self, context: SiteContext) -> None:
        self._context = context
        self.slots = StreamSlots(
            lambda: StreamLimits(MAX_LISTENERS, MAX_LISTENERS_PER_TOKEN, MAX_LISTENERS_PER_CLIENT), "live connections"
        )
        self._versions: dict[AccessScope, tuple[float, str]] = {}
        self._lock = threading.Lock()

    async def run(self, request: Request) -> Response:
        """Stream changes of one run until it ends."""

        def poll(principal: Principal) -> tuple[Any, bool]:
            info = principal.run(self._context.control, self._context.control.runs.parse_id(request.path_params["id"]))
            version = self._context.control.runs.pulse(info.id)
            return RunChange(info.id, info.state, info.progress, version), info.final

        return await self._respond(request, poll)

    async def runs(self, request: Request) -> Response:
        """Stream changes of the newest runs, queues, gates and workers."""

        def poll(principal: Principal) -> tuple[Any, bool]:
            return ListChange(self._version(principal.scope)), False

        return await self._respond(request, poll)

    def _version(self, scope: AccessScope) -> str:
        """Return a hash that changes when the lists change; all listeners with the same scope share one poll."""
        with self._lock:
            at, version = self._versions.get(scope, (0.0, ""))
            if time.monotonic() - at < POLL_INTERVAL_S / 2:
                return version
            seen = self._context.reads.run(lambda control: _lists(control, scope)).value
            version = hashlib.sha256(_encode(seen)).hexdigest()[:16]
            recent = dict(list(self._versions.items())[-MAX_LISTENERS:])
            self._versions = {**recent, scope: (time.monotonic(), version)}
            return version

    async def _respond(self, request: Request, poll: Callable[[Principal], tuple[Any, bool]]) -> Response:
        try:
            principal = await self._context.threads.run(self._context.authenticator.authenticate, request)
            authorize(principal, "read")
            first, final = await self._context.threads.run(poll, principal)
        except Exception as error:
            return error_response(error, request)
        return EventStream(self.slots, principal.stream_keys, self._stream(request, principal, poll, first, final))

    async def _stream(
        self,
        request: Request,
        principal: Principal,
        poll: Callable[[Principal], tuple[Any, bool]],
        last: Any,
        final: bool,
    ) -> AsyncIterator[bytes]:
        end = time.monotonic() + STREAM_DURATION_S
        sent_at = time.monotonic()

        def poll_again() -> tuple[Any, bool]:
            if not self._context.authenticator.is_still_valid(request):
                raise PermissionError
            return poll(principal)

        yield b"retry: 3000\n\n" + _event("now", last)
        while not final and time.monotonic() < end and not await request.is_disconnected():
            await self.slots.sleep(POLL_INTERVAL_S)
            if self.slots.is_stopping:
                return
            try:
                current, final = await self._context.threads.run(poll_again)
            except Exception:  # logged out, the run was pruned, or the database is unavailable: the client reconnects
                return
            if current != last:
                last, sent_at = current, time.monotonic()
                yield _event("changed", current)
            elif time.monotonic() - sent_at > KEEPALIVE_INTERVAL_S:
                sent_at = time.monotonic()
                yield b": keepalive\n\n"
        if final:
            yield _event("over", last)


def _event(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode(data) + b"\n\n"
