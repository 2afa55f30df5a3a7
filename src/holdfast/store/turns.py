"""Turns: the order in which the ready runs of one priority are claimed, as a number that the ready index sorts by.

In most queues a run's turn is the database time at which it became ready, minus `TURN_EPOCH`: it queues behind work
that was ready before, also when it reschedules itself (a machine's move, a retry, a wake-up). A batch has one time,
and is ordered by `seq`. A run that returns through no fault of its own (handed back, its worker lost) keeps its turn.
So do nodes of graphs and children of maps that wait for others: their turn is that of the graph or map, so that graphs
and maps that have begun finish first.

In a fair queue turns are positive numbers. The runs of each tenant stand one after the other, and beside those of other
tenants, by weight; so one with a million runs and one with ten are served side by side. A turn is given when a run is
created: after the last that its tenant has ready, or beside the one that is claimed next, so that nobody saves up turns
while it has no work. A run that becomes ready again gets the next turn of its tenant (`{next_turn}` in
`database/dialect.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeAlias

from holdfast.database import Row
from holdfast.database.dialect import TURN_STEP
from holdfast.store.part import Do, batch
from holdfast.store.rows import NewRun

Call: TypeAlias = tuple[str, dict[str, Any]]

STEP = TURN_STEP


def take_turns(runs: Iterable[NewRun], tenant: str | None = None) -> Generator[Call, list[Row], None]:
    """Give the runs of fair queues among these their turns. `tenant` is whose they are when they don't say."""
    fair = [(run, run.tenant or tenant or "") for run in runs if run.fair is not None]
    if not fair:
        return
    places = sorted({(run.queue, whose) for run, whose in fair})
    found = yield "next_turns", {"rows": batch({"queue": queue, "tenant": whose} for queue, whose in places)}
    last = {(queue, whose): max(own or 0, (head or 0) - STEP, 0) for queue, whose, own, head in found}
    for run, whose in fair:
        assert run.fair is not None
        last[run.queue, whose] += STEP // run.fair.get(whose, 1)
        run.turn = last[run.queue, whose]


def give_turns(do: Do, runs: Iterable[NewRun], tenant: str | None = None) -> None:
    """The same in a transaction of ours."""
    steps = take_turns(runs, tenant)
    try:
        name, values = next(steps)
        while True:
            name, values = steps.send(do(name, **values))
    except StopIteration:
        return
