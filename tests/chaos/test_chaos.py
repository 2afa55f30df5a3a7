"""A minute of chaos on each database, through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def chaos(*options, timeout):
    command = [sys.executable, "-m", "tests.chaos", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_minute_of_chaos_has_a_good_verdict(database, tmp_path):
    ended = chaos(f"--{database}", "--minutes", 1, "--json", tmp_path / "result", timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "result").read_text())
    assert set(result["verdict"].values()) == {0}
    assert "wrongly failed" in result["verdict"]
    assert result["roots"] > 20
    assert all(count > 0 for count in result["harm done by tasks"].values()), result["harm done by tasks"]
    names = ["worker killed (SIGKILL)", "worker stopped past its lease (SIGSTOP)"]
    names += ["task that blocks the event loop", "task that hangs a thread", "machine that moves without a pause"]
    names += ["operator pauses runs or lowers a limit"]
    names += ["another program in transactions of 100 ms"] if database == "sqlite" else []
    names += ["server killed (SIGKILL)", "answer to a COMMIT lost"] if database == "postgres" else []
    assert all(result["faults"][name] > 0 for name in names), result["faults"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--minutes", "0"], "more than 0"),
        (["--workers", "1"], "at least 2"),
        (["--sqlite", "--postgres"], "not allowed"),
    ],
)
def test_invalid_options_are_rejected(options, said):
    ended = chaos(*options, timeout=60)
    assert ended.returncode == 2
    assert said in ended.stderr


@pytest.mark.slow
def test_nothing_is_lost_in_failovers_and_workers_reconnect(tmp_path):
    ended = chaos("--failover", 20, "--workers", 3, "--json", tmp_path / "result", timeout=1500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "result").read_text())
    assert set(result["verdict"].values()) == {0}
    assert result["faults"]["primary killed (SIGKILL), standby promoted"] == 20
    assert result["workers back after a failover"]["count"] >= 20
    assert result["workers back after a failover"]["max"] <= 10
