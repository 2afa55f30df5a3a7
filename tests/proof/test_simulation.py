"""Simulate whole workers with faults that a seed decides, and check the invariants at every commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.simulate import run_many, run_seed

ROOT = Path(__file__).resolve().parents[2]
MANY = 10_000


def violations(results):
    """Return the violations, with the command that reproduces each."""
    return [f"{one.violation}\n  reproduce with: {one.replay()}" for one in results if one.violation]


def test_a_few_seeds_violate_no_invariant():
    results = [run_seed(seed) for seed in range(2, 22)]
    assert violations(results) == []
    happened = {what for one in results for what in one.faults}
    assert {"kill", "stall", "late", "lose before", "lose after", "start", "wake"} <= happened
    assert {"block", "block forever", "kill by a culprit"} <= happened


def test_commits_of_clients_and_committers_that_claim_violate_no_invariant():
    results = [run_seed(seed, local_clients=True) for seed in (0, 3, 4, 5, 6, 15, 29, 35, 38)]
    assert violations(results) == []
    happened = {what for one in results for what in one.faults}
    assert {"new run claimed by client", "new run claimed by committer", "running run claimed by committer"} <= happened
    assert "waiting run claimed by client" in happened
    assert {"kill", "stall", "late", "lose before", "lose after", "block"} <= happened


@pytest.mark.parametrize("local_clients", [False, True])
def test_the_same_seed_gives_the_same_trace_whatever_ran_before_it(local_clients):
    first = run_seed(3, local_clients=local_clients)
    run_seed(4, local_clients=local_clients)
    assert run_seed(3, local_clients=local_clients).digest == first.digest


@pytest.mark.parametrize("local_clients", [False, True])
def test_the_same_seed_gives_the_same_trace_in_another_process(local_clients):
    command = [sys.executable, "-m", "tests.proof.simulate", "--seed", "3"]
    command += ["--local-clients"] if local_clients else []
    environment = {**os.environ, "PYTHONHASHSEED": "1234", "PYTHONPATH": str(ROOT)}
    results = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"trace {run_seed(3, local_clients=local_clients).digest}," in results


@pytest.mark.slow
@pytest.mark.parametrize(("local_clients", "seeds"), [(False, MANY), (True, MANY // 10)])
def test_many_seeds_violate_no_invariant(local_clients, seeds):
    results = list(run_many(range(seeds), os.cpu_count() or 1, local_clients=local_clients))
    assert violations(results) == []
    assert len(results) == seeds
