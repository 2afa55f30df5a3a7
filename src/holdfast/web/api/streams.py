"""Streams of runs over HTTP: what a run writes with `ctx.write` and sets with `ctx.set`, and how it ends.

All readers of a run share one `RunFeed`, which reads each new chunk once and keeps the last ones in a bounded buffer. A
reader has no queue of its own, only the number of the last chunk that it was sent: if the buffer doesn't reach back
that far, because the reader has just come or is slow, it reads a page of chunks from the database.

The events for a chunk are the same for every reader and don't depend on where a reader has started.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.client.streams import RunFollowers, StreamFollower, set_from_thread
from holdfast.control.interaction import ValueInfo
from holdfast.control.streams import ChunkInfo, StreamControl, StreamNews
from holdfast.errors import ErrorInfo, HoldfastError, StoreUnavailable
from holdfast.model.run import RunInfo, RunState, StreamReset
from holdfast.model.signed_tokens import TOKEN_PARAMETER, TokenRefused
from holdfast.model.stream_urls import check_stream_token
from holdfast.telemetry import log
from holdfast.web.api.event_streams import (
    NDJSON_TYPE,
    SSE_TYPE,
    EventStream,
    StreamLimits,
    StreamOperation,
    StreamParameter,
    StreamSlots,
)
from holdfast.web.auth import SiteContext, authorize
from holdfast.web.clients import CLIENT
from holdfast.web.request_threads import RequestThreads
from holdfast.web.responses import RequestError, error_response

MAX_STREAMS = 2000
MAX_STREAMS_PER_TOKEN = 1500
"""The readers of a run with signed URLs count like those of a token."""
MAX_STREAMS_PER_CLIENT = 100
STREAM_DURATION_S = 3600.0
"""A stream ends after this time, and its reader reconnects."""
HEARTBEAT_INTERVAL_S = 15.0
CREDENTIALS_INTERVAL_S = 5.0
"""How often the credentials of open streams are checked, once for all streams with the same ones."""
OUTAGE_PAUSE_S = 1.0
MAX_BUFFERED_EVENTS = 1000
MAX_BUFFERED_BYTES = 1024 * 1024
MAX_WRITE_BYTES = 64 * 1024
"""A part of the response ends with the first event beyond."""
MAX_OFFSET = 2**31 - 1
END_MARK = ".end"
"""Follows the number of the last chunk in the id of `end`: a reader that comes back with it has read everything."""
NOT_VALID = "this URL is not valid for this stream, or has expired: get a new one from run.stream_url()"

_encode = msgspec.json.Encoder(enc_hook=str).encode


class ChunkData(msgspec.Struct, frozen=True):
    """The data of the event `chunk`. `step`: the key of the step that wrote it, None for the function's body."""

    id: int
    data: Any
    attempt: int
    step: str | None
    step_try: int = msgspec.field(name="try")


class EndData(msgspec.Struct, frozen=True):
    """The data of the event `end`. With a signed URL, it has no result and no error."""

    state: RunState
    result: Any = msgspec.UNSET
    error: ErrorInfo | msgspec.UnsetType | None = msgspec.UNSET


STREAM_RUN = StreamOperation(
    path="/runs/{id}/stream",
    name="stream_run",
    summary="Follow what a run writes and sets, until it ends.",
    description="Resumable: `after` or `Last-Event-ID` is the id of the last chunk that you have. `reset` says which"
    " chunks no longer count, `value` has a value that was set, and `end` comes last. In NDJSON, each line is an object"
    " with the name of the event as `event` and the members of its data.",
    events={"chunk": ChunkData, "reset": StreamReset, "value": ValueInfo, "end": EndData},
    media_types=(SSE_TYPE, NDJSON_TYPE),
    parameters={
        "after": StreamParameter("query", "string", "The id of the last event that you have."),
        TOKEN_PARAMETER: StreamParameter("query", "string", "The signature of a URL from `run.stream_url()`."),
        "Last-Event-ID": StreamParameter("header", "string", "The same as `after`; browsers send it."),
    },
    more_responses={204: "The reader has read everything."},
)


class Event:
    """An event in the formats in which it is sent. `id`: the number of its chunk, None if it belongs to none."""

    __slots__ = ("_parts", "_sse", "id", "size")

    def __init__(self, id: int | None, *parts: tuple[str, bytes, str | None]) -> None:
        self.id = id
        self._parts = parts  # name, JSON object, id
        self._sse: bytes | None = None
        self.size = sum(len(body) for _, body, _ in parts)

    @property
    def sse(self) -> bytes:
        """The event for `text/event-stream`."""
        if self._sse is None:
            lines = [
                (b"" if id is None else b"id: %b\n" % id.encode()) + b"event: %b\ndata: %b\n\n" % (name.encode(), body)
                for name, body, id in self._parts
            ]
            self._sse = b"".join(lines)
        return self._sse

    @property
    def ndjson(self) -> bytes:
        """The event for `application/x-ndjson`."""
        return b"".join(
            b'{"event":"%b"%b%b\n' % (name.encode(), b"" if body == b"{}" else b",", body[1:])
            for name, body, _ in self._parts
        )


