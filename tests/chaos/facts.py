"""The evidence for the verdict: the ledger and the rows of the database, as plain data."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from holdfast import Holdfast
from tests.chaos.effects import Line, read_lines
from tests.chaos.worker_pool import Attack, Kill
from tests.chaos.workload import MARK, SUBSCRIBERS
from tests.support.charges import Charge, read_charges
from tests.support.history_queries import fetch
from tests.support.ledger import Ledger

FINAL = ("done", "failed", "cancelled", "skipped")


class RunRow(NamedTuple):
    """A run. Runs with code of their own and the roots of graphs have a mark."""

    id: str
    mark: str | None
    state: str
    fence: int
    session: str | None
    error: str | None

    @property
    def code(self) -> str | None:
        """The error code."""
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
    """A row of the checkpoints."""

    run: str
    generation: int
    n: int
    key: str
    fence: int


@dataclass
class Facts:
    """All facts. Times are by the monotonic clock.

    `windows` are the periods with a faulty database, `pauses` those in which an operator kept runs from starting,
    `charges` the crashes that count against a run, and `attacks` the faults of workers.
    """

    lines: Sequence[Line]
    runs: Sequence[RunRow]
    history: Sequence[Entry]
    checkpoints: Sequence[Checkpoint]
    rows: Sequence[tuple[str, str]]
    acknowledged: Mapping[str, str]
    kills: Sequence[Kill] = ()
    windows: Sequence[tuple[float, float]] = ()
    pauses: Sequence[tuple[float, float]] = ()
    unexpected_exits: Sequence[str] = field(default_factory=list)
    charges: Sequence[Charge] = ()
    attacks: Sequence[Attack] = ()
    lease: float = 3.0


def collect_facts(app: Holdfast, ledger: Ledger, acknowledged: Mapping[str, UUID]) -> Facts:
    """Read the facts after all runs have finished."""
    marks = {str(run): mark for mark, run in acknowledged.items()}
    offset = time.time() - time.monotonic()
    runs = fetch(
        app,
        "select r.id, l.task, r.args, r.state, r.fence, r.session, r.error"
        " from {}runs r join {}lanes l on l.id = r.lane order by r.seq",
    )
    history = fetch(app, "select run, n, at, kind, fence, session from {}history order by run, n")
    kept = fetch(app, "select run, generation, n, key, fence from {}checkpoints order by run, generation, n")
    return Facts(
        read_lines(ledger),
        [RunRow(str(id), marks.get(str(id)) or _mark(task, args), *more) for id, task, args, *more in runs],
        [Entry(str(run), n, at / 1e6 - offset, *more) for run, n, at, *more in history],
        [Checkpoint(str(run), *more) for run, *more in kept],
        [(mark, name) for mark, name in fetch(app, "select mark, name from effects")],
        {mark: str(run) for mark, run in acknowledged.items()},
        charges=[charge._replace(at=charge.at - offset) for charge in read_charges(app)],
    )


def _mark(task: str, args: str) -> str | None:
    found = MARK.search(args)
    if found is None:
        return None
    return f"{found[1]}_{task}" if task in SUBSCRIBERS else found[1]
