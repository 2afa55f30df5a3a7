"""Runs that block, hang or kill their worker: their neighbors finish, uncharged, and they follow their own policy."""

from __future__ import annotations

import signal

import pytest

from holdfast import Context, Retry
from holdfast.control import Control
from tests.faults.conftest import APPS
from tests.support.wait_until import wait_until

NEIGHBORS = 100
CULPRITS = APPS / "culprits.py"


@pytest.fixture
def start(processes, ledger, database_url):
    def start(**settings):
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        process = processes.start(CULPRITS, database_url, ledger.path, *options)
        process.wait_for("worker started", timeout=60)
        return process

    return start


@pytest.fixture
def control(app):
    return Control(app.store, app.registry)


def declare(app, name, max_crashes, *, durable=False):
    """Declare a task of the workers in the program that enqueues it."""

    async def job() -> None: ...

    async def function(ctx: Context) -> None: ...

    return app.task(name=name, max_crashes=max_crashes, retry=Retry(max_attempts=1))(function if durable else job)


def release(ledger):
    ledger.path.with_name("release").touch()


def count(ledger, prefix):
    return len({words[0] for words in ledger.words() if words[0].startswith(prefix)})


def innocent_and_uncharged(runs):
    for run in runs:
        info = run.info()
        assert (info.state, info.crashes) == ("done", 0)
        assert "crashed" not in [entry.kind for entry in run.history()]


# Blocked event loops


@pytest.mark.variants
@pytest.mark.parametrize("task", ["block", "block_in_step"])
def test_runs_beside_one_that_blocks_the_loop_finish_elsewhere_and_only_it_is_charged(app, start, ledger, task):
    innocents = app.remote("innocent_step").enqueue_many([(n,) for n in range(10)])
    stuck = start(lease=1)
    wait_until(lambda: count(ledger, "innocent") == 10)
    culprit = declare(app, task, 0, durable=task == "block_in_step").enqueue()
    wait_until(lambda: count(ledger, "block"))
    late = app.remote("innocent").enqueue_many([(n,) for n in range(10, 20)])  # claimed with it, or not at all
    release(ledger)
    start(lease=1)
    for run in (*innocents, *late):
        run.result(timeout=60)
    innocent_and_uncharged([*innocents, *late])
    assert stuck.alive
    assert "event loop blocked" in stuck.log
    assert f'blocker="{task} {culprit.id}"' in stuck.log
    assert "for_ever.wait()" in stuck.log, "the blocking line"
    wait_until(lambda: culprit.info().state == "failed")
    assert culprit.info().error.code == "crashed"
    assert [entry.kind for entry in culprit.history()] == ["enqueued", "started", "crashed"]


def test_a_blocker_with_a_timeout_is_retried_by_its_own_policy(app, start, ledger):
    stuck = start(lease=1)
    culprit = app.remote("block_with_timeout").enqueue()
    wait_until(lambda: count(ledger, "block"))
    start(lease=1)
    assert culprit.result(timeout=60) == "second try"
    assert [entry.kind for entry in culprit.history()] == ["enqueued", "started", "timed_out", "started", "done"]
    assert stuck.alive


@pytest.mark.variants
@pytest.mark.parametrize("task", ["block_in_task", "block_in_callback"])
def test_code_that_blocks_the_loop_in_another_task_is_charged_once_its_run_is_alone(app, start, ledger, task):
    culprit = declare(app, task, 0).enqueue()
    innocents = app.remote("innocent").enqueue_many([(n,) for n in range(3)])
    for stalls in range(1, 4):  # twice with the others, then alone
        worker = start(lease=1)
        wait_until(lambda worker=worker: "event loop blocked" in worker.log)
        wait_until(lambda: culprit.info().state != "running")
        worker.kill()
        if stalls == 2:
            release(ledger)
    assert culprit.info().error.code == "crashed"
    start(lease=1)
    assert [run.result(timeout=60) for run in innocents] == [0, 1, 2]
    innocent_and_uncharged(innocents)


def test_runs_that_each_block_the_loop_briefly_are_not_released(app, start, ledger):
    worker = start(lease=1)
    runs = app.remote("block_briefly").enqueue_many([(n,) for n in range(12)])
    wait_until(lambda: count(ledger, "brief") == 12)
    app.remote("start_together").enqueue()
    assert [run.result(timeout=60) for run in runs] == list(range(12))
    innocent_and_uncharged(runs)
    assert [run.info().attempt for run in runs] == [1] * 12
    assert "event loop blocked" not in worker.log


def test_a_stuck_worker_is_shown_as_unhealthy_and_claims_nothing(app, control, start, ledger):
    start(lease=30)
    app.remote("block").enqueue()
    wait_until(lambda: count(ledger, "block"))
    waiting = app.remote("innocent").enqueue(1)

    def problem():
        (worker,) = control.workers.list()
        return worker.state == "unhealthy" and worker.loop_lag > 1 and "block" in worker.problem

    wait_until(problem)
    wait_until(lambda: waiting.info().state == "ready")
    assert count(ledger, "innocent") == 0
    findings = {finding.code: finding for finding in control.doctor.examine().findings}
    assert "block" in findings["blocked_loop"].what
    assert "blocked" in control.whys.why(waiting.id).reasons[0].text


# Hung threads


