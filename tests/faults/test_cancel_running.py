"""Running code is notified of a cancellation within a second, although the lease is a minute."""

from __future__ import annotations

import time

import pytest

from tests.faults.conftest import APPS
from tests.support.processes import has_ended
from tests.support.wait_until import wait_until

TOLD_WITHIN_S = 5.0
"""A renewal would notice after up to 20 s. Another test checks the exact bound with a manual clock."""
PLACES = (
    "on_loop", "in_thread", "beside_loop", "in_process", "durable_on_loop", "durable_in_step", "durable_in_body",
    "durable_next_step",
)  # fmt: skip


@pytest.fixture
def worker(processes, ledger, database_url):
    process = processes.start(APPS / "cancelled.py", database_url, ledger.path)
    process.wait_for("worker started", timeout=60)
    return process


def began(ledger):
    return [int(pid) for what, pid in ledger.words() if what == "began"]


def test_a_run_cancelled_from_another_process_stops_within_a_second(app, worker, ledger):
    runs = {}
    for number, name in enumerate(PLACES, 1):
        runs[name] = app.remote(name).enqueue()
        wait_until(lambda number=number: len(began(ledger)) == number)
    [killed] = set(began(ledger)) - {worker.pid}
    cancelled_at = time.monotonic()
    for run in runs.values():
        assert run.cancel()
    wait_until(lambda: has_ended(killed), TOLD_WITHIN_S, "the process task is killed")
    others = len(PLACES) - 1
    wait_until(lambda: ledger.lines().count(f"told {worker.pid}") == others, TOLD_WITHIN_S, ledger.lines)
    assert time.monotonic() - cancelled_at < TOLD_WITHIN_S
    for name, run in runs.items():
        wait_until(lambda run=run: app.store.queries.run(str(run.id)).session is None, what=name)
        assert run.info().state == "cancelled"
