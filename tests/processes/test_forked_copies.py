"""A process task that forks: its copies answer for no run, neither its own nor the next one of that process."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from holdfast import Retry, RunFailed
from tests.processes import tasks
from tests.support.processes import has_ended
from tests.support.wait_until import wait_until

WAYS = ["python", "libc"]


@pytest.fixture
def task(app):
    """Make a process task of a function. It has one try, and no crash is forgiven."""

    def make(function):
        return app.task(run_in="process", retry=Retry(max_attempts=1), max_crashes=0)(function)

    return make


@pytest.fixture
def go(tmp_path) -> Path:
    return tmp_path / "go"


@pytest.mark.parametrize("how", WAYS)
def test_a_copy_that_returns_later_does_not_answer_the_next_run(app, task, mark, go, tmp_path, how):
    return_twice, slow = task(tasks.return_twice), task(tasks.slow)
    release = tmp_path / "release"
    with app.worker(concurrency=1):
        serving = return_twice.enqueue(how, mark, str(go)).result(timeout=60)
        run = slow.enqueue(100, str(release))
        wait_until(lambda: run.info().state == "running")
        (copy,) = wait_until(mark.pids)
        go.touch()
        wait_until(lambda: has_ended(copy), what="the copy has returned")
        release.touch()
        assert run.result(timeout=60) == (100, serving), "in the same warm process"


@pytest.mark.parametrize("how", WAYS)
def test_a_copy_whose_exec_fails_does_not_fail_its_parents_run(app, task, how):
    fail_to_exec = task(tasks.fail_to_exec)
    with app.worker():
        assert fail_to_exec.enqueue(how).result(timeout=60) == 1


def test_a_copy_exits_with_its_own_code(app, task):
    exit_in_a_copy = task(tasks.exit_in_a_copy)
    with app.worker():
        assert [exit_in_a_copy.enqueue(code).result(timeout=60) for code in (0, 3)] == [0, 3]


@pytest.mark.parametrize("garbage", ["x", "much more than the header of a message " * 100])
def test_anything_else_in_the_result_pipe_is_a_crash_of_that_process(app, task, garbage):
    write_garbage, own_pid = task(tasks.write_garbage), task(tasks.own_pid)
    with app.worker(concurrency=1):
        before = own_pid.enqueue().result(timeout=60)
        run = write_garbage.enqueue(garbage)
        with pytest.raises(RunFailed, match="result pipe") as caught:
            run.result(timeout=60)
        assert caught.value.error.code == "crashed"
        assert own_pid.enqueue().result(timeout=60) != before
        assert has_ended(before)


def test_data_left_in_the_pipe_of_an_idle_process_affects_no_other_run(app, task, mark, go):
    leave_a_writer_behind, own_pid = task(tasks.leave_a_writer_behind), task(tasks.own_pid)
    with app.worker(concurrency=1):
        before = leave_a_writer_behind.enqueue(mark, str(go)).result(timeout=60)
        (copy,) = wait_until(mark.pids)
        go.touch()
        wait_until(lambda: has_ended(copy))
        run = own_pid.enqueue()
        assert run.result(timeout=60) != before
        assert (run.info().attempt, run.info().crashes) == (1, 0)


@pytest.mark.parametrize("in_another_group", [False, True])
def test_a_hung_process_is_killed_and_its_run_retried_without_a_zombie(app, mark, go, children, in_another_group):
    # On a busy machine the start of the second process may take longer than the timeout, so there may be more attempts.
    hang_once = app.task(run_in="process", timeout=2, retry=Retry(max_attempts=20, delay=0))(tasks.hang_once)
    with app.worker(concurrency=1):
        run = hang_once.enqueue(mark, str(go), in_another_group)
        assert run.result(timeout=60) == "done"
        hung, second = mark.pids()
        wait_until(lambda: [child.pid for child in children()] == [second], what="only the second process is left")
        assert not psutil.pid_exists(hung)
    kinds = [entry.kind for entry in run.history()]
    assert (kinds[:3], kinds[-2:]) == (["enqueued", "started", "timed_out"], ["started", "done"])