@pytest.mark.variants
@pytest.mark.parametrize("task", ["hang", "hang_in_step", "hang_in_sync_step"])
def test_a_hung_thread_does_not_prevent_the_next_attempt(app, start, ledger, task):
    worker = start(lease=60)
    run = app.remote(task).enqueue()
    assert run.result(timeout=60) == "third try"
    assert len([words for words in ledger.words() if words[0] == "hang"]) == 3
    assert worker.alive


def test_a_coroutine_that_swallows_its_cancellation_is_abandoned(app, start, ledger):
    start(lease=60)
    run = app.remote("swallow").enqueue()
    assert run.result(timeout=60) == "second try"


def test_a_worker_that_lost_all_its_threads_is_unhealthy_and_still_runs_coroutines(app, control, start, ledger):
    worker = start(lease=60, concurrency=3)
    hung = app.remote("hang_for_good").enqueue_many([(n,) for n in range(3)])
    wait_until(lambda: all(run.info().state == "failed" for run in hung))

    def reported():
        (info,) = control.workers.list()
        return info.state == "unhealthy" and info.lost_threads == 3

    wait_until(reported)
    more = app.remote("hang_for_good").enqueue(4)
    release(ledger)
    assert app.remote("innocent").enqueue(1).result(timeout=60) == 1
    assert more.info().state == "ready", "it needs a thread, and there are none"
    assert "lost_threads" in {finding.code for finding in control.doctor.examine().findings}
    assert "threads lost lost=3 threads=3" in worker.log
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0, "a stop doesn't wait for lost threads"


def test_an_isolated_run_whose_thread_hangs_does_not_keep_its_worker_from_claiming(app, start, ledger):
    hung = app.remote("hang_once_released").options(timeout=3600).enqueue()
    other = app.remote("innocent").enqueue(1)
    for deaths in (1, 2):
        worker = start(lease=1)
        wait_until(
            lambda deaths=deaths: count_lines(ledger, "hang") == deaths and count_lines(ledger, "innocent1") == deaths
        )
        worker.kill()
    release(ledger)
    start(lease=1)
    wait_until(lambda: count_lines(ledger, "hang") == 3)
    assert hung.cancel()
    assert other.result(timeout=30) == 1
    assert app.remote("innocent").enqueue(2).result(timeout=30) == 2


def count_lines(ledger, what):
    return sum(words[0] == what for words in ledger.words())


def test_transactions_that_hang_do_not_keep_others_of_their_worker_from_writing(app, start, ledger):
    start(lease=30)
    hung = app.remote("hang_in_transaction").enqueue_many([(n,) for n in range(2)])
    wait_until(lambda: count(ledger, "hang"))
    wait_until(lambda: all(run.info().state == "failed" for run in hung), 60)
    assert app.remote("write").enqueue().result(timeout=30) == "written"


# Dead processes


@pytest.mark.variants
@pytest.mark.parametrize("seconds", [0.9, 2.2])
def test_a_run_beside_one_that_kills_the_process_after_its_timeout_is_not_charged(app, start, ledger, seconds):
    innocent = app.remote("innocent").enqueue(1)
    worker = start(lease=6)
    wait_until(lambda: count(ledger, "innocent"))
    culprit = app.remote("kill_after_timeout").enqueue(seconds)
    wait_until(lambda: not worker.alive)
    release(ledger)
    start(lease=6)
    assert innocent.result(timeout=60) == 1
    innocent_and_uncharged([innocent])
    assert culprit.info().error.code == "timeout"


def test_the_run_that_kills_its_process_fails_and_a_hundred_neighbors_finish(app, start, ledger):
    innocents = app.remote("innocent").enqueue_many([(n,) for n in range(NEIGHBORS)])
    culprit = declare(app, "killer", 1).enqueue()
    worker = start(lease=1)
    for deaths in range(1, 20):
        wait_until(lambda worker=worker: not worker.alive or culprit.info().state == "failed")
        if culprit.info().state == "failed":
            break
        if deaths == 2:  # from now on they are isolated, in groups that must end
            release(ledger)
        worker = start(lease=1)
    assert culprit.info().error.code == "crashed"
    assert [run.result(timeout=60) for run in innocents] == list(range(NEIGHBORS))
    innocent_and_uncharged(innocents)
    assert count(ledger, "finished") == NEIGHBORS


def test_a_run_that_holds_the_gil_past_the_lease_fails_and_its_neighbors_finish(app, start, ledger):
    innocents = app.remote("innocent").enqueue_many([(n,) for n in range(5)])
    start(lease=1)
    wait_until(lambda: count(ledger, "innocent") == 5)
    culprit = app.remote("hold_gil").enqueue(2)
    release_after_hold(ledger)
    start(lease=1)
    for run in innocents:
        run.result(timeout=60)
    innocent_and_uncharged(innocents)
    wait_until(lambda: culprit.info().state == "failed", 90)
    assert culprit.info().error.code == "crashed"


def test_a_run_that_holds_the_gil_of_the_only_worker_fails_too(app, start, ledger):
    culprit = app.remote("hold_gil").enqueue(2)
    innocents = app.remote("innocent").enqueue_many([(n,) for n in range(3)])
    start(lease=1)
    release_after_hold(ledger)
    wait_until(lambda: culprit.info().state == "failed", 90)
    assert culprit.info().error.code == "crashed"
    for run in innocents:
        run.result(timeout=60)
    innocent_and_uncharged(innocents)


def release_after_hold(ledger):
    wait_until(lambda: count(ledger, "hold"))
    release(ledger)
