"""A large move with workers running, killed again and again, counted by a ledger outside of both databases."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.testing.server import PostgresServer
from tests.support.processes import Processes
from tests.support.wait_until import wait_until

RUNS = int(os.environ.get("HOLDFAST_MOVE_RUNS", "1000000"))
IN_FLIGHT = min(10_000, RUNS // 2)
WORKERS = 2
KILLS = 5
APP = """
import asyncio, os
from holdfast import Holdfast

app = Holdfast(os.environ["HOLDFAST_URL"])
ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task(name="job")
async def job(number: int) -> None:
    if os.environ["HOLDS"] == "yes":
        await asyncio.sleep(36000)
    os.write(ledger, b"%d\\n" % number)
"""


@pytest.mark.slow
def test_a_move_that_is_killed_five_times_loses_and_repeats_nothing(tmp_path, capsys):
    (tmp_path / "jobs.py").write_text(APP)
    ledger = tmp_path / "ledger"
    source = f"sqlite:///{tmp_path}/source.db"
    processes = Processes(tmp_path)

    def start(url, *command, holds="no"):
        env = {"HOLDFAST_URL": url, "LEDGER": str(ledger), "HOLDS": holds, "PYTHONPATH": str(Path.cwd())}
        return processes.start("-m", "holdfast.cli", *command, cwd=tmp_path, env=env)

    def worker(url, holds):
        concurrency = str(IN_FLIGHT // WORKERS if holds == "yes" else 200)
        return start(url, "worker", "--app", "jobs:app", "--concurrency", concurrency, "--lease", "20", holds=holds)

    with PostgresServer(fsync=False) as server, Holdfast(source) as app:
        target = server.create_database()
        for first in range(0, RUNS, 10_000):
            app.remote("job").enqueue_many([(n,) for n in range(first, min(first + 10_000, RUNS))])
        old = [worker(source, "yes") for _ in range(WORKERS)]
        wait_until(lambda: running(app), 300)
        began, kills, chance = time.monotonic(), 0, random.Random(7)
        pause_s = max(RUNS / 60_000, 1.0)
        while True:
            move = start(target, "move", source, target, "--yes")
            if kills == KILLS:
                break
            kill_at = time.monotonic() + chance.uniform(0.5, pause_s)
            wait_until(lambda at=kill_at, move=move: time.monotonic() > at or not move.alive, 600)
            if not move.alive:
                break
            move.signal(signal.SIGKILL)
            move.kill()
            kills += 1
        assert move.wait(3600) == 0, move.log
        seconds = time.monotonic() - began
        assert not ledger.exists() or not ledger.read_bytes(), "no run ended in the source"
        assert [each.wait(60) for each in old] == [2] * WORKERS
        with Holdfast(target) as moved:
            new = [worker(target, "no") for _ in range(WORKERS)]
            wait_until(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") >= RUNS, 3600)
            wait_until(lambda: not any(moved.runs(state="running", limit=1)), 60)
            for each in new:
                each.signal(signal.SIGTERM)
            assert [each.wait(60) for each in new] == [0] * WORKERS
            counts = Counter(map(int, ledger.read_bytes().split()))
            assert len(counts) == RUNS
            assert set(counts.values()) == {1}
            assert not any(moved.runs(state="failed", limit=1))
    processes.close()
    with capsys.disabled():
        sys.stdout.write(f"\n{RUNS:,} runs, {IN_FLIGHT:,} in flight, killed {kills} times: {seconds:.0f} s\n")


def running(app):
    """Return whether all slots of the workers are in use."""
    rows = app.store.sessions.list_all()
    return sum(row.runs for row in rows) >= IN_FLIGHT
