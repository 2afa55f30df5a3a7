"""Tasks and steps in the executors of an application, `app.executor`."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor

import pytest

import holdfast
from holdfast import Context, Retry, RunFailed, SyncContext, inject
from holdfast.engine.remote_call import remote_call
from holdfast.errors import ConfigError, TaskError
from holdfast.testing import Kit, fake
from tests.executors import functions
from tests.support.wait_until import wait_until

QUICKLY = Retry(max_attempts=3, delay=0.01)


@pytest.fixture
def pool(app):
    """A declared pool of threads."""
    app.executor("pool", lambda: ThreadPoolExecutor(2, thread_name_prefix="pool"))


# Results and failures


def test_a_task_runs_in_its_executor(app, pool):
    add = app.task(run_in="pool")(functions.add)
    with app.worker():
        runs = add.enqueue_many([(n, 1) for n in range(20)])
        assert [run.result(timeout=30) for run in runs] == list(range(1, 21))


def test_steps_run_in_an_executor_and_are_not_repeated_by_a_replay(app, opened):
    @app.task(name="async", retry=QUICKLY)
    async def on_loop(ctx: Context) -> int:
        total = await ctx.options(run_in="held").step(functions.add, 1, b=2)
        if ctx.attempt == 1:
            raise ValueError("after the step")
        return total

    @app.task(name="sync", retry=QUICKLY)
    def in_thread(ctx: SyncContext) -> int:
        total = ctx.options(run_in="held").step(functions.add, 1, b=2)
        if ctx.attempt == 1:
            raise ValueError("after the step")
        return total

    with app.worker():
        for number, task in enumerate((on_loop, in_thread), 1):
            run = task.enqueue()
            opened.await_calls(number)
            opened[0].run()
            assert run.result(timeout=30) == 3
            assert run.info().attempt == 2
    assert len(opened.calls()) == 2


def test_the_idempotency_key_is_that_of_the_run_or_step(app, pool):
    key = app.task(run_in="pool")(functions.key)

    @app.task(name="steps")
    async def steps(ctx: Context) -> list[str]:
        return [await ctx.step(functions.key), await ctx.options(run_in="pool").step(functions.key)]

    with app.worker():
        run = key.enqueue()
        assert run.result(timeout=30) == str(run.id)
        here, there = steps.enqueue().result(timeout=30)
    assert len(here) == len(there) == 32
    assert here != there, "two occurrences of the step"


def test_an_exception_follows_the_retry_policy_of_the_task_or_step(app, pool):
    failing = app.task(run_in="pool", retry=QUICKLY)(functions.fail)

    @app.task(name="steps", retry=Retry(max_attempts=1))
    async def steps(ctx: Context) -> None:
        await ctx.options(run_in="pool", retry=QUICKLY).step(functions.fail, "no such order")

    with app.worker():
        run = failing.enqueue("no such order")
        with pytest.raises(RunFailed, match="ValueError: no such order"):
            run.result(timeout=30)
        assert run.info().attempt == 3
        run = steps.enqueue()
        with pytest.raises(RunFailed, match="StepFailed"):
            run.result(timeout=30)
    assert sum(entry.kind == "step_retrying" for entry in run.history()) == 2


def test_middleware_is_called_around_a_task_and_a_step_in_an_executor(app, pool):
    seen = []

    @app.middleware
    async def note(call: holdfast.Call) -> object:
        value = await call()
        seen.append((call.step, value))
        return value

    add = app.task(run_in="pool")(functions.add)

    @app.task(name="steps")
    async def steps(ctx: Context) -> int:
        return await ctx.options(run_in="pool").step(functions.add, 2, 2)

    with app.worker():
        add.enqueue(1, 1).result(timeout=30)
        steps.enqueue().result(timeout=30)
    assert seen == [(None, 2), ("add", 4), (None, 4)]


# Cancellation and timeouts


@pytest.mark.parametrize("kind", ["task", "async step", "sync step"])
def test_a_cancelled_run_cancels_its_call(app, opened, kind):
    run_kind = task_of_kind(app, kind)
    with app.worker():
        run = run_kind.enqueue()
        [(_, future)] = opened.await_calls(1)
        run.cancel()
        wait_until(future.cancelled)
    assert run.info().state == "cancelled"


@pytest.mark.parametrize("kind", ["task", "async step", "sync step"])
def test_a_timeout_cancels_the_call_and_the_next_attempt_makes_another_one(app, opened, kind):
    run_kind = task_of_kind(app, kind, timeout=0.05)
    with app.worker():
        run = run_kind.enqueue()
        (_, future), *_ = opened.await_calls(2)
        assert future.cancelled()
        run.cancel()


def task_of_kind(app, kind, timeout=None):
    """Return a task that calls `add` in the executor `held`, itself or in a step."""
    if kind == "task":
        return app.task(run_in="held", name="job", timeout=timeout, retry=QUICKLY)(lambda: functions.add(1, 2))
    options = {"run_in": "held", "timeout": timeout, "retry": QUICKLY}

    @app.task(name="async")
    async def on_loop(ctx: Context) -> int:
        return await ctx.options(**options).step(functions.add, 1, 2)

    @app.task(name="sync")
    def in_thread(ctx: SyncContext) -> int:
        return ctx.options(**options).step(functions.add, 1, 2)

    return on_loop if kind == "async step" else in_thread


def test_a_stopping_worker_cancels_its_calls_and_shuts_the_executor_down(app, opened):
    add = app.task(run_in="held")(functions.add)
    with app.worker(grace=0.01):
        run = add.enqueue(1, 2)
        [(_, future)] = opened.await_calls(1)
    assert future.cancelled()
    assert opened[0].is_shut_down
    assert run.info().state == "ready"
    assert run.info().crashes == 0


# Lost calls


def test_a_call_that_the_executor_loses_is_retried_whatever_the_policy_names(app, opened):
    add = app.task(run_in="held", retry=Retry(max_attempts=2, delay=0.01, on=KeyError))(functions.add)
    with app.worker():
        run = add.enqueue(1, 2)
        [(_, future)] = opened.await_calls(1)
        future.cancel()
        opened.await_calls(2)
        opened[0].run()
        assert run.result(timeout=30) == 3
    assert [entry.kind for entry in run.history()] == ["enqueued", "started", "retrying", "started", "done"]


def test_calls_of_a_broken_executor_are_repeated_alone_and_only_the_culprit_fails(app, opened):
    add = app.task(run_in="held", retry=Retry(max_attempts=1))(functions.add)
    with app.worker():
        runs = [add.enqueue(n, 0) for n in range(3)]
        opened.await_calls(3)
        opened[0].die()
        for number in range(3):  # one after the other
            opened.await_calls(4 + number)
            assert len(opened) == 2 + number
            alone = opened[-1]
            if number == 1:
                alone.die()
            else:
                alone.run()
            wait_until(lambda alone=alone: alone.is_shut_down)
        results, failed = [], []
        for run in runs:
            try:
                results.append(run.result(timeout=30))
            except RunFailed as error:
                failed.append(error)
        assert len(results) == 2
        assert [error.error.type for error in failed] == ["holdfast.errors.ExecutorLost"]
        assert opened[0].is_shut_down
        fresh = add.enqueue(7, 0)
        opened.await_calls(7)
        opened[-1].run()
        assert fresh.result(timeout=30) == 7
        assert len(opened) == 5, "the next call opens another executor"


def test_a_step_whose_process_dies_is_repeated_in_another_one(app, tmp_path):
    app.executor("processes", lambda: ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))

    @app.task(name="steps", retry=Retry(max_attempts=1))
    async def steps(ctx: Context, mark: str) -> str:
        return await ctx.options(run_in="processes").step(functions.die_once, mark)

    with app.worker():
        assert steps.enqueue(str(tmp_path / "mark")).result(timeout=120) == "survived"
    assert len((tmp_path / "mark").read_text().split()) == 1


def test_an_exception_of_the_function_is_never_taken_for_a_lost_executor(app, pool):
    def broken() -> None:
        raise BrokenExecutor("the function has a pool of its own")

    failing = app.task(run_in="pool", name="broken", retry=Retry(max_attempts=1))(broken)
    with app.worker(), pytest.raises(RunFailed, match=r"RuntimeError: the function raised BrokenExecutor"):
        failing.enqueue().result(timeout=30)


def test_a_factory_that_fails_is_called_again_by_the_next_attempt(app):
    tries = []

    def factory() -> ThreadPoolExecutor:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("no scheduler")
        return ThreadPoolExecutor(1)

    app.executor("late", factory)
    add = app.task(run_in="late", retry=QUICKLY)(functions.add)
    with app.worker():
        run = add.enqueue(1, 2)
        assert run.result(timeout=30) == 3
    assert run.info().attempt == 2


# Calls


def test_a_call_of_a_task_is_pickled_by_its_path_and_hides_its_arguments(app, monkeypatch):
    monkeypatch.setattr(functions, "add", app.task(functions.add))
    here = remote_call("add", functions.add.fn, (1, 41), {})
    call = pickle.loads(pickle.dumps(here))  # noqa: S301
    assert call() == 42
    assert here.function is functions.add.fn, "a call in this process doesn't look the function up"
    assert repr(call) == "<call of add>"


def test_two_equal_calls_differ():
    assert remote_call("add", functions.add, (1, 2), {}) != remote_call("add", functions.add, (1, 2), {})


# Declarations


def test_a_wrong_declaration_names_what_is_wrong(app, pool):
    with pytest.raises(ConfigError, match=r"run_in must be .*name an executor.*\(pool\), not 'gpu'"):
        app.task(run_in="gpu")(functions.add)
    with pytest.raises(ConfigError, match="the name is a value of run_in= already"):
        app.executor("process", ThreadPoolExecutor)
    with pytest.raises(ConfigError, match="must be a function that returns an executor"):
        app.executor("gpu", 3)
    with pytest.raises(ConfigError, match="an async def can't run in the executor 'pool'"):

        @app.task(run_in="pool", name="job")
        async def job() -> None: ...

    with pytest.raises(ConfigError, match=r"durable function.*run its steps there"):

        @app.task(run_in="pool", name="durable")
        async def durable(ctx: Context) -> None: ...

    with pytest.raises(ConfigError, match="can't be injected"):

        @app.task(run_in="pool", name="injected")
        def injected(db: dict[str, int] = inject("db")) -> None: ...


def test_a_step_in_an_unknown_executor_or_of_an_async_function_is_refused(app, pool):
    async def nothing() -> None: ...

    @app.task(name="steps", retry=Retry(max_attempts=1))
    async def steps(ctx: Context) -> list[str]:
        errors = []
        for executor, function in (("gpu", functions.pid), ("pool", nothing)):
            try:
                await ctx.options(run_in=executor, name="step").step(function)
            except (ConfigError, TaskError) as error:
                errors.append(str(error))
        return errors

    with app.worker():
        unknown, is_async = steps.enqueue().result(timeout=30)
    assert unknown == "the app declares no executor 'gpu' with app.executor; it has pool"
    assert "the executor pool takes a def" in is_async


def test_a_factory_must_return_an_executor(app):
    app.executor("none", lambda: 42)
    add = app.task(run_in="none", retry=Retry(max_attempts=1))(functions.add)
    with app.worker(), pytest.raises(RunFailed, match=r"its factory returned int, which has no submit"):
        add.enqueue(1, 2).result(timeout=30)


# Tests of applications


def test_a_fake_replaces_a_step_in_an_executor(app, opened):
    @app.task(name="steps")
    async def steps(ctx: Context) -> int:
        return await ctx.options(run_in="held").step(functions.add, 1, 2)

    with Kit(app) as kit, fake(functions.add, returns=7):
        run = steps.enqueue()
        kit.drain()
        assert run.result(timeout=0) == 7
    assert opened == []
