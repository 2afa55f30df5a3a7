"""Tasks and steps on a local Ray cluster. Skipped unless Ray is installed, which the development extras leave out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import Context, ExecutorLost, Holdfast, Retry, RunFailed, SyncContext
from tests.executors import functions
from tests.support.processes import has_ended
from tests.support.wait_until import wait_until

ray = pytest.importorskip("ray", reason="needs Ray, which is large: pip install ray")
from holdfast.integrations.ray import RayExecutor  # noqa: E402

pytestmark = pytest.mark.slow
ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def cluster():
    """A local cluster with one processor, whose processes can import the tests. It may take minutes to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_agent_register_timeout_ms", "300000")
        ray.init(num_cpus=1, include_dashboard=False, logging_level="warning", log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture
def app(database_url, cluster):
    with Holdfast(database_url) as app:
        app.executor("ray", RayExecutor)
        app.executor("ray once", lambda: RayExecutor(max_retries=0))
        yield app


def test_tasks_and_steps_run_on_the_cluster(app):
    add = app.task(run_in="ray")(functions.add)

    @app.task(name="async")
    async def on_loop(ctx: Context) -> list[object]:
        step = ctx.options(run_in="ray").step
        return [await step(functions.add, 1, b=2), await step(functions.pid), len(await step(functions.key))]

    @app.task(name="sync")
    def in_thread(ctx: SyncContext) -> int:
        return ctx.options(run_in="ray").step(functions.add, 3, b=4)

    failing = app.task(run_in="ray", retry=Retry(max_attempts=1))(functions.fail)
    with app.worker():
        assert add.enqueue(5, 6).result(timeout=120) == 11
        total, pid, key_length = on_loop.enqueue().result(timeout=60)
        assert (total, key_length) == (3, 32)
        assert pid != os.getpid()
        assert in_thread.enqueue().result(timeout=60) == 7
        with pytest.raises(RunFailed, match="ValueError: no such order"):
            failing.enqueue("no such order").result(timeout=60)


@pytest.mark.parametrize("kind", ["job", "async", "sync"])
def test_a_cancelled_run_frees_the_cluster(app, tmp_path, kind):
    mark, never = tmp_path / "mark", tmp_path / "never"
    job = app.task(run_in="ray", name="job")(functions.wait_for_file)

    @app.task(name="async")
    async def on_loop(ctx: Context, mark: str, file: str) -> None:
        await ctx.options(run_in="ray").step(functions.wait_for_file, mark, file)

    @app.task(name="sync")
    def in_thread(ctx: SyncContext, mark: str, file: str) -> None:
        ctx.options(run_in="ray").step(functions.wait_for_file, mark, file)

    add = app.task(run_in="ray")(functions.add)
    with app.worker():
        run = {"job": job, "async": on_loop, "sync": in_thread}[kind].enqueue(str(mark), str(never))
        wait_until(lambda: marks(mark), timeout=120, what="the call to start")
        run.cancel()
        wait_until(lambda: has_ended(marks(mark)[0]), what="the process of the call to be killed")
        assert add.enqueue(1, 2).result(timeout=60) == 3, "the only processor of the cluster is free"
    assert run.info().state == "cancelled"


def test_a_step_that_times_out_is_killed_and_tried_again(app, tmp_path):
    mark, never = tmp_path / "mark", tmp_path / "never"

    @app.task(name="steps", retry=Retry(max_attempts=1))
    async def steps(ctx: Context) -> None:
        step = ctx.options(run_in="ray", timeout=10, retry=Retry(max_attempts=2, delay=0)).step
        await step(functions.wait_for_file, str(mark), str(never))

    with app.worker():
        run = steps.enqueue()
        with pytest.raises(RunFailed, match=r"exceeded its timeout of 10 s"):
            run.result(timeout=120)
        wait_until(lambda: all(has_ended(pid) for pid in marks(mark)), what="the processes to be killed")
    assert len(marks(mark)) == 2
    assert sum(entry.kind == "step_retrying" for entry in run.history()) == 1


def test_a_step_whose_process_dies_is_retried(app, tmp_path):
    """Ray repeats it; if it must not, the call is lost."""

    @app.task(name="steps", retry=Retry(max_attempts=1))
    async def steps(ctx: Context, mark: str) -> str:
        return await ctx.options(run_in="ray").step(functions.die_once, mark)

    @app.task(name="once", retry=Retry(max_attempts=1))
    async def once(ctx: Context, mark: str) -> None:
        await ctx.options(run_in="ray once", raises=ExecutorLost).step(functions.die, mark)

    with app.worker():
        assert steps.enqueue(str(tmp_path / "one")).result(timeout=120) == "survived"
        with pytest.raises(RunFailed, match="ExecutorLost"):
            once.enqueue(str(tmp_path / "two")).result(timeout=120)
    assert (len(marks(tmp_path / "one")), len(marks(tmp_path / "two"))) == (1, 1)


def marks(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []
