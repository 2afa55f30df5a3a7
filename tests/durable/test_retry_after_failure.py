"""An operator's retry of a durable function: what is kept, what runs again, and what its preview says about that."""

from __future__ import annotations

import pytest

from holdfast import Context, Retry, RunFailed, SyncContext, WaitTimeout, idempotency_key
from holdfast.control import Control
from tests.support.durable import drain, kinds, state
from tests.support.step_functions import step_function

ONCE = Retry(max_attempts=1)


@pytest.fixture
def control(timed_app) -> Control:
    return Control(timed_app.store, timed_app.registry)


class Shop:
    """Effects that write their idempotency keys into the ledger."""

    def __init__(self, ledger):
        self.ledger = ledger

    @step_function
    def charge(self, cents: int) -> str:
        self.ledger.write("charge", idempotency_key())
        return f"payment of {cents}"

    def refund(self, payment: str) -> None:
        self.ledger.write("refund", payment)

    @step_function
    def look_up(self, what: str) -> str:
        self.ledger.write("look_up", idempotency_key())
        return what

    @step_function
    def notify(self, what: str) -> str:
        self.ledger.write("notify", idempotency_key())
        return what

    def effects(self) -> list[str]:
        return [words[0] for words in self.ledger.words()]

    def keys(self, effect: str) -> list[str]:
        return [words[1] for words in self.ledger.words() if words[0] == effect]


@pytest.fixture
def shop(ledger):
    return Shop(ledger)


def time_out(app, clock, seconds=10):
    """Let waits time out, and everything follow from it."""
    drain(app)
    clock.forward(seconds)
    drain(app)


def superseded(control, run):
    return [step.label for step in control.runs.details(run.id).steps if step.superseded]


def test_an_uncaught_timeout_fails_at_once_and_a_retry_waits_again_with_the_full_timeout(timed_app, clock, control):
    @timed_app.task(name="work", retry=Retry(max_attempts=5, delay=0))
    async def work(ctx: Context) -> str:
        return await ctx.wait_for("go", timeout=10)

    run = work.enqueue()
    time_out(timed_app, clock)
    assert (state(run), run.info().attempt) == ("failed", 1), "the next attempt would time out again"
    preview = control.runs.preview_retry(run.id)
    assert [(step.label, step.reason) for step in preview.again] == [("event go", "timed_out")]
    assert (preview.mode, preview.may_repeat) == ("start", [])
    clock.forward(3600)
    run.retry()
    drain(timed_app)
    clock.forward(9)
    drain(timed_app)
    assert state(run) == "waiting"
    timed_app.emit("go", "late")
    drain(timed_app)
    assert run.result(timeout=5) == "late"
    assert superseded(control, run) == ["event go"], "the timeout stays visible"


def test_a_timeout_that_was_handled_before_another_failure_is_not_waited_for_again(timed_app, clock, shop, control):
    @timed_app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> str:
        try:
            return await ctx.wait_for("go", timeout=10)
        except WaitTimeout:
            await ctx.step(shop.notify, "late")
        if len(shop.effects()) == 1:
            shop.ledger.write("failed", "once")
            raise ValueError
        return "without it"

    run = work.enqueue()
    time_out(timed_app, clock)
    assert state(run) == "failed"
    assert control.runs.preview_retry(run.id).kept == ["event go", "notify"]
    timed_app.emit("go")
    run.retry()
    drain(timed_app)
    assert run.result(timeout=5) == "without it"


def test_a_timeout_that_led_to_the_failure_is_waited_for_again_despite_a_step_after_it(timed_app, clock, shop):
    @timed_app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> str:
        try:
            return await ctx.wait_for("go", timeout=10)
        except WaitTimeout:
            await ctx.step(shop.notify, "late")
            raise

    run = work.enqueue()
    time_out(timed_app, clock)
    assert state(run) == "failed"
    run.retry()
    timed_app.emit("go", "came")
    drain(timed_app)
    assert run.result(timeout=5) == "came"


