"""Asks: requests to a running function, answered once and in order; `ctx.serve`; what ends, restarts and retries do."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    AskRejected,
    AskTimeout,
    Context,
    Done,
    Fatal,
    KeyConflict,
    Retry,
    RunFailed,
    State,
    SyncContext,
    WaitTimeout,
)
from holdfast.client import results, streams
from holdfast.engine.durable import async_executor
from holdfast.errors import BadMessage, ConfigError, PayloadError, RunFinished, TaskError
from tests.support.asks import ask_in_thread, send_ask
from tests.support.durable import drain, state
from tests.support.history_queries import fetch
from tests.support.lost_reply import FirstReplyLost
from tests.support.statement_log import statements
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)
ASKS = 10


@dataclass
class Item:
    name: str
    count: int = 1


@pytest.fixture
def cart(app, effects):
    """A function that is an object: `add` runs a step, `total` doesn't, `close` ends it."""

    @app.task(name="cart")
    async def cart(ctx: Context) -> list[Item]:
        items: list[Item] = []

        async def add(item: Item) -> int:
            await ctx.step(effects.anote, item.name, name="note")
            items.append(item)
            return len(items)

        def total() -> int:
            return sum(item.count for item in items)

        def refuse(why: str) -> None:
            raise AskRejected(why, data={"count": len(items)})

        def fail() -> None:
            raise ValueError("out of order")

        def end(value: Any) -> Any:
            raise Fatal("enough", data=value)

        def close() -> str:
            ctx.stop(items)
            return "closed"

        return await ctx.serve(add=add, total=total, refuse=refuse, fail=fail, end=end, close=close)

    return cart


@pytest.mark.parametrize("max_resident", [0, 100])
def test_a_function_serves_asks_in_order_with_local_variables_as_its_state(app, cart, ledger, max_resident):
    run = cart.enqueue()
    early = [send_ask(run, "add", Item("rope", 2)), send_ask(run, "total"), send_ask(run, "add", Item("hook"))]
    with app.worker(max_resident=max_resident):
        assert run.ask("total", timeout=20, type=int) == 3
        with pytest.raises(
            PayloadError, match=f"the reply of run {run.id} to ask 'total': the JSON can't be decoded as"
        ):
            run.ask("total", timeout=20, type=str)
        assert [run.ask(name, payload, key=key, timeout=20) for name, payload, key in zip(
            ("add", "total", "add"), (Item("rope", 2), None, Item("hook")), early, strict=True
        )] == [1, 2, 2], "asks that came before the run began, in order of arrival"  # fmt: skip
        wait_until(lambda: state(run) == "waiting")
        assert run.ask("add", Item("axe", 5), timeout=20) == 3
        assert run.ask("close", timeout=20) == "closed"
        assert run.result(timeout=20) == [Item("rope", 2), Item("hook"), Item("axe", 5)]
    assert ledger.lines() == ["rope", "hook", "axe"], "handled once, although the function was replayed"


def test_errors_of_handlers_reject_the_ask_and_only_fatal_ends_the_run(app, cart):
    run = cart.options(retry=ONCE).enqueue()
    with app.worker():
        with pytest.raises(AskRejected, match=r"run .* rejected ask 'refuse': sold out") as refused:
            run.ask("refuse", "sold out", timeout=20)
        assert (refused.value.reason, refused.value.data, refused.value.type) == ("sold out", {"count": 0}, None)
        with pytest.raises(AskRejected, match="ValueError: out of order") as failed:
            run.ask("fail", timeout=20)
        assert (failed.value.reason, failed.value.type) == ("out of order", "ValueError")
        with pytest.raises(AskRejected, match=r"no such ask; the function serves add, close, end, fail, refuse, total"):
            run.ask("remove", timeout=20)
        with pytest.raises(AskRejected, match="doesn't have the expected type"):
            run.ask("add", {"count": "many"}, timeout=20)
        with pytest.raises(AskRejected, match="takes no payload"):
            run.ask("total", 1, timeout=20)
        assert run.ask("add", Item("rope"), timeout=20) == 1
        with pytest.raises(AskRejected, match="enough") as ended:
            run.ask("end", 7, timeout=20)
        assert ended.value.data == 7
        with pytest.raises(RunFailed, match="enough"):
            run.result(timeout=20)


