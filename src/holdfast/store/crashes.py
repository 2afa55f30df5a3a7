"""Charge a worker's death to the run that caused it.

When a process dies, all runs in it stop, but usually one of them is to blame. A run is charged with a crash only if it
died alone: no other run was running in that process. A death with several runs in it charges nobody. Those runs return
to ready; if it happens to a run twice in a row, the run is isolated, so that it next runs in a process with fewer runs
(a quarter of the last group), until the culprit dies alone and the others have finished.

Everything here runs inside a transaction of the caller, which has locked the runs and their parents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.store.family import HeldRun
from holdfast.store.part import Do, batch, record
from holdfast.store.settling import settle


class Death(NamedTuple):
    """A locked, running run whose process died."""

    run: str
    together: int
    """How many runs were running in the process, this one included; 0: the process didn't die, but lost its lease
    because the database didn't answer."""
    isolate: bool | None = None
    """Whether it must not share a process with other runs from now on; None: only if it died before, and no attempt has
    ended in order since."""
    error: str | None = None
    """The error that describes the death, as JSON; stored with the run even if it is tried again."""


class CrashOutcome(NamedTuple):
    """The runs that failed because of deaths. `failed_with`: graphs that failed because of `failed`."""

    failed: list[str]
    failed_with: list[str]


def record_deaths(
    do: Do, runs: Mapping[str, HeldRun], deaths: Sequence[Death], too_many: str | None = None, *, fenced: bool
) -> CrashOutcome:
    """Return these runs to ready, or fail those that died alone more often than their `max_crashes` allows.

    `too_many`: the error of those that fail, unless their death has one. `fenced`: the history entry names the fence,
    because the session itself reports the death.
    """
    rows = [
        {
            "id": death.run, "together": death.together, "error": death.error,
            "isolate": 0 if not death.together else None if death.isolate is None else int(death.isolate),
        }
        for death in deaths
    ]  # fmt: skip
    by_run = {death.run: death for death in deaths}
    records, ends = [], []
    for id, n, attempt, since, state, ending, *_ in do("crash_runs", rows=batch(rows), too_many=too_many):
        run, death = runs[str(id)], by_run[str(id)]
        fails = state == "failed" or ending != run.ending
        data: str | None
        if death.together != 1:
            kind, data = "worker_lost", msgspec.json.encode({"together": death.together}).decode()
        else:
            kind, data = "crashed", death.error or (too_many if fails else None)
        fence = run.fence if fenced else None
        records.append(
            record(run.id, n, kind, attempt, fence=fence, session=run.session, since=since, data=data)
        )  # fmt: skip
        if fails:
            ends.append(run.ended("failed" if state == "failed" else "undoing"))
    do("add_history", rows=batch(records))
    return CrashOutcome([end.id for end in ends if end.final], settle(do, ends))
