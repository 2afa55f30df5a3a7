"""Tasks and steps on a Dask cluster: one in this process, and one whose workers are processes that die."""

from __future__ import annotations

import dask
import pytest
from distributed import Client, LocalCluster

from holdfast import Context, ExecutorLost, Holdfast, Retry, RunFailed, SyncContext
from holdfast.integrations.dask import DaskExecutor
from tests.executors import functions
from tests.support.wait_until import wait_until

ANY_PORT = "127.0.0.1:0"
QUICKLY = Retry(max_attempts=3, delay=0.01)


@pytest.fixture(scope="module")
def cluster():
    """A cluster in this process, with one worker that executes one call at a time."""
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=ANY_PORT) as cluster:
        yield cluster


@pytest.fixture
def app(database_url, cluster):
    with Holdfast(database_url) as app:
        app.executor("dask", lambda: DaskExecutor(cluster.scheduler_address))
        yield app


def processing(cluster):
    """Return the calls that the workers of the cluster execute, cancelled ones included."""
    return [task for worker in cluster.workers.values() for task in worker.state.executing | worker.state.long_running]


def test_tasks_and_steps_run_on_the_cluster(app):
    add = app.task(run_in="dask", retry=QUICKLY)(functions.add)

    @app.task(name="async")
    async def on_loop(ctx: Context) -> int:
        return await ctx.options(run_in="dask").step(functions.add, 1, b=2)

    @app.task(name="sync")
    def in_thread(ctx: SyncContext) -> int:
        return ctx.options(run_in="dask").step(functions.add, 3, b=4)

    failing = app.task(run_in="dask", retry=Retry(max_attempts=1))(functions.fail)
    with app.worker():
        assert add.enqueue(5, 6).result(timeout=30) == 11
        assert on_loop.enqueue().result(timeout=30) == 3
        assert in_thread.enqueue().result(timeout=30) == 7
        with pytest.raises(RunFailed, match="ValueError: no such order"):
            failing.enqueue("no such order").result(timeout=30)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_cancelled_run_frees_the_cluster(app, cluster, tmp_path, kind):
    mark = tmp_path / "mark"

    @app.task(name="async")
    async def on_loop(ctx: Context) -> None:
        await ctx.options(run_in="dask").step(functions.run_until_stopped, str(mark))

    @app.task(name="sync")
    def in_thread(ctx: SyncContext) -> None:
        ctx.options(run_in="dask").step(functions.run_until_stopped, str(mark))

    add = app.task(run_in="dask")(functions.add)
    with app.worker():
        run = {"async": on_loop, "sync": in_thread}[kind].enqueue()
        wait_until(lambda: marks(mark) == 1, what="the call to start")
        run.cancel()
        wait_until(lambda: marks(mark) == 2, what="the function to see that it should stop")
        wait_until(lambda: not processing(cluster), what="the cluster to be free")
        assert add.enqueue(1, 2).result(timeout=30) == 3, "the only thread of the cluster is free"
    assert run.info().state == "cancelled"


def test_a_step_that_times_out_is_cancelled_on_the_cluster_and_tried_again(app, cluster, tmp_path):
    mark = tmp_path / "mark"

    @app.task(name="steps", retry=Retry(max_attempts=1))
    async def steps(ctx: Context) -> None:
        step = ctx.options(run_in="dask", timeout=0.2, retry=Retry(max_attempts=2, delay=0)).step
        await step(functions.run_until_stopped, str(mark))

    with app.worker():
        run = steps.enqueue()
        with pytest.raises(RunFailed, match=r"exceeded its timeout of 0.2 s"):
            run.result(timeout=60)
        wait_until(lambda: not processing(cluster), what="the cluster to be free")
    assert sum(entry.kind == "step_retrying" for entry in run.history()) == 1


@pytest.mark.slow
def test_a_lost_scheduler_is_a_lost_call_and_the_next_attempt_connects_again(database_url, tmp_path):
    clusters = [
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=ANY_PORT) for _ in range(2)
    ]
    left = iter(clusters)
    go = tmp_path / "go"
    with Holdfast(database_url) as app:
        app.executor("dask", lambda: DaskExecutor(next(left).scheduler_address))
        wait = app.task(run_in="dask", retry=Retry(max_attempts=50, delay=0.05, factor=1))(functions.wait_for_file)
        with app.worker(), dask.config.set({"distributed.comm.timeouts.connect": "100ms"}):
            run = wait.enqueue(str(tmp_path / "mark"), str(go))
            wait_until(lambda: marks(tmp_path / "mark") == 1)
            clusters[0].close()
            wait_until(lambda: marks(tmp_path / "mark") == 2, timeout=60, what="the call on the other cluster")
            go.touch()
            assert run.result(timeout=60) == "found"
    clusters[1].close()


@pytest.mark.slow
def test_a_step_whose_worker_dies_is_retried_on_another_one(database_url, tmp_path):
    """Dask repeats it; if it must not, the policy of the step does."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=ANY_PORT) as cluster,
        Client(cluster, set_as_default=False) as client,
        Holdfast(database_url) as app,
    ):
        app.executor("dask", lambda: DaskExecutor(client))

        @app.task(name="steps", retry=Retry(max_attempts=1))
        async def steps(ctx: Context, mark: str) -> str:
            retry = Retry(max_attempts=2, delay=0, on=KeyError)
            return await ctx.options(run_in="dask", retry=retry).step(functions.die_once, mark)

        @app.task(name="once", retry=Retry(max_attempts=1))
        async def once(ctx: Context, mark: str) -> None:
            await ctx.options(run_in="dask", raises=ExecutorLost).step(functions.die, mark)

        with app.worker():
            assert steps.enqueue(str(tmp_path / "one")).result(timeout=120) == "survived"
            with pytest.raises(RunFailed, match="ExecutorLost"):
                once.enqueue(str(tmp_path / "two")).result(timeout=120)
    assert (marks(tmp_path / "one"), marks(tmp_path / "two")) == (1, 1)


def marks(path):
    return len(path.read_text().split()) if path.exists() else 0
