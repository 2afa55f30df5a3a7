"""Triggers: functions are polled, requests are enqueued once per key, errors are logged."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading

import pytest

from holdfast import Holdfast
from holdfast.database.transfer import put_up_tenant_fence
from holdfast.engine.loops.trigger_poller import MAX_BATCH_REQUESTS
from tests.support.wait_until import wait_until


@pytest.fixture
def ingest(timed_app, ledger):
    @timed_app.task(name="ingest")
    def ingest(path: str) -> None:
        ledger.write(path)

    return ingest


def polls(app, name="files"):
    """What came of the last polls, oldest first: found, made, the message of the error."""
    last = reversed(app.store.triggers.last_polls(name))
    return [(poll.found, poll.made, poll.error and json.loads(poll.error)["message"]) for poll in last]


def drain(app):
    return app.worker().drain(timeout=60)


def test_yielded_requests_are_enqueued_once_per_key(timed_app, clock, ingest, ledger):
    there = ["a", "b"]

    @timed_app.trigger("files", every=30)
    def files():
        for path in there:
            yield ingest.options(key=path).request(path)

    assert drain(timed_app) == 2
    there.append("c")
    assert drain(timed_app) == 0, "it is polled every 30 s"
    clock.forward(30)
    assert drain(timed_app) == 1
    assert sorted(ledger.lines()) == ["a", "b", "c"]
    assert polls(timed_app) == [(2, 2, None), (3, 1, None)]


@pytest.mark.parametrize("kind", ["generator", "list", "async list", "async generator", "nothing", "wrapper"])
def test_triggers_may_be_sync_async_generators_or_return_lists(timed_app, ingest, ledger, kind):
    requests = [ingest.options(key=path).request(path) for path in ("a", "b")]

    def generator():
        yield from requests

    async def async_list():
        await asyncio.sleep(0)
        return requests

    async def async_generator():
        for request in requests:
            await asyncio.sleep(0)
            yield request

    kinds = {
        "generator": generator, "list": lambda: requests, "async list": async_list, "async generator": async_generator,
        "nothing": lambda: None, "wrapper": lambda: async_generator(),
    }  # fmt: skip
    timed_app.trigger("files", every=30)(kinds[kind])
    drain(timed_app)
    assert sorted(ledger.lines()) == ([] if kind == "nothing" else ["a", "b"])
    assert polls(timed_app) == [(0, 0, None) if kind == "nothing" else (2, 2, None)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda task: [task.request("x")], "a request of task ingest without a key.*write task.options"),
        (lambda task: ["x"], "gave a str: let it yield task.request"),
        (lambda task: task.options(key="x").request("x"), "gave a Request: let it yield requests, or return a list"),
        (lambda task: 5, "gave a int"),
        (lambda task: [task.options(key="x", connection=object()).request("x")], "leave option connection out"),
        (lambda task: [1 / 0], "division by zero"),
        (lambda task: exit(3), "3"),
    ],
)
def test_an_invalid_request_is_logged_and_polled_again(timed_app, clock, ingest, given, says, caplog):
    timed_app.trigger("files", every=30)(lambda: given(ingest))
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert drain(timed_app) == 0
    ((found, made, error),) = polls(timed_app)
    assert (found, made) == (0, 0)
    assert re.search(says, error)
    assert "trigger poll failed trigger=files" in caplog.text
    clock.forward(30)
    drain(timed_app)
    assert len(polls(timed_app)) == 2


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("before", [5, MAX_BATCH_REQUESTS, MAX_BATCH_REQUESTS + 5])
def test_requests_before_an_error_are_enqueued(timed_app, clock, ingest, ledger, before, kind):
    broken = [True]

    def files():
        for n in range(2 * MAX_BATCH_REQUESTS):
            if n == before and broken.pop():
                raise OSError("the disk is gone")
            yield ingest.options(key=str(n)).request(str(n))

    async def async_files():
        for request in files():
            yield request

    timed_app.trigger("files", every=30)(files if kind == "plain" else async_files)
    assert drain(timed_app) == before
    broken.append(False)
    clock.forward(30)
    assert drain(timed_app) == 2 * MAX_BATCH_REQUESTS - before
    assert len(set(ledger.lines())) == len(ledger.lines()) == 2 * MAX_BATCH_REQUESTS
    assert polls(timed_app) == [
        (before, before, "the disk is gone"),
        (2 * MAX_BATCH_REQUESTS, 2 * MAX_BATCH_REQUESTS - before, None),
    ]


def test_an_invalid_request_does_not_block_others(timed_app, ingest, ledger):
    timed_app.limit("odd", concurrency=1, by=lambda path: 1 // 0 if path == "e" else path)
    limited = ingest.options(limits=["odd"])

    @timed_app.trigger("files", every=30)
    def files():
        yield ingest.options(key="a").request("a")
        yield "b"
        yield ingest.request("c")
        yield ingest.options(key="d").request("d")
        yield limited.options(key="e").request("e")
        yield limited.options(key="f").request("f")

    assert drain(timed_app) == 3
    assert sorted(ledger.lines()) == ["a", "d", "f"]
    assert polls(timed_app) == [(3, 3, "trigger files gave a str: let it yield task.request(…)")]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_requests_before_a_hanging_poll_are_enqueued(make_app, ledger, kind):
    app = make_app()
    released = threading.Event()

    @app.task(name="ingest")
    def ingest(path: str) -> None:
        ledger.write(path)

    def plain():
        yield ingest.options(key="a").request("a")
        released.wait()
        yield ingest.options(key="b").request("b")

    async def hanging():
        yield ingest.options(key="a").request("a")
        await asyncio.Event().wait()

    app.trigger("files", every=3600, timeout=1)(plain if kind == "plain" else hanging)
    with app.worker():
        wait_until(lambda: polls(app))
        wait_until(lambda: ledger.lines())
        released.set()
    assert polls(app) == [(1, 1, "it took longer than its timeout, 1 s")]
    assert ledger.lines() == ["a"]


def test_a_key_conflict_is_logged_and_does_not_block_others(timed_app, ingest, ledger):
    ingest.options(key="b").enqueue("something else")

    @timed_app.trigger("files", every=30)
    def files():
        return [
            ingest.options(key=path).request(path) for path in ("a", "b", "c", *map(str, range(MAX_BATCH_REQUESTS)))
        ]

    drain(timed_app)
    assert sorted(ledger.lines())[MAX_BATCH_REQUESTS:] == ["a", "c", "something else"]
    ((found, made, error),) = polls(timed_app)
    assert (found, made) == (MAX_BATCH_REQUESTS + 3, MAX_BATCH_REQUESTS + 2), "also of what came after it"
    assert "key 'b' of task ingest was used for another request" in error


def test_requests_for_a_tenant_that_was_moved_away_do_not_block_others(timed_app, ingest, ledger):
    database = timed_app.store.database
    timed_app.store.prepare()

    def fence(connection):
        with connection.transaction():
            put_up_tenant_fence(database, connection, "acme", "acme is elsewhere")

    database.connection("client").run(fence)

    @timed_app.trigger("files", every=30)
    def files():
        for path, tenant in (("a", None), ("b", "acme"), ("c", "other")):
            yield ingest.options(key=path, tenant=tenant).request(path)

    drain(timed_app)
    assert sorted(ledger.lines()) == ["a", "c"]
    ((found, made, error),) = polls(timed_app)
    assert (found, made) == (3, 2)
    assert "acme is elsewhere" in error


def test_a_poll_past_its_timeout_is_abandoned(make_app, ledger):
    app = make_app()
    released, over = threading.Event(), threading.Event()

    @app.task(name="ingest")
    def ingest(path: str) -> None:
        ledger.write(path)

    @app.trigger("files", every=1, timeout=1)
    def files():
        released.wait()
        try:
            yield ingest.options(key="late").request("late")
        finally:
            over.set()

    @app.trigger("mails", every=1)
    async def mails():
        yield ingest.options(key="mail").request("mail")

    with app.worker():
        wait_until(lambda: polls(app))
        wait_until(lambda: len(polls(app, "mails")) >= 2)
        first = polls(app)[0]
        released.set()
        assert over.wait(30)
    assert first == (0, 0, "it took longer than its timeout, 1 s")
    assert polls(app, "mails")[:2] == [(1, 1, None), (1, 0, None)]
    assert ledger.counts()["mail"] == 1


@pytest.mark.variants
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_endless_trigger_is_cut_at_its_timeout(make_app, kind):
    app = make_app()
    task = app.remote("nothing")

    def plain():
        while True:
            yield task.options(key="a").request()

    async def endless():
        while True:
            yield task.options(key="a").request()

    app.trigger("files", every=1, timeout=1)(plain if kind == "plain" else endless)
    with app.worker():
        wait_until(lambda: polls(app))
    _, created, error = polls(app)[0]
    assert (created, error) == (1, "it took longer than its timeout, 1 s")


def test_a_hanging_async_trigger_is_abandoned(make_app):
    app = make_app()

    @app.trigger("files", every=1, timeout=1)
    async def files():
        await asyncio.sleep(600)
        return []

    with app.worker():
        wait_until(lambda: len(polls(app)) >= 2)
    assert polls(app)[0] == (0, 0, "it took longer than its timeout, 1 s")


@pytest.mark.anyio
async def test_an_async_trigger_cannot_stop_the_event_loop(make_app):
    app = make_app()

    @app.trigger("files", every=3600)
    async def files():
        raise SystemExit(3)

    async with app.worker():
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(polls, app):
                await asyncio.sleep(0.01)
    assert await asyncio.to_thread(polls, app) == [(0, 0, "3")]


def test_a_stopping_worker_abandons_its_poll_for_the_next_worker(make_app):
    begun, released = threading.Event(), threading.Event()

    def start() -> Holdfast:
        app = make_app(name="shop")

        @app.trigger("files", every=3600)
        def files():
            begun.set()
            released.wait()

        return app

    app = start()
    with app.worker(grace=0):
        assert begun.wait(30)
    assert polls(app) == [(0, 0, "its worker stopped")]
    released.set()
    start().worker().drain(timeout=60)
    assert polls(app) == [(0, 0, "its worker stopped"), (0, 0, None)]


def test_two_workers_poll_one_at_a_time(make_app, ledger):
    lock = threading.Lock()

    def start() -> Holdfast:
        app = make_app(name="shop")

        @app.task(name="ingest")
        def ingest(path: str) -> None:
            ledger.write(path)

        @app.trigger("files", every=1)
        def files():
            assert lock.acquire(blocking=False), "two polls at once"
            try:
                yield from (ingest.options(key=str(n)).request(str(n)) for n in range(5))
            finally:
                lock.release()

        return app

    app = start()
    with app.worker(), start().worker():
        wait_until(lambda: len(polls(app)) >= 3)
        wait_until(lambda: len(ledger.lines()) >= 5)
    assert {error for _, _, error in polls(app)} == {None}
    assert sum(made for _, made, _ in polls(app)) == 5
    assert ledger.counts() == {str(n): 1 for n in range(5)}
