"""Failed tries of steps: recorded while the step is tried again, and shown with error, arguments and next try."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

import pytest

from holdfast import Context, Retry, Secret, StepFailed, SyncContext
from holdfast.control import Control
from holdfast.engine.durable import step_retry
from tests.support.durable import drain, kinds
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)
AT_ONCE = Retry(max_attempts=4, delay=0)
LATER = Retry(max_attempts=4, delay=3600, max_delay=3600, jitter=0)
TOKEN = "tok-12345"


class Gateway:
    """A step function that fails a number of times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def charge(self, order: int, card: Secret[str], items: tuple[str, ...] = ()) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError(f"refused {self.calls}")
        return "charged"


@pytest.fixture(params=["async", "sync"])
def order(request, app):
    """A durable task that calls a step with a retry policy."""

    def make(gateway: Gateway, retry: Retry):
        if request.param == "async":

            @app.task(name="order", retry=ONCE)
            async def order(ctx: Context, number: int) -> str:
                step = ctx.options(name="charge", retry=retry)
                return await step.step(gateway.charge, number, Secret(TOKEN), items=("rope",))
        else:

            @app.task(name="order", retry=ONCE)
            def order(ctx: SyncContext, number: int) -> str:
                step = ctx.options(name="charge", retry=retry)
                return step.step(gateway.charge, number, Secret(TOKEN), items=("rope",))

        return order

    return make


def details(app, run):
    return Control(app.store, app.registry).runs.details(run.id)


ARGUMENTS = {"order": 7, "card": "***", "items": ["rope"]}


def test_failed_tries_are_in_the_history_and_with_the_recorded_step(app, order, caplog):
    with caplog.at_level(logging.INFO, "holdfast"):
        run = order(Gateway(2), AT_ONCE).enqueue(7)
        drain(app)
    assert run.result(timeout=5) == "charged"
    assert kinds(run) == ["enqueued", "started", "step_retrying", "step_retrying", "done"]
    first, second = [entry for entry in run.history() if entry.kind == "step_retrying"]
    assert (first.attempt, first.data["step"], first.data["try"], first.data["tries"]) == (1, "charge", 1, 4)
    assert first.data["args"] == ARGUMENTS
    assert (second.data["try"], second.data["error"]["message"]) == (2, "refused 2")
    (step,) = details(app, run).steps
    assert [(each.number, each.of, each.error.message) for each in step.tries] == [
        (1, 4, "refused 1"), (2, 4, "refused 2"),
    ]  # fmt: skip
    assert (step.value, step.args) == ("charged", ARGUMENTS)
    assert details(app, run).unfinished_steps == []
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    (line,) = [line for line in told if "try=1" in line]
    assert line.startswith(f"step failed task=order run={run.id} attempt=1 step=charge try=1")
    assert line.endswith('error="ConnectionError: refused 1" retry_in=0.0s')
    assert TOKEN not in caplog.text
    assert TOKEN not in str(fetch(app, "select data from {}history"))


def test_a_step_that_is_being_retried_is_visible_while_it_waits(app, order):
    run = order(Gateway(9), LATER).enqueue(7)
    control = Control(app.store, app.registry)
    with app.worker():
        wait_until(lambda: "step_retrying" in kinds(run))
        assert kinds(run) == ["enqueued", "started", "step_retrying"], "the start precedes what happened in the attempt"
        found = control.runs.details(run.id)
        (step,) = found.unfinished_steps
        assert (step.label, step.state, step.args) == ("charge", "retrying", ARGUMENTS)
        assert (step.last.number, step.last.error.message) == (1, "refused 1")
        assert step.last.next_at - step.last.at == timedelta(hours=1)
        assert found.steps == []
        running, retried = control.whys.why(run.id).reasons
        assert (running.code, retried.code) == ("running", "step")
        assert retried.text.startswith("step charge failed (ConnectionError: refused 1); try 2 of 4 begins at ")
        assert retried.data["at"] == step.last.next_at
        run.cancel()
        wait_until(lambda: "let_go" in kinds(run))
    (step,) = details(app, run).unfinished_steps
    assert step.state == "interrupted"
    assert control.whys.why(run.id).reasons[0].code == "ended"


def test_a_step_that_failed_for_good_keeps_its_arguments_and_tries(app, order, caplog):
    with caplog.at_level(logging.INFO, "holdfast"):
        run = order(Gateway(9), Retry(max_attempts=2, delay=0)).enqueue(7)
        drain(app)
    (step,) = details(app, run).steps
    assert (step.kind, step.error.message, step.args) == ("failed", "refused 2", ARGUMENTS)
    assert [each.error.message for each in step.tries] == ["refused 1"]
    assert "step failed permanently task=order" in caplog.text
    assert 'step=charge tries=2 error="ConnectionError: refused 2"' in caplog.text


def test_tries_belong_to_the_attempt_in_which_they_failed(app):
    gateway = Gateway(5)

    @app.task(name="order", retry=Retry(max_attempts=3, delay=0))
    async def order(ctx: Context) -> str:
        return await ctx.options(name="charge", retry=Retry(max_attempts=2, delay=0)).step(
            gateway.charge, 7, Secret(TOKEN)
        )

    run = order.enqueue()
    wait_until(lambda: drain(app) or run.info().final)
    first, second, third = details(app, run).steps
    assert [step.kind for step in (first, second, third)] == ["failed", "failed", "step"]
    assert [[each.number for each in step.tries] for step in (first, second, third)] == [[1], [1], [1]]
    assert [each.attempt for step in (first, second, third) for each in step.tries] == [1, 2, 3]