class StreamFormat(NamedTuple):
    """How events are written."""

    media_type: str
    is_sse: bool
    opening: bytes
    heartbeat: bytes

    def write(self, event: Event) -> bytes:
        return event.sse if self.is_sse else event.ndjson


SSE = StreamFormat(SSE_TYPE, True, b"retry: 1000\n\n", b": heartbeat\n\n")
NDJSON = StreamFormat(NDJSON_TYPE, False, b"", b'{"event":"heartbeat"}\n')


def reset_event(reset: StreamReset) -> tuple[str, bytes, None]:
    """Return the part of an event that tells which chunks no longer count. It has no id: it comes with a chunk."""
    return "reset", _encode(reset), None


def chunk_event(chunk: ChunkInfo) -> Event:
    """Return the event of a chunk, which begins with a `reset` if the chunk replaces others."""
    body = ChunkData(chunk.id, chunk.data, chunk.attempt, chunk.step, chunk.step_try)
    part = ("chunk", _encode(body), str(chunk.id))
    return Event(chunk.id, part) if chunk.reset is None else Event(chunk.id, reset_event(chunk.reset), part)


def value_event(value: ValueInfo) -> Event:
    return Event(None, ("value", _encode(value), None))


def end_event(last: int, info: RunInfo[Any], *, with_result: bool) -> Event:
    """Return the event of the end of a run."""
    body = EndData(info.state, info.result, info.error) if with_result else EndData(info.state)
    return Event(None, ("end", _encode(body), f"{last}{END_MARK}"))


class RunFeed:
    """Reads the stream of one run, for all readers of this process. On one event loop."""

    def __init__(self, id: UUID, streams: StreamControl, threads: RequestThreads, followers: RunFollowers) -> None:
        self.id = id
        self.readers = 0
        self.head = self.floor = 0
        """The last chunk that was read, and the chunk behind which all are in the buffer."""
        self.values: dict[str, tuple[int, Event]] = {}
        self.ended: RunInfo[Any] | None = None
        self.is_closed = False
        """It reads no more: the run has ended, is gone, or can't be read."""
        self.changed = asyncio.Event()
        """Set when there is something new; then replaced."""
        self._buffer: deque[Event] = deque()
        self._buffered_bytes = 0
        self._pages: dict[int, asyncio.Task[list[Event]]] = {}
        self._streams = streams
        self._threads = threads
        self._followers = followers
        self._news = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.follower = StreamFollower(id, lambda: set_from_thread(loop, self._news))
        self.started = loop.create_future()
        self._task = loop.create_task(self._read())

    def wake(self) -> None:
        """Read on, because there may be news."""
        self._news.set()

    async def _read(self) -> None:
        try:
            with self._followers.add(self.follower):
                self.head = self.floor = await self._threads.run(self._streams.last, self.id)
                while self.ended is None:
                    self._news.clear()
                    try:
                        news = await self._threads.run(self._streams.news, self.id, self.head, self.follower.values)
                    except StoreUnavailable as error:
                        log.request_unavailable(f"stream of run {self.id}", str(error))
                        await asyncio.sleep(OUTAGE_PAUSE_S)
                        continue
                    self._take(news)
                    if not news.chunks and self.ended is None:
                        await self._news.wait()
        except HoldfastError as error:  # The run was pruned, or the database is unavailable from the start.
            log.request_unavailable(f"stream of run {self.id}", str(error))
        finally:
            self.is_closed = True
            self._announce()

    def _take(self, news: StreamNews) -> None:
        for chunk in news.chunks:
            event = chunk_event(chunk)
            self._buffer.append(event)
            self._buffered_bytes += event.size
            self.head = chunk.id
        while len(self._buffer) > MAX_BUFFERED_EVENTS or self._buffered_bytes > MAX_BUFFERED_BYTES:
            dropped = self._buffer.popleft()
            self._buffered_bytes -= dropped.size
            self.floor = dropped.id or self.floor
        for value in news.values or ():
            if self.values.get(value.name, (0,))[0] != value.version:
                self.values[value.name] = value.version, value_event(value)
        self.follower.after, self.follower.values = self.head, news.values_version
        self.ended = news.ended
        self._announce()

    def _announce(self) -> None:
        if not self.started.done():
            self.started.set_result(None)
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def after(self, offset: int) -> Sequence[Event]:
        """Return the next events behind a chunk; none if there are none yet."""
        if offset >= self.head:
            return ()
        if offset >= self.floor:
            return self._buffered(offset)
        return await self._page(offset)

    def _buffered(self, offset: int) -> list[Event]:
        found: list[Event] = []
        for event in reversed(self._buffer):
            if (event.id or 0) <= offset:
                break
            found.append(event)
        return found[::-1]

    async def _page(self, offset: int) -> list[Event]:
        """Read a page of chunks from the database, once for all readers that need it at the same time."""
        page = self._pages.get(offset)
        if page is None:
            page = self._pages[offset] = asyncio.get_running_loop().create_task(self._read_page(offset))
            page.add_done_callback(lambda _: self._pages.pop(offset, None))
        return await asyncio.shield(page)

    async def _read_page(self, offset: int) -> list[Event]:
        return [chunk_event(chunk) for chunk in await self._threads.run(self._streams.chunks, self.id, offset)]

    def close(self) -> None:
        """Stop reading."""
        self._task.cancel()
        for page in self._pages.values():
            page.cancel()


