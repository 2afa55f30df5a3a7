"""What operators do to durable functions: retry, fork, cancel."""

from __future__ import annotations

import threading

import pytest

from holdfast import Context, Retry, RunCancelled, RunFailed, SyncContext
from holdfast.errors import BadArguments, ConfigError, RunFinished, TaskError
from tests.support.durable import drain, kinds, state
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


def test_retry_keeps_checkpoints_and_gives_new_budgets(app, effects, ledger):
    @app.task(name="work", retry=Retry(max_attempts=2, delay=0))
    async def work(ctx: Context) -> int:
        await ctx.step(effects.note, "kept")
        await ctx.step(effects.fail_until, "flaky", 4)
        return ctx.attempt

    run = work.enqueue()
    drain(app)
    assert (state(run), ledger.counts()) == ("failed", {"kept": 1, "flaky": 2})
    run.retry()
    drain(app)
    assert run.result(timeout=5) == 2
    assert ledger.counts() == {"kept": 1, "flaky": 4}
    with pytest.raises(RunFinished):
        run.retry()


def test_retry_of_a_cancelled_waiting_run_goes_on_waiting(app, effects, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> str:
        await ctx.step(effects.note, "kept")
        return await ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    run.cancel()
    app.emit("go", "came meanwhile")
    drain(app)
    assert state(run) == "cancelled"
    run.retry()
    drain(app)
    assert (run.result(timeout=5), ledger.lines()) == ("came meanwhile", ["kept"])


def test_retry_takes_children_that_ended_with_their_parent_along(app, effects, ledger):
    @app.task(name="child", retry=ONCE)
    async def child(ctx: Context, what: str) -> str:
        await ctx.step(effects.note, what)
        return await ctx.step(effects.fail_until, f"flaky {what}", 2)

    @app.task(name="parent", retry=ONCE)
    async def parent(ctx: Context) -> list[str]:
        return [await ctx.call(child, "a"), *await ctx.map(child, ["b", "c"])]

    run = parent.enqueue()
    for _ in range(4):
        drain(app)
        if state(run) == "failed":
            run.retry()
    drain(app)
    assert run.result(timeout=5) == ["flaky a", "flaky b", "flaky c"]
    assert {name: ledger.counts()[name] for name in "abc"} == {"a": 1, "b": 1, "c": 1}
    assert len(app.runs()) == 4, "the same children, not new ones"


def test_a_new_deadline_begins_with_the_retry(timed_app, clock):
    @timed_app.task(name="work", deadline=100)
    async def work(ctx: Context) -> str:
        return await ctx.wait_for("go")

    run = work.enqueue()
    drain(timed_app)
    clock.forward(100)
    drain(timed_app)
    assert run.info().error.code == "deadline"
    run.retry()
    clock.forward(99)
    drain(timed_app)
    assert state(run) == "waiting"
    timed_app.emit("go", "in time")
    drain(timed_app)
    assert run.result(timeout=5) == "in time"


@pytest.fixture
def chain(app, effects, ledger):
    @app.task(name="job")
    async def job(n: int) -> int:
        ledger.write("job", n)
        return n + 1

    @app.task(name="chain", retry=ONCE)
    async def chain(ctx: Context, last: str) -> list[object]:
        first = await ctx.step(effects.note, "first", name="first")
        called = await ctx.call(job, 1)
        mapped = await ctx.map(job, [5, 6])
        second = await ctx.step(effects.note, "second", name="second")
        return [first, called, mapped, second, await ctx.step(effects.note, last, name="last")]

    return chain


def test_a_fork_has_the_checkpoints_before_its_step_and_leaves_the_original_alone(app, chain, ledger):
    run = chain.enqueue("x")
    drain(app)
    before = run.info()
    fork = run.fork(from_step="second", by="ada")
    drain(app)
    assert fork.id != run.id
    assert fork.result(timeout=5) == run.result(timeout=5) == ["first", 2, [6, 7], "second", "x"]
    assert ledger.counts() == {"first": 1, "job 1": 1, "job 5": 1, "job 6": 1, "second": 2, "x": 2}
    assert run.info() == before
    entry = fork.history()[1]
    assert (entry.kind, entry.data["from"], entry.data["from_step"]) == ("forked", str(run.id), "second")
    assert entry.data["by"] == "ada"


def test_a_fork_or_retry_in_the_body_is_refused_and_inside_a_step_it_works(app, chain, ledger):
    forked = chain.enqueue("end")
    drain(app)

    @app.task(name="forker", retry=Retry(max_attempts=1))
    def forker(ctx: SyncContext) -> str:
        for verb in (forked.fork, forked.retry):
            with pytest.raises(TaskError, match=rf"{verb.__name__}\(\).*inside a step"):
                verb()
        return ctx.step(lambda: str(forked.fork().id), name="fork")

    run = forker.enqueue()
    drain(app)
    assert app.get_run(run_id=run.result(timeout=5)).task == "chain"


def test_a_fork_without_a_step_begins_anew_and_may_have_other_arguments(app, chain, ledger):
    run = chain.enqueue("x")
    drain(app)
    anew, other = run.fork(), run.fork(from_step="last", args=("y",))
    drain(app)
    assert anew.result(timeout=5) == ["first", 2, [6, 7], "second", "x"]
    assert other.result(timeout=5)[-1] == "y"
    assert ledger.counts() == {"first": 2, "job 1": 2, "job 5": 2, "job 6": 2, "second": 2, "x": 2, "y": 1}


def test_a_fork_takes_arguments_by_name(app, chain):
    run = chain.enqueue("x")
    drain(app)
    fork = run.fork(from_step="last", kwargs={"last": "y"})
    drain(app)
    assert fork.result(timeout=5)[-1] == "y"
    for args, kwargs in ((("y",), {"last": "z"}), (None, {"first": "z"}), (None, {})):
        with pytest.raises(BadArguments):
            run.fork(args=args, kwargs=kwargs)
    with pytest.raises(ConfigError, match="kwargs must be a mapping"):
        run.fork(kwargs=["y"])


def test_a_fork_from_an_unrecorded_step_names_the_recorded_ones(app, chain):
    run = chain.enqueue("x")
    drain(app)
    with pytest.raises(ConfigError, match="first"):
        run.fork(from_step="no such step")


def test_a_failed_run_is_forked_before_the_failed_step(app, effects, ledger):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context, n: int) -> int:
        await ctx.step(effects.note, "kept", name="kept")
        await ctx.step(effects.note, f"with {n}", name="with")
        if n == 0:
            raise ValueError("nothing")
        return n

    run = work.enqueue(0)
    drain(app)
    fork = run.fork(from_step="with", args=(1,))
    drain(app)
    assert (state(run), fork.result(timeout=5)) == ("failed", 1)
    assert ledger.lines() == ["kept", "with 0", "with 1"]


