"""Peers are measured in every repetition, and unavailable ones are reported.

The tests use `raw`; only a slow test installs the libraries.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments
from benchmarks.peers.catalog import PEER_CASES, PEERS, RAW
from benchmarks.peers.environments import PeerUnavailable, prepare

LIBRARIES = [name for name in PEERS if name != RAW.name]


@pytest.fixture
def ready_raw(tmp_path, monkeypatch) -> Path:
    """An existing environment for `raw`: this one, which has its dependencies."""
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path))
    folder = tmp_path / f"python{sys.version_info.major}.{sys.version_info.minor}" / RAW.name
    (folder / "bin").mkdir(parents=True)
    (folder / "requirements.txt").write_text("\n".join(RAW.requirements))
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo \'{{"asyncpg": "1"}}\' || exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_raw_jobs_are_measured_in_every_repetition_and_compared(measured, chosen, ready_raw):
    found = measured("jobs", *chosen, "--count", "1000", "--reps", "2", "--workers", "1", "--peers", "raw")
    raw, ours = found["results"]
    assert (raw["subject"], ours["subject"]) == ("raw", "holdfast")
    assert (raw["n"], raw["count"], raw["versions"]) == (2, 1000, {"asyncpg": "1"})
    [ratio] = found["ratios"]
    assert ratio["ratio"] == pytest.approx(ours["median"] / raw["median"])
    assert (ratio["title"], ratio["target"]) == (
        "holdfast / raw, 1 worker",
        "0.5" if "--sqlite" in chosen else "0.55",
    )
    assert ratio["verdict"] in ("ok", "short")


def test_raw_steps_are_measured_concurrently_and_alone(measured, chosen, ready_raw):
    found = measured("steps", *chosen, "--quick", "--count", "100", "--peers", "raw")
    metrics = ["500 at once", "100 at once", "alone"]
    assert [(ratio["metric"], ratio["to"]) for ratio in found["ratios"]] == [(metric, "raw") for metric in metrics]


@pytest.mark.slow
def test_raw_is_measured_for_latency_and_enqueueing(measured, durable_server, ready_raw):
    where = ("--quick", "--postgres", durable_server, "--peers", "raw")
    found = measured("latency", *where, "--count", "4")
    assert [(ratio["metric"], ratio["to"]) for ratio in found["ratios"]] == [("p50", "raw"), ("p99", "raw")]
    found = measured("enqueue", *where, "--count", "1000")
    assert [ratio["title"] for ratio in found["ratios"]] == [
        "holdfast / raw, one by one",
        "holdfast / raw, 100 at once",
        "holdfast / raw, bulk",
        "holdfast, 100 at once / raw, one by one",
    ]


def test_a_failing_peer_is_reported_and_the_exit_code_is_1(measured, ready_raw):
    ready_raw.write_text("#!/bin/sh\n[ \"$1\" = -c ] && echo '{}' || { echo no luck; exit 3; }\n")
    found = measured("jobs", "--sqlite", "--quick", "--count", "20", "--workers", "1", "--peers", "raw", code=1)
    assert found["failures"] == [
        {"database": "SQLite", "subject": "raw", "variant": "1 worker", "why": "the raw exited with 3: no luck"}
    ]
    assert [line["subject"] for line in found["results"]] == ["holdfast"]


def test_a_peer_that_cannot_be_installed_is_skipped_with_the_reason(measured, ready_raw, monkeypatch):
    def prepared(name, requirements):
        raise PeerUnavailable("pip failed: there is no network")

    monkeypatch.setattr("benchmarks.peers.runner.prepare", prepared)
    found = measured("jobs", "--sqlite", "--quick", "--count", "20", "--workers", "1", "--peers", "raw")
    assert found["skipped"] == {"raw": "pip failed: there is no network"}


def test_a_peer_without_this_benchmark_is_skipped(measured, ready_raw):
    found = measured("latency", "--sqlite", "--quick", "--count", "3", "--peers", "raw")
    assert found["skipped"] == {"raw": "has nothing to compare with latency here"}


def test_the_reason_comes_from_pip(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(environments, "RETRY_DELAYS_S", (0,))
    with pytest.raises(PeerUnavailable, match=r"pip failed: .*no-such-peer"):
        prepare("odd", ["no-such-peer==1"])
    output = capsys.readouterr().err
    assert "peers: installing odd (no-such-peer==1)" in output
    assert "retrying" in output


def test_an_unsupported_python_version_is_the_reason():
    output = (
        "ERROR: Ignored the following versions that require a different python version:"
        " 1.0 Requires-Python >=3.40; 1.1 Requires-Python >=3.41\n"
        "ERROR: Could not find a version that satisfies the requirement odd==1.1 (from versions: none)\n"
    )
    assert environments._failure_reason(output) == f"needs Python >=3.41, this is {platform.python_version()}"


def test_every_peer_has_what_its_cases_need():
    cases = [case for make in PEER_CASES.values() for case in make()]
    assert {case.peer.name for case in cases} == set(PEERS)
    assert all(case.peer.steps_query for case in cases if case.task == "steps")


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_is_measured_or_skipped_with_the_reason(measured, durable_server, name):
    where = ("--quick", "--postgres", durable_server, "--peers", name)
    sizes = {"jobs": "500", "enqueue": "2000", "latency": "4", "steps": "200", "continuations": "5"}
    for benchmark, count in sizes.items():
        found = measured(benchmark, *where, "--count", count)
        subjects = {line["subject"] for line in found["results"]}
        has = any(case.peer.name == name for case in PEER_CASES[benchmark]())
        assert name in subjects or name in found["skipped"] or not has
