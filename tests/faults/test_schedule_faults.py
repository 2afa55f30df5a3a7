"""Schedules with workers that die in the middle of a slot, and with workers whose clocks are wrong."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import Process
from tests.support.wait_until import wait_until

APP = Path(__file__).resolve().parent / "apps" / "scheduled.py"


@pytest.fixture
def start(processes, ledger, database_url) -> Callable[..., Process]:
    def start(*settings: object) -> Process:
        return processes.start(APP, database_url, ledger.path, *settings)

    return start


def slots_of(ledger) -> list[int]:
    return [int(words[0]) for words in ledger.words()]


def wait_for_slots(ledger, count: int) -> None:
    """Wait for a number of consecutive slots with one run each."""
    wait_until(lambda: (slots := slots_of(ledger)) and set(slots) >= set(range(min(slots), min(slots) + count)))
    assert len(set(slots_of(ledger))) == len(slots_of(ledger)), "a slot has two runs"


@pytest.mark.parametrize("at", ["add_runs", "add_slots", "advance_schedules", "commit"])
def test_a_worker_killed_in_a_slot_leaves_one_run_and_an_intact_next_slot(start, ledger, at):
    victim = start("--die-at", at)
    assert victim.wait(60) == -signal.SIGKILL
    assert ledger.path.with_name("died").exists(), "it died for another reason"
    start()
    wait_for_slots(ledger, 3)


def test_workers_with_wrong_clocks_create_one_run_per_slot_on_time(start, ledger):
    ahead, behind = start("--clock-off", 600), start("--clock-off", -600)
    for worker in (ahead, behind):
        worker.wait_for("worker started", timeout=60)
    wait_for_slots(ledger, len(ledger.lines()) + 3)
    now = time.time()
    assert all(-60 < now - slot < 240 for slot in slots_of(ledger)), "slots were computed with a worker's own clock"
    assert all(float(words[2]) >= int(words[0]) for words in ledger.words()), "a run began before its slot"
