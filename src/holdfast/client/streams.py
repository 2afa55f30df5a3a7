"""Follow what runs write with `ctx.write`, and be notified of other things that they write (`interaction.py`).

Each follower reads its own run. In between it waits: for a worker of this process that has written chunks, for a
notification that another process has, or for the next poll. On a notification, one query finds the followers that have
something to read.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.client.results import (
    LISTEN_FROM_S,
    MAX_POLL_INTERVAL_LISTENING_S,
    MAX_POLL_INTERVAL_S,
    CompletionListener,
    PollBackoff,
    ResultWaiter,
)
from holdfast.database import Row
from holdfast.database.fork_safety import register_fork_hooks
from holdfast.errors import RunNotFound
from holdfast.model.asks import AskAnswer, FollowedWrites
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.codec import decode_value
from holdfast.model.run import FINAL_STATES, Chunk
from holdfast.store import Store

if TYPE_CHECKING:
    import asyncio


class Follower:
    """A caller that waits for what a run writes: chunks of its stream, or in subclasses, values and answers."""

    __slots__ = ("after", "id", "on_news")

    def __init__(self, run: UUID, after: int, wake: Callable[[], None]) -> None:
        self.id = str(run)
        self.after = after
        """The number of the last chunk that it has read, or the version of the value."""
        self.on_news = wake

    def wake(self, row: Row | None = None) -> None:  # noqa: ARG002 - it reads more than the outcome
        """Make it read again. From any thread."""
        self.on_news()

    def on_local_write(self, answers: Mapping[str, AskAnswer | None]) -> None:  # noqa: ARG002 - it may be a chunk
        """Take note that a worker of this process has written for the run, with these answers. From any thread."""
        self.wake()

    @classmethod
    def with_news(cls, store: Store, followers: Sequence[Any]) -> list[Follower]:
        """Return those of these followers, all of this class, that have something to read. Blocking."""
        ends = store.queries.stream_ends({follower.id for follower in followers})
        found: list[Follower] = []
        for follower in followers:
            end = ends.get(follower.id)
            if end is None or end.state in FINAL_STATES or end.last > follower.after:
                found.append(follower)
        return found


class StreamFollower(Follower):
    """A reader of all that a run writes and sets. `values`: the version of the values that it has read."""

    __slots__ = ("values",)

    def __init__(self, run: UUID, wake: Callable[[], None]) -> None:
        super().__init__(run, 0, wake)
        self.values = -1

    @classmethod
    def with_news(cls, store: Store, followers: Sequence[Any]) -> list[Follower]:
        ends = store.queries.stream_ends({follower.id for follower in followers})
        found: list[Follower] = []
        for follower in followers:
            end, seen = ends.get(follower.id), (follower.after, follower.values)
            if end is None or end.state in FINAL_STATES or (end.last, end.values) != seen:
                found.append(follower)
        return found


class RunFollowers:
    """All followers of this process, and the listener that notifies them while they wait."""

    def __init__(self, store: Store, waiter: ResultWaiter) -> None:
        self._store = store
        self._waiter = waiter
        self._listener = CompletionListener(store, "chunks")
        self._followers: set[Follower] = set()
        register_fork_hooks(self)

    @contextmanager
    def add(self, follower: Follower) -> Iterator[None]:
        """Wake this follower from now on, also at the end of its run. Added before its first read to miss nothing."""
        self._followers.add(follower)
        self._waiter.callers.add(follower)
        try:
            yield
        finally:
            self._followers.discard(follower)
            self._waiter.callers.discard(follower)

    def pause(self, backoff: PollBackoff) -> float:
        """Return the seconds to the next poll, and listen for notifications if they are many."""
        pause_s = backoff.pause("", self.max_interval())
        if pause_s >= LISTEN_FROM_S:
            self.listen(pause_s)
        return pause_s

    def listen(self, seconds: float) -> None:
        """Listen for notifications for at least this long."""
        self._listener.request(seconds, self.on_change)

    def max_interval(self) -> float:
        """Return the longest interval between two polls, given whether a listener is active."""
        return MAX_POLL_INTERVAL_LISTENING_S if self._listener.is_listening else MAX_POLL_INTERVAL_S

    def on_change(self) -> None:
        """Wake the followers whose run has written more or has ended. One query for each kind of them. Blocking."""
        by_kind: defaultdict[type[Follower], list[Follower]] = defaultdict(list)
        for follower in list(self._followers):
            by_kind[type(follower)].append(follower)
        for kind, followers in by_kind.items():
            for follower in kind.with_news(self._store, followers):
                follower.wake()

    def on_local_writes(self, written: FollowedWrites) -> None:
        """Tell the followers of these runs that a worker of this process has written something. From any thread."""
        for follower in list(self._followers):
            if (answers := written.get(follower.id)) is not None:
                follower.on_local_write(answers)

    def close(self) -> None:
        """Stop listening. Callers that still follow continue by polling."""
        self._listener.close()

    def before_fork(self) -> None:
        """Do nothing."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # The threads and loops of the followers exist only in the parent.
            self._followers = set()


class RunStreams:
    """The streams of runs."""

    def __init__(self, store: Store, waiter: ResultWaiter) -> None:
        self._store = store
        self.followers = RunFollowers(store, waiter)

    def stream(self, id: UUID, after: int) -> Iterator[Chunk]:
        """Yield the chunks of a run as they are written, until it finishes."""
        backoff, written = PollBackoff(id, None), threading.Event()
        follower = Follower(id, after, written.set)
        with self.followers.add(follower):
            while True:
                written.clear()
                chunks, is_complete = self._next_chunks(id, follower.after)
                yield from chunks
                if is_complete:
                    return
                if chunks:
                    follower.after, backoff = chunks[-1].seq, PollBackoff(id, None)
                else:
                    self._store.database.reject_wait_in_transaction(f"run {id}")
                    written.wait(self.followers.pause(backoff))

    async def astream(self, id: UUID, after: int) -> AsyncIterator[Chunk]:
        """Yield the chunks of a run as they are written, until it finishes."""
        import asyncio

        loop, backoff, written = asyncio.get_running_loop(), PollBackoff(id, None), asyncio.Event()
        follower = Follower(id, after, lambda: set_from_thread(loop, written))
        with self.followers.add(follower):
            while True:
                written.clear()
                chunks, is_complete = await run_in_thread(self._next_chunks, id, follower.after)
                for chunk in chunks:
                    yield chunk
                if is_complete:
                    return
                if chunks:
                    follower.after, backoff = chunks[-1].seq, PollBackoff(id, None)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.followers.pause(backoff)):
                        await written.wait()

    def _next_chunks(self, id: UUID, after: int) -> tuple[list[Chunk], bool]:
        """Return the next chunks, and whether the stream is complete.

        The state is read first: all chunks of a finished run are visible once its final state is.
        """
        row = self._store.outcomes.read(str(id))
        if row is None:
            raise RunNotFound.of(id)
        found = self._store.queries.chunks(str(id), row[-1], after)
        return [replace(chunk, data=decode_value(chunk.data)) for chunk in found], row[0] in FINAL_STATES and not found


def set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of an event loop from any thread."""
    with suppress(RuntimeError):  # The loop was closed.
        loop.call_soon_threadsafe(event.set)