def test_an_ask_with_a_key_is_handled_once_and_its_reply_is_returned_again(app, cart, ledger):
    run = cart.enqueue()
    with app.worker(), ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(run.ask, "add", Item("rope"), key="order-1", timeout=20) for _ in range(8)]
        assert [call.result() for call in calls] == [1] * 8
        with pytest.raises(AskRejected, match="sold out"):
            run.ask("refuse", "sold out", key="order-2", timeout=20)
        with pytest.raises(AskRejected, match="sold out"):
            run.ask("refuse", "sold out", key="order-2", timeout=20)
        for name, payload in (("add", Item("hook")), ("total", None)):
            with pytest.raises(KeyConflict, match="asked something else with the key 'order-1'"):
                run.ask(name, payload, key="order-1", timeout=20)
        run.ask("close", key="bye", timeout=20)
        run.result(timeout=20)
        assert run.ask("add", Item("rope"), key="order-1", timeout=20) == 1, "also after the end"
        assert run.ask("close", key="bye", timeout=20) == "closed"
    assert ledger.lines() == ["rope"]


def test_a_late_answer_is_there_for_an_ask_with_the_same_key(app, cart):
    run = cart.enqueue()
    with pytest.raises(AskTimeout, match=r"did not answer ask 'add' within 0.01 s; .* key='k'"):
        run.ask("add", Item("rope"), key="k", timeout=0.01)
    with app.worker():
        assert run.ask("add", Item("rope"), key="k", timeout=20) == 1


@pytest.mark.parametrize("how", ["done", "failed", "cancelled"])
def test_asks_that_are_pending_when_the_run_ends_are_answered_at_once(app, how):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> None:
        await ctx.wait_for("go")
        if how == "failed":
            raise ValueError

    run = work.enqueue()
    with app.worker():
        wait_until(lambda: state(run) == "waiting")
        pending = ask_in_thread(run, "add", 1)
        wait_until(lambda: bool(app.store.asks.pending(str(run.id))))
        if how == "cancelled":
            run.cancel()
        else:
            app.emit("go")
        with pytest.raises(RunFinished, match=f"is {how} and did not answer ask 'add'"):
            pending.result(timeout=20)
        with pytest.raises(RunFinished, match="only unfinished runs answer asks"):
            run.ask("add", 1)


def test_a_retried_run_forgets_asks_whose_askers_were_told_that_it_has_finished(app, ledger):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> list[int]:
        await ctx.wait_for("go")
        ledger.write("tries")
        if ledger.counts()["tries"] == 1:
            raise ValueError
        seen: list[int] = []
        return await ctx.serve(add=seen.append, close=lambda: ctx.stop(seen))

    run = work.enqueue()
    send_ask(run, "add", 1, "first")
    app.emit("go")
    drain(app)
    assert state(run) == "failed"
    run.retry()
    with app.worker():
        assert run.ask("add", 2, timeout=20) is None
        assert run.ask("add", 1, key="first", timeout=20) is None, "the key is free again"
        assert run.ask("close", timeout=20) == [2, 1]


def test_restart_bounds_the_history_and_carries_on_with_pending_and_unanswered_asks(app, ledger):
    @app.task(name="counter")
    async def counter(ctx: Context, total: int) -> int:
        handled = 0

        async def add(number: int) -> int:
            nonlocal total, handled
            if handled == 3:
                await ctx.restart(total)
            handled += 1
            total += number
            await ctx.set("total", total)
            return total

        return await ctx.serve(add=add, close=lambda: ctx.stop(total))

    run = counter.enqueue(0)
    keys = [send_ask(run, "add", 1) for _ in range(10)]
    with app.worker():
        assert run.ask("close", timeout=20) == 10
        assert [run.ask("add", 1, key=key, timeout=20) for key in keys] == list(range(1, 11))
        assert run.result(timeout=20) == 10
    assert run.get("total") == 10
    ((generation, checkpoints),) = fetch(app, "select max(generation), count(*) from {}checkpoints")
    assert (generation, checkpoints) == (3, 4), "of the asks since the last restart"


def test_receive_ask_answers_by_name_and_rejects_other_types(app):
    @app.task(name="work")
    async def work(ctx: Context) -> list[Any]:
        second = await ctx.receive_ask("second", type=Item)
        await second.reply(second.payload.count)
        first = await ctx.receive_ask("first")
        await first.reject("too late", data=[first.payload, first.name, first.key])
        with pytest.raises(TaskError, match="answered before"):
            await first.reply(1)
        try:
            await ctx.receive_ask("third", timeout=0.001)
        except WaitTimeout:
            return [second.name, second.key]
        return []

    run = work.enqueue()
    with app.worker(max_resident=0):
        first = ask_in_thread(run, "first", "hello", key="a")
        with pytest.raises(AskRejected, match=r"payload doesn't have the expected type: .*Item"):
            run.ask("second", 3, timeout=20)
        assert run.ask("second", Item("x", 4), key="b", timeout=20) == 4
        with pytest.raises(AskRejected, match="too late") as rejected:
            first.result(timeout=20)
        assert rejected.value.data == ["hello", "first", "a"]
        assert run.result(timeout=20) == ["second", "b"]


