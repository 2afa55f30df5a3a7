"""What a chaos run has left behind: the ledger, and what the database says. Plain data, for the verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from holdfast import Holdfast
from tests.chaos.effects import Line, lines_of
from tests.chaos.pool import Attack, Kill
from tests.chaos.workload import MARK
from tests.support.charges import Charge, read_charges
from tests.support.counting import ask
from tests.support.ledger import Ledger

FINAL = ("done", "failed", "cancelled", "skipped")


class RunRow(NamedTuple):
    """A run. Only what has code of its own, and graphs by their roots, have a mark."""

    id: str
    mark: str | None
    state: str
    fence: int
    session: str | None
    error: str | None

    @property
    def code(self) -> str | None:
        """The code of its error."""
        return None if self.error is None else str(json.loads(self.error)["code"])


class Entry(NamedTuple):
    """A row of the history; `at` by the monotonic clock."""

    run: str
    n: int
    at: float
    kind: str
    fence: int | None
    session: str | None


class Checkpoint(NamedTuple):
    """A row of what functions have recorded."""

    run: str
    generation: int
    n: int
    key: str
    fence: int


@dataclass
class Facts:
    """All of it. `windows`: from when to when something was wrong with the database. `charges`: the crashes that count,
    by the monotonic clock. `attacks`: what the storm did to workers."""

    lines: Sequence[Line]
    runs: Sequence[RunRow]
    history: Sequence[Entry]
    checkpoints: Sequence[Checkpoint]
    rows: Sequence[tuple[str, str]]
    acknowledged: Mapping[str, str]
    kills: Sequence[Kill] = ()
    windows: Sequence[tuple[float, float]] = ()
    ended_by_themselves: Sequence[str] = field(default_factory=list)
    charges: Sequence[Charge] = ()
    attacks: Sequence[Attack] = ()
    lease: float = 3.0


def gather(app: Holdfast, ledger: Ledger, acknowledged: Mapping[str, UUID]) -> Facts:
    """Read it, when all is quiet."""
    marks = {str(run): mark for mark, run in acknowledged.items()}
    offset = time.time() - time.monotonic()
    runs = ask(app, "select id, args, state, fence, session, error from {}runs order by seq")
    history = ask(app, "select run, n, at, kind, fence, session from {}history order by run, n")
    kept = ask(app, "select run, generation, n, key, fence from {}checkpoints order by run, generation, n")
    return Facts(
        lines_of(ledger),
        [RunRow(str(id), marks.get(str(id)) or _mark(args), *more) for id, args, *more in runs],
        [Entry(str(run), n, at / 1e6 - offset, *more) for run, n, at, *more in history],
        [Checkpoint(str(run), *more) for run, *more in kept],
        [(mark, name) for mark, name in ask(app, "select mark, name from effects")],
        {mark: str(run) for mark, run in acknowledged.items()},
        charges=[charge._replace(at=charge.at - offset) for charge in read_charges(app)],
    )


def _mark(args: str) -> str | None:
    found = MARK.search(args)
    return found[1] if found else None
