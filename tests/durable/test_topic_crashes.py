"""Topics while the worker crashes at every write: each message reaches each subscriber once, and a loop misses none."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from holdfast import Context, Holdfast, idempotency_key
from holdfast.testing import Kit, crash_at_every_step

app = Holdfast("sqlite:///never-made.db")
effects: defaultdict[int, set[str]] = defaultdict(set)
"""The idempotency keys of effects by message: more than one if a message took effect more than once."""


@pytest.fixture
def holdfast_app():
    effects.clear()
    return app


def take_effect(message: int) -> None:
    effects[message].add(idempotency_key())


@app.task(name="ship", on="orders.paid")
async def ship(ctx: Context, order: int) -> int:
    await ctx.step(take_effect, order)
    return order


@app.task(name="shop")
async def shop(ctx: Context) -> list[int]:
    sent = [await ctx.publish("orders.paid", number) for number in range(3)]
    return [each.runs for each in sent]


@crash_at_every_step
def test_a_crash_publishes_no_message_twice_and_loses_none(kit: Kit):
    run = shop.enqueue()
    kit.drain()
    assert run.result() == [1, 1, 1]
    shipped = Counter(app.get_run(info.id).result() for info in app.runs(task="ship"))
    assert shipped == {0: 1, 1: 1, 2: 1}
    assert {message: len(keys) for message, keys in effects.items()} == {0: 1, 1: 1, 2: 1}


@app.task(name="reader")
async def reader(ctx: Context, so_far: list[int]) -> list[int]:
    so_far = [*so_far, await ctx.next("numbers", where={"kind": "a"}, type=dict[str, Any])]
    await ctx.step(take_effect, len(so_far))
    if len(so_far) == 2:
        await ctx.restart(so_far)
    while len(so_far) < 4:
        so_far.append(await ctx.next("numbers", where={"kind": "a"}))
    return so_far


@crash_at_every_step
def test_a_crash_of_a_loop_of_next_misses_no_message_and_gets_none_twice(kit: Kit):
    run = reader.enqueue([])
    kit.drain()
    published = 0
    for _ in range(2):
        for kind in "ab":
            app.publish("numbers", {"kind": kind, "n": published})
        app.publish("numbers", {"kind": "a", "n": published + 1})
        published += 2
        kit.drain()
    assert [each["n"] for each in run.result()] == [0, 1, 2, 3]
