"""Durable functions with the types that a type checker must infer. Checked, never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from holdfast import (
    Ask,
    Batch,
    BatchFailed,
    Context,
    Holdfast,
    Published,
    Request,
    Retry,
    Run,
    RunFailed,
    SyncAsk,
    SyncContext,
    Task,
    inject,
)

app = Holdfast("sqlite:///:memory:")


class Order:
    """What is bought."""


class Receipt:
    """What was paid."""


def charge(order: Order, cents: int = 0) -> Receipt:
    return Receipt()


async def fetch(url: str, *, tries: int = 1) -> bytes:
    return b""


def estimate(url: str, tries: int) -> float:
    return len(url) * tries


def refund(receipt: Receipt) -> None: ...


def insert(connection: Any, order: Order, note: str = "") -> int:
    return 1


@app.task
def count(text: str) -> int:
    return len(text)


@app.task(queue="mail")
async def send(to: str, subject: str = "hi") -> bool:
    return True


@app.task
async def checkout(ctx: Context, order: Order, gift: bool = False) -> Receipt:
    assert_type(await ctx.step(charge, order), Receipt)
    assert_type(await ctx.step(charge, order, 5, name="pay", retry=Retry(), timeout=3, undo=refund), Receipt)
    assert_type(await ctx.step(charge, order, cents=5), Receipt)
    assert_type(await ctx.step(fetch, "u"), bytes)
    assert_type(await ctx.step(fetch, "u", tries=2), bytes)
    assert_type(await ctx.options(name="get", raises=(OSError,)).step(fetch, "u", tries=2), bytes)
    assert_type(await ctx.options(raises=OSError).step(charge, order, cents=5), Receipt)
    assert_type(await ctx.options(limits=["tokens"], cost=5).step(charge, order), Receipt)
    assert_type(await ctx.options(limits=["tokens"], cost="cents").step(charge, order, cents=5), Receipt)
    assert_type(await ctx.options(limits=["tokens"], cost=estimate).step(fetch, "u", tries=2), bytes)
    await ctx.adjust("tokens", 2.5)
    await ctx.adjust("tokens", "many")  # type: ignore[arg-type]
    assert_type(await ctx.step(count, "text"), int)
    assert_type(await ctx.step(lambda: 5, name="five"), int)
    await ctx.step(charge, "no order")  # type: ignore[arg-type]
    await ctx.step(charge, order, dollars=5)  # type: ignore[call-arg, arg-type]

    await ctx.undo(refund, Receipt())
    assert_type(await ctx.transaction(insert, order, note="x"), int)
    assert_type(await ctx.transaction(insert, order, name="save"), int)
    await ctx.transaction(insert, "no order")  # type: ignore[arg-type]

    assert_type(await ctx.wait_for("paid"), Any)
    assert_type(await ctx.gate("approve"), Any)
    assert_type(await ctx.gate("approve", type=Receipt, payload={"amount": 50}, timeout=60), Receipt)
    assert_type(await ctx.wait_for("paid", 60, type=Receipt), Receipt)
    assert_type(await ctx.wait_for("paid", type=int | None), int | None)
    assert_type(await ctx.receive("note", type=list[str]), list[str])
    assert_type(await ctx.next("orders.paid", {"id": 17}, type=Receipt), Receipt)
    assert_type(await ctx.next("orders.paid", timeout=60), Any)
    assert_type(await ctx.publish("orders.paid", 17), Published)
    assert_type(await ctx.emit("paid", {"by": "card"}), bool)

    ask = await ctx.receive_ask("add", type=Order)
    assert_type(ask, Ask[Order])
    assert_type(ask.payload, Order)
    assert_type(await ask.reply(3), None)
    assert_type(await ask.reject("no", data=1), None)
    assert_type(await ctx.receive_ask("add", 60), Ask[Any])
    assert_type(await ctx.serve(add=count, close=lambda: ctx.stop(5), timeout=60), Any)
    assert_type(ctx.stop(Receipt()), Receipt)
    assert_type(await ctx.set("phase", "paid"), None)

    assert_type(await ctx.spawn(count, "a"), Run[int])
    assert_type(await ctx.join(await ctx.spawn(count, "a")), int)
    assert_type(await ctx.call(send, "ada", subject="s"), bool)
    assert_type(await ctx.call(send.options(priority=3), "ada"), bool)
    assert_type(await ctx.call(stroll, 3), str)
    assert_type(await ctx.enqueue(count, "a"), Run[int])
    await ctx.call(count, 5)  # type: ignore[arg-type]

    assert_type(await ctx.map(count, ["a", "b"], concurrency=4), list[int])
    assert_type(await ctx.map(send, ["a"], errors="return"), list[bool | RunFailed])
    await ctx.map(count, [1, 2])  # type: ignore[misc]

    assert_type(await asyncio.gather(ctx.step(charge, order), ctx.call(count, "a")), tuple[Receipt, int])
    assert_type(await ctx.now(), datetime)
    assert_type(await ctx.random(), float)
    assert_type(await ctx.uuid(), UUID)
    assert_type((ctx.run_id, ctx.attempt, ctx.scheduled_for), tuple[UUID, int, datetime | None])
    return await ctx.restart(order)  # type: ignore[no-any-return]


@app.task(name="stroll", timeout=60)
def stroll(ctx: SyncContext, days: int) -> str:
    assert_type(ctx.step(charge, Order()), Receipt)
    assert_type(ctx.step(charge, Order(), 5, name="pay", undo=refund), Receipt)
    assert_type(ctx.step(charge, Order(), cents=5), Receipt)
    assert_type(ctx.options(name="pay", raises=OSError).step(charge, Order(), cents=5), Receipt)
    assert_type(ctx.options(limits=["tokens"], cost=5).step(charge, Order(), cents=5), Receipt)
    ctx.adjust("tokens", 700)
    ctx.step(charge, "no order")  # type: ignore[arg-type]

    assert_type(ctx.transaction(insert, Order()), int)
    assert_type(ctx.wait_for("paid", type=Receipt), Receipt)
    assert_type(ctx.gate("approve", type=Receipt), Receipt)
    assert_type(ctx.receive("note"), Any)
    assert_type(ctx.next("orders.paid", type=Receipt), Receipt)
    assert_type(ctx.publish("orders.paid"), Published)
    assert_type(ctx.emit("paid"), bool)
    assert_type(ctx.receive_ask("add", type=Order), SyncAsk[Order])
    assert_type(ctx.receive_ask("add", type=Order).payload, Order)
    assert_type(ctx.serve(close=lambda: ctx.stop(5)), Any)
    assert_type(ctx.set("phase", "paid"), None)
    assert_type(ctx.join(ctx.spawn(count, "a")), int)
    assert_type(ctx.call(checkout, Order(), gift=True), Receipt)
    assert_type(ctx.map(count, ["a", "b"]), list[int])
    assert_type(ctx.map(count, ["a"], errors="return"), list[int | RunFailed])
    assert_type(ctx.enqueue(count, "a"), Run[int])
    assert_type((ctx.now(), ctx.random(), ctx.uuid()), tuple[datetime, float, UUID])
    return "home"


@app.task
def amble(ctx: SyncContext, days: int) -> str:
    return ctx.call(stroll, days)


@app.task(queue="slow")
async def run(ctx: Context, miles: int) -> float:
    return await ctx.random()


@app.task
def tidy(depth: int = 1) -> None: ...


app.schedule("nightly", tidy, cron="0 3 * * *", tz="Europe/London", catch_up="latest", jitter=60, overlap="skip")
app.schedule("hourly", tidy, every=timedelta(hours=1), start=datetime.now(UTC))
app.schedule("counting", count.request("text"), every=60)
app.schedule("named", count, args=("text",), cron="@daily")
app.schedule("needs", count, every=60)  # type: ignore[arg-type]
app.schedule("odd", tidy, every=60, catch_up="some")  # type: ignore[call-overload]


@app.trigger("files", every=30)
def files() -> Iterator[Request[int]]:
    yield count.options(key="a").request("a")


@app.trigger("mails", every=timedelta(minutes=1), timeout=5)
async def mails() -> list[Request[bool]]:
    return [send.options(key="a").request("a")]


@app.trigger("both", every=30)
async def both() -> AsyncIterator[Request[int] | Request[bool]]:
    yield count.options(key="a").request("a")


assert_type(list(files()), list[Request[int]])


@app.task(batch=Batch(max_size=10, max_wait=timedelta(seconds=2), by="tenant"))
def measure(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@app.task(batch=Batch(), retry=Retry(max_attempts=1))
async def upload(texts: list[str]) -> list[int] | None:
    raise BatchFailed({0: ValueError("empty")})


assert_type(measure.enqueue("rope").result(), int)
assert_type(upload.enqueue("rope").result(), int | None)
measure.enqueue(3)  # type: ignore[arg-type]
measure.options(debounce="x", delay=5, max_delay=timedelta(minutes=1)).enqueue("rope")
measure.options(unique="x", if_taken="queue", start_by=timedelta(hours=1)).enqueue("rope")
measure.options(unique="x", if_taken="wait")  # type: ignore[arg-type]


async def outside(ctx: Context, blocking: SyncContext, taken: Task[[str], int]) -> None:
    assert_type(checkout.enqueue(Order(), gift=True), Run[Receipt])
    assert_type(checkout.enqueue(Order()).result(), Receipt)
    assert_type(await (await stroll.aenqueue(3)).aresult(), str)
    assert_type(await checkout(ctx, Order()), Receipt)
    assert_type(stroll(blocking, 3), str)
    assert_type(await ctx.call(taken, "a"), int)
    assert_type(checkout.durable, bool)
    checkout.enqueue("no order")  # type: ignore[arg-type]
    checkout.enqueue(ctx, Order())  # type: ignore[arg-type]
    assert_type(amble.enqueue(3).result(), str)
    assert_type(amble(blocking, 3), str)
    assert_type(run.enqueue(3).result(), float)
    assert_type(await run(ctx, 3), float)
    stroll(ctx, 3)  # type: ignore[arg-type]


class Pool:
    """A resource of the worker."""


def pay(order: int, db: Pool = inject()) -> str:
    return ""


@app.task
async def pay_later(order: int, *, note: str = "", db: Pool = inject()) -> int:
    return 1


@app.task
async def pay_durably(ctx: Context, order: int, db: Pool = inject("db")) -> int:
    assert_type(await ctx.step(pay, order), str)
    return 1


def callers_leave_injected_parameters_out() -> None:
    assert_type(pay_later.enqueue(42), Run[int])
    assert_type(pay_later.enqueue(42, note="x"), Run[int])
    assert_type(pay_durably.enqueue(42), Run[int])
    assert_type(pay_later.request(42), Request[int])
