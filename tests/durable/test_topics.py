"""Topics with workers: subscribing tasks, `ctx.next`, `ctx.publish`, and what restarts, replays and forks receive."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Batch, Context, Holdfast, RunFailed, SyncContext, Topic, WaitTimeout
from holdfast.errors import BlockingCall, ConfigError, KeyConflict, TaskError
from holdfast.testing import context, sync_context
from tests.support.durable import drain, state
from tests.support.wait_until import wait_until


@dataclass
class Order:
    id: int
    country: str = "NO"


def results(app: Holdfast, task: str) -> list[Any]:
    return [run.result(timeout=30) for run in reversed([app.get_run(info.id) for info in app.runs(task=task)])]


def test_a_task_subscribes_and_gets_the_payload_as_its_argument(app):
    @app.task(name="ship", on="orders.paid")
    async def ship(order: Order) -> int:
        return order.id

    @app.task(name="customs", on=Topic("orders.*", where={"country": "SE"}))
    def customs(order: Order) -> str:
        return f"declare {order.id}"

    @app.task(name="audit", on=["orders.paid", "stock.*"])
    def audit(ctx: SyncContext, anything: Any) -> Any:
        return anything

    app.publish("orders.paid", Order(1))
    assert app.publish("orders.paid", Order(2, "SE")).runs == 3
    app.publish("stock.eu.low", 7, tenant="acme")
    drain(app)
    assert results(app, "ship") == [1, 2]
    assert results(app, "customs") == ["declare 2"]
    assert results(app, "audit") == [{"id": 1, "country": "NO"}, {"id": 2, "country": "SE"}, 7]
    assert [info.task for info in app.runs(tenant="acme")] == ["audit"]


def test_a_payload_of_another_type_fails_the_run_that_expected_it(app):
    @app.task(name="ship", on="orders.paid")
    def ship(order: Order) -> None: ...

    app.publish("orders.paid", {"id": "seven"})
    drain(app)
    (run,) = (app.get_run(info.id) for info in app.runs())
    with pytest.raises(RunFailed, match="id") as failed:
        run.result(timeout=30)
    assert failed.value.error.code == "bad_arguments"


def test_a_task_with_batch_subscribes(app):
    @app.task(name="index", on="orders.*", batch=Batch(max_size=10, max_wait=0.01))
    def index(orders: list[Order]) -> list[int]:
        return [order.id for order in orders]

    for id in range(3):
        app.publish("orders.paid", Order(id))
    drain(app)
    assert results(app, "index") == [0, 1, 2]


def test_a_publisher_needs_none_of_the_subscribers_code(app, make_app):
    @app.task(name="ship", on="orders.paid")
    def ship(order: int) -> int:
        return order

    drain(app)  # which stores the subscription
    assert make_app(name="other").publish("orders.paid", 7).runs == 1
    drain(app)
    assert results(app, "ship") == [7]


async def test_the_awaitable_form_publishes(app):
    with pytest.raises(BlockingCall, match="apublish"):
        app.publish("orders.paid")
    first = await app.apublish("orders.paid", 1, key="k")
    assert (await app.apublish("orders.paid", 1, key="k")).id == first.id
    with pytest.raises(KeyConflict):
        await app.apublish("orders.paid", 2, key="k")


def test_a_loop_of_next_misses_no_message(app):
    """Messages arrive before, during and after each of its waits; every message counts once, in order."""
    count = 40

    @app.task(name="reader")
    async def reader(ctx: Context) -> list[int]:
        found = []
        while len(found) < count:
            found.append(await ctx.next("numbers", type=int))
            if len(found) % 3 == 0:
                await ctx.sleep(0)
        return found

    @app.task(name="sync-reader")
    def sync_reader(ctx: SyncContext) -> list[int]:
        return [ctx.next("numbers", type=int) for _ in range(count)]

    with app.worker():
        runs = [reader.enqueue(), reader.enqueue(), sync_reader.enqueue()]
        wait_until(lambda: len(app.store.topics.listeners("numbers", None, 9)) == 3)
        for number in range(count):
            assert app.publish("numbers", number).functions == 3
        assert [run.result(timeout=60) for run in runs] == [list(range(count))] * 3


def test_next_counts_from_the_first_call_and_timeouts_are_recorded(app):
    @app.task(name="late")
    async def late(ctx: Context) -> list[Any]:
        found: list[Any] = []
        for _ in range(2):
            try:
                found.append(await ctx.next("numbers", timeout=0.01))
            except WaitTimeout as error:
                found.append(str(error))
        await ctx.set("phase", "timed out twice")
        await ctx.wait_for("go")
        found.append(await ctx.next("numbers"))
        return found

    app.publish("numbers", 0)
    run = late.enqueue()
    with app.worker():
        assert run.get("phase", wait=True, timeout=30) == "timed out twice"
        app.publish("numbers", 1)
        app.emit("go")
        assert run.result(timeout=30) == ["timed out waiting for message on topic 'numbers'"] * 2 + [1]


def test_a_message_of_another_type_is_set_aside(app):
    @app.task(name="reader")
    async def reader(ctx: Context) -> int:
        return await ctx.next("numbers", where={"kind": "a"}, type=Order)

    run = reader.enqueue()
    drain(app)
    app.publish("numbers", {"kind": "a", "id": "x"})
    drain(app)
    assert state(run) == "waiting"
    app.publish("numbers", {"kind": "a", "id": 3})
    drain(app)
    assert run.result(timeout=30)["id"] == 3
    assert [entry.kind for entry in run.history()].count("set_aside") == 1


def test_a_restart_and_a_retry_keep_receiving(app):
    @app.task(name="reader", max_crashes=0)
    async def reader(ctx: Context, so_far: list[int]) -> list[int]:
        so_far = [*so_far, await ctx.next("numbers")]
        if len(so_far) == 2:
            await ctx.restart(so_far)
        return so_far if len(so_far) == 3 else [*so_far, await ctx.next("numbers")]

    run = reader.enqueue([0])
    drain(app)
    app.publish("numbers", 1)
    app.publish("numbers", 2)
    drain(app)
    assert run.result(timeout=30) == [0, 1, 2]
    again = reader.enqueue([])
    drain(app)
    again.cancel()
    assert app.publish("numbers", 3).functions == 0
    again.retry()
    drain(app)
    for number in (4, 5):
        assert app.publish("numbers", number).functions == 1
    drain(app)
    assert again.result(timeout=30)[0] == 4


def test_a_withdrawn_wait_passes_its_message_on(app):
    @app.task(name="reader")
    async def reader(ctx: Context) -> Any:
        first = asyncio.ensure_future(ctx.next("numbers"))
        await ctx.wait_for("stop")
        first.cancel()
        await asyncio.wait([first])
        return await ctx.next("numbers")

    run = reader.enqueue()
    drain(app)
    app.emit("stop")
    drain(app)
    app.publish("numbers", 1)
    drain(app)
    assert run.result(timeout=30) == 1


def test_a_function_publishes_once(app, effects):
    @app.task(name="ship", on="orders.paid")
    def ship(order: int) -> int:
        return order

    @app.task(name="order")
    async def order(ctx: Context) -> int:
        published = await ctx.publish("orders.paid", 5)
        await ctx.wait_for("replay")
        return published.runs

    @app.task(name="sync-order")
    def sync_order(ctx: SyncContext) -> bool:
        return ctx.publish("orders.paid", 6).created

    run, other = order.options(tenant="acme").enqueue(), sync_order.enqueue()
    drain(app)
    app.emit("replay", tenant="acme")
    drain(app, max_resident=0)
    assert (run.result(timeout=30), other.result(timeout=30)) == (1, True)
    assert sorted(results(app, "ship")) == [5, 6]
    assert [info.task for info in app.runs(tenant="acme")] == ["ship", "order"]


def test_publishing_in_the_body_is_refused_and_in_a_step_allowed(app):
    @app.task(name="ship", on="orders.paid")
    def ship(order: int) -> None: ...

    @app.task(name="order")
    async def order(ctx: Context) -> int:
        with pytest.raises(TaskError, match=r"ctx\.publish"):
            await app.apublish("orders.paid", 5)
        return (await ctx.step(app.apublish, "orders.paid", 5, name="publish")).runs

    run = order.enqueue()
    drain(app)
    assert run.result(timeout=30) == 1


def test_next_refuses_patterns_and_bad_conditions(app):
    @app.task(name="reader")
    async def reader(ctx: Context) -> None:
        for arguments in ({"topic": "orders.*"}, {"topic": "orders", "where": {"a": [1]}}):
            with pytest.raises(ConfigError):
                await ctx.next(**arguments)

    run = reader.enqueue()
    drain(app)
    assert state(run) == "done"


def test_messages_of_an_encrypting_app_are_stored_encoded(make_app):
    class Reverse:
        def encode(self, data: bytes, /, *, context: Any) -> bytes:
            return f"{context}".encode() + b"|" + data[::-1]

        def decode(self, data: bytes, /, *, context: Any) -> bytes:
            place, _, text = data.partition(b"|")
            assert place == f"{context}".encode(), "a payload was moved"
            return text[::-1]

    app = make_app(codec=Reverse())

    @app.task(name="ship", on="orders.paid")
    def ship(order: Order) -> int:
        return order.id

    @app.task(name="reader")
    async def reader(ctx: Context) -> int:
        return (await ctx.next("orders.paid", where={"id": 7}, type=Order)).id

    run = reader.enqueue()
    drain(app)
    app.publish("orders.paid", Order(7))
    drain(app)
    assert results(app, "ship") == [7]
    assert run.result(timeout=30) == 7


def test_racing_publishers_of_a_key_publish_once(app):
    @app.task(name="ship", on="orders.paid")
    def ship(order: int) -> None: ...

    together, found = threading.Barrier(8), []

    def publish() -> None:
        together.wait()
        found.append(app.publish("orders.paid", 7, key="k"))

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({each.id for each in found}) == 1
    assert sorted(each.created for each in found) == [False] * 7 + [True]
    assert len(app.runs()) == 1


def test_functions_are_called_directly_with_messages():
    async def reader(ctx: Context) -> list[Any]:
        await ctx.publish("asked", 1)
        return [await ctx.next("numbers", where={"id": 2}), await ctx.next("numbers")]

    def sync_reader(ctx: SyncContext) -> Any:
        return ctx.next("numbers", type=int)

    ctx = context(messages={"numbers": [{"id": 1}, {"id": 2}]})
    assert asyncio.run(reader(ctx)) == [{"id": 2}, {"id": 1}]
    assert ctx.published == [("asked", 1)]
    assert sync_reader(sync_context(messages={"numbers": [3]})) == 3
    with pytest.raises(TaskError, match=r"messages=\{'numbers'"):
        sync_reader(sync_context())