def test_a_policy_that_names_the_timeout_waits_again_with_each_attempt(timed_app, clock):
    @timed_app.task(name="work", retry=Retry(max_attempts=2, delay=0, on=WaitTimeout))
    async def work(ctx: Context) -> int:
        await ctx.wait_for("go", timeout=10)
        return ctx.attempt

    run = work.enqueue()
    time_out(timed_app, clock)
    assert state(run) == "waiting"
    timed_app.emit("go")
    drain(timed_app)
    assert run.result(timeout=5) == 2


def test_a_run_cancelled_while_it_waits_gets_the_full_timeout_after_a_retry(timed_app, clock):
    @timed_app.task(name="work")
    async def work(ctx: Context) -> str:
        return await ctx.receive("go", timeout=10)

    run = work.enqueue()
    drain(timed_app)
    run.cancel()
    clock.forward(3600)
    drain(timed_app)
    run.retry()
    drain(timed_app)
    assert state(run) == "waiting"
    run.send("go", "at last")
    drain(timed_app)
    assert run.result(timeout=5) == "at last"


# After compensations


def declare_order(app, shop, sync):
    if sync:

        @app.task(name="order")
        def order(ctx: SyncContext) -> str:
            ctx.step(shop.look_up, "price")
            payment = ctx.step(shop.charge, 42, undo=shop.refund)
            ctx.step(shop.notify, "charged")
            ctx.wait_for("delivered", timeout=10)
            return payment

        return order

    @app.task(name="order")
    async def order_async(ctx: Context) -> str:
        await ctx.step(shop.look_up, "price")
        payment = await ctx.step(shop.charge, 42, undo=shop.refund)
        await ctx.step(shop.notify, "charged")
        await ctx.wait_for("delivered", timeout=10)
        return payment

    return order_async


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_after_compensations_a_retry_goes_back_to_the_first_step_that_was_undone(timed_app, clock, shop, control, sync):
    run = declare_order(timed_app, shop, sync).enqueue()
    time_out(timed_app, clock)
    assert shop.effects() == ["look_up", "charge", "notify", "refund"]
    assert state(run) == "failed"
    preview = control.runs.preview_retry(run.id)
    assert (preview.mode, preview.kept) == ("rewind", ["look_up"])
    assert {step.label: step.reason for step in preview.again} == {
        "charge": "undone", "notify": "not_undone", "event delivered": "timed_out",
    }  # fmt: skip
    assert preview.may_repeat == ["notify: its effect wasn't undone"]
    run.retry()
    drain(timed_app)
    timed_app.emit("delivered")
    drain(timed_app)
    assert run.result(timeout=5) == "payment of 42"
    assert shop.effects()[4:] == ["charge", "notify"]
    first, second = shop.keys("charge")
    assert first != second, "the first charge was refunded: the second must not be taken for its repeat"
    assert len(set(shop.keys("notify"))) == 1, "its effect exists, and a repeat can be recognized"
    retried = next(entry for entry in run.history() if entry.kind == "retried")
    assert retried.data["from_step"].startswith("charge-")


def test_all_rounds_of_a_run_that_was_undone_twice_stay_visible(timed_app, clock, shop, control):
    run = declare_order(timed_app, shop, sync=False).enqueue()
    for _ in range(2):
        time_out(timed_app, clock)
        assert state(run) == "failed"
        run.retry()
    drain(timed_app)
    charges = [step for step in control.runs.details(run.id).steps if step.label == "charge"]
    assert [(step.superseded, step.undone_at is not None) for step in charges] == [
        (True, True), (True, True), (False, False),
    ]  # fmt: skip
    assert len({step.at for step in charges}) >= 2
    assert shop.effects().count("look_up") == 1
    assert len(set(shop.keys("charge"))) == 3
    timed_app.emit("delivered")
    drain(timed_app)
    assert state(run) == "done"


