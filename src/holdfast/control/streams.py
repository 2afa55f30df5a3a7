"""What runs write with `ctx.write` and set with `ctx.set`, for programs and people that follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.control.interaction import InteractionControl, ValueInfo
from holdfast.control.runs import RunControl
from holdfast.errors import RunNotFound
from holdfast.model.previews import displayed_arguments
from holdfast.model.run import FINAL_STATES, Chunk, RunInfo, RunState, StreamReset
from holdfast.store import Store
from holdfast.store.run_reader import RunReader

MAX_PAGE_BYTES = 256 * 1024
"""A page of chunks ends with the first chunk beyond."""


class ChunkInfo(msgspec.Struct, frozen=True):
    """A chunk as plain JSON with secrets masked. `step` is the key of the step that wrote it, null for the body."""

    id: int
    data: Any
    attempt: int
    step: str | None
    step_try: int = msgspec.field(name="try")
    reset: StreamReset | None = None
    """Earlier chunks that it replaces."""


class StreamNews(msgspec.Struct, frozen=True):
    """What a run has written and set since the last look."""

    state: RunState
    chunks: list[ChunkInfo]
    values: list[ValueInfo] | None
    """All values, None if they are the same as before."""
    values_version: int
    ended: RunInfo[Any] | None
    """The run with its result, once it has finished and its chunks have been read to the end."""


class StreamControl:
    """The streams of any run in the database."""

    def __init__(self, store: Store, runs: RunControl, interaction: InteractionControl) -> None:
        self._store = store
        self._reader = RunReader(store)
        self._runs = runs
        self._interaction = interaction

    def chunks(self, id: UUID, after: int = 0) -> list[ChunkInfo]:
        """Return the next page of what a run has written; it is empty at the end."""
        found = self._store.queries.chunks(str(id), self._reader.row(id).tenant, after, MAX_PAGE_BYTES)
        return [_info(chunk) for chunk in found]

    def transcript(self, id: UUID, after: int = 0, show: Callable[[Any], Any] = lambda data: data) -> list[ChunkInfo]:
        """Return all that a run has written and that still counts. `show` may shorten the data."""
        kept: list[ChunkInfo] = []
        while page := self.chunks(id, after):
            for chunk in page:
                kept = kept if chunk.reset is None else [each for each in kept if not drops(chunk.reset, each)]
                kept.append(replace(chunk, data=show(chunk.data)))
            after = page[-1].id
        return kept

    def last(self, id: UUID) -> int:
        """Return the number of the last chunk of a run, 0 if it has written none."""
        found = self._store.queries.stream_ends([str(id)]).get(str(id))
        if found is None:
            raise RunNotFound.of(id)
        return found.last

    def with_news(self, seen: Iterable[tuple[UUID, int, int]]) -> set[UUID]:
        """Return the runs that have written or set something, or have ended or are gone.

        Runs are given with the number of the last chunk and the version of the values that were seen.
        """
        known = {str(id): (id, last, values) for id, last, values in seen}
        ends = self._store.queries.stream_ends(known) if known else {}
        return {
            id
            for text, (id, last, values) in known.items()
            if (end := ends.get(text)) is None or end.state in FINAL_STATES or (end.last, end.values) != (last, values)
        }

    def news(self, id: UUID, after: int, values_version: int = -1) -> StreamNews:
        """Return what a run has written after a chunk, and its values if they have changed.

        The state is read first: all chunks of a finished run are visible once its final state is.
        """
        end = self._store.queries.stream_ends([str(id)]).get(str(id))
        if end is None:
            raise RunNotFound.of(id)
        chunks = self.chunks(id, after) if end.last > after else []
        values = self._interaction.values(id) if end.values != values_version else None
        is_complete = end.state in FINAL_STATES and (chunks[-1].id if chunks else after) >= end.last
        return StreamNews(end.state, chunks, values, end.values, self._runs.info(id) if is_complete else None)


def drops(reset: StreamReset, chunk: ChunkInfo) -> bool:
    """Return whether a chunk no longer counts after a reset."""
    return reset.drops(Chunk(chunk.id, chunk.attempt, None, chunk.step))


def _info(chunk: Chunk) -> ChunkInfo:
    return ChunkInfo(chunk.seq, displayed_arguments(chunk.data), chunk.attempt, chunk.step, chunk.step_try, chunk.reset)
