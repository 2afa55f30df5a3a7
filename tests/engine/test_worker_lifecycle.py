"""Start, drain and stop of a worker inside a process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from holdfast import Context, Holdfast, ResultTimeout, Retry
from holdfast.errors import ConfigError
from tests.support.wait_until import wait_until


def kinds(run):
    return [entry.kind for entry in run.history()]


@pytest.fixture
def add(app):
    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    return add


def test_drain_returns_at_once_when_there_is_nothing_to_do(app, add):
    assert app.worker().drain(timeout=60) == 0
    assert app.store.sessions.list_live() == []


def test_a_worker_without_tasks_warns(database_url, caplog):
    with Holdfast(database_url) as empty:
        empty.worker().drain()
    (warning,) = [record for record in caplog.records if "worker has no tasks" in record.message]
    assert (warning.levelname, "Holdfast(include=[" in warning.message) == ("WARNING", True)


def test_a_worker_with_tasks_does_not_warn(app, add, caplog):
    app.worker().drain()
    assert "worker has no tasks" not in caplog.text


def test_drain_executes_runs_that_runs_enqueue(app, ledger):
    @app.task(name="tree")
    def tree(depth: int) -> None:
        ledger.write(depth)
        if depth:
            tree.enqueue_many([(depth - 1,)] * 2)

    tree.enqueue(5)
    assert app.worker().drain(timeout=60) == 63
    assert ledger.counts() == {str(depth): 2 ** (5 - depth) for depth in range(6)}


def test_drain_leaves_scheduled_runs_alone(app, add):
    run = add.options(delay=3600).enqueue(1, 2)
    assert app.worker().drain(timeout=60) == 0
    assert run.info().state == "scheduled"


def test_drain_times_out_and_releases_its_runs(app):
    @app.task(name="long")
    async def long() -> None:
        await asyncio.sleep(600)

    run = long.enqueue()
    with pytest.raises(ResultTimeout):
        app.worker(grace=0).drain(timeout=0.5)
    assert run.info().state == "ready"
    assert kinds(run) == ["enqueued", "started", "handed_back"]
    assert app.store.sessions.list_live() == []


async def test_adrain_works_on_the_running_loop_and_has_a_timeout(app, add):
    run = await add.aenqueue(1, 2)
    assert await app.worker().adrain(timeout=60) == 1
    assert await run.aresult(timeout=5) == 3

    @app.task(name="long")
    async def long() -> None:
        await asyncio.sleep(600)

    waiting = await long.aenqueue()
    with pytest.raises(ResultTimeout):
        await app.worker(grace=0).adrain(timeout=timedelta(seconds=0.5))
    assert (await waiting.ainfo()).state == "ready"


async def test_user_code_runs_on_the_loop_of_async_with(app):
    @app.task(name="where")
    async def where() -> bool:
        return asyncio.get_running_loop() is here

    here = asyncio.get_running_loop()
    async with app.worker():
        run = await where.aenqueue()
        assert await run.aresult(timeout=30) is True
    assert await asyncio.to_thread(app.store.sessions.list_live) == []


def test_a_worker_in_a_with_block_works_until_its_end(app, add):
    with app.worker() as worker:
        assert add.enqueue(1, 2).result(timeout=30) == 3
        assert len(app.store.sessions.list_live()) == 1
        assert worker._components.claimer.running
    assert app.store.sessions.list_live() == []
    late = add.enqueue(1, 2)
    with pytest.raises(ResultTimeout):
        late.result(timeout=0.3)


def test_run_in_a_thread_ends_after_stop(app, add):
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert add.enqueue(2, 2).result(timeout=30) == 4
    worker.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert app.store.sessions.list_live() == []


async def test_arun_ends_after_stop_or_cancellation(app, add):
    worker = app.worker()
    working = asyncio.create_task(worker.arun())
    run = await add.aenqueue(2, 2)
    assert await run.aresult(timeout=30) == 4
    worker.stop()
    await asyncio.wait_for(working, 30)
    again = asyncio.create_task(app.worker().arun())
    assert await (await add.aenqueue(2, 3)).aresult(timeout=30) == 5
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(again, 30)
    assert await asyncio.to_thread(app.store.sessions.list_live) == []


async def test_arun_leaves_the_executor_of_the_loop_to_user_code(app):
    """User code gets all threads of the executor, even if there is only one."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    @app.task(name="aside")
    async def in_a_thread() -> int:
        return await asyncio.to_thread(lambda: 7)

    worker = app.worker(grace=0)
    working = asyncio.create_task(worker.arun())
    try:
        run = await in_a_thread.aenqueue()
        assert await run.aresult(timeout=10) == 7
    finally:
        worker.stop()
        await working