def test_a_sync_function_serves_too(app, effects, ledger):
    @app.task(name="counter")
    def counter(ctx: SyncContext, total: int) -> int:
        def add(number: int) -> int:
            nonlocal total
            ctx.step(effects.note, str(number), name="note")
            total += number
            ctx.set("total", total)
            if total > 100:
                ctx.restart(total - 100)
            return total

        ask = ctx.receive_ask("hello", type=str)
        ask.reply(f"hello {ask.payload}")
        return ctx.serve(add=add, close=lambda: ctx.stop(total))

    run = counter.enqueue(0)
    with app.worker():
        assert run.ask("hello", "ada", timeout=20) == "hello ada"
        assert run.ask("add", 2, timeout=20) == 2
        wait_until(lambda: state(run) == "waiting")
        assert run.ask("add", 3, timeout=20) == run.get("total") == 5
        with pytest.raises(AskRejected, match="expected type"):
            run.ask("add", "x", timeout=20)
        assert run.ask("close", timeout=20) == run.result(timeout=20) == 5
    assert ledger.lines() == ["2", "3"]


def test_serve_times_out_when_no_ask_arrives(app):
    @app.task(name="work")
    async def work(ctx: Context) -> str:
        try:
            await ctx.serve(add=lambda: 1, timeout=0.001)
        except WaitTimeout as error:
            return str(error)
        return ""

    with app.worker():
        assert work.enqueue().result(timeout=20) == "timed out waiting for an ask"


def test_declared_asks_are_checked_where_they_are_sent(app):
    @app.task(name="work", asks={"add": Item, "ping": None})
    async def work(ctx: Context) -> int:
        ask = await ctx.receive_ask("add")
        await ask.reply(ask.payload.count)
        return await ctx.serve(add=lambda item: ctx.stop(item.count))

    run = work.enqueue()
    with pytest.raises(BadMessage, match="task work has no ask 'remove'; it has add, ping"):
        run.ask("remove")
    with pytest.raises(BadMessage, match="receives Item with ask 'add', and this payload doesn't fit"):
        run.ask("add", {"count": "many"})
    with app.worker():
        assert run.ask("add", Item("x", 2), timeout=20) == 2
        assert run.ask("add", Item("x", 3), timeout=20) == 3
    with pytest.raises(ConfigError, match="is a job, which answers no asks"):
        app.task(name="job", asks={"add": int})(lambda: None)


def test_bad_handlers_and_misuse_are_refused(app):
    def two(first: int, second: int) -> None: ...

    def unknown(first: Unheard) -> None: ...  # noqa: F821

    async def slow() -> None: ...

    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context, case: str) -> None:
        handlers: dict[str, Any] = {"none": {}, "two": {"add": two}, "unknown": {"add": unknown}, "number": {"add": 3}}
        if case == "stop":
            ctx.stop(1)
        await ctx.serve(**handlers[case])

    @app.task(name="plain", retry=ONCE)
    def plain(ctx: SyncContext) -> None:
        ctx.serve(slow=slow)

    expected = {
        "none": "needs a handler", "two": "at most one parameter", "unknown": "can't be resolved",
        "number": "takes a function", "stop": "return the value instead",
    }  # fmt: skip
    runs = {case: work.enqueue(case) for case in expected}
    sync = plain.enqueue()
    drain(app)
    for case, match in expected.items():
        with pytest.raises(RunFailed, match=match):
            runs[case].result(timeout=5)
    with pytest.raises(RunFailed, match="is an async def"):
        sync.result(timeout=5)
    with pytest.raises(ConfigError, match="name of an ask must not be empty"):
        runs["none"].ask("")
    with pytest.raises(ConfigError, match="key must not be empty"):
        runs["none"].ask("add", key="")


def test_a_branch_that_receives_an_ask_comes_before_serve(app):
    @app.task(name="work")
    async def work(ctx: Context) -> list[Any]:
        async def approve() -> None:
            ask = await ctx.receive_ask("approve")
            await ask.reply("approved")

        branch = asyncio.ensure_future(approve())
        served = await ctx.serve(add=lambda n: n + 1, close=lambda: ctx.stop(5))
        await branch
        return [served]

    run = work.enqueue()
    with app.worker(max_resident=0):
        assert run.ask("add", 1, timeout=20) == 2
        wait_until(lambda: state(run) == "waiting")
        assert run.ask("approve", timeout=20) == "approved"
        assert run.ask("close", timeout=20) == 5
        assert run.result(timeout=20) == [5]


class First(State):
    async def run(self, ctx: Context) -> object:
        ask = await ctx.receive_ask("next", type=int)
        if ask.payload == 1:
            await ask.reply("first")
        return Second()


