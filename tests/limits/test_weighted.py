"""Weighted rates: a start counts its cost, which comes from the arguments."""

from __future__ import annotations

import math

import pytest

from holdfast import Holdfast
from holdfast.control.explainer import Explainer
from holdfast.errors import BadArguments, ConfigError, CostExceedsLimit
from holdfast.store.limits import Permit, encode_permits, parse_permit, parse_permits
from tests.support.durable import drain


def claimed(app: Holdfast) -> list[str]:
    """Claim what may start, and return the arguments."""
    app.store.sessions.open("s", "w", 3_600_000_000, "{}")
    lanes = list(app.store.lanes.refresh())
    return [claim.args for claim in app.store.claims.claim_limited("s", lanes, 8)]


def started(app: Holdfast, name: str) -> int:
    return sum(counter.started for counter in app.store.limits.counters(name))


@pytest.mark.parametrize(
    ("cost", "total"),
    [
        ("size", 7),
        ("more.tokens", 40),
        (lambda size, more: size * 2.1, 15),  # 14.7, rounded up
        (5, 5),
        (0, 0),
        (0.5, 1),
    ],
)
def test_a_start_counts_its_cost(app, cost, total):
    app.limit("tokens", rate="100/min", cost=cost)

    @app.task(name="work", limits=["tokens"])
    def work(size: int, more: dict[str, int]) -> None: ...

    work.enqueue(7, {"tokens": 40})
    assert len(claimed(app)) == 1
    assert started(app, "tokens") == total


@pytest.mark.parametrize("cost", [-1, math.nan, math.inf, True, "many", None, [1], 10**12])
def test_a_cost_that_is_no_number_is_refused(app, cost):
    app.limit("tokens", rate="100/min", cost=lambda size: cost)

    @app.task(name="work", limits=["tokens"])
    def work(size: int) -> None: ...

    with pytest.raises(BadArguments, match="limit tokens of task work: cost=: its value must be a number from 0 to"):
        work.enqueue(1)


def test_invalid_costs_of_a_declaration_are_rejected(app):
    for cost in (-1, math.nan, True, [1], b"size"):
        with pytest.raises(ConfigError, match="limit wrong: cost must be the name of an argument, a function"):
            app.limit("wrong", rate="5/s", cost=cost)
    with pytest.raises(ConfigError, match="cost= counts against a rate, and concurrency counts runs: set rate= too"):
        app.limit("wrong", concurrency=5, cost="size")
    with pytest.raises(ConfigError, match="must not be empty"):
        app.limit("wrong", rate="5/s", cost="")
    app.limit("tokens", rate="5/s", cost="gone")

    @app.task(name="work", limits=["tokens"])
    def work(size: int) -> None: ...

    with pytest.raises(BadArguments, match="cost='gone' finds nothing at 'gone'"):
        work.enqueue(1)


def test_a_cost_above_the_whole_limit_is_refused_at_enqueue(app):
    app.limit("tokens", rate="100/min", cost="size")

    @app.task(name="work", limits=["tokens"])
    def work(size: int) -> None: ...

    with pytest.raises(CostExceedsLimit, match="cost of 101, and limit tokens allows 100 per period"):
        work.enqueue(101)
    work.enqueue(100)
    app.limits.set("tokens", rate="200/min", by="ada")
    work.enqueue(200)
    with pytest.raises(CostExceedsLimit, match="cost of 201, and limit tokens allows 200 per period"):
        work.enqueue(201)
    app.limits.set("tokens", rate=None)
    work.enqueue(5000)
    assert len(app.runs()) == 3


def test_no_window_exceeds_a_weighted_rate_and_waiting_runs_start_in_order(timed_app, clock):
    app = timed_app
    app.limit("tokens", rate="10/10s", cost="size")
    ended: list[int] = []

    @app.task(name="work", limits=["tokens"])
    async def work(number: int, size: int) -> None:
        ended.append(number)

    for number, size in enumerate([6, 6, 1, 1, 1]):
        work.enqueue(number, size)
    drain(app)
    assert ended == [0], "the cheap ones would keep the second waiting forever"
    assert app.store.limits.counters("tokens")[0].parked == 4
    clock.forward(10)
    drain(app)
    assert ended == [0, 1, 2, 3, 4]
    assert started(app, "tokens") == 9


def test_a_cheap_newcomer_waits_behind_an_expensive_run(timed_app, clock):
    app = timed_app
    app.limit("tokens", rate="10/10s", cost="size")
    ended: list[int] = []

    @app.task(name="work", limits=["tokens"])
    async def work(number: int, size: int) -> None:
        ended.append(number)

    work.enqueue(0, 6)
    work.enqueue(1, 6)
    drain(app)
    work.enqueue(2, 1)
    work.enqueue(3, 0)
    work.options(priority=5).enqueue(4, 2)
    drain(app)
    assert ended == [0, 4, 3], "more urgent and free runs pass, the others wait"
    clock.forward(10)
    drain(app)
    assert ended == [0, 4, 3, 1, 2]


def test_a_run_that_costs_more_than_a_lowered_limit_waits_without_blocking_others(timed_app, clock):
    app = timed_app
    app.limit("tokens", rate="10/10s", cost="size")
    ended: list[int] = []

    @app.task(name="work", limits=["tokens"])
    async def work(number: int, size: int) -> None:
        ended.append(number)

    large = work.enqueue(0, 8)
    work.enqueue(1, 2)
    app.limits.set("tokens", rate="5/10s")
    drain(app)
    assert ended == [1]
    assert large.info().state == "ready"
    (reason,) = Explainer(app.store).why(large.id).reasons
    assert reason.text == "limit tokens allows 5 per 10 s, and this costs 8: raise the limit, or cancel the run"
    app.limits.reset("tokens")
    clock.forward(10)
    drain(app)
    assert ended == [1, 0]


def test_concurrency_of_a_weighted_limit_counts_runs(app):
    app.limit("api", rate="1000/min", concurrency=2, cost="size")

    @app.task(name="work", limits=["api"])
    def work(size: int) -> None: ...

    work.enqueue_many([(100,), (0,), (1,)])
    assert len(claimed(app)) == 2
    (counter,) = app.store.limits.counters("api")
    assert (counter.used, counter.started, counter.parked) == (2, 100, 1)


def test_a_corrupt_permit_counts_as_an_unknown_counter():
    assert parse_permits(encode_permits([("a", "", None), ("a", '"x"', 5)])) == [
        Permit('["a",""]', 1),
        Permit('["a","\\"x\\""]', 5),
    ]
    for text in ("", "x", "5]", '["a","",-5]', '["a","",5', "[]"):
        assert parse_permit(text) == Permit(text, 1)
