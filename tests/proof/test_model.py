"""Compare the stores on both databases with the model, by random operations on a manual clock."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.proof.machine import StoreMachine
from tests.support.store_harness import StoreHarness

SETTINGS = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    print_blob=True,
)  # fmt: skip


@pytest.fixture
def machine(sqlite_url, postgres_url):
    """Return the state machine with a store on each database."""
    harnesses = (StoreHarness(sqlite_url), StoreHarness(postgres_url))
    yield type("Machine", (StoreMachine,), {"harnesses": harnesses})
    for harness in harnesses:
        harness.close()


def test_both_stores_match_the_model(machine):
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=8, stateful_step_count=30))


@pytest.mark.slow
def test_both_stores_match_the_model_in_long_runs(machine):
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=100, stateful_step_count=50))