@pytest.mark.parametrize("how", ["asleep", "waits", "receives"])
def test_no_later_step_runs_after_a_cancel(timed_app, clock, effects, ledger, how):
    @timed_app.task(name="work")
    async def work(ctx: Context) -> None:
        await {
            "asleep": lambda: ctx.sleep(10),
            "waits": lambda: ctx.wait_for("e"),
            "receives": lambda: ctx.receive("t"),
        }[how]()
        await ctx.step(effects.note, "later")

    run = work.enqueue()
    drain(timed_app)
    assert run.cancel("enough") is True
    assert run.cancel() is False
    clock.forward(10)
    timed_app.emit("e")
    drain(timed_app)
    with pytest.raises(RunCancelled, match="enough"):
        run.result(timeout=5)
    assert ledger.lines() == []
    assert kinds(run) == ["enqueued", "started", "waiting", "cancelled"]


def test_a_cancel_while_a_step_runs_refuses_its_checkpoint_and_everything_after(app, effects, ledger):
    release = threading.Event()

    def slow() -> None:
        ledger.write("slow")
        release.wait(60)

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(slow, name="slow")
            await ctx.step(effects.note, "later")
        finally:
            await ctx.step(effects.note, "finally")

    with app.worker():
        run = work.enqueue()
        wait_until(ledger.lines)
        run.cancel()
        assert state(run) == "cancelled"
        release.set()
        wait_until(lambda: app.store.queries.run(str(run.id)).session is None)
    assert ledger.lines() == ["slow"]
    assert app.store.queries.steps(str(run.id)) == []


def test_the_failure_hook_is_called_once_for_a_durable_function(app, effects, ledger):
    @app.on_failure
    def failed(info):
        ledger.write("failed", info.id, info.error.code)

    @app.task(name="work", retry=Retry(max_attempts=2, delay=0))
    async def work(ctx: Context) -> None:
        await ctx.step(effects.note, "step", undo=effects.note)
        raise ValueError

    run = work.enqueue()
    drain(app)
    with pytest.raises(RunFailed):
        run.result(timeout=5)
    assert [line for line in ledger.lines() if line.startswith("failed")] == [f"failed {run.id} error"]
