"""Read the results and streams of runs, waiting for them where necessary."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.client.completion_listener import CompletionListener
from holdfast.client.result_waiter import MAX_POLL_INTERVAL_S, PollBackoff, ResultWaiter
from holdfast.database import Row
from holdfast.errors import ErrorInfo, RunCancelled, RunFailed, RunNotFound, StoreUnavailable
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.clock import Duration
from holdfast.model.codec import decode
from holdfast.model.failure import error_from_json
from holdfast.model.run import FINAL_STATES, Chunk
from holdfast.store import Store
from holdfast.store.run_reader import RunReader
from holdfast.task.registry import Registry


class Finished(NamedTuple):
    """The result of a run that succeeded."""

    result: Any


class RunResults:
    """The results and streams of runs, typed by their tasks."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self.reader = RunReader(store, self.decode_result)
        self.waiter = ResultWaiter(store.queries.outcomes, CompletionListener(store))

    def decode_result(self, task: str, text: str) -> Any:
        """Decode a stored result with the types of its task."""
        return self._registry.decode_result(task, self._store.payloads.unpack(text))

    # Results

    def result(self, id: UUID, task: str, timeout: Duration | None) -> Any:
        """Wait in this thread for a run to finish. Returns its result or raises its failure."""
        with self.waiter.thread(id, timeout) as thread:
            while True:
                try:
                    seen = self._outcome(id, task, self._store.queries.outcome(str(id)))
                except StoreUnavailable as error:
                    thread.pause_after_failure(error)
                    continue
                if isinstance(seen, Finished):
                    return seen.result
                self._store.database.reject_wait_in_transaction(f"run {id}")
                thread.pause(seen)

    async def aresult(self, id: UUID, task: str, timeout: Duration | None) -> Any:
        """Wait for a run to finish. Returns its result or raises its failure."""
        row = await self.waiter.wait(id, timeout)
        seen = await run_in_thread(self._outcome, id, task, row)
        assert isinstance(seen, Finished)
        return seen.result

    def _outcome(self, id: UUID, task: str, row: Row | None) -> Finished | str:
        """Return the result, or the state of an unfinished run. Raises if the run failed or was cancelled."""
        if row is None:
            raise RunNotFound.of(id)
        state, result, error, kind, options = row
        if state not in FINAL_STATES:
            return str(state)
        if state == "done" and kind == "graph":
            return Finished(self.reader.graph_result(str(id), options))
        if state == "done":
            return Finished(self.decode_result(task, result))
        info = error_from_json(error) if error else ErrorInfo("error", state, "")
        if state == "cancelled":
            raise RunCancelled(id, info.message or None)
        raise RunFailed(id, info)

    # Streams

    def stream(self, id: UUID, after: int) -> Iterator[Chunk]:
        """Yield the chunks of a run as they are written, until it finishes."""
        backoff = PollBackoff(id, None)
        while True:
            chunks, is_complete = self._next_chunks(id, after)
            yield from chunks
            if is_complete:
                return
            if chunks:
                after, backoff = chunks[-1].seq, PollBackoff(id, None)
            else:
                self._store.database.reject_wait_in_transaction(f"run {id}")
                time.sleep(backoff.pause("", MAX_POLL_INTERVAL_S))

    async def astream(self, id: UUID, after: int) -> AsyncIterator[Chunk]:
        """Yield the chunks of a run as they are written, until it finishes."""
        import asyncio

        backoff = PollBackoff(id, None)
        while True:
            chunks, is_complete = await run_in_thread(self._next_chunks, id, after)
            for chunk in chunks:
                yield chunk
            if is_complete:
                return
            if chunks:
                after, backoff = chunks[-1].seq, PollBackoff(id, None)
            else:
                await asyncio.sleep(backoff.pause("", MAX_POLL_INTERVAL_S))

    def _next_chunks(self, id: UUID, after: int) -> tuple[list[Chunk], bool]:
        """Return the next chunks, and whether the stream is complete.

        The state is read first: all chunks of a finished run are visible once its final state is.
        """
        row = self._store.queries.outcome(str(id))
        if row is None:
            raise RunNotFound.of(id)
        rows = self._store.queries.chunks(str(id), after)
        return [Chunk(n, attempt, decode(data)) for n, attempt, data in rows], row[0] in FINAL_STATES and not rows
