"""Fair queues: whose turn it is. The runs of each tenant stand one after the other, and beside those of other tenants,
by weight; so one with a million runs and one with ten are served side by side.

A turn is a number that the ready index sorts by, within a priority. It is given when a run is made: after the last that
its tenant has ready, or beside the one that is claimed next, so that nobody saves up turns while it has no work.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeAlias

from holdfast.database import Row
from holdfast.store.part import Do, batch
from holdfast.store.rows import NewRun

Call: TypeAlias = tuple[str, dict[str, Any]]

STEP = 1_000_000
"""How far a run of weight 1 moves its tenant on."""


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