class Second(State):
    async def run(self, ctx: Context) -> object:
        ask = await ctx.receive_ask("next", type=int)
        await ask.reply("second")
        return Done(ask.payload)


def test_a_machine_carries_on_with_asks_through_its_states(app):
    machine = app.machine("m", First, Second)
    run, other = machine.enqueue(First()), machine.enqueue(First())
    with app.worker():
        assert run.ask("next", 1, timeout=20) == "first"
        assert run.ask("next", 2, timeout=20) == "second"
        assert other.ask("next", 2, timeout=20) == "second", "the first state hadn't answered it"
        assert (run.result(timeout=20), other.result(timeout=20)) == (2, 2)


def test_asks_are_recorded_in_the_history_if_somebody_is_named(app, cart):
    run = cart.enqueue()
    with app.worker():
        run.ask("total", timeout=20)
        run.ask("total", by="ada", timeout=20)
    assert [entry.data for entry in run.history() if entry.kind == "sent"] == [{"by": "ada", "ask": "total"}]


def test_old_answers_are_forgotten(timed_app, clock, monkeypatch):
    monkeypatch.setattr("holdfast.store.interaction.ASKS_PER_CLEANUP", 4)

    @timed_app.task(name="work")
    async def work(ctx: Context) -> None:
        await ctx.serve(add=lambda n: n)

    run = work.enqueue()
    for number in range(1, 4):
        send_ask(run, "add", number, f"k{number}")
    drain(timed_app)
    clock.forward(24 * 3600 + 1)
    send_ask(run, "add", 4, "k4")
    drain(timed_app)
    assert [key for (key,) in fetch(timed_app, "select ask from {}messages")] == ["k4"]


# How much a warm ask takes


@pytest.fixture
def adder(app, monkeypatch):
    """A function that adds up what it is asked, and a worker in which it stays in memory; callers neither poll nor
    listen."""
    monkeypatch.setattr(async_executor, "suspend_delay_s", lambda **_: 60.0)
    for module in (results, streams):
        monkeypatch.setattr(module, "LISTEN_FROM_S", 60.0)

    @app.task(name="adder")
    async def adder(ctx: Context) -> int:
        total = 0

        def add(number: int) -> int:
            nonlocal total
            total += number
            return total

        def refuse(why: str) -> None:
            raise AskRejected(why)

        return await ctx.serve(add=add, refuse=refuse, close=lambda: ctx.stop(total))

    run = adder.enqueue()
    with app.worker():
        assert run.ask("add", 0, timeout=60) == 0
        yield run
        run.ask("close", timeout=60)


def test_a_warm_ask_takes_one_commit_of_the_worker_and_no_read(app, adder, monkeypatch):
    transaction, commits, found = app.store.journal._transaction, [], set()
    monkeypatch.setattr(app.store.journal, "_transaction", lambda *given: commits.append(1) or transaction(*given))
    names = statements(app, monkeypatch)
    for _ in range(ASKS):
        adder.ask("add", 1, timeout=60)
        found.add(len(commits))
        commits.clear()
    assert (names.count("answer_asks"), names.count("read_answers")) == (ASKS, 0)
    assert min(found) == 1, "what was received, the answer, and the next wait"
    with pytest.raises(AskRejected, match="never"):
        adder.ask("refuse", "never", timeout=60)
    assert adder.ask("add", 0, timeout=60) == ASKS


async def test_a_warm_ask_of_a_coroutine_takes_no_read(app, adder, monkeypatch):
    names = statements(app, monkeypatch)
    assert await asyncio.gather(*[adder.aask("add", 1, timeout=60, key=f"{n}") for n in range(ASKS)])
    assert "read_answers" not in names
    assert await adder.aask("add", 0, timeout=60) == ASKS
    assert await adder.aask("add", 1, timeout=60, key="0") <= ASKS, "it was asked before"
    assert names.count("read_answers") == 1


def test_an_encoded_answer_is_read(make_app, monkeypatch):
    class Reversed:
        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        decode = encode

    app = make_app(codec=Reversed())

    @app.task(name="echo")
    async def echo(ctx: Context) -> str:
        return await ctx.serve(echo=lambda text: ctx.stop(text))

    run = echo.enqueue()
    with app.worker():
        names = statements(app, monkeypatch)
        assert run.ask("echo", "hello", timeout=60) == "hello"
    assert "read_answers" in names


def test_an_answer_whose_commit_got_lost_reaches_the_caller(app, adder, monkeypatch):
    losing = FirstReplyLost(app.store.journal._transaction)
    monkeypatch.setattr(app.store.journal, "_transaction", losing)
    assert adder.ask("add", 7, timeout=60) == 7
    assert losing.replies
