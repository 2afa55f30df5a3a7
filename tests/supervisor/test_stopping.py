"""How a supervisor and its worker processes stop: in order, at once, or because the other one is gone."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from tests.support.session_processes import children, running, session_processes
from tests.support.wait_until import wait_until


def begin_nap(app, ledger, seconds):
    run = app.remote("nap").enqueue(1, seconds)
    wait_until(lambda: ledger.words() and ledger.words()[0][0] == "begun", what="the nap's begin")
    return run


def gone(process):
    return wait_until(lambda: not running(process.pid), what="the end of the whole family") or True


def test_ctrl_c_lets_runs_finish_and_leaves_nothing_running(app, supervise, ledger):
    supervisor = supervise(2)
    run = begin_nap(app, ledger, 1.0)
    os.killpg(supervisor.pid, signal.SIGINT)  # as a terminal does
    assert supervisor.wait() == 0, supervisor.log
    assert session_processes(supervisor.pid) == []
    assert [words[0] for words in ledger.words()] == ["begun", "done"]
    assert run.info().state == "done"
    assert "supervisor stopped" in supervisor.log


def test_a_signal_to_everyone_at_once_counts_once(app, supervise, ledger):
    """As systemd stops a service: to a worker it must not look like two signals, which mean hurry."""
    supervisor = supervise(2)
    run = begin_nap(app, ledger, 1.0)
    for pid in running(supervisor.pid):
        with suppress(ProcessLookupError):  # it was quick
            os.kill(pid, signal.SIGTERM)
    assert supervisor.wait() == 0, supervisor.log
    assert [words[0] for words in ledger.words()] == ["begun", "done"]
    assert run.info().state == "done"


def test_a_second_signal_releases_runs_at_once(app, supervise, ledger):
    supervisor = supervise(2, "--grace=600")
    run = begin_nap(app, ledger, 600)
    supervisor.signal(signal.SIGTERM)
    supervisor.wait_for("running=1 grace=600s")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0, supervisor.log
    assert run.info().state == "ready"
    assert session_processes(supervisor.pid) == []


def test_workers_whose_supervisor_was_killed_finish_and_end(app, supervise, ledger):
    supervisor = supervise(2)
    run = begin_nap(app, ledger, 1.0)
    os.kill(supervisor.pid, signal.SIGKILL)
    assert gone(supervisor)
    assert [words[0] for words in ledger.words()] == ["begun", "done"]
    assert run.info().state == "done"


def test_workers_whose_supervisor_was_killed_while_they_started_end(start):
    supervisor = start("-m", "holdfast.cli", "worker", "--app", "shop:app", "--processes", "2")
    wait_until(lambda: len(children(supervisor.pid)) == 2, what="two children")
    os.kill(supervisor.pid, signal.SIGKILL)
    assert gone(supervisor)


def test_a_stop_during_the_start_is_a_clean_stop(start):
    supervisor = start("-m", "holdfast.cli", "worker", "--app", "shop:app", "--processes", "2")
    wait_until(lambda: len(children(supervisor.pid)) == 2, what="two children")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0, supervisor.log
    assert session_processes(supervisor.pid) == []


def test_a_worker_that_does_not_stop_is_killed_after_a_while(start):
    supervisor = start("hasty.py", 1, 0.1)
    supervisor.wait_for("worker started", 60)
    os.kill(children(supervisor.pid)[0].pid, signal.SIGSTOP)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 1, supervisor.log
    assert "worker process killed, it didn't stop in time" in supervisor.log
    assert session_processes(supervisor.pid) == []


def test_programs_that_tasks_started_end_with_their_worker(app, supervise, ledger):
    supervisor = supervise(1, "--grace=0.1")
    app.remote("start_program").enqueue()
    program = int(wait_until(ledger.words, what="the program's start")[0][1])
    assert program in running(supervisor.pid)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0, supervisor.log
    wait_until(lambda: program not in running(supervisor.pid), what="the end of the program")


def test_ctrl_z_suspends_all_processes_and_fg_resumes_them(app, supervise, ledger):
    supervisor = supervise(1)
    worker = children(supervisor.pid)[0].pid
    supervisor.signal(signal.SIGTSTP)
    wait_until(lambda: {state_of(supervisor.pid), state_of(worker)} == {"T"}, what="both stopped")
    supervisor.signal(signal.SIGCONT)
    wait_until(lambda: "T" not in {state_of(supervisor.pid), state_of(worker)}, what="both awake")
    app.remote("nap").enqueue(1, 0).result(30)


def state_of(pid):
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0]
