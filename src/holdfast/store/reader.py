"""Runs as people and programs see them: rows turned into `RunInfo`, pages and histories.

Applications and operators read the same way; only how a result's text is read differs (typed by the task, or plain).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias, Unpack
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError, GraphError, PayloadError, RunNotFound
from holdfast.model.clock import to_datetime, to_datetime_or_none
from holdfast.model.codec import decode, display_value
from holdfast.model.failure import error_from_json
from holdfast.model.filters import PageOptions, RunFilter
from holdfast.model.history import Entry
from holdfast.model.ids import new_id
from holdfast.model.run import Page, Progress, RunInfo
from holdfast.store.graphs import Graphs
from holdfast.store.listing import Listing
from holdfast.store.story import tell
from holdfast.store.views import RunRow, Views

LARGEST_PAGE = 1000

ReadResult: TypeAlias = Callable[[str, str], Any]
"""From a task's name and the kept text of a result to the result."""


def read_plain(_task: str, text: str) -> Any:
    """A result as plain JSON, to be shown: without its secrets."""
    return display_value(text)


class Reader:
    """Reads runs; changes nothing."""

    def __init__(self, views: Views, graphs: Graphs, listing: Listing, read_result: ReadResult = read_plain) -> None:
        self._views = views
        self._graphs = graphs
        self._listing = listing
        self._read_result = read_result

    def row(self, id: UUID) -> RunRow:
        row = self._views.run(str(id))
        if row is None:
            raise RunNotFound.of(id)
        return row

    def graph_row(self, id: UUID) -> RunRow:
        """The row of a graph; GraphError when the run is none."""
        row = self.row(id)
        if row.kind == "graph":
            return row
        what = f"a run of {row.task}" if row.node is None else f"node {row.node} of graph run {row.parent}"
        raise GraphError(f"run {id} is {what}, not a graph")

    def info(self, id: UUID) -> RunInfo[Any]:
        """One run. Unlike in lists, the result of a graph is there, gathered from its nodes."""
        row = self.row(id)
        info = self.info_of(row)
        if row.kind == "graph" and row.state == "done":
            return replace(info, result=self.graph_result(row.id, row.options))
        return info

    def graph_result(self, id: str, options: str | None) -> Any:
        """The result of a graph that is done: of the node that was named for it, typed by its task, or of all nodes as
        plain JSON by name."""
        task, text = self._graphs.result(id, options)
        return read_plain("", text) if task is None else self._read_result(task, text)

    def info_of(self, row: RunRow) -> RunInfo[Any]:
        return RunInfo(
            id=UUID(row.id),
            task=row.task,
            queue=row.queue,
            priority=row.priority,
            state=row.state,
            attempt=row.attempt,
            crashes=row.crashes,
            created_at=to_datetime(row.created_at),
            started_at=to_datetime_or_none(row.started_at),
            finished_at=to_datetime_or_none(row.finished_at),
            result=self._result(row) if row.result is not None else None,
            error=None if row.error is None else error_from_json(row.error),
            worker=row.session,
            tenant=row.tenant,
            tags=_readable(row.tags, tuple[str, ...]) or (),
            parent=None if row.parent is None else UUID(row.parent),
            progress=_readable(row.progress, Progress),
            scheduled_for=_slot(row.options),
        )

    def _result(self, row: RunRow) -> Any:
        return self._read_result(row.task, self._views.plain(row.result) or "")

    def _listed(self, row: RunRow) -> RunInfo[Any]:
        """A run in a list. A result that can't be read is left out: it must not hide the other runs."""
        try:
            return self.info_of(row)
        except PayloadError:
            return self.info_of(row._replace(result=None))

    def page(self, **asked: Unpack[PageOptions]) -> Page:
        """Runs, newest first; where very many others would have to be passed over, a part of the page."""
        wanted, limit, after = self._asked(asked)
        listed = self._listing.page(wanted, limit, after)
        return Page([self._listed(row) for row in listed.rows], listed.after, partial=listed.partial)

    def full_page(self, **asked: Unpack[PageOptions]) -> Page:
        """The same, but as long as it takes to fill the page."""
        wanted, limit, after = self._asked(asked)
        rows: list[RunRow] = []
        while True:
            listed = self._listing.page(wanted, limit - len(rows), after)
            rows += listed.rows
            after = listed.after
            if after is None or len(rows) == limit:
                return Page([self._listed(row) for row in rows], after)

    def _asked(self, asked: PageOptions) -> tuple[RunFilter, int, str | None]:
        """The filter, the size and the cursor, checked."""
        limit, after = asked.pop("limit", 100), asked.pop("after", None)
        if not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
            raise ConfigError(f"limit must be between 1 and {LARGEST_PAGE}, but is {limit!r}; use after= for more")
        return RunFilter.of(asked), limit, None if after is None else str(run_id(after))

    def history(self, id: UUID) -> list[Entry]:
        """The whole story of a run."""
        return tell(self.row(id), self._views.history(str(id)))


class _Slot(msgspec.Struct):
    """What the options of a run of a schedule say about it."""

    scheduled_for: int | None = None


def _slot(options: str | None) -> datetime | None:
    return to_datetime_or_none((_readable(options, _Slot) or _Slot()).scheduled_for)


def _readable(text: str | None, kind: Any) -> Any:
    """What stands in a column; None where that was changed by hand and can't be read, so that one such row doesn't keep
    a whole page from being shown."""
    try:
        return None if text is None else decode(text, kind)
    except PayloadError:
        return None


def run_id(given: UUID | str) -> UUID:
    """The id in any of its forms."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given)
    except (ValueError, AttributeError, TypeError):
        raise RunNotFound(f"{str(given)[:60]!r} is no run id; ids look like {new_id()}") from None