def test_a_worker_cannot_be_started_twice(app, add):
    worker = app.worker()
    worker.drain(timeout=60)
    with pytest.raises(ConfigError, match="create a new one"):
        worker.drain(timeout=60)
    with pytest.raises(ConfigError, match="create a new one"), worker:
        pass


@pytest.mark.parametrize(
    "settings",
    [
        *[{"concurrency": n} for n in (0, -1, 1.5, True, "4", 10_001)],
        *[{"lease": n} for n in (0, 0.4, -1, "60", float("inf"), timedelta(milliseconds=100))],
        *[{"grace": n} for n in (-1, "x", float("nan"))],
        *[{"queues": n} for n in ([], "mail", [""], [3], ["a\0b"])],
    ],
    ids=str,
)
def test_invalid_settings_are_rejected(tmp_path, settings):
    with pytest.raises(ConfigError):
        Holdfast(f"sqlite:///{tmp_path / 'x.db'}").worker(**settings)
    assert not (tmp_path / "x.db").exists()


def test_two_workers_of_one_app_share_the_work(app):
    both = threading.Barrier(2)

    @app.task(name="meet")
    def meet() -> None:
        both.wait(30)

    with app.worker(concurrency=1), app.worker(concurrency=1):
        runs = meet.enqueue_many([(), ()])
        for run in runs:
            run.result(timeout=60)
    workers = {run.history()[-1].worker for run in runs}
    assert len(workers) == 2


def test_two_apps_on_one_database_work_side_by_side(app, make_app, ledger):
    other = make_app()
    for each in (app, other):

        @each.task(name="note")
        async def note(n: int) -> None:
            ledger.write(n)

    with app.worker(), other.worker():
        runs = other.registry.get("note").enqueue_many([(n,) for n in range(300)])
        for run in runs:
            run.result(timeout=60)
    assert ledger.counts() == {str(n): 1 for n in range(300)}


def test_a_closed_app_can_be_used_again(app, add):
    run = add.enqueue(1, 2)
    app.close()
    app.close()
    app.worker().drain(timeout=60)
    app.close()
    assert run.result(timeout=5) == 3


def test_an_app_is_a_context_manager_of_both_kinds(database_url):
    with Holdfast(database_url) as app:
        assert app.runs() == []

    async def use() -> int:
        async with Holdfast(database_url) as app:
            return len(await app.aruns())

    assert asyncio.run(use()) == 0


def test_closing_the_app_under_a_worker_does_not_stop_the_worker(app, add):
    with app.worker(lease=1):
        assert add.enqueue(1, 1).result(timeout=30) == 2
        app.close()
        assert add.enqueue(1, 2).result(timeout=30) == 3


def test_a_stop_lets_runs_finish_within_the_grace(app, ledger):
    release = threading.Event()

    @app.task(name="finishing")
    def finishing() -> None:
        ledger.write("began")
        release.wait(60)
        ledger.write("ended")

    with app.worker(grace=60):
        run = finishing.enqueue()
        wait_until(ledger.lines)
        threading.Timer(0.3, release.set).start()
    assert kinds(run) == ["enqueued", "started", "done"]


