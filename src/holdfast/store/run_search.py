"""One search for everything that an operator may know of a run: id, key, tag, metadata, task, argument, error.

Ids, keys, tags, metadata values and task names have indexes, so all runs are searched. A text within an argument, an
error, a key or a tag has none: a search reads a bounded number of the newest runs, and says up to where it has come.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime
from holdfast.model.filters import MAX_SEARCH_CHARS, FilterOptions, RunFilter
from holdfast.model.metadata import check_metadata, parse_metadata
from holdfast.model.names import check_name
from holdfast.model.run import Page, RunInfo
from holdfast.model.search_results import FoundRun, SearchResults
from holdfast.store.run_reader import RunReader

if TYPE_CHECKING:
    from holdfast.store.store import Store

MAX_EXACT = 20
"""How many runs are returned for each of the exact matches: id, key, tag, metadata."""
MAX_TASKS = 10
MIN_ID_CHARS = 4
MIN_UNIQUE_ID_CHARS = 8
"""Shorter prefixes may be those of all runs of an hour; then they aren't listed."""


class _ExactMatch(NamedTuple):
    """A filter that finds runs by an index. `name`: what matches."""

    name: str
    filters: dict[str, Any]


class RunSearch:
    """Searches runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = RunReader(store)

    def search(
        self,
        text: str,
        *,
        limit: int = 50,
        after: str | None = None,
        seconds: float = 0.0,
        **filters: Unpack[FilterOptions],
    ) -> SearchResults:
        """Search the runs that match the filters. Without `after`, exact matches come first.

        The scan reads up to 20,000 runs, and goes on for as long as `seconds` unless it finds `limit` runs.
        """
        text = check_name(text.strip(), "the text to search for", MAX_SEARCH_CHARS)
        given = cast("dict[str, Any]", {**filters, "search": None})
        found: dict[UUID, FoundRun] = {}
        more: list[str] = []
        tasks: list[str] = []
        if after is None:
            for match in self._exact_matches(text):
                if not any(given.get(name) for name in match.filters):
                    page = self._reader.page(**{**given, **match.filters}, limit=MAX_EXACT)
                    _add(found, more, match, page, text)
            tasks = self._tasks(text, given)
        scanned, page = self._scan(text, given, limit, after, seconds)
        for run in page:
            known = found.get(run.id)
            before = [] if known is None else known.matched
            found[run.id] = FoundRun(run, list(dict.fromkeys((*before, *page.matches[run.id]))))
        since = None if page.after is None else _created(page.after)
        return SearchResults(
            text, list(found.values()), tasks, more, scanned.scanned, since, scanned.hidden, page.after
        )

    def _scan(
        self, text: str, given: dict[str, Any], limit: int, after: str | None, seconds: float
    ) -> tuple[Page, Page]:
        """Return the counts of all pages, and the runs of all of them as one page."""
        deadline = time.monotonic() + seconds
        runs: list[RunInfo[Any]] = []
        matches: dict[UUID, Any] = {}
        scanned = hidden = 0
        while True:
            page = self._reader.page(**{**given, "search": text}, limit=limit - len(runs), after=after)
            runs, matches = [*runs, *page], {**matches, **page.matches}
            scanned, hidden, after = scanned + page.scanned, hidden + page.hidden, page.after
            if after is None or len(runs) >= limit or time.monotonic() >= deadline:
                counts = Page((), after, scanned=scanned, hidden=hidden)
                return counts, Page(runs, after, matches=matches)

    def _exact_matches(self, text: str) -> Iterator[_ExactMatch]:
        """Yield the filters by which runs are found in an index."""
        digits = text.lower().replace("-", "")
        if MIN_ID_CHARS <= len(digits) <= 32 and all(c in "0123456789abcdef" for c in digits):
            yield _ExactMatch("id", {"id_prefix": digits})
        yield _ExactMatch("key", {"key": text})
        yield _ExactMatch("tag", {"tag": text})
        named = _as_metadata(text)
        if named is not None:
            yield _ExactMatch("metadata", {"metadata": named})
        with_value = self._store.run_list.with_metadata_value(_json_values(text), MAX_EXACT + 1)
        if with_value:
            yield _ExactMatch("metadata", {"ids": [UUID(id) for id in with_value]})

    def _tasks(self, text: str, given: dict[str, Any]) -> list[str]:
        """Return tasks whose name contains the text, and of which the reader may see a run."""
        whole, scope = text.casefold(), RunFilter.of(cast(FilterOptions, given)).scope
        names = {
            task
            for queue, task in self._store.lanes.refresh().values()
            if whole in task.casefold() and scope.covers_lane(queue, task)
        }
        found = sorted(names, key=lambda name: (name.casefold() != whole, len(name), name))[:MAX_TASKS]
        if scope.tenant is None and given.get("tenant") is None:
            return found
        return [name for name in found if self._reader.page(**{**given, "task": name}, limit=1)]


def _add(found: dict[UUID, FoundRun], more: list[str], match: _ExactMatch, page: Page, text: str) -> None:
    """Add the runs of an exact match."""
    if page.after is not None:
        more.append(match.name)
        if match.name == "id" and len(match.filters["id_prefix"]) < MIN_UNIQUE_ID_CHARS:
            return
    for run in page:
        known = found.get(run.id)
        labels = _metadata_labels(run, text) if match.name == "metadata" else [match.name]
        before = [] if known is None else known.matched
        found[run.id] = FoundRun(run, list(dict.fromkeys((*before, *labels))))


def _metadata_labels(run: RunInfo[Any], text: str) -> list[str]:
    named, values = _as_metadata(text) or {}, _json_values(text)
    items = ((name, msgspec.json.encode(value).decode()) for name, value in run.metadata.items())
    return [f"metadata {name}" for name, value in items if name in named or value in values]


def _as_metadata(text: str) -> dict[str, Any] | None:
    """Return `order=42` as metadata, None for another text."""
    try:
        given = parse_metadata([text])
        return None if given is None or check_metadata(given) is None else given
    except ConfigError:
        return None


def _json_values(text: str) -> list[str]:
    """Return the JSON values that a text may mean: a text and, if it is valid JSON, a number or a truth value."""
    values = [msgspec.json.encode(text).decode()]
    try:
        plain = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return values
    return values if isinstance(plain, dict | list) else [*values, msgspec.json.encode(plain).decode()]


def _created(id: str) -> datetime:
    """Return the time at which a run with this id was created, to the millisecond."""
    return to_datetime((UUID(id).int >> 80) * (MICROS_PER_SECOND // 1000))
