"""Limits combined with retries, forks, graphs, maps and changed declarations."""

from __future__ import annotations

import contextlib
import threading

import pytest

from holdfast import Context, Graph, Retry
from holdfast.control import Control
from holdfast.errors import RunFailed
from holdfast.store import AttemptEnd
from tests.limits.test_limits import Gauge
from tests.support.permits import in_use, parked_and_forgotten, recount


@pytest.fixture
def adds_up(app):
    """At the end no permit is in use, and nobody was forgotten."""
    yield
    assert in_use(app.store) == recount(app.store) == {}
    assert parked_and_forgotten(app.store) == []


def finished(app, runs):
    with app.worker():
        for run in runs:
            with contextlib.suppress(RunFailed):
                run.result(timeout=30)
    return [run.info().state for run in runs]


@pytest.mark.usefixtures("adds_up")
def test_each_retry_takes_and_returns_a_permit(app):
    app.limit("one", concurrency=1)
    gauge = Gauge()
    tries: list[int] = []

    @app.task(name="work", limits=["one"], retry=Retry(max_attempts=3, delay=0))
    def work(number: int) -> None:
        gauge("all", lambda: tries.append(number))
        if tries.count(number) < 3:
            raise ValueError(number)

    assert finished(app, work.enqueue_many([(number,) for number in range(5)])) == ["done"] * 5
    assert len(tries) == 15
    assert gauge.most == {"all": 1}


@pytest.mark.usefixtures("adds_up")
def test_retried_and_forked_runs_stay_limited(app):
    app.limit("one", concurrency=1, by="key")
    gauge = Gauge()
    broken = True

    @app.task(name="work", limits=["one"], retry=Retry(max_attempts=1))
    def work(key: str) -> None:
        gauge(key)
        if broken:
            raise ValueError(key)

    runs = work.enqueue_many([("a",)] * 4)
    assert finished(app, runs) == ["failed"] * 4
    broken = False
    control = Control(app.store)
    for run in runs:
        assert control.runs.retry(run.id)
    again = [*runs, *(run.fork() for run in runs)]
    assert finished(app, again) == ["done"] * 8
    assert gauge.most == {"a": 1}


@pytest.mark.usefixtures("adds_up")
def test_nodes_of_a_graph_and_children_of_a_map_share_a_limit(app):
    app.limit("two", concurrency=2)
    gauge = Gauge()

    @app.task(name="work", limits=["two"])
    def work(number: int) -> int:
        gauge("all")
        return number

    @app.task(name="parent")
    async def parent(ctx: Context) -> list[int]:
        return await ctx.map(work, list(range(8)), concurrency=3)

    graph = Graph("g")
    nodes = [graph.add(work, number, name=f"node {number}") for number in range(6)]
    graph.add(work, 99, name="last", after=nodes)
    runs = [app.submit(graph), parent.enqueue()]
    assert finished(app, runs) == ["done", "done"]
    assert runs[1].result() == list(range(8))
    assert gauge.most["all"] <= 2


@pytest.mark.usefixtures("adds_up")
def test_cancelling_a_parked_run_admits_the_next(app):
    app.limit("one", concurrency=1)
    begun, release = threading.Event(), threading.Event()

    @app.task(name="work", limits=["one"])
    def work(first: bool) -> None:
        if first:
            begun.set()
            assert release.wait(30)

    with app.worker():
        held = work.enqueue(True)
        assert begun.wait(30)
        parked, behind = work.enqueue(False), work.enqueue(False)
        parked.cancel()
        release.set()
        behind.result(timeout=30)
        held.result(timeout=30)
    assert parked.info().state == "cancelled"


def declare(app, work, **limit):
    if limit:
        app.limit("some", **limit)
    return app.task(name="work", limits=["some"] if limit else [])(work)


def test_changed_limits_apply_when_a_worker_starts(make_app):
    barrier = threading.Barrier(3)

    def work() -> None:
        barrier.wait(30)  # three, or it breaks

    before, after = make_app(), make_app()
    runs = declare(before, work, concurrency=1).enqueue_many([()] * 3)
    before.store.sessions.open("s", "w", 60_000_000, "{}")
    lanes = list(before.store.lanes.refresh())
    (claim,) = before.store.claims.claim_limited("s", lanes, 8)
    before.store.attempts.end(
        "s", [AttemptEnd(claim.id, claim.seq, claim.fence, "handed_back", "ready", limits=claim.limits)]
    )
    declare(after, work, concurrency=3)
    with after.worker():
        for run in runs:
            run.result(timeout=30)


def test_a_removed_limit_still_holds_for_existing_runs(make_app):
    gauge = Gauge()

    def work() -> None:
        gauge("all")

    before, after = make_app(), make_app()
    runs = declare(before, work, concurrency=1).enqueue_many([()] * 10)
    free = declare(after, work).enqueue()
    with after.worker():
        for run in [*runs, free]:
            run.result(timeout=30)
    assert gauge.most["all"] <= 2, "one with the limit, and the one without"
    assert in_use(after.store) == {}
    assert [limit.name for limit in after.store.limits.list_all()] == ["some"]
