"""A worker that stalls for longer than its lease: stopped by SIGSTOP or blocked by the GIL."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.wait_until import wait_until


def kinds(run):
    return [entry.kind for entry in run.history()]


def pids(ledger, what):
    return [int(words[1]) for words in ledger.words() if words[0] == what]


def worker_pid(entry):
    return int(entry.worker.split(":")[1])


@pytest.mark.parametrize("task", ["hold", "hold_in_thread"])
def test_a_worker_stopped_past_its_lease_writes_nothing_and_opens_a_new_session(
    app, database_url, start_worker, ledger, task
):
    stopped = start_worker(database_url, lease=2)
    run = app.remote(task).enqueue()
    wait_until(lambda: pids(ledger, "began") == [stopped.pid])
    peer = start_worker(database_url, lease=2)
    [old] = [row[0] for row in app.store.sessions.list_live() if f":{stopped.pid}:" in row[0]]
    stopped.signal(signal.SIGSTOP)
    wait_until(lambda: "crashed" in kinds(run))
    wait_until(lambda: pids(ledger, "began") == [stopped.pid, peer.pid])
    ledger.path.with_name("release1").touch()
    assert run.result(timeout=30) == 1
    stopped.signal(signal.SIGCONT)
    if task == "hold":
        wait_until(lambda: pids(ledger, "cancelled") == [stopped.pid])  # at the latest with the next heartbeat
        assert pids(ledger, "ended") == [peer.pid]
    else:
        ledger.path.with_name("release0").touch()
        wait_until(lambda: pids(ledger, "ended") == [peer.pid, stopped.pid])
    stopped.wait_for(f"session lost session={old}")
    new = wait_until(lambda: [row[0] for row in app.store.sessions.list_live() if f":{stopped.pid}:" in row[0]])
    assert new != [old]
    assert run.result(timeout=5) == 1
    assert kinds(run) == ["enqueued", "started", "crashed", "started", "done"]
    assert run.info().crashes == 1
    peer.signal(signal.SIGTERM)
    assert peer.wait() == 0
    assert app.remote("count").enqueue(7).result(timeout=30) == 7
    assert ledger.words()[-1] == ["7", str(stopped.pid)]


def test_a_run_that_holds_the_gil_past_the_lease_is_recovered_and_named_in_a_warning(
    app, database_url, start_worker, ledger
):
    """Before it holds the GIL, the worker is idle: a thread that it stops could hold SQLite's write lock."""
    pipe = ledger.path.with_name("pipe")
    os.mkfifo(pipe)
    greedy = start_worker(database_url, lease=1)
    run = app.remote("hold_the_gil").enqueue(str(pipe))
    wait_until(lambda: pids(ledger, "began") == [greedy.pid])
    peer = start_worker(database_url, lease=1)
    ledger.path.with_name("release0").touch()
    wait_until(lambda: pids(ledger, "ended") == [peer.pid])
    with pipe.open("wb") as writer:
        writer.write(b"x")
    wait_until(lambda: pids(ledger, "ended") == [peer.pid, greedy.pid])
    assert run.result(timeout=30) == 1
    greedy.wait_for('run_in="process"')
    warning = next(line for line in greedy.log.splitlines() if 'run_in="process"' in line)
    assert "hold_the_gil" in warning
    assert kinds(run) == ["enqueued", "started", "crashed", "started", "done"]
    assert [worker_pid(entry) for entry in run.history()[1:]] == [greedy.pid, greedy.pid, peer.pid, peer.pid]
