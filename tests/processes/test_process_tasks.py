"""Tasks with `run_in="process"`: they can be killed, and their crashes affect no other run."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from holdfast import Retry, RunFailed
from holdfast.engine.attempt import Attempt
from holdfast.engine.processes import pool
from holdfast.engine.processes.framing import BEGUN, END, write_frame
from holdfast.errors import ConfigError, TaskError
from holdfast.store import Claim
from tests.processes import tasks
from tests.support.processes import has_ended
from tests.support.wait_until import wait_until

MEMORY = 300 * 1024 * 1024


def kinds(run):
    return [entry.kind for entry in run.history()]


def test_arguments_and_results_keep_their_types(app):
    total = app.task(run_in="process")(tasks.total)
    with app.worker():
        assert total.enqueue(tasks.Order(1, ["rope"])).result(timeout=60) == tasks.Order(2, ["ROPE"])


def test_the_idempotency_key_is_that_of_the_run(app):
    key = app.task(run_in="process")(tasks.key)
    with app.worker():
        run = key.enqueue()
        assert run.result(timeout=60) == str(run.id)


def test_processes_are_not_the_workers_own_and_are_reused(app):
    own_pid = app.task(run_in="process")(tasks.own_pid)
    with app.worker():
        pids = {own_pid.enqueue().result(timeout=60) for _ in range(20)}
    assert os.getpid() not in pids
    assert len(pids) == 1


def test_an_exception_is_retried(app):
    failing = app.task(run_in="process", retry=Retry(max_attempts=2, delay=0.01))(tasks.raise_value_error)
    with app.worker():
        run = failing.enqueue()
        with pytest.raises(RunFailed, match="ValueError: no such order") as caught:
            run.result(timeout=60)
    assert kinds(run) == ["enqueued", "started", "retrying", "started", "failed"]
    assert "raise_value_error" in (caught.value.error.traceback or "")


@pytest.mark.parametrize("place", ["thread", "process"])
def test_an_exception_of_a_custom_argument_type_is_an_error_everywhere(app, place):
    price = app.task(run_in=place, retry=Retry(max_attempts=1), max_crashes=0)(tasks.price)
    with app.worker(), pytest.raises(RunFailed) as caught:
        app.remote(price.name).enqueue({"name": "anchor"}).result(timeout=60)
    assert (caught.value.error.code, caught.value.error.type) == ("error", "KeyError")


@pytest.mark.parametrize("harm", ["abort", "hog"])
def test_a_process_that_dies_fails_only_its_own_run(app, mark, harm):
    settings = {"abort": {}, "hog": {"memory": MEMORY}}[harm]
    harmful = app.task(run_in="process", max_crashes=1, **settings)(getattr(tasks, harm))
    neighbour = app.task(run_in="process")(tasks.nothing)
    beside = app.task(name="beside")(tasks.nothing)
    with app.worker():
        run = harmful.enqueue(mark)
        others = neighbour.enqueue_many([(n,) for n in range(100)]) + beside.enqueue_many([(n,) for n in range(100)])
        with pytest.raises(RunFailed) as caught:
            run.result(timeout=120)
        assert [other.result(timeout=120) for other in others] == [*range(100), *range(100)]
    assert caught.value.error.code == "crashed"
    assert {"abort": "signal 6", "hog": "memory limit"}[harm] in caught.value.error.message
    assert len(mark.pids()) == 2, "max_crashes=1: the second death ends the run"
    assert run.info().crashes == 2
    assert {other.info().attempt for other in others} == {1}


def test_a_process_that_exits_counts_as_a_crash(app):
    leave = app.task(run_in="process", max_crashes=0)(tasks.leave)
    with app.worker():
        with pytest.raises(RunFailed, match="with code 7") as caught:
            leave.enqueue(7).result(timeout=60)
    assert caught.value.error.code == "crashed"


def test_programs_started_by_a_dead_process_are_killed_and_not_waited_for(app, mark):
    leaving = app.task(run_in="process", max_crashes=0)(tasks.start_another)
    with app.worker():
        with pytest.raises(RunFailed) as caught:
            leaving.enqueue(mark).result(timeout=60)
        assert caught.value.error.code == "crashed"
        (pid,) = wait_until(mark.pids)
        wait_until(lambda: has_ended(pid))


def test_a_timeout_kills_a_task_that_holds_the_gil(app, mark):
    still = app.task(run_in="process", timeout=0.5, retry=Retry(max_attempts=2, delay=0.01))(tasks.stand_still)
    with app.worker():
        run = still.enqueue(mark)
        with pytest.raises(RunFailed) as caught:
            run.result(timeout=60)
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in mark.pids()), what="the processes are gone")
    assert caught.value.error.code == "timeout"
    assert kinds(run) == ["enqueued", "started", "timed_out", "started", "failed"]


def test_cancelling_kills_the_process(app, mark):
    forever = app.task(run_in="process")(tasks.wait_for_ever)
    with app.worker(lease=1.5):
        run = forever.enqueue(mark)
        (pid,) = wait_until(mark.pids)
        assert run.cancel()
        wait_until(lambda: not psutil.pid_exists(pid), what="the process is gone")
        wait_until(lambda: kinds(run)[-1] == "let_go")


def test_a_stopping_worker_releases_its_runs_and_leaves_no_process(app, mark, children):
    forever = app.task(run_in="process")(tasks.wait_for_ever)
    with app.worker(grace=0):
        run = forever.enqueue(mark)
        wait_until(mark.pids)
        assert children()
    assert kinds(run) == ["enqueued", "started", "handed_back"]
    assert run.info().state == "ready"
    assert children() == []


def test_signals_to_the_whole_group_do_not_end_the_children(app):
    unharmed = app.task(run_in="process", max_crashes=0)(tasks.signal_own_group)
    with app.worker():
        assert unharmed.enqueue().result(timeout=60) == "alive"


def test_programs_that_a_task_starts_can_be_terminated(app):
    starting = app.task(run_in="process")(tasks.terminate_a_program)
    with app.worker():
        assert starting.enqueue().result(timeout=60) == -signal.SIGTERM


def test_a_closed_stdout_does_not_cost_a_run_its_result(app, mark):
    closing = app.task(run_in="process", max_crashes=0)(tasks.close_stdout)
    with app.worker():
        assert closing.enqueue(mark).result(timeout=60) == "done"
    assert len(mark.pids()) == 1


def test_a_worker_with_very_many_open_files_runs_processes(app):
    own_pid = app.task(run_in="process", retry=Retry(max_attempts=1))(tasks.own_pid)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with app.worker():
            assert own_pid.enqueue().result(timeout=60) != os.getpid()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_died_while_idle_is_not_the_next_runs_fault(app, children):
    own_pid = app.task(run_in="process", max_crashes=0)(tasks.own_pid)
    with app.worker():
        first = own_pid.enqueue().result(timeout=60)
        psutil.Process(first).kill()
        wait_until(lambda: has_ended(first))
        run = own_pid.enqueue()
        assert run.result(timeout=60) != first
        assert run.info().crashes == 0


def test_children_end_when_their_worker_is_killed(app, mark, database_url, tmp_path):
    script = tmp_path / "harbour.py"
    script.write_text(
        "import sys\n"
        "from holdfast import Holdfast\n"
        "from tests.processes import tasks\n"
        "app = Holdfast(sys.argv[1])\n"
        "app.task(name='forever', run_in='process')(tasks.wait_for_ever)\n"
        "if __name__ == '__main__':\n"
        "    app.worker().run()\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    worker = subprocess.Popen([sys.executable, str(script), database_url], env=variables)
    try:
        app.remote("forever").enqueue(str(mark))
        (pid,) = wait_until(mark.pids, timeout=60)
        worker.kill()
        worker.wait()
        wait_until(lambda: not psutil.pid_exists(pid), what="the child of the killed worker is gone")
    finally:
        worker.kill()
        worker.wait()


def test_tasks_of_a_script_are_found_in_it(database_url, tmp_path):
    script = tmp_path / "harbour.py"
    script.write_text(
        "import os, sys\n"
        "from holdfast import Holdfast\n"
        "app = Holdfast(sys.argv[1])\n"
        "@app.task(run_in='process')\n"
        "def double(n: int) -> list[int]:\n"
        "    return [2 * n, os.getpid()]\n"
        "if __name__ == '__main__':\n"
        "    with app.worker():\n"
        "        twice, pid = double.enqueue(21).result(timeout=60)\n"
        "    assert pid != os.getpid()\n"
        "    print(twice)\n"
    )
    outcome = subprocess.run([sys.executable, str(script), database_url], capture_output=True, text=True, timeout=90)
    assert (outcome.stdout, outcome.stderr) == ("42\n", "")


def test_a_module_that_the_process_cannot_import_fails_the_attempt_with_its_reason(app, monkeypatch):
    lost = app.task(name="lost", run_in="process", retry=Retry(max_attempts=1))(tasks.nothing)
    monkeypatch.setattr(tasks.nothing, "__module__", "no.such.harbour")
    with app.worker(), pytest.raises(RunFailed, match=r"No module named 'no'"):
        lost.enqueue(1).result(timeout=60)


def test_a_function_that_a_process_cannot_import_is_rejected_at_declaration(app):
    with pytest.raises(TaskError, match="needs an importable function"):

        @app.task(name="inner", run_in="process")
        def inner() -> None: ...


def test_memory_is_only_for_processes_and_a_number_of_bytes(app):
    with pytest.raises(ConfigError, match='run_in="process"'):
        app.task(name="a", memory=MEMORY)(tasks.nothing)
    with pytest.raises(ConfigError, match="bytes"):
        app.task(name="b", run_in="process", memory=5)(tasks.nothing)


def test_an_answer_sent_right_before_death_counts(monkeypatch):
    """Else an attempt whose user code had begun would be begun again, and nobody would know of the first."""
    monkeypatch.setattr(pool, "POLL_INTERVAL_S", 0)
    child = object.__new__(pool.TaskProcess)
    child._answers, said = os.pipe()
    child._tag, child._max_answer_bytes = b"", 1000

    class Dying:
        def poll(self):
            write_frame(said, BEGUN, b"data")
            return -6

    child._process = Dying()
    assert child._answer(BEGUN) == b"data"
    child._process = SimpleNamespace(poll=lambda: -6)
    assert child._answer(BEGUN) is None
    os.close(said)
    os.close(child._answers)


def test_half_an_answer_of_a_process_that_died_is_not_waited_for():
    """Something that it started holds its end of the pipe."""
    child = object.__new__(pool.TaskProcess)
    child._answers, said = os.pipe()
    child._tag, child._max_answer_bytes = b"", 1000
    child._process = SimpleNamespace(poll=lambda: -9)
    os.write(said, END + (1000).to_bytes(4) + b"half")
    assert child._answer(END) is None
    os.close(said)
    os.close(child._answers)


def test_a_process_killed_while_it_answers_is_not_reused(app):
    """Else the kill could reach the next attempt that it is given."""
    claim = Claim("a run", 0, 0, 0, 0, 1, 1, 0, None, "[]", None)
    attempt = Attempt(claim, app.task(run_in="process")(tasks.own_pid), "")
    told, put_back = threading.Event(), threading.Event()

    class Answering:
        """A child that answers while it is being killed."""

        is_alive = is_usable = True

        def send(self, _request):
            return True

        def finish(self):
            told.wait(30)
            return pool.Answer("done", "done", "null")

        def kill(self):
            told.set()
            put_back.wait(0.2)

        def close(self):
            self.is_alive = False

    ours = pool.ProcessPool()
    ours._idle.append(Answering())

    def run():
        ours.run(attempt)
        put_back.set()

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: attempt.process)
    app.worker()._components.runner.stop([attempt], "release")
    thread.join(30)
    assert ours._idle == []


def test_a_process_that_gets_no_pipes_leaves_none_open(monkeypatch):
    pipe, made = os.pipe, []

    def one_pipe():
        if made:
            raise OSError(errno.EMFILE, "Too many open files")
        made.extend(pipe())
        return tuple(made)

    monkeypatch.setattr(os, "pipe", one_pipe)
    with pytest.raises(OSError, match="Too many"):
        pool.TaskProcess(1000)
    for end in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)