def test_compensations_registered_while_a_failure_is_handled_run(timed_app, clock, shop):
    """The undo replays the failure as well, so that it reaches the code that handles it."""

    def fail(what: str) -> None:
        raise ConnectionError(what)

    @timed_app.task(name="order", retry=ONCE)
    async def order(ctx: Context, how: str) -> None:
        try:
            if how == "step":
                await ctx.step(fail, "no", name="fail")
            else:
                await ctx.wait_for("never", timeout=10)
        except Exception:
            await ctx.step(shop.charge, 7, undo=shop.refund)
            raise

    runs = [order.enqueue("step"), order.enqueue("wait")]
    time_out(timed_app, clock)
    assert [(state(run), run.info().error.code) for run in runs] == [("failed", "error")] * 2
    assert sorted(shop.effects()) == ["charge", "charge", "refund", "refund"]
    assert runs[1].info().error.type == "holdfast.errors.WaitTimeout"


def test_children_after_the_first_undone_step_are_created_anew_and_earlier_ones_are_kept(timed_app, clock, shop):
    @timed_app.task(name="child")
    async def child(ctx: Context, what: str) -> str:
        shop.ledger.write("child", what)
        return what

    @timed_app.task(name="parent", retry=ONCE)
    async def parent(ctx: Context) -> list[str]:
        early = await ctx.spawn(child, "early")
        await ctx.step(shop.charge, 1, undo=shop.refund)
        late = [await ctx.call(child, "late"), *await ctx.map(child, ["m1", "m2"])]
        first = await ctx.join(early)
        await ctx.wait_for("go", timeout=10)
        return [first, *late]

    run = parent.enqueue()
    time_out(timed_app, clock)
    assert state(run) == "failed"
    run.retry()
    timed_app.emit("go")
    for _ in range(4):
        drain(timed_app)
    assert run.result(timeout=5) == ["early", "late", "m1", "m2"]
    counts = shop.ledger.counts()
    assert [counts[f"child {name}"] for name in ("early", "late", "m1", "m2")] == [1, 2, 2, 2]


def test_messages_received_after_the_first_undone_step_are_received_again_in_order(timed_app, clock, shop):
    @timed_app.task(name="order", retry=ONCE)
    async def order(ctx: Context) -> list[str]:
        before = await ctx.receive("topic")
        await ctx.step(shop.charge, 1, undo=shop.refund)
        after = [await ctx.receive("topic"), await ctx.receive("topic")]
        await ctx.wait_for("go", timeout=10)
        return [before, *after]

    run = order.enqueue()
    for payload in ("a", "b", "c"):
        run.send("topic", payload)
    time_out(timed_app, clock)
    assert state(run) == "failed"
    run.retry()
    timed_app.emit("go")
    drain(timed_app)
    assert run.result(timeout=5) == ["a", "b", "c"]


def test_a_fork_of_a_rewound_run_knows_only_what_counts(timed_app, clock, shop):
    run = declare_order(timed_app, shop, sync=False).enqueue()
    time_out(timed_app, clock)
    run.retry()
    drain(timed_app)
    fork = run.fork(from_step="notify")
    timed_app.emit("delivered")
    drain(timed_app)
    assert fork.result(timeout=5) == "payment of 42"
    assert shop.effects()[4:] == ["charge", "notify", "notify"]


def test_a_failed_step_stays_visible_while_its_next_try_succeeds(app, effects):
    control = Control(app.store, app.registry)

    @app.task(name="work", retry=Retry(max_attempts=3, delay=0))
    async def work(ctx: Context) -> str:
        return await ctx.step(effects.fail_until, "flaky", 3)

    run = work.enqueue()
    drain(app)
    steps = control.runs.details(run.id).steps
    assert [(step.label, step.superseded, step.error is not None) for step in steps] == [
        ("fail_until", True, True), ("fail_until", True, True), ("fail_until", False, False),
    ]  # fmt: skip
    assert kinds(run).count("retrying") == 2


def test_the_preview_of_a_failed_undo_says_that_compensations_continue(timed_app, shop, control):
    def refuse(payment: str) -> None:
        raise ConnectionError("not now")

    @timed_app.task(name="order", retry=ONCE)
    async def order(ctx: Context) -> None:
        await ctx.step(shop.charge, 1, undo=refuse, retry=ONCE)
        raise ValueError

    run = order.enqueue()
    drain(timed_app)
    with pytest.raises(RunFailed):
        run.result(timeout=5)
    preview = control.runs.preview_retry(run.id)
    assert (preview.mode, preview.again) == ("undo", [])
    assert "failed" in preview.summary