def test_only_the_last_of_very_many_tries_are_kept(app, order, monkeypatch):
    monkeypatch.setattr(step_retry, "MAX_RECORDED_TRIES", 3)
    run = order(Gateway(9), Retry(max_attempts=20, delay=0)).enqueue(7)
    drain(app)
    (step,) = details(app, run).steps
    assert [each.number for each in step.tries] == [1, 2, 9]


def test_concurrent_steps_are_told_apart(app):
    async def call(name: str) -> str:
        if name not in failed:
            failed.add(name)
            raise ConnectionError(name)
        return name

    failed: set[str] = set()

    @app.task(name="both")
    async def both(ctx: Context) -> list[str]:
        step = ctx.options(name="call", retry=AT_ONCE)
        return await asyncio.gather(*(step.step(call, str(n)) for n in range(5)))

    run = both.enqueue()
    drain(app)
    steps = details(app, run).steps
    assert sorted((step.value, step.tries[0].error.message) for step in steps) == [(str(n), str(n)) for n in range(5)]
    assert all(step.args == {"name": step.value} for step in steps)


def test_a_failed_transaction_and_a_result_that_cannot_be_stored_show_their_arguments(app):
    def insert(connection, number: int) -> None:
        raise ValueError("no room")

    def bad(number: int) -> object:
        return object()

    @app.task(name="both", retry=ONCE)
    async def both(ctx: Context) -> None:
        for call in (ctx.transaction(insert, 5), ctx.step(bad, 6)):
            with suppress(StepFailed):
                await call

    run = both.enqueue()
    drain(app)
    assert [(step.label, step.args) for step in details(app, run).steps] == [
        ("insert", {"number": 5}), ("bad", {"number": 6}),
    ]  # fmt: skip


def test_long_arguments_are_cut_and_arguments_without_names_are_listed(app):
    @app.task(name="both", retry=ONCE)
    async def both(ctx: Context) -> None:
        for args in (("x" * 5000,), (1, 2)):
            with suppress(StepFailed):
                await ctx.options(name="s").step(lambda *args: 1 / 0, *args)
        with suppress(StepFailed):
            await ctx.options(name="none").step(lambda: 1 / 0)

    run = both.enqueue()
    drain(app)
    long, short, none = [step.args for step in details(app, run).steps]
    assert long == '{"args":["' + "x" * 190 + "…"
    assert short == {"args": [1, 2]}
    assert none is None


def test_arguments_are_encoded_by_the_codec(make_app):
    class Reversed:
        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        decode = encode

    app = make_app(codec=Reversed())
    gateway = Gateway(1)

    @app.task(name="order", retry=ONCE)
    async def order(ctx: Context) -> str:
        return await ctx.options(name="charge", retry=AT_ONCE).step(gateway.charge, 4711, Secret(TOKEN))

    run = order.enqueue()
    drain(app)
    assert details(app, run).steps[0].args["order"] == 4711
    assert "4711" not in str(fetch(app, "select data from {}history"))
    other = Control(make_app().store)
    assert other.runs.details(run.id).steps[0].args == "(encoded; this app doesn't have the codec)"


def test_a_compensation_that_is_retried_is_visible(app):
    gateway = Gateway(1)

    @app.task(name="order", retry=ONCE)
    async def order(ctx: Context) -> None:
        await ctx.options(name="reserve", retry=AT_ONCE, undo=lambda _: gateway.charge(1, Secret(TOKEN))).step(str)
        raise ValueError("enough")

    run = order.enqueue()
    drain(app)
    (entry,) = [entry for entry in run.history() if entry.kind == "step_retrying"]
    assert (entry.data["step"], entry.data["error"]["message"]) == ("undone reserve", "refused 1")
    undone = [step for step in details(app, run).steps if step.kind == "undone"]
    assert [len(step.tries) for step in undone] == [1]


def test_a_restart_forgets_the_tries_of_the_generation_before(app):
    gateway = Gateway(1)

    @app.task(name="order", retry=ONCE)
    async def order(ctx: Context, again: bool) -> None:
        await ctx.options(name="charge", retry=AT_ONCE).step(gateway.charge, 1, Secret(TOKEN))
        if again:
            await ctx.restart(False)

    run = order.enqueue(True)
    drain(app)
    assert kinds(run).count("step_retrying") == 1
    (step,) = details(app, run).steps
    assert step.tries == []


def test_a_try_that_the_database_rejects_is_tried_again_all_the_same(app, order, monkeypatch, caplog):
    def refuse(*_args):
        raise ValueError("rejected")

    monkeypatch.setattr("holdfast.store.command_batch.CommandBatch._add_failed_tries", refuse)
    run = order(Gateway(1), AT_ONCE).enqueue(7)
    drain(app)
    assert run.result(timeout=5) == "charged"
    assert "failed try of a step could not be recorded" in caplog.text
