"""Which runs someone wants to see, or to change: a filter, checked, as plain data. Finding them is the store's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict, cast
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import time_to_micros
from holdfast.model.names import check_name
from holdfast.model.run import RUN_STATES, RunState

LONGEST_ERROR = 500

_PREFIX = re.compile(r"[0-9a-f]{1,32}")


class FilterOptions(TypedDict, total=False):
    """A filter as it is given by name."""

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
    id_prefix: str | None
    parent: UUID | None
    family: UUID | None


class PageOptions(FilterOptions, total=False):
    """Which runs a page shall have: filters, how many at most, and where to go on."""

    limit: int
    after: str | None


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that fit everything that is given; without anything, all runs. Times are from the first on and before the
    second."""

    states: tuple[RunState, ...] = ()
    """In one of these states, as they are shown; none: in any."""
    task: str | None = None
    queue: str | None = None
    tenant: str | None = None
    tag: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    finished_from: datetime | None = None
    finished_to: datetime | None = None
    error: str | None = None
    """A part of the error's code, type or message, in small or capital letters."""
    id_prefix: str | None = None
    """How the id begins."""
    parent: UUID | None = None
    """Whose children, or nodes, they are."""
    family: UUID | None = None
    """The run at the top of their family, which is one of them."""

    @classmethod
    def of(cls, asked: FilterOptions) -> RunFilter:
        """The filter that is asked for by name, `state` being one or several."""
        given: dict[str, Any] = {name: value for name, value in asked.items() if name != "state"}
        return cls(states=_states(asked.get("state")), **given)

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "states", _states(self.states))
        for name in ("task", "queue", "tenant", "tag"):
            if getattr(self, name) is not None:
                check_name(getattr(self, name), name)
        for name in ("created_from", "created_to", "finished_from", "finished_to"):
            if getattr(self, name) is not None:
                time_to_micros(getattr(self, name), name)
        if self.error is not None:
            check_name(self.error, "the text in an error", LONGEST_ERROR)
        if self.id_prefix is not None:
            msgspec.structs.force_setattr(self, "id_prefix", _prefix(self.id_prefix))

    def given(self) -> set[str]:
        """The names of what it asks for."""
        return {name for name in self.__struct_fields__ if getattr(self, name) not in (None, ())}


def _states(given: str | Sequence[str] | None) -> tuple[RunState, ...]:
    wanted = (given,) if isinstance(given, str) else tuple(given or ())
    for state in wanted:
        if state not in RUN_STATES:
            raise ConfigError(f"there is no state {state!r}; the states are {', '.join(RUN_STATES)}")
    return cast("tuple[RunState, ...]", tuple(state for state in RUN_STATES if state in wanted))


def _prefix(given: str) -> str:
    digits = str(given).strip().lower().replace("-", "")
    if not _PREFIX.fullmatch(digits):
        raise ConfigError(f"{str(given)[:60]!r} is no beginning of a run id, which is made of the digits 0-9 and a-f")
    return digits
