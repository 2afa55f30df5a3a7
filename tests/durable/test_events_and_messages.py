"""Events, which anyone may wait for and the first emit decides; messages to one run, received once and in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from holdfast import Context, Retry, WaitTimeout
from holdfast.errors import ConfigError, RunFinished, TaskError
from tests.support.durable import drain, kinds, state
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)
ODD_NAMES = ["it's", 'say "hi"', "a;drop table runs;--", "100% {schema}", "ünïcode 🎉", "$event:x#1", "\\", "a" * 200]


@dataclass
class Paid:
    amount: int


@pytest.fixture
def waiter(app):
    @app.task(name="waiter")
    async def waiter(ctx: Context, event: str) -> object:
        return await ctx.wait_for(event)

    return waiter


def test_the_first_emit_wins_and_is_remembered(app, waiter):
    before = waiter.enqueue("e")
    drain(app)
    assert app.emit("e", {"n": 1}) is True
    assert app.emit("e", {"n": 2}) is False
    after = waiter.enqueue("e")
    drain(app)
    assert before.result(timeout=5) == after.result(timeout=5) == {"n": 1}
    assert kinds(after) == ["enqueued", "started", "done"], "it had come already: nothing to wait for"


def test_null_is_a_payload(app, waiter):
    app.emit("e")
    run = waiter.enqueue("e")
    drain(app)
    assert (state(run), run.result(timeout=5)) == ("done", None)


def test_payloads_are_read_as_the_type_asked_for(app):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> int:
        paid = await ctx.wait_for("paid", type=Paid)
        message = await ctx.receive("note", type=list[Paid])
        assert isinstance(paid, Paid)
        assert isinstance(message[0], Paid)
        return paid.amount

    run = work.enqueue()
    app.emit("paid", {"amount": 5})
    run.send("note", [{"amount": 6}])
    drain(app)
    assert run.result(timeout=5) == 5


def test_a_durable_function_emits_once_and_knows_whether_it_was_first(app, waiter, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> list[bool]:
        got = [await ctx.emit("e", 1), await ctx.emit("e", 2)]
        ledger.write(*got)
        await ctx.wait_for("go")
        return got

    waiting = waiter.enqueue("e")
    run = work.enqueue()
    drain(app)
    assert waiting.result(timeout=5) == 1
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == [True, False]
    assert ledger.lines() == ["True False"] * 2


def test_events_belong_to_their_tenant(app, waiter):
    @app.task(name="work")
    async def work(ctx: Context) -> bool:
        return await ctx.emit("e", "from acme")

    ours, acme = waiter.enqueue("e"), waiter.options(tenant="acme").enqueue("e")
    work.options(tenant="acme").enqueue()
    drain(app)
    assert (state(ours), acme.result(timeout=5)) == ("waiting", "from acme")
    assert app.emit("e", "ours") is True
    assert app.emit("e", "acme again", tenant="acme") is False
    drain(app)
    assert ours.result(timeout=5) == "ours"


def test_one_event_wakes_all_its_waiters(app, waiter):
    runs = waiter.enqueue_many([("e",)] * 600)
    drain(app)
    app.emit("e", "all")
    drain(app)
    assert {run.result(timeout=5) for run in runs} == {"all"}


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_names_with_quotes_and_control_characters_are_accepted(app, waiter, name):
    @app.task(name="receiver")
    async def receiver(ctx: Context) -> str:
        await ctx.sleep(0, name=name)
        return await ctx.receive(name)

    waiting, receiving = waiter.enqueue(name), receiver.enqueue()
    drain(app)
    other = waiter.enqueue("other")
    app.emit(name, "came")
    receiving.send(name, "sent")
    drain(app)
    assert (waiting.result(timeout=5), receiving.result(timeout=5)) == ("came", "sent")
    assert state(other) == "waiting"


@pytest.mark.parametrize("name", ["", "x" * 10_240, "nul\0", "line\nbreak", "\ud800"], ids=["empty", "10 KB", *"abc"])
def test_invalid_names_are_rejected(app, name):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> int:
        for ask in (ctx.wait_for, ctx.receive, ctx.emit):
            with pytest.raises(ConfigError):
                await ask(names[0])
        return 1

    names = [name]
    run = work.enqueue()
    for refused in (lambda: app.emit(name), lambda: run.send(name)):
        with pytest.raises(ConfigError):
            refused()
    drain(app)
    assert run.result(timeout=5) == 1


def test_messages_are_received_once_and_in_order_whenever_they_were_sent(app, ledger):
    """Before the run began, while it waits, while it runs, and around a worker that stops."""
    held = asyncio.Event()

    async def pause() -> None:
        ledger.write("paused")
        if ledger.counts()["paused"] == 1:
            await held.wait()

    @app.task(name="work")
    async def work(ctx: Context) -> list[int]:
        got = [await ctx.receive("n") for _ in range(3)]
        await ctx.step(pause, name="pause")
        return got + [await ctx.receive("n") for _ in range(4)]

    run = work.enqueue()
    run.send("n", 1)
    run.send("n", 2)
    drain(app)
    assert state(run) == "waiting"
    run.send("other", "topic")
    run.send("n", 3)
    with app.worker(grace=0):
        wait_until(lambda: ledger.lines() == ["paused"])
        run.send("n", 4)
    run.send("n", 5)
    run.send("n", 6)
    drain(app)
    run.send("n", 7)
    drain(app)
    assert run.result(timeout=5) == [1, 2, 3, 4, 5, 6, 7]


def test_a_plain_emit_in_the_body_is_refused_and_inside_a_step_it_works(app):
    def emit() -> bool:
        return app.emit("inside")

    @app.task(name="work", retry=Retry(max_attempts=1))
    async def work(ctx: Context) -> bool:
        for attempt in (app.aemit, lambda event: asyncio.to_thread(app.emit, event)):
            with pytest.raises(TaskError, match=r"would run again at every replay: use ctx\.emit"):
                await attempt("body")
        return await ctx.step(emit, name="emit")

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) is True
    assert app.emit("body") is True, "it wasn't emitted before"


def test_several_receivers_of_one_topic_get_a_message_each(app):
    @app.task(name="work")
    async def work(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.receive("n") for _ in range(3)))

    run = work.enqueue()
    drain(app)
    for n in (10, 20, 30):
        run.send("n", n)
        drain(app)
    assert sorted(run.result(timeout=5)) == [10, 20, 30]


def test_a_receive_that_timed_out_leaves_the_message_to_the_next_receive(timed_app, clock, ledger):
    @timed_app.task(name="work")
    async def work(ctx: Context) -> str:
        try:
            await ctx.receive("n", timeout=10)
        except WaitTimeout:
            ledger.write("timed out")
        await ctx.wait_for("go")
        return await ctx.receive("n")

    run = work.enqueue()
    drain(timed_app)
    clock.forward(10)
    drain(timed_app)
    run.send("n", "late")
    timed_app.emit("go")
    drain(timed_app)
    assert run.result(timeout=5) == "late"
    assert ledger.lines() == ["timed out", "timed out"]


@pytest.mark.parametrize("end", ["done", "cancelled"])
def test_a_finished_run_accepts_no_messages(app, waiter, end):
    run = waiter.enqueue("e")
    if end == "cancelled":
        run.cancel()
    else:
        app.emit("e")
        drain(app)
    with pytest.raises(RunFinished, match=end):
        run.send("n", 1)
