"""Responses that stay open and send events: bounded in number, and ended at once when the server shuts down."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.web.responses import new_problem, problem_response

SSE_TYPE = "text/event-stream"
NDJSON_TYPE = "application/x-ndjson"


class StreamParameter(NamedTuple):
    """A parameter of a request for a stream, and the JSON type of its value."""

    place: Literal["query", "header"]
    type: Literal["string", "integer"]
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOperation:
    """A GET of the API whose response is a stream of events. Its path, and what the OpenAPI document says of it."""

    path: str
    name: str
    summary: str
    description: str
    events: Mapping[str, Any]
    """The types of the events' data, by the names of the events."""
    media_types: tuple[str, ...] = (SSE_TYPE,)
    parameters: Mapping[str, StreamParameter] = field(default_factory=dict)
    more_responses: Mapping[int, str] = field(default_factory=dict)
    """Other responses than 200 and problems, by status."""


class StreamLimits(NamedTuple):
    """How many streams may be open: in all, of one token, and of one client."""

    total: int
    per_token: int
    per_client: int


class StreamSlots:
    """Counts open streams: all of them, those of each token, and those of each client. For one event loop."""

    def __init__(self, limits: Callable[[], StreamLimits], what: str) -> None:
        self._limits = limits
        self._what = what
        self._open: Counter[str] = Counter()
        self._sleeping: set[asyncio.Event] = set()
        self.is_stopping = False

    def acquire(self, keys: Sequence[str]) -> bool:
        """Take a slot for a stream of a token and a client; return whether there was one."""
        names = self._names(keys)
        if any(self._open[name] >= limit for name, limit in zip(names, self._limits(), strict=True)):
            return False
        self._open.update(names)
        return True

    def release(self, keys: Sequence[str]) -> None:
        self._open -= Counter(self._names(keys))  # drops those that are zero

    @staticmethod
    def _names(keys: Sequence[str]) -> list[str]:
        token, client = keys
        return ["", f"token {token}", f"client {client}"]

    @property
    def refusal(self) -> str:
        """The message to a client for which there is no slot."""
        total, per_token, per_client = self._limits()
        return (
            f"too many {self._what}: at most {total} in total, {per_token} per token and {per_client} per client;"
            " retry later"
        )

    # Shutdown

    def stop(self) -> None:
        """End all streams, because the server shuts down. Called on the event loop."""
        self.is_stopping = True
        for event in self._sleeping:
            event.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep until `stop`, or for this long."""
        if self.is_stopping:
            return
        woken = asyncio.Event()
        self._sleeping.add(woken)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()
        finally:
            self._sleeping.discard(woken)


class EventStream(StreamingResponse):
    """A stream of events that holds a slot while it is open."""

    def __init__(
        self,
        slots: StreamSlots,
        keys: Sequence[str],
        events: AsyncIterator[bytes],
        media_type: str = SSE_TYPE,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(events, media_type=media_type, headers={"x-accel-buffering": "no", **(headers or {})})
        self._slots = slots
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._slots.acquire(self._keys):
            refusal = problem_response(new_problem(503, self._slots.refusal, "too_many"), {"retry-after": "30"})
            await refusal(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._slots.release(self._keys)
