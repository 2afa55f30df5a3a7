"""Values and asks while the worker crashes at every write: no answer is lost or changed, no ask is handled twice."""

from __future__ import annotations

from collections import defaultdict
from itertools import count, pairwise
from typing import Any

import pytest

from holdfast import Context, Holdfast, idempotency_key
from holdfast.store.interaction import StoredValue
from holdfast.testing import Kit, crash_at_every_step
from tests.support.asks import send_ask

app = Holdfast("sqlite:///never-made.db")
seen: defaultdict[str, list[Any]] = defaultdict(list)
"""What the code of the functions saw by name, in all attempts."""
effects: defaultdict[str, set[str]] = defaultdict(set)
"""The idempotency keys of effects by name: more than one if a name took effect more than once."""
numbers = count()


@pytest.fixture
def holdfast_app():
    seen.clear()
    effects.clear()
    return app


def take_effect(name: str) -> None:
    effects[name].add(idempotency_key())


def answers(run: Any, keys: str) -> dict[str, tuple[str | None, str]]:
    """Return the kinds of answers and their JSON texts by key."""
    found = app.store.asks.answers([(str(run), key) for key in keys])
    return {key: (each.answer, each.text) for (_, key), each in found.items()}


def stored(run: Any, name: str) -> StoredValue:
    values = app.store.values.read(str(run))
    assert values is not None
    return values.values[name]


@app.task(name="shows")
async def shows(ctx: Context) -> None:
    for number in range(3):
        await ctx.set("number", number)
        seen["number"].append(stored(ctx.run_id, "number").text)
        await ctx.step(take_effect, str(number), name="effect")


@crash_at_every_step
def test_a_crash_sets_no_value_again_and_none_goes_back(kit: Kit):
    run = shows.enqueue()
    kit.drain()
    assert run.info().state == "done"
    assert all(before <= after for before, after in pairwise(seen["number"])), seen
    assert stored(run.id, "number")[:2] == ("2", 3), "each was set once"


@app.task(name="desk")
async def desk(ctx: Context) -> list[str]:
    first = await ctx.receive_ask("price", type=str)
    await ctx.step(take_effect, first.key, name="effect")
    await first.reply(next(numbers))  # another number in each attempt
    seen["a"].append(answers(ctx.run_id, "a")["a"])
    second = await ctx.receive_ask("price", type=str)
    await second.reject("sold out", data=next(numbers))
    seen["b"].append(answers(ctx.run_id, "b")["b"])
    third = await ctx.receive_ask("price", type=int)  # refuses c, which is a string
    await third.reply()
    return [first.key, second.key, third.key]


@crash_at_every_step
def test_a_crash_loses_and_changes_no_answer_to_a_received_ask(kit: Kit):
    run = desk.enqueue()
    send_ask(run, "price", "rope", "a")
    send_ask(run, "price", "hook", "b")
    kit.drain()
    before = answers(run.id, "ab")
    send_ask(run, "price", "axe", "c")
    send_ask(run, "price", 3, "d")
    kit.drain()
    assert run.result() == ["a", "b", "d"]
    after = answers(run.id, "abcd")
    assert {key: kind for key, (kind, _) in after.items()} == {
        "a": "reply", "b": "rejected", "c": "rejected", "d": "reply"
    }  # fmt: skip
    assert {key: after[key] for key in "ab"} == before
    for key in "ab":
        assert set(seen[key]) == {before[key]}, "an attempt saw another answer"
    assert len(effects["a"]) == 1, "the ask was handled twice"


@app.task(name="counter")
async def counter(ctx: Context, total: int) -> int:
    handled = 0

    async def add(number: int) -> int:
        nonlocal total, handled
        if handled == 2:
            await ctx.restart(total)
        await ctx.step(take_effect, str(number), name="effect")
        handled += 1
        total += number
        await ctx.set("total", total)
        return total

    def close() -> str:
        ctx.stop(total)
        return f"closed at {total}"

    return await ctx.serve(add=add, close=close)


@crash_at_every_step
def test_a_crash_of_a_serving_function_answers_each_ask_once_and_in_order(kit: Kit):
    run = counter.enqueue(0)
    for number in (1, 2, 3):
        send_ask(run, "add", number, str(number))
    kit.drain()
    before = answers(run.id, "123")
    assert before == {"1": ("reply", "1"), "2": ("reply", "3"), "3": ("reply", "6")}
    for number in (4, 5):
        send_ask(run, "add", number, str(number))
    send_ask(run, "close", None, "6")
    kit.drain()
    assert run.result() == 15
    later = {"4": ("reply", "10"), "5": ("reply", "15"), "6": ("reply", '"closed at 15"')}
    assert answers(run.id, "123456") == before | later
    assert {name: len(keys) for name, keys in effects.items()} == dict.fromkeys("12345", 1)
    assert stored(run.id, "total")[:2] == ("15", 5), "each was set once"