class Reader(NamedTuple):
    """A request for a stream and what it may see."""

    request: Request
    run: UUID
    keys: tuple[str, str]
    """What it is counted by: token and client."""
    expires_at: float | None = None
    """When a signed URL expires, by the monotonic clock; None for tokens and logins."""

    @property
    def is_signed(self) -> bool:
        return self.expires_at is not None


class StreamEndpoint:
    """The streams that are open, and the feeds that they read."""

    def __init__(self, context: SiteContext, followers: RunFollowers) -> None:
        self._context = context
        self._streams = context.control.streams
        self._followers = followers
        self._feeds: dict[UUID, RunFeed] = {}
        self._checked: dict[tuple[str, str], tuple[float, bool]] = {}
        self._poller: asyncio.Task[None] | None = None
        self.slots = StreamSlots(
            lambda: StreamLimits(MAX_STREAMS, MAX_STREAMS_PER_TOKEN, MAX_STREAMS_PER_CLIENT), "streams"
        )

    async def stream(self, request: Request) -> Response:
        """Stream what a run writes until it ends."""
        try:
            reader = await self._context.threads.run(self._authorize, request)
            offset, has_ended = _offset(request)
        except Exception as error:
            return error_response(error, request)
        headers = {"access-control-allow-origin": "*"} if reader.is_signed else {}
        accept = request.headers.get("accept", "")
        form = NDJSON if NDJSON.media_type in accept and SSE.media_type not in accept else SSE
        if request.method == "HEAD":
            return Response(headers=headers, media_type=form.media_type)
        if has_ended and form.is_sse and (await self._context.threads.run(self._summary, reader.run)).final:
            return Response(status_code=204, headers=headers)  # The reader has read everything; a browser stops.
        return EventStream(self.slots, reader.keys, self._events(reader, offset, form), form.media_type, headers)

    def _summary(self, id: UUID) -> RunInfo[Any]:
        return self._context.control.runs.summary(id)

    def _authorize(self, request: Request) -> Reader:
        """Return what the request may read. A signed URL is for one run, from any client."""
        context = self._context
        id = context.control.runs.parse_id(request.path_params["id"])
        token = request.query_params.get(TOKEN_PARAMETER)
        if token is not None:
            client = str(request.scope.get(CLIENT, "unknown"))
            try:
                valid_s = check_stream_token(context.app.links, token, id, context.app.store.clock)
            except TokenRefused as refused:
                log.link_refused(client, refused.reason)
                raise RequestError(403, NOT_VALID, "url_not_valid") from None
            self._summary(id)  # the run exists
            return Reader(request, id, (f"url {id}", client), time.monotonic() + valid_s)
        principal = context.authenticator.authenticate(request)
        authorize(principal, "read")
        return Reader(request, principal.run(context.control, id).id, principal.stream_keys)

    # Feeds

    def _open_feed(self, id: UUID) -> RunFeed:
        feed = self._feeds.get(id)
        if feed is None or feed.is_closed:
            feed = self._feeds[id] = RunFeed(id, self._streams, self._context.threads, self._followers)
        feed.readers += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())
        return feed

    def _leave_feed(self, feed: RunFeed) -> None:
        feed.readers -= 1
        if not feed.readers:
            feed.close()
            if self._feeds.get(feed.id) is feed:
                del self._feeds[feed.id]

    async def _poll(self) -> None:
        """Find the feeds that missed a notification, with one query for all of them."""
        while self._feeds:
            pause_s = self._followers.max_interval()
            self._followers.listen(pause_s)
            await self.slots.sleep(pause_s)
            if self.slots.is_stopping:
                return
            seen = [(id, feed.head, feed.follower.values) for id, feed in self._feeds.items()]
            with suppress(HoldfastError):
                for id in await self._context.threads.run(self._streams.with_news, seen):
                    if (feed := self._feeds.get(id)) is not None:
                        feed.wake()

    # Readers

    async def _events(self, reader: Reader, offset: int, form: StreamFormat) -> AsyncIterator[bytes]:
        """Write the events of one stream."""
        feed = self._open_feed(reader.run)
        try:
            if form.opening:
                yield form.opening
            await feed.started
            if offset > feed.head and offset > await self._context.threads.run(self._streams.last, feed.id):
                # The reader has chunks that don't exist any more: the database was restored from a backup.
                yield form.write(Event(None, reset_event(StreamReset(0, offset + 1, None, everything=True))))
                offset = 0
            async for part in self._follow(reader, feed, offset, form):
                yield part
        except HoldfastError as error:  # The reader reconnects and receives the reason.
            log.request_unavailable(f"stream of run {reader.run}", str(error))
        finally:
            self._leave_feed(feed)

    async def _follow(self, reader: Reader, feed: RunFeed, offset: int, form: StreamFormat) -> AsyncIterator[bytes]:
        end, sent_at, versions = time.monotonic() + STREAM_DURATION_S, time.monotonic(), dict[str, int]()
        while not self.slots.is_stopping and time.monotonic() < end and await self._may_read(reader):
            changed = feed.changed
            events = await feed.after(offset)
            values = [
                (name, version, event)
                for name, (version, event) in feed.values.items()
                if versions.get(name) != version
            ]
            for part in _parts([event for *_, event in values] + list(events), form):
                yield part
                sent_at = time.monotonic()
            versions |= {name: version for name, version, _ in values}
            if events or values:
                offset = (events[-1].id if events else None) or offset
            elif feed.ended is not None:
                yield form.write(end_event(offset, feed.ended, with_result=not reader.is_signed))
                return
            elif feed.is_closed:
                return
            else:
                await self._wait(changed)
                if time.monotonic() - sent_at > HEARTBEAT_INTERVAL_S:
                    sent_at = time.monotonic()
                    yield form.heartbeat

    @staticmethod
    async def _wait(changed: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CREDENTIALS_INTERVAL_S):
                await changed.wait()

    async def _may_read(self, reader: Reader) -> bool:
        """Return whether the credentials of a stream are still valid."""
        if reader.expires_at is not None:
            return time.monotonic() < reader.expires_at
        checked_at, is_valid = self._checked.get(reader.keys, (0.0, True))
        now = time.monotonic()
        if now - checked_at < CREDENTIALS_INTERVAL_S:
            return is_valid
        self._checked[reader.keys] = now, is_valid  # other streams with the same credentials don't check, too
        with suppress(HoldfastError):  # an outage of the database ends no stream
            is_valid = await self._context.threads.run(self._context.authenticator.is_still_valid, reader.request)
        self._checked[reader.keys] = now, is_valid
        if len(self._checked) > 2 * MAX_STREAMS:
            recent = {keys: each for keys, each in self._checked.items() if now - each[0] < CREDENTIALS_INTERVAL_S}
            self._checked = recent
        return is_valid

    def stop(self) -> None:
        """End all streams, because the server shuts down. Called on the event loop."""
        self.slots.stop()
        for feed in self._feeds.values():
            feed.changed.set()


def _parts(events: Iterable[Event], form: StreamFormat) -> Iterable[bytes]:
    """Join events to parts of a response."""
    part, size = [], 0
    for event in events:
        data = form.write(event)
        part.append(data)
        size += len(data)
        if size >= MAX_WRITE_BYTES:
            yield b"".join(part)
            part, size = [], 0
    if part:
        yield b"".join(part)


def _offset(request: Request) -> tuple[int, bool]:
    """Return the number of the last chunk that the reader has, and whether it has read the end.

    The header wins: a browser that reconnects requests the same URL again, and adds it.
    """
    text = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    number = text.removesuffix(END_MARK)
    if not (number.isascii() and number.isdecimal() and len(number) <= 10 and int(number) <= MAX_OFFSET):
        raise RequestError(
            422, f"after and Last-Event-ID must be the id of a chunk, from 0 on, not {text[:40]!r}", "invalid"
        )
    return int(number), text != number
