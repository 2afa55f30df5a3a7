"""Compare the stores on both databases with the model, by random operations on a manual clock."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.proof.machine import StoreMachine
from tests.proof.schedule_machine import ScheduleMachine
from tests.support.store_harness import StoreHarness

SETTINGS = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    print_blob=True,
)  # fmt: skip


@pytest.fixture
def harnesses(sqlite_url, postgres_url):
    """Return a store on each database."""
    harnesses = (StoreHarness(sqlite_url), StoreHarness(postgres_url))
    yield harnesses
    for harness in harnesses:
        harness.close()


def run_machine(machine, harnesses, examples, steps):
    tried = type("Machine", (machine,), {"harnesses": harnesses})
    run_state_machine_as_test(tried, settings=settings(SETTINGS, max_examples=examples, stateful_step_count=steps))


def test_both_stores_match_the_model(harnesses):
    run_machine(StoreMachine, harnesses, 8, 30)


def test_schedules_on_both_stores_match_the_model(harnesses):
    run_machine(ScheduleMachine, harnesses, 5, 25)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [StoreMachine, ScheduleMachine])
def test_both_stores_match_the_model_in_long_runs(harnesses, machine):
    run_machine(machine, harnesses, 100, 50)
