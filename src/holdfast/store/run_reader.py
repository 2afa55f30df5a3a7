"""Runs as people and programs see them: `RunInfo`, pages of runs and histories.

Applications and operators read in the same way; only the decoding of results differs: typed by the task, or plain JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError, ErrorInfo, GraphError, PayloadError, RunNotFound
from holdfast.model.clock import is_datetime, to_datetime, to_datetime_or_none
from holdfast.model.codec import decode, display_value
from holdfast.model.failure import error_from_json, is_error_json
from holdfast.model.filters import NEWEST_FIRST, PageOptions, RunFilter, check_sort
from holdfast.model.history import Entry
from holdfast.model.ids import new_id
from holdfast.model.payloads import PayloadContext
from holdfast.model.previews import displayed_arguments, listed_arguments
from holdfast.model.run import Page, Progress, RunInfo
from holdfast.model.run_logs import LogFilter, LogPage
from holdfast.store.age_priority import Age
from holdfast.store.run_history import ArgumentsReader, history_entries, stored_entry
from holdfast.store.run_list import RunListPage
from holdfast.store.run_queries import RunRow

if TYPE_CHECKING:
    from holdfast.store.store import Store

MAX_PAGE_RUNS = 1000
MAX_SEARCH_S = 2.0

ReadResult: TypeAlias = Callable[[str, str], Any]
"""Decodes a result: takes the task's name and the JSON text."""


def read_plain(_task: str, text: str) -> Any:
    """Decode a result as plain JSON with secrets masked, for display."""
    return display_value(text)


