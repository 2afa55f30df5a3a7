"""Jobs from enqueue to result: coroutines, plain functions, and values of all supported types."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from holdfast import ConfigError, Context, State, SyncContext
from tests.support.wait_until import wait_until


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Order:
    id: int
    lines: list[str]
    at: datetime


class Address(pydantic.BaseModel):
    street: str
    number: int


class Point(msgspec.Struct):
    x: int
    y: int


class Cart(TypedDict):
    items: list[int]


VALUES = [
    (int, 2**53 + 1),
    (str, "grüße ☂ 𝄞"),
    (float, 0.1),
    (bool, True),
    (type(None), None),
    (datetime, datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)),
    (date, date(2024, 2, 29)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (Decimal, Decimal("12345678901234567890.12345")),
    (UUID, UUID("0190b4a5-7b1e-7000-8000-000000000001")),
    (Colour, Colour.BLUE),
    (Order, Order(1, ["a", "b"], datetime(2026, 1, 1, tzinfo=UTC))),
    (Address, Address(street="Main", number=7)),
    (Point, Point(1, 2)),
    (Cart, Cart(items=[1, 2])),
    (bytes, b"\x00\xff"),
    (list[Order], [Order(2, [], datetime(2026, 1, 2, tzinfo=UTC))]),
    (dict[str, Point], {"p": Point(3, 4)}),
    (int | None, None),
]


def test_coroutines_and_plain_functions_return_results(app):
    @app.task(name="async")
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    @app.task(name="sync")
    def triple(x: int) -> int:
        return 3 * x

    first, second = double.enqueue(7), triple.enqueue(7)
    assert app.worker().drain(timeout=60) == 2
    assert (first.result(timeout=5), second.result(timeout=5)) == (14, 21)
    assert first.info().state == second.info().state == "done"


def test_coroutines_share_one_thread_and_plain_functions_have_their_own(app):
    @app.task(name="async")
    async def on_loop() -> str:
        return threading.current_thread().name

    @app.task(name="sync")
    def in_thread() -> str:
        return threading.current_thread().name

    on_loops, in_threads = on_loop.enqueue_many([()] * 5), in_thread.enqueue_many([()] * 5)
    app.worker().drain(timeout=60)
    assert {run.result(timeout=5) for run in on_loops} == {"holdfast-loop"}
    assert all(run.result(timeout=5).startswith("holdfast-thread") for run in in_threads)


@pytest.mark.parametrize("is_async", [True, False], ids=["coroutine", "function"])
def test_arguments_and_results_come_back_as_the_annotated_types(app, is_async):
    got: dict[int, Any] = {}
    runs = []
    for at, (kind, value) in enumerate(VALUES):
        if is_async:

            async def echo(x, at=at):
                got[at] = x
                return x
        else:

            def echo(x, at=at):
                got[at] = x
                return x

        echo.__annotations__ = {"x": kind, "return": kind}
        runs.append(app.task(name=f"echo{at}")(echo).enqueue(value))
    app.worker().drain(timeout=60)
    for at, (_, value) in enumerate(VALUES):
        assert (got[at], type(got[at])) == (value, type(value))
        result = runs[at].result(timeout=5)
        assert (result, type(result)) == (value, type(value))
        assert runs[at].info().result == value


def test_defaults_keywords_and_stars_reach_the_function(app):
    @app.task(name="many")
    def many(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> list[Any]:
        return [a, b, list(rest), c, more]

    runs = [many.enqueue(1), many.enqueue(1, 5, 6, 7, c=8, d=9), many.enqueue(b=4, a=0)]
    app.worker().drain(timeout=60)
    assert [run.result(timeout=5) for run in runs] == [
        [1, 2, [], 3, {}],
        [1, 5, [6, 7], 8, {"d": 9}],
        [0, 4, [], 3, {}],
    ]


def test_calling_a_task_calls_the_plain_function_and_stores_nothing(app):
    @app.task(name="plain")
    def plain(x: int) -> int:
        return x + 1

    assert plain(1) == 2
    assert app.runs() == []


def test_a_result_of_none_is_a_result(app):
    @app.task(name="nothing")
    async def nothing() -> None:
        return None

    run = nothing.enqueue()
    app.worker().drain(timeout=60)
    assert run.result(timeout=5) is None
    assert run.info().state == "done"


def test_a_result_is_plain_json_for_an_app_that_lacks_the_code(app, make_app):
    @app.task(name="point")
    def point() -> Point:
        return Point(1, 2)

    run = point.enqueue()
    app.worker().drain(timeout=60)
    assert make_app().get_run(run.id).result(timeout=5) == {"x": 1, "y": 2}


def test_many_jobs_each_end_once(app, ledger):
    @app.task(name="note")
    async def note(n: int) -> int:
        ledger.write(n)
        return n

    runs = note.enqueue_many([(n,) for n in range(1500)])
    assert app.worker(concurrency=50).drain(timeout=120) == 1500
    assert ledger.counts() == {str(n): 1 for n in range(1500)}
    assert [run.result(timeout=5) for run in runs[::300]] == [0, 300, 600, 900, 1200]


@pytest.mark.parametrize("slots", [{"concurrency": 3}, {"threads": 3}, {"threads": 3, "concurrency": 4}])
@pytest.mark.parametrize("mixed", [False, True])
def test_no_more_runs_at_once_than_concurrency_and_threads_allow(app, slots, mixed):
    lock, now, most = threading.Lock(), 0, 0
    together = threading.Barrier(3)

    @app.task(name="count")
    def count() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(30)
        with lock:
            now -= 1

    if mixed:

        @app.task(name="quick")
        async def quick() -> None: ...

        quick.enqueue_many([()] * 12)
    count.enqueue_many([()] * 12)
    assert app.worker(**slots).drain(timeout=60) == (24 if mixed else 12)
    assert most == 3


def test_full_threads_do_not_delay_async_tasks(app):
    release = threading.Event()

    @app.task(name="hold")
    def hold() -> None:
        release.wait(30)

    @app.task(name="quick")
    async def quick() -> str:
        return "done"

    held = hold.enqueue_many([()] * 5)
    with app.worker(threads=2):
        wait_until(lambda: sum(run.info().state == "running" for run in held) == 2)
        assert [run.result(timeout=20) for run in quick.enqueue_many([()] * 50)] == ["done"] * 50
        assert sum(run.info().state == "running" for run in held) == 2
        release.set()
        for run in held:
            run.result(timeout=20)


def test_states_of_machines_that_run_in_threads_count_as_threads(app):
    class Waiting(State):
        async def run(self, ctx: Context) -> None: ...

    class Blocking(State):
        def run(self, ctx: SyncContext) -> None: ...

    assert app.machine("both", Waiting, Blocking).uses_threads
    assert not app.machine("async", Waiting).uses_threads


@pytest.mark.parametrize("setting", ["concurrency", "threads"])
@pytest.mark.parametrize("value", [0, True, 10_001, "4"])
def test_invalid_numbers_of_slots_are_rejected(app, setting, value):
    with pytest.raises(ConfigError, match=f"{setting} must be an integer from 1 to 10,000, not {value!r}"):
        app.worker(**{setting: value})
