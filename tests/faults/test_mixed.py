"""A mixed load with culprits: runs that block the loop, hang threads, hold the GIL or kill their process.

Culprits fail by their own policy. All other runs succeed soon and aren't charged.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from holdfast import Holdfast
from tests.support.busy_writer import BusyWriter
from tests.support.charges import record_charges
from tests.support.culprits import HARMS
from tests.support.ledger import Ledger
from tests.support.mixed import (
    CpuPressure,
    Feeder,
    Fleet,
    Outcome,
    Scale,
    ends_of_blocks,
    figures,
    started,
    wait_for_end,
)
from tests.support.mixed_tasks import Line, Mixed

SMALL = Scale(runs=160, culprits=1, lease=2.0, rate=40, concurrency=10)
LARGE = Scale(runs=20_000, culprits=20, lease=3.0, rate=25, concurrency=20)
"""At this rate two cores have time to restart a worker after each harm, so lateness shows waiting, not a backlog."""


def play(url, folder, scale, fleet):
    """Run the mixed load; on SQLite another program holds 100 ms transactions meanwhile."""
    record_charges(url)
    since, pressure = time.monotonic(), CpuPressure()
    with Holdfast(url) as app:
        feeder = Feeder(Mixed(app, str(folder / "ledger")), scale)
        writer = BusyWriter(url) if url.startswith("sqlite") else None
        with started(fleet), writer or nullcontext():
            feeder.feed()
            wait_for_end(app, fleet)
        if writer is not None:  # it also sees what blocks writes after the last enqueue
            feeder.blocked_until += ends_of_blocks(writer.commits())
        lines = [Line.read(text) for text in Ledger(folder / "ledger").lines()]
        outcome = Outcome(app, feeder, lines, scale)
        outcome.cpu_pressure = pressure.share()
        return outcome, time.monotonic() - since


def check(outcome, scale):
    assert outcome.failed_innocents() == {}
    assert outcome.charged_innocents() == {}
    assert outcome.missing_effects() == []
    assert outcome.odd_culprits() == {}
    harmed = {line.mark for line in outcome.lines if line.kind == "harm"}
    assert len(harmed) == len(HARMS) * scale.culprits, "not every culprit did harm"


@pytest.mark.parametrize(
    "supervisors", [pytest.param(0, marks=pytest.mark.slow), 1], ids=["unsupervised", "supervised"]
)
def test_only_culprits_fail_and_only_they_are_charged(database_url, tmp_path, supervisors):
    scale = replace(SMALL, seed=supervisors)  # the seed also selects the kinds of culprits
    fleet = Fleet(tmp_path, database_url, scale, workers=3, supervisors=supervisors)
    outcome, seconds = play(database_url, tmp_path, scale, fleet)
    print(figures(outcome, fleet, seconds, "small"))  # noqa: T201 - shown when it fails
    check(outcome, scale)


@pytest.mark.slow
@pytest.mark.parametrize("supervisors", [0, 2], ids=["unsupervised", "supervised"])
def test_of_twenty_thousand_runs_only_culprits_fail(database_url, tmp_path, supervisors, capsys):
    fleet = Fleet(tmp_path, database_url, LARGE, workers=8, supervisors=supervisors)
    outcome, seconds = play(database_url, tmp_path, LARGE, fleet)
    with capsys.disabled():
        title = f"{database_url.split(':')[0]}, {'supervised' if supervisors else 'unsupervised'}"
        print("\n" + figures(outcome, fleet, seconds, title))  # noqa: T201 - the figures are the point
    # Lateness is only printed. It depends on the capacity of the machine, and two leases are no bound on SQLite, where
    # a culprit that holds the GIL may hold the only write lock (docs/promises.md).
    check(outcome, LARGE)