def _check_number(name: str, value: object, low: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
        raise ConfigError(f"{name} must be a number from {low} on, not {repr(value)[:60]}")


class RunReader:
    """Reads runs; changes nothing."""

    def __init__(self, store: Store, read_result: ReadResult = read_plain) -> None:
        self._store = store
        self._read_result = read_result

    def row(self, id: UUID) -> RunRow:
        """Return the row of a run without its result; raise RunNotFound if there is none."""
        return self._row(id)

    def _row(self, id: UUID, *, with_result: bool = False) -> RunRow:
        row = self._store.queries.run(str(id), with_result=with_result)
        if row is None:
            raise RunNotFound.of(id)
        return row

    def graph_row(self, id: UUID) -> RunRow:
        """Return the row of a graph; raise GraphError if the run isn't one."""
        row = self.row(id)
        if row.kind == "graph":
            return row
        what = f"a run of {row.task}" if row.node is None else f"node {row.node} of graph run {row.parent}"
        raise GraphError(f"run {id} is {what}, not a graph")

    def info(self, id: UUID) -> RunInfo[Any]:
        """Return one run. Unlike in lists, it has its result and all its arguments."""
        row = self._row(id, with_result=True)
        info = self.info_of(row)
        if not row.has_all_args:
            stored = self._store.queries.arguments(row.id)
            info = replace(info, args=self._displayed(stored, PayloadContext("args", row.tenant, row.id)))
        if row.kind == "graph" and row.state == "done":
            return replace(info, result=self.graph_result(row.id, row.options), result_omitted=False)
        return info

    def logs(
        self,
        id: UUID,
        level: str | None = None,
        search: str | None = None,
        after: int = 0,
        limit: int | None = None,
        tail: int | None = None,
    ) -> LogPage:
        """Return the lines that a run has logged: up to `limit`, or the last `tail` of them."""
        accepts = LogFilter.of(level, search)
        _check_number("after", after, 0)
        _check_number("limit", limit, 1)
        return self._store.logs.page(str(id), self.row(id).tenant, accepts, after, limit, tail)

    def graph_result(self, id: str, options: str | None) -> Any:
        """Return the result of a finished graph: that of its result node, typed, or of all nodes as plain JSON."""
        task, text = self._store.graphs.result(id, options)
        return read_plain("", text) if task is None else self._read_result(task, text)

    def info_of(self, row: RunRow) -> RunInfo[Any]:
        """Turn a row into a `RunInfo`, with shortened arguments. PayloadError if the row has a result that can't be
        decoded."""
        columns = _Columns(row)
        options = columns.json("options", _StoredOptions) or _StoredOptions()
        return RunInfo(
            id=columns.id(),
            task=row.task,
            queue=row.queue,
            priority=row.priority if options.age is None else options.age.priority,
            state=row.state,
            attempt=row.attempt,
            crashes=row.crashes,
            created_at=columns.time("created_at") or to_datetime(0),
            started_at=columns.time("started_at"),
            finished_at=columns.time("finished_at"),
            result=self._result(row, columns) if row.result is not None else None,
            error=columns.error(),
            worker=row.session,
            tenant=row.tenant,
            tags=columns.json("tags", tuple[str, ...]) or (),
            parent=columns.parent(),
            progress=self._progress(row, columns),
            scheduled_for=to_datetime_or_none(options.scheduled_for),
            key=options.key,
            args=None if row.kind else self._listed_arguments(row),
            due_at=columns.time("due_at"),
            metadata=columns.metadata(),
            corrupt=tuple(columns.corrupt),
            result_omitted=row.state == "done" and row.result is None,
        )

    def _progress(self, row: RunRow, columns: _Columns) -> Progress | None:
        if row.progress is None or row.progress[:1] != "~":
            found: Progress | None = columns.json("progress", Progress)
            return found
        text = self._store.payloads.unpack(row.progress, PayloadContext("progress", row.tenant, row.id))
        try:
            return decode(text, Progress)  # type: ignore[no-any-return]
        except PayloadError:  # This app lacks the codec or the key; the row isn't corrupt.
            return None

    def _listed_arguments(self, row: RunRow) -> Any:
        context = PayloadContext("args", row.tenant, row.id)
        return listed_arguments(row.args, row.args_bytes, self._store.payloads, context)

    def _result(self, row: RunRow, columns: _Columns) -> Any:
        try:
            context = PayloadContext("result", row.tenant, row.id)
            return self._read_result(row.task, self._store.payloads.unpack(row.result or "", context))
        except PayloadError:
            if self._read_result is not read_plain:
                raise
            columns.corrupt.append("result")
            return None

    def page(self, **options: Unpack[PageOptions]) -> Page:
        """Return a page of runs, newest first; a partial one if very many others would have to be skipped."""
        listed = self._listed(*self._parse(options))
        return Page(
            [self.info_of(row) for row in listed.rows],
            listed.after,
            partial=listed.partial,
            scanned=listed.scanned,
            hidden=listed.hidden,
            matches={UUID(row.id): listed.matches[row.id] for row in listed.rows if row.id in listed.matches},
        )

    def _listed(self, wanted: RunFilter, limit: int, after: str | None, sort: str) -> RunListPage:
        if sort == NEWEST_FIRST:
            return self._store.run_list.page(wanted, limit, after)
        return self._store.sorted_runs.page(wanted, limit, after, sort)

    def full_page(self, **options: Unpack[PageOptions]) -> Page:
        """Return a page of runs, however long it takes to fill it; a search for a text ends after `MAX_SEARCH_S`."""
        wanted, limit, after, sort = self._parse(options)
        rows: list[RunRow] = []
        scanned = hidden = 0
        matches: dict[UUID, tuple[str, ...]] = {}
        started = time.monotonic()
        while True:
            listed = self._listed(wanted, limit - len(rows), after, sort)
            rows += listed.rows
            after, scanned, hidden = listed.after, scanned + listed.scanned, hidden + listed.hidden
            matches |= {UUID(row.id): listed.matches[row.id] for row in listed.rows if row.id in listed.matches}
            in_time = wanted.search is None or time.monotonic() - started < MAX_SEARCH_S
            if after is None or len(rows) == limit or not in_time:
                partial = after is not None and len(rows) < limit
                infos = [self.info_of(row) for row in rows]
                return Page(infos, after, partial=partial, scanned=scanned, hidden=hidden, matches=matches)

    def _parse(self, options: PageOptions) -> tuple[RunFilter, int, str | None, str]:
        """Return the filter, the page size, the cursor and the order, checked."""
        limit, after, sort = options.pop("limit", 100), options.pop("after", None), options.pop("sort", NEWEST_FIRST)
        if not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE_RUNS:
            raise ConfigError(f"limit must be between 1 and {MAX_PAGE_RUNS}, but is {limit!r}; use after= for more")
        if after is not None and check_sort(sort).endswith("created"):
            after = str(run_id(after))
        return RunFilter.of(options), limit, after, check_sort(sort)

    def history(self, id: UUID) -> list[Entry]:
        """Return the history of a run, including the entries derived from its row: enqueue and running attempt."""
        return self.history_of(self.row(id))

    def history_of(self, row: RunRow) -> list[Entry]:
        """Return the history of a run whose row was read before."""
        rows = self._store.queries.history(row.id)
        return history_entries(row, [stored_entry(each, self._step_arguments(row)) for each in rows])

    def failed_tries(self, row: RunRow, limit: int) -> list[Entry]:
        """Return the last failed tries of steps in the running attempt, in order."""
        rows = self._store.queries.failed_tries(row.id, row.claimed_at or 0, limit)
        return [stored_entry(each, self._step_arguments(row))[0] for each in reversed(rows)]

    def _step_arguments(self, row: RunRow) -> ArgumentsReader:
        return lambda stored, key: self._displayed(stored, PayloadContext("step_args", row.tenant, row.id, key))

    def _displayed(self, stored: str, context: PayloadContext) -> Any:
        return displayed_arguments(self._store.payloads.unpack(stored, context))


class _StoredOptions(msgspec.Struct):
    """What the options of a run say about its key, its slot and its priority."""

    scheduled_for: int | None = None
    key: str | None = None
    age: Age | None = None


class _Columns:
    """Decodes the columns of a run. One that can't be decoded is left out and listed in `corrupt`."""

    def __init__(self, row: RunRow) -> None:
        self._row = row
        self.corrupt = list(row.corrupt)

    def json(self, name: str, kind: Any) -> Any:
        text: str | None = getattr(self._row, name)
        try:
            return None if text is None else decode(text, kind)
        except PayloadError:
            self.corrupt.append(name)
            return None

    def metadata(self) -> dict[str, Any]:
        text = self._row.metadata
        try:
            found: dict[str, Any] = {} if text is None else decode(f"{{{text}}}", dict[str, Any])
        except PayloadError:
            self.corrupt.append("metadata")
            return {}
        return found

    def time(self, name: str) -> datetime | None:
        micros: int | None = getattr(self._row, name)
        if micros is not None and not is_datetime(micros):
            self.corrupt.append(name)
        return to_datetime_or_none(micros)

    def error(self) -> ErrorInfo | None:
        text = self._row.error
        if text is None:
            return None
        if not is_error_json(text):
            self.corrupt.append("error")
        return error_from_json(text)

    def id(self) -> UUID:
        """Return the id. A row without a valid one is shown, but nothing can address it."""
        try:
            return UUID(self._row.id)
        except ValueError:
            self.corrupt.append("id")
            return UUID(int=0)

    def parent(self) -> UUID | None:
        try:
            return None if self._row.parent is None else UUID(self._row.parent)
        except ValueError:
            self.corrupt.append("parent")
            return None


def run_id(given: UUID | str) -> UUID:
    """Parse a run id in any of its forms."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given)
    except (ValueError, AttributeError, TypeError):
        raise RunNotFound(f"{str(given)[:60]!r} is not a run id; ids look like {new_id()}") from None
