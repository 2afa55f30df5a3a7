"""Tasks with `batch=`: one call for many runs, each of which ends on its own."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

from holdfast import Batch, BatchFailed, Context, Fatal, Retry, stop_requested
from holdfast.engine.loops import batch_claimer
from holdfast.engine.loops.claimer import POLL_INTERVAL_S, Claimer
from holdfast.errors import BadArguments, ConfigError, RunCancelled, RunFailed, TaskError
from tests.support.wait_until import wait_until

RETRY = Retry(max_attempts=3, delay=0)


@pytest.fixture
def calls() -> list[list[int]]:
    return []


@pytest.fixture(params=["loop", "thread"])
def double(app, calls, request):
    """Return a batched task that doubles numbers, as a coroutine or a function."""
    settings = {"name": "double", "batch": Batch(max_size=10, max_wait=3600), "retry": RETRY}

    def run(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return [2 * number for number in numbers]

    async def arun(numbers: list[int]) -> list[int]:
        return run(numbers)

    return app.task(**settings)(arun if request.param == "loop" else run)


def test_runs_are_executed_together_and_each_gets_its_own_result(app, double, calls):
    runs = double.enqueue_many([(number,) for number in range(25)])
    assert app.worker().drain(timeout=60) == 25
    assert sorted(map(len, calls)) == [5, 10, 10]
    assert [run.result() for run in runs] == [2 * number for number in range(25)]


def test_an_incomplete_batch_starts_after_max_wait(app):
    @app.task(name="impatient", batch=Batch(max_size=10, max_wait=0.05))
    async def impatient(numbers: list[int]) -> list[int]:
        return numbers

    with app.worker():
        assert impatient.enqueue(3).result(timeout=30) == 3


def test_some_items_fail_and_are_retried_alone(app, calls):
    @app.task(name="index", batch=Batch(max_size=10), retry=RETRY)
    def index(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        errors = {at: ValueError(f"bad {number}") for at, number in enumerate(numbers) if number in (1, 2)}
        if 3 in numbers:
            errors[numbers.index(3)] = Fatal("never")
        raise BatchFailed(errors, numbers) if errors else AssertionError("a batch without a bad item")

    runs = index.enqueue_many([(number,) for number in range(5)])
    app.worker().drain(timeout=60)
    assert [(run.info().state, run.info().attempt) for run in runs] == [
        ("done", 1), ("failed", 3), ("failed", 3), ("failed", 1), ("done", 1),
    ]  # fmt: skip
    assert [runs[0].result(), runs[4].result()] == [0, 4]
    with pytest.raises(RunFailed, match="bad 2"):
        runs[2].result()
    assert calls[0] == [0, 1, 2, 3, 4]
    assert sorted(number for numbers in calls[1:] for number in numbers) == [1, 1, 2, 2]  # together, if both are ready


class Unprepared(BatchFailed):
    """Its constructor doesn't call that of its base."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (lambda: BatchFailed({2: ValueError()}), "raised BatchFailed for item 2 of a batch of 2"),
        (lambda: BatchFailed({-1: ValueError()}), "raised BatchFailed for item -1 of a batch of 2"),
        (lambda: BatchFailed({"0": ValueError()}), "takes a dict of positions and exceptions, not '0'"),
        (lambda: BatchFailed([ValueError()]), "takes a dict of positions and exceptions, not list"),
        (Unprepared, "^$"),
    ],
)
def test_a_malformed_batch_failure_fails_all_items(app, raised, expected):
    @app.task(name="broken", batch=Batch(max_size=10), retry=Retry(max_attempts=1))
    def broken(numbers: list[int]) -> None:
        raise raised()

    runs = broken.enqueue_many([(number,) for number in range(2)])
    app.worker().drain(timeout=60)
    assert {run.info().state for run in runs} == {"failed"}
    assert all(re.search(expected, run.info().error.message) for run in runs)


def test_an_exception_fails_all_items(app):
    @app.task(name="broken", batch=Batch(max_size=10), retry=RETRY)
    async def broken(numbers: list[int]) -> None:
        raise ValueError("no index")

    runs = broken.enqueue_many([(number,) for number in range(3)])
    assert app.worker().drain(timeout=60) == 9
    assert {run.info().state for run in runs} == {"failed"}


@pytest.mark.parametrize("results", [[1], "abc", {0: 1}])
def test_a_wrong_number_of_results_fails_all_items(app, results):
    @app.task(name="short", batch=Batch(max_size=10), retry=Retry(max_attempts=1))
    async def short(numbers: list[int]):
        return results

    runs = short.enqueue_many([(number,) for number in range(2)])
    app.worker().drain(timeout=60)
    with pytest.raises(RunFailed, match="for a batch of 2"):
        runs[0].result()


def test_no_result_means_that_all_are_done(app):
    @app.task(name="silent", batch=Batch(max_size=10))
    def silent(numbers: list[int]) -> None: ...

    runs = silent.enqueue_many([(number,) for number in range(2)])
    app.worker().drain(timeout=60)
    assert [run.result() for run in runs] == [None, None]


