"""Structured error data: `Fatal(data=…)` reaches the code that waits for the step, the child or the run."""

from __future__ import annotations

import pytest

from holdfast import Context, Fatal, RunFailed, StepFailed, SyncContext
from holdfast.control import Control
from tests.support.durable import drain, state

DATA = {"code": 51, "card": "4242"}


def declined() -> None:
    raise Fatal("declined", data=DATA)


def test_data_of_a_step_is_the_same_live_in_a_replay_and_for_the_caller(app):
    seen = []

    @app.task(name="child")
    def child(ctx: SyncContext) -> None:
        ctx.step(declined)

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        for raises in ((), (Fatal,)):
            try:
                await ctx.options(raises=raises).step(declined)
            except StepFailed as failed:
                seen.append(failed.error.data)
            except Fatal as fatal:
                seen.append(fatal.data)
        await ctx.wait_for("go")
        await ctx.call(child)

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert seen == [DATA] * 4
    with pytest.raises(RunFailed) as failed:
        run.result()
    assert failed.value.error.data == DATA
    assert run.info().error.data == DATA
    steps = [step for step in Control(app.store).runs.details(run.id).steps if step.error]
    assert [step.error.data for step in steps] == [DATA, DATA]


@pytest.mark.parametrize("run_in", ["loop", "thread", "process"])
def test_data_is_stored_wherever_the_task_runs(app, run_in):
    task = app.task(name="work", run_in=None if run_in == "loop" else run_in)(
        fail_async if run_in == "loop" else declined
    )
    run = task.enqueue()
    drain(app)
    assert (state(run), run.info().error.data) == ("failed", DATA)


async def fail_async() -> None:
    declined()


def test_bad_data_fails_the_run_as_if_there_was_none(app):
    @app.task(name="work")
    async def work() -> None:
        raise Fatal("declined", data=object())

    run = work.enqueue()
    drain(app)
    error = run.info().error
    assert (error.code, error.data) == ("fatal", None)
    assert error.message.startswith("declined (its data was left out: ")
