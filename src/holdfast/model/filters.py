"""Filters that select runs for listing and bulk operations, as validated plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.access import EVERYTHING, AccessScope
from holdfast.model.clock import time_to_micros
from holdfast.model.metadata import check_metadata
from holdfast.model.names import MAX_KEY_CHARS, MAX_NAME_CHARS, check_name, quoted
from holdfast.model.run import RUN_STATES, RunState

MAX_ERROR_CHARS = 500
MAX_SEARCH_CHARS = 200
MAX_IDS = 1_000
RunSort: TypeAlias = Literal["-created", "created", "-finished", "finished", "-due", "due"]
SORTS: tuple[RunSort, ...] = get_args(RunSort)
"""The orders of a list of runs; a minus means the last first. All of them have an index."""
NEWEST_FIRST = "-created"

_TEXTS = {
    **dict.fromkeys(("task", "queue", "tenant", "tag"), MAX_NAME_CHARS),
    "error": MAX_ERROR_CHARS, "key": MAX_KEY_CHARS, "search": MAX_SEARCH_CHARS,
}  # fmt: skip
_PREFIX = re.compile(r"[0-9a-f]{1,32}")


class FilterOptions(TypedDict, total=False):
    """Keyword arguments of a filter."""

    state: str | Sequence[str] | None
    task: str | None
    queue: str | None
    tenant: str | None
    tag: str | None
    created_from: datetime | None
    created_to: datetime | None
    finished_from: datetime | None
    finished_to: datetime | None
    error: str | None
    key: str | None
    metadata: Mapping[str, Any] | None
    id_prefix: str | None
    parent: UUID | None
    family: UUID | None
    paused: bool | None
    top_level: bool | None
    search: str | None
    ids: Sequence[UUID]
    scope: AccessScope


class PageOptions(FilterOptions, total=False):
    """Keyword arguments of a page of runs: a filter, the order, the page size and the cursor."""

    sort: str
    limit: int
    after: str | None


class RunsOptions(TypedDict, total=False):
    """Keyword arguments of `app.runs`."""

    state: RunState | None
    task: str | None
    queue: str | None
    tenant: str | None
    tag: str | None
    key: str | None
    metadata: Mapping[str, Any] | None
    error: str | None
    created_after: datetime | None
    created_before: datetime | None
    finished_after: datetime | None
    finished_before: datetime | None
    paused: bool
    top_level: bool
    search: str | None
    sort: RunSort
    limit: int
    after: str | None


def page_options(given: RunsOptions) -> PageOptions:
    """Return the arguments of `app.runs` as those of a page."""
    names = {"created_after": "created_from", "created_before": "created_to"}
    names |= {"finished_after": "finished_from", "finished_before": "finished_to"}
    for name in names:
        if (time := given.get(name)) is not None:
            time_to_micros(cast(datetime, time), name)  # checked here, so that an error has the name that was given
    return cast(PageOptions, {names.get(name, name): value for name, value in given.items()})


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects runs that match every given field; all runs without any. `…_from` is inclusive, `…_to` exclusive."""

    states: tuple[RunState, ...] = ()
    """States as users see them; empty means any."""
    task: str | None = None
    queue: str | None = None
    tenant: str | None = None
    tag: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    finished_from: datetime | None = None
    finished_to: datetime | None = None
    error: str | None = None
    """A substring of the error's code, type or message, case-insensitive."""
    key: str | None = None
    """The idempotency key with which the run was created."""
    metadata: str | None = None
    """Names and values that the run has, as canonical JSON text of an object."""
    id_prefix: str | None = None
    parent: UUID | None = None
    """The parent of children, or the graph of nodes."""
    family: UUID | None = None
    """The topmost ancestor; it is included."""
    paused: bool | None = None
    """Only unfinished runs that were paused themselves, not those of a paused task, queue or tenant."""
    top_level: bool | None = None
    """Only runs that no other run created: no children and no nodes."""
    search: str | None = None
    """A text in the key, a tag, an argument or the error, case-insensitive; see `model/text_search.py`."""
    ids: tuple[UUID, ...] = ()
    """Only these runs; empty means any."""
    scope: AccessScope = EVERYTHING
    """What the reader is limited to, whatever the other fields say."""

    @classmethod
    def of(cls, options: FilterOptions) -> RunFilter:
        """Create a filter from keyword arguments; `state` may be one state or several, `metadata` is a mapping."""
        others = ("state", "metadata", "ids")
        given: dict[str, Any] = {name: value for name, value in options.items() if name not in others}
        metadata = options.get("metadata")
        return cls(
            states=_states(options.get("state")),
            metadata=check_metadata(metadata) if metadata else None,
            ids=tuple(dict.fromkeys(options.get("ids") or ())),
            **given,
        )

    def __post_init__(self) -> None:
        self._set("states", _states(self.states))
        if self.scope.tenant is not None:
            self._set("tenant", self.scope.tenant)
        for name, max_chars in _TEXTS.items():
            if getattr(self, name) is not None:
                check_name(getattr(self, name), name, max_chars)
        for name in ("created_from", "created_to", "finished_from", "finished_to"):
            if getattr(self, name) is not None:
                time_to_micros(getattr(self, name), name)
        for name in ("paused", "top_level"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise ConfigError(f"{name} must be true or false, not {value!r}")
            self._set(name, value or None)
        if len(self.ids) > MAX_IDS:
            raise ConfigError(f"at most {MAX_IDS:,} runs can be given by id, not {len(self.ids):,}: use other filters")
        if self.id_prefix is not None:
            self._set("id_prefix", _prefix(self.id_prefix))

    def _set(self, name: str, value: Any) -> None:
        msgspec.structs.force_setattr(self, name, value)

    def given(self) -> set[str]:
        """Return the names of the fields that are set."""
        fields = set(self.__struct_fields__) - {"scope"}
        found = {name for name in fields if getattr(self, name) not in (None, ())}
        return found | {"scope"} if self.scope.limits_lanes else found


def check_sort(given: str) -> str:
    """Return the order of a list; ConfigError for a column without an index."""
    if given in SORTS:
        return given
    raise ConfigError(
        f"runs can't be sorted by {quoted(str(given))}: use {', '.join(SORTS)}; only these columns have an index, and "
        "a minus means the last first"
    )


def _states(given: str | Sequence[str] | None) -> tuple[RunState, ...]:
    wanted = (given,) if isinstance(given, str) else tuple(given or ())
    for state in wanted:
        if state not in RUN_STATES:
            raise ConfigError(f"unknown state {state!r}; the states are {', '.join(RUN_STATES)}")
    return cast("tuple[RunState, ...]", tuple(state for state in RUN_STATES if state in wanted))


def _prefix(given: str) -> str:
    digits = str(given).strip().lower().replace("-", "")
    if not _PREFIX.fullmatch(digits):
        raise ConfigError(f"invalid run id prefix {str(given)[:60]!r}: use the digits 0-9 and a-f")

    return digits
