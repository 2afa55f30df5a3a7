"""A worker process that stands still with the write lock of a SQLite file is killed, so that others can write."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from holdfast.database.held_locks import held_write_lock
from holdfast.engine.processes.supervisor import Supervisor
from tests.support.wait_until import wait_until

FOREVER_S = 1000
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_a_process_that_holds_the_gil_in_a_transaction_does_not_stop_the_others(app, supervise, ledger):
    supervisor = supervise(2, "--lease", "3")
    culprit = app.remote("freeze").enqueue(FOREVER_S)
    wait_until(lambda: any(words[0] == "frozen" for words in ledger.words()), what="the freeze")
    naps = app.remote("nap").enqueue_many([(n, 0.01) for n in range(10)])
    for nap in naps:
        nap.result(timeout=60)
        assert nap.info().crashes == 0
    assert "stood still while it held the write lock" in supervisor.log
    wait_until(lambda: culprit.info().state == "failed", 60, "the end of the culprit")
    assert culprit.info().error.code == "crashed"
    assert "its lease expired" not in supervisor.log, "a worker lost its lease to the lock"


class FrozenProcess:
    """A worker process that has reported no progress for long enough."""

    number, pid, silence_s, was_blocking = 1, 4711, 1.0, False

    def __init__(self) -> None:
        self.signals: list[int] = []

    def restart_silence(self) -> None: ...

    def is_frozen(self) -> bool:
        return True

    def signal_group(self, number: int) -> None:
        self.signals.append(number)


@pytest.mark.parametrize(
    ("held", "killed_after"),
    [([None] * 4, None), (["-shm", None, "-shm", None], None), ([None, "-shm", "-shm", None], 3)],
    ids=["no lock", "short transactions", "one long transaction"],
)
def test_only_a_frozen_process_that_keeps_the_write_lock_is_killed(monkeypatch, held, killed_after):
    now = 0.0
    locks = iter(held)
    monkeypatch.setattr("holdfast.engine.processes.supervisor.held_write_lock", lambda _pid: next(locks))
    monkeypatch.setattr("holdfast.engine.processes.supervisor.time.monotonic", lambda: now)
    supervisor = Supervisor(lambda _number: [], 1, 0, lambda _number, _lines: None)
    process = supervisor._slots[0].process = FrozenProcess()
    for check in range(1, 5):
        now += 1.0
        supervisor._kill_blocking()
        assert process.signals == ([signal.SIGKILL] if killed_after is not None and check >= killed_after else [])


HOLDER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("pragma journal_mode = wal").fetchall()
connection.execute("create table t (a); begin immediate").fetchall()
print("begun", flush=True)
sys.stdin.readline()
connection.execute("commit")
print("ended", flush=True)
sys.stdin.readline()
"""


@linux
def test_the_write_lock_of_another_process_is_found(tmp_path):
    file = tmp_path / "a.db"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "begun\n"
        assert held_write_lock(holder.pid) == f"{file}-shm"
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "ended\n"
        assert held_write_lock(holder.pid) is None
        holder.stdin.write("\n")
    assert held_write_lock(holder.pid) is None, "the process has ended"
