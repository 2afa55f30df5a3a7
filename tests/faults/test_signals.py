"""SIGTERM and Ctrl-C: runs are released uncharged, and the process ends cleanly."""

from __future__ import annotations

import signal

import pytest

from tests.support.wait_until import wait_until


def kinds(run):
    return [entry.kind for entry in run.history()]


def pids(ledger, what):
    return [int(words[1]) for words in ledger.words() if words[0] == what]


@pytest.mark.variants
@pytest.mark.parametrize("task", ["hold", "hold_in_thread", "hold_the_loop"])
def test_runs_longer_than_the_grace_are_released_uncharged_and_claimed_by_a_peer(
    app, database_url, start_worker, ledger, task
):
    """The tasks have one attempt, so a charged one would end their runs."""
    stopping = start_worker(database_url, grace=0.5, lease=60)
    run = app.remote(task).enqueue()
    wait_until(lambda: pids(ledger, "began") == [stopping.pid])
    peer = start_worker(database_url, lease=60)
    stopping.signal(signal.SIGTERM)
    assert stopping.wait() == 0
    wait_until(lambda: pids(ledger, "began") == [stopping.pid, peer.pid])
    ledger.path.with_name("release1").touch()
    assert run.result(timeout=30) == 1
    assert kinds(run) == ["enqueued", "started", "handed_back", "started", "done"]
    history = run.history()
    assert (history[3].at - history[2].at).total_seconds() < 2
    assert run.info().crashes == 0
    assert pids(ledger, "ended") == [peer.pid]
    assert len(pids(ledger, "cancelled")) == (1 if task == "hold" else 0)
    assert [row[0].split(":")[1] for row in app.store.sessions.list_live()] == [str(peer.pid)]
    assert "Traceback" not in stopping.log


def test_runs_that_end_within_the_grace_are_done(app, database_url, start_worker, ledger):
    worker = start_worker(database_url, grace=60)
    run = app.remote("hold").enqueue()
    wait_until(lambda: pids(ledger, "began"))
    waiting = app.remote("count").enqueue(1)
    wait_until(lambda: waiting.info().final)
    worker.signal(signal.SIGTERM)
    worker.wait_for("worker stopping")
    late = app.remote("count").enqueue(2)
    ledger.path.with_name("release0").touch()
    assert worker.wait() == 0
    assert run.result(timeout=5) == 0
    assert late.info().state == "ready", "claimed after the stop request"


@pytest.mark.variants
@pytest.mark.parametrize("task", ["hold", "hold_in_thread", "hold_the_loop"])
def test_a_second_sigterm_ends_the_grace(app, database_url, start_worker, ledger, task):
    worker = start_worker(database_url, grace=3600, lease=60)
    run = app.remote(task).enqueue()
    wait_until(lambda: pids(ledger, "began"))
    worker.signal(signal.SIGTERM)
    worker.wait_for("worker stopping")
    assert worker.alive
    worker.signal(signal.SIGTERM)
    assert worker.wait(timeout=20) == 0
    assert run.info().state == "ready"
    assert kinds(run) == ["enqueued", "started", "handed_back"]
    assert app.store.sessions.list_live() == []
    assert "finished=0 released=1" in worker.log
    assert "hooks" not in worker.log, "it has none"


@pytest.mark.variants
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_ctrl_c_ends_a_worker_cleanly(app, database_url, start_worker, ledger, busy):
    worker = start_worker(database_url, grace=0.2)
    if busy:
        app.remote("hold_in_thread").enqueue()
        app.remote("hold").enqueue()
        wait_until(lambda: len(pids(ledger, "began")) == 2)
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0
    assert "Traceback" not in worker.log
    assert "KeyboardInterrupt" not in worker.log
    assert "worker stopped" in worker.log
    assert app.store.sessions.list_live() == []
    assert {info.state for info in app.runs()} == ({"ready"} if busy else set())


def test_two_simultaneous_signals_end_the_worker(app, database_url, start_worker):
    """Both are pending while the process is stopped, so one handler interrupts the other."""
    worker = start_worker(database_url)
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        worker.signal(number)
    assert worker.wait() == 0
    assert "Traceback" not in worker.log
    assert app.store.sessions.list_live() == []


@pytest.mark.variants
@pytest.mark.parametrize("task", ["hold", "hold_in_thread", "hold_the_loop"])
def test_a_second_ctrl_c_ends_the_grace_of_a_worker_inside_a_program(app, database_url, start_worker, ledger, task):
    program = start_worker(database_url, "--embedded", grace=3600, lease=60)
    run = app.remote(task).enqueue()
    wait_until(lambda: pids(ledger, "began"))
    program.signal(signal.SIGINT)
    program.wait_for("worker stopping")
    assert program.alive
    program.signal(signal.SIGINT)
    assert program.wait(timeout=20) == -signal.SIGINT
    assert "KeyboardInterrupt" in program.log
    assert run.info().state == "ready"
    assert kinds(run) == ["enqueued", "started", "handed_back", *["let_go"] * (task != "hold")]
    assert app.store.sessions.list_live() == []
