"""Peers are measured beside us in every round, and what can't be had is named. `raw` runs here as it is; the libraries
are installed by a slow test only."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments
from benchmarks.peers.catalog import PEERS, RAW, PEER_CASES
from benchmarks.peers.environments import PeerUnavailable, prepare

LIBRARIES = [name for name in PEERS if name != RAW.name]


@pytest.fixture
def ready_raw(tmp_path, monkeypatch) -> Path:
    """An environment for `raw` that is made already: this one, which has what it needs."""
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path))
    folder = tmp_path / f"python{sys.version_info.major}.{sys.version_info.minor}" / RAW.name
    (folder / "bin").mkdir(parents=True)
    (folder / "requirements.txt").write_text("\n".join(RAW.requirements))
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo \'{{"asyncpg": "1"}}\' || exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_raw_jobs_are_measured_in_every_round_and_compared_with(measured, chosen, ready_raw):
    found = measured("jobs", *chosen, "--count", "1000", "--reps", "2", "--workers", "1", "--peers", "raw")
    raw, child_command = found["results"]
    assert (raw["subject"], child_command["subject"]) == ("raw", "holdfast")
    assert (raw["n"], raw["count"], raw["versions"]) == (2, 1000, {"asyncpg": "1"})
    [ratio] = found["ratios"]
    assert ratio["ratio"] == pytest.approx(child_command["median"] / raw["median"])
    assert (ratio["title"], ratio["must"]) == (
        "holdfast / raw, 1 worker",
        "0.5" if "--sqlite" in chosen else "0.55",
    )
    assert ratio["verdict"] in ("ok", "short")


def test_raw_steps_are_measured_at_once_and_alone(measured, chosen, ready_raw):
    found = measured("steps", *chosen, "--quick", "--count", "100", "--peers", "raw")
    metrics = ["500 at once", "100 at once", "alone"]
    assert [(ratio["figure"], ratio["to"]) for ratio in found["ratios"]] == [(metric, "raw") for metric in metrics]


@pytest.mark.slow
def test_raw_has_a_latency_and_three_ways_to_enqueue(measured, durable_server, ready_raw):
    where = ("--quick", "--postgres", durable_server, "--peers", "raw")
    found = measured("latency", *where, "--count", "4")
    assert [(ratio["figure"], ratio["to"]) for ratio in found["ratios"]] == [("p50", "raw"), ("p99", "raw")]
    found = measured("enqueue", *where, "--count", "1000")
    assert [ratio["title"] for ratio in found["ratios"]] == [
        "holdfast / raw, one by one",
        "holdfast / raw, 100 at once",
        "holdfast / raw, bulk",
        "holdfast, 100 at once / raw, one by one",
    ]


def test_a_peer_that_fails_is_named_and_ends_with_1(measured, ready_raw):
    ready_raw.write_text("#!/bin/sh\n[ \"$1\" = -c ] && echo '{}' || { echo no luck; exit 3; }\n")
    found = measured("jobs", "--sqlite", "--quick", "--count", "20", "--workers", "1", "--peers", "raw", code=1)
    assert found["failures"] == [
        {"database": "SQLite", "subject": "raw", "part": "1 worker", "why": "the raw ended with 3: no luck"}
    ]
    assert [line["subject"] for line in found["results"]] == ["holdfast"]


def test_a_peer_that_cannot_be_installed_is_named_with_the_reason(measured, ready_raw, monkeypatch):
    def prepared(name, requirements):
        raise PeerUnavailable("pip couldn't install it: there is no network")

    monkeypatch.setattr("benchmarks.peers.runner.prepare", prepared)
    found = measured("jobs", "--sqlite", "--quick", "--count", "20", "--workers", "1", "--peers", "raw")
    assert found["not measured"] == {"raw": "pip couldn't install it: there is no network"}


def test_a_peer_without_such_a_measure_is_named(measured, ready_raw):
    found = measured("latency", "--sqlite", "--quick", "--count", "3", "--peers", "raw")
    assert found["not measured"] == {"raw": "it has nothing to compare in latency here"}


def test_what_pip_said_is_the_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(environments, "WAITS", (0,))
    with pytest.raises(PeerUnavailable, match=r"pip couldn't install it: .*no-such-peer"):
        prepare("odd", ["no-such-peer==1"])
    last_output = capsys.readouterr().err
    assert "peers: installing odd (no-such-peer==1)" in last_output
    assert "trying again" in last_output


def test_a_python_that_is_too_old_is_named_in_few_words():
    last_output = (
        "ERROR: Ignored the following versions that require a different python version:"
        " 1.0 Requires-Python >=3.40; 1.1 Requires-Python >=3.41\n"
        "ERROR: Could not find a version that satisfies the requirement odd==1.1 (from versions: none)\n"
    )
    assert environments._reason(last_output) == f"it needs Python >=3.41, this is {platform.python_version()}"


def test_every_peer_has_what_its_trials_need():
    cases = [case for make in PEER_CASES.values() for case in make()]
    assert {case.peer.name for case in cases} == set(PEERS)
    assert all(case.peer.steps for case in cases if case.task == "steps")


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_is_installed_and_measured_or_named_with_the_reason(measured, durable_server, name):
    where = ("--quick", "--postgres", durable_server, "--peers", name)
    for benchmark, count in (("jobs", "500"), ("enqueue", "2000"), ("latency", "4"), ("steps", "200")):
        found = measured(benchmark, *where, "--count", count)
        subjects = {line["subject"] for line in found["results"]}
        has = any(case.peer.name == name for case in PEER_CASES[benchmark]())
        assert name in subjects or name in found["not measured"] or not has
