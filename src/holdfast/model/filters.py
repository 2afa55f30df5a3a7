"""Filters that select runs for listing and bulk operations, as validated plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, cast
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.access import EVERYTHING, AccessScope
from holdfast.model.clock import time_to_micros
from holdfast.model.metadata import check_metadata
from holdfast.model.names import MAX_KEY_CHARS, check_name
from holdfast.model.run import RUN_STATES, RunState

MAX_ERROR_CHARS = 500

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
    scope: AccessScope


class PageOptions(FilterOptions, total=False):
    """Keyword arguments of a page of runs: a filter, the page size and the cursor."""

    limit: int
    after: str | None


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
    scope: AccessScope = EVERYTHING
    """What the reader is limited to, whatever the other fields say."""

    @classmethod
    def of(cls, options: FilterOptions) -> RunFilter:
        """Create a filter from keyword arguments; `state` may be one state or several, `metadata` is a mapping."""
        given: dict[str, Any] = {name: value for name, value in options.items() if name not in ("state", "metadata")}
        metadata = options.get("metadata")
        return cls(
            states=_states(options.get("state")), metadata=check_metadata(metadata) if metadata else None, **given
        )

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "states", _states(self.states))
        if self.scope.tenant is not None:
            msgspec.structs.force_setattr(self, "tenant", self.scope.tenant)
        for name in ("task", "queue", "tenant", "tag"):
            if getattr(self, name) is not None:
                check_name(getattr(self, name), name)
        for name in ("created_from", "created_to", "finished_from", "finished_to"):
            if getattr(self, name) is not None:
                time_to_micros(getattr(self, name), name)
        if self.error is not None:
            check_name(self.error, "error", MAX_ERROR_CHARS)
        if self.key is not None:
            check_name(self.key, "key", MAX_KEY_CHARS)
        if self.paused is not None and not isinstance(self.paused, bool):
            raise ConfigError(f"paused must be true or false, not {self.paused!r}")
        msgspec.structs.force_setattr(self, "paused", self.paused or None)
        if self.id_prefix is not None:
            msgspec.structs.force_setattr(self, "id_prefix", _prefix(self.id_prefix))

    def given(self) -> set[str]:
        """Return the names of the fields that are set."""
        fields = set(self.__struct_fields__) - {"scope"}
        found = {name for name in fields if getattr(self, name) not in (None, ())}
        return found | {"scope"} if self.scope.limits_lanes else found


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
