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


def test_the_same_seed_gives_the_same_trace_whatever_ran_before_it():
    first = run_seed(3)
    run_seed(4)
    assert run_seed(3).digest == first.digest


def test_the_same_seed_gives_the_same_trace_in_another_process():
    command = [sys.executable, "-m", "tests.proof.simulate", "--seed", "3"]
    environment = {**os.environ, "PYTHONHASHSEED": "1234", "PYTHONPATH": str(ROOT)}
    results = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"trace {run_seed(3).digest}," in results


@pytest.mark.slow
def test_ten_thousand_seeds_violate_no_invariant():
    results = list(run_many(range(MANY), os.cpu_count() or 1))
    assert violations(results) == []
    assert len(results) == MANY