def test_tenants_are_apart_if_the_batch_says_so(app, calls):
    @app.task(name="tenants", batch=Batch(max_size=10, by="tenant"))
    async def tenants(numbers: list[int]) -> None:
        calls.append(numbers)

    app.enqueue_many([tenants.options(tenant=f"t{number % 2}").request(number) for number in range(6)])
    app.worker().drain(timeout=60)
    assert sorted(calls) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_cancelled_member_leaves_the_others_alone(app, is_async):
    begun, go = threading.Event(), threading.Event()

    async def arun(numbers: list[int]) -> list[int]:
        begun.set()
        while not go.is_set():
            await asyncio.sleep(0.01)
        return numbers

    def run(numbers: list[int]) -> list[int]:
        begun.set()
        assert go.wait(30)
        return numbers

    task = app.task(name="slow", batch=Batch(max_size=3, max_wait=30))(arun if is_async else run)
    with app.worker():
        runs = task.enqueue_many([(1,), (2,), (3,)])
        assert begun.wait(30)
        runs[1].cancel()
        with pytest.raises(RunCancelled):
            runs[1].result(timeout=30)
        go.set()
        assert [runs[0].result(timeout=30), runs[2].result(timeout=30)] == [1, 3]
    assert runs[1].info().state == "cancelled"


def test_a_timeout_ends_all_members_and_stops_the_call(app):
    stopped = threading.Event()

    @app.task(name="slow", batch=Batch(max_size=2, max_wait=30), timeout=0.2, retry=Retry(max_attempts=1))
    async def slow(numbers: list[int]) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    with app.worker():
        runs = slow.enqueue_many([(1,), (2,)])
        for run in runs:
            with pytest.raises(RunFailed, match="timeout"):
                run.result(timeout=30)
        assert stopped.wait(30)


def test_a_function_in_a_thread_that_outlives_its_timeout_is_told_to_stop(app):
    seen = threading.Event()

    @app.task(name="slow", batch=Batch(max_size=2, max_wait=30), timeout=0.2, retry=Retry(max_attempts=1))
    def slow(numbers: list[int]) -> None:
        wait_until(stop_requested, 30)
        seen.set()

    with app.worker() as worker:
        runs = slow.enqueue_many([(1,), (2,)])
        for run in runs:
            with pytest.raises(RunFailed, match="timeout"):
                run.result(timeout=30)
        assert seen.wait(30)
        wait_until(lambda: worker._components.runner.busy_slots == 0)


def test_a_worker_that_stops_executes_the_batches_that_it_has_collected(app, calls):
    @app.task(name="patient", batch=Batch(max_size=100, max_wait=3600))
    async def patient(numbers: list[int]) -> None:
        calls.append(numbers)

    with app.worker() as worker:
        runs = patient.enqueue_many([(1,), (2,)])
        wait_until(lambda: len(worker._components.claimer.batches.collected) == 2)
    assert calls == [[1, 2]]
    assert {run.info().state for run in runs} == {"done"}


def test_a_busy_worker_claims_from_empty_lanes_of_batches_at_intervals(app, monkeypatch):
    @app.task(name="many", batch=Batch(max_size=10, max_wait=3600))
    async def many(numbers: list[int]) -> None: ...

    many.options(delay=3600).enqueue(0)  # so that the worker knows the lane
    monkeypatch.setattr(Claimer, "start", lambda _: None)
    with app.worker() as worker:
        claimer = worker._components.claimer
        while claimer.tick() < POLL_INTERVAL_S / 2:
            pass
        monkeypatch.setattr(batch_claimer, "EMPTY_CLAIM_INTERVAL_S", 3600)
        batches, session = claimer.batches, worker._components.state.session
        assert not batches.claim(session, is_busy=True)
        many.enqueue(1)
        assert not batches.claim(session, is_busy=True)
        assert batches.claim(session, is_busy=False)
        many.enqueue(2)
        assert batches.claim(session, is_busy=True)


def test_a_batch_holds_one_slot(app, calls):
    @app.task(name="many", batch=Batch(max_size=50, max_wait=30))
    async def many(numbers: list[int]) -> None:
        calls.append(numbers)

    many.enqueue_many([(number,) for number in range(200)])
    assert app.worker(concurrency=1).drain(timeout=60) == 200
    assert [len(call) for call in calls] == [50, 50, 50, 50]


def test_arguments_and_declarations_are_checked(app, double):
    with pytest.raises(BadArguments):
        double.enqueue("three")
    with pytest.raises(ConfigError, match="max_size"):
        Batch(max_size=0)
    with pytest.raises(TypeError, match="exceptions"):
        BatchFailed({0: "no exception"})
    with pytest.raises(ConfigError, match="durable function"):

        @app.task(name="durable", batch=Batch())
        async def durable(ctx: Context, numbers: list[int]) -> None: ...

    with pytest.raises(TaskError, match="one parameter"):

        @app.task(name="two", batch=Batch())
        def two(numbers: list[int], more: int) -> None: ...

    with pytest.raises(TaskError, match="must be a list"):

        @app.task(name="scalar", batch=Batch())
        def scalar(number: int) -> None: ...

    with pytest.raises(ConfigError, match="run_in"):

        @app.task(name="process", batch=Batch(), run_in="process")
        def process(numbers: list[int]) -> None: ...