def test_a_stop_cancels_and_releases_runs_that_outlive_the_grace_uncharged(app, ledger):
    @app.task(name="long", retry=Retry(max_attempts=2, delay=3600))
    async def long() -> None:
        ledger.write("began")
        if len(ledger.lines()) > 6:
            raise ValueError("the first failure")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ledger.write("cancelled")
            raise

    for _ in range(3):  # more often than it may fail
        with app.worker(grace=0):
            run = app.get_run(app.runs()[0].id) if app.runs() else long.enqueue()
            wait_until(lambda: ledger.lines()[-1:] == ["began"])
    assert ledger.lines() == ["began", "cancelled"] * 3
    assert run.info().state == "ready"
    assert run.info().crashes == 0
    assert kinds(run) == ["enqueued", *["started", "handed_back"] * 3]
    assert app.store.sessions.list_live() == []
    app.worker().drain(timeout=60)
    assert kinds(run)[-1] == "retrying", "one of two tries was charged for being handed back"


def test_a_run_whose_thread_outlives_the_with_block_stays_claimed_until_it_ends(app, make_app, ledger):
    release = threading.Event()

    @app.task(name="long", retry=Retry(max_attempts=1))
    def long() -> str:
        ledger.write("began")
        if len(ledger.lines()) == 1:
            release.wait(60)
        return "ok"

    with app.worker(grace=0, lease=0.5):
        run = long.enqueue()
        wait_until(ledger.lines)
    assert kinds(run) == ["enqueued", "started", "handed_back"]
    with app.worker(lease=0.5):
        with pytest.raises(ResultTimeout):
            run.result(timeout=1.2)  # the leases of both are renewed, and nobody takes it
        assert ledger.lines() == ["began"]
        release.set()
        assert run.result(timeout=30) == "ok"
    wait_until(lambda: app.store.sessions.list_live() == [])
    assert kinds(run) == ["enqueued", "started", "handed_back", "let_go", "started", "done"]


def test_a_run_that_completes_after_the_request_to_release_it_is_done(app, ledger):
    @app.task(name="careful")
    async def careful() -> str:
        ledger.write("began")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "finished after all"
        return "never"

    with app.worker(grace=0):
        run = careful.enqueue()
        wait_until(ledger.lines)
    assert run.result(timeout=5) == "finished after all"


@pytest.mark.parametrize("kind", ["job", "durable"])
def test_writes_of_the_turn_in_which_the_loop_blocks_are_committed(app, ledger, monkeypatch, kind):
    """The end of a job is written while the loop is blocked. Writes of a durable function come later, and a stopping
    worker doesn't wait for them."""
    monkeypatch.setattr("holdfast.engine.worker.FLUSH_TIMEOUT_S", 3600.0)
    monkeypatch.setattr("holdfast.engine.worker.CLEANUP_GRACE_S", 0.2)
    release = threading.Event()

    async def nothing() -> None:
        pass

    @app.task(name="job")
    async def job() -> str:
        return "quick"

    @app.task(name="durable")
    async def durable(ctx: Context) -> str:
        await ctx.step(nothing)
        return "quick"

    @app.task(name="block")
    async def block() -> None:
        ledger.write("began")
        release.wait(60)

    quick, blocking = {"job": job, "durable": durable}[kind].enqueue(), block.enqueue()
    with app.worker(grace=0):
        wait_until(ledger.lines)
        if kind == "job":
            assert quick.result(timeout=30) == "quick"
    wait_until(lambda: kinds(blocking) == ["enqueued", "started", "handed_back"])
    release.set()
    wait_until(lambda: kinds(blocking)[-1] == "let_go")
    with app.worker():
        assert quick.result(timeout=30) == "quick"


def test_runs_of_a_blocked_loop_are_released(app, ledger, monkeypatch):
    monkeypatch.setattr("holdfast.engine.worker.CLEANUP_GRACE_S", 0.2)
    release = threading.Event()

    @app.task(name="block")
    async def block() -> None:
        ledger.write("began")
        release.wait(60)

    with app.worker(grace=0):
        run = block.enqueue()
        wait_until(ledger.lines)
    wait_until(lambda: kinds(run) == ["enqueued", "started", "handed_back"])
    release.set()
    wait_until(lambda: kinds(run)[-1] == "let_go")
