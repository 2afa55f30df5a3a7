"""A database that goes away while a durable function needs it costs the function time, and no attempt."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import psycopg
import pytest

from holdfast import Context, Holdfast, Retry, SyncContext
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


class Play:
    """A server and an app on it, and a function in this process that stands still until it is told to go on."""

    def __init__(self, server, caplog):
        self.server = server
        self.caplog = caplog
        self.url = server.create_database()
        self.app = Holdfast(self.url)
        self.calls = 0
        self.go_on = threading.Event()
        with psycopg.connect(self.url) as own:
            own.execute("create table effects (name text)")

    def insert(self, connection, name):
        connection.execute("insert into effects values (%s)", (name,))
        return name

    def insert_while_it_dies(self, connection, name):
        """The server goes away between two statements, the first time."""
        self.insert(connection, name)
        if self.calls == 0:
            self.server.kill()
        self.calls += 1
        self.insert(connection, name)
        return name

    def waits(self):
        return any("waiting for the database" in record.message for record in self.caplog.records)

    def result(self, run):
        """Asked for by an app of its own: this one's connections may still have to be opened anew."""
        with Holdfast(self.url) as other:
            return other.get_run(run.id).result(timeout=60)

    def rows(self):
        with psycopg.connect(self.url) as own:
            return [name for (name,) in own.execute("select name from effects")]

    def ended_in_one_attempt(self, run):
        with Holdfast(self.url) as other:
            kinds = [entry.kind for entry in other.get_run(run.id).history()]
        assert [kind for kind in kinds if kind in ("started", "crashed", "failed", "done")] == ["started", "done"]


@pytest.fixture
def play(durable_server, caplog):
    caplog.set_level(logging.WARNING, "holdfast")
    play = Play(durable_server, caplog)
    yield play
    play.go_on.set()
    play.app.close()


def declare(play, kind, body):
    """The same function of either kind: what `body` gives is a name of the context's methods and their arguments."""

    @play.app.task(name="async", retry=ONCE)
    async def awaited(ctx: Context) -> str:
        for method, *args in body():
            await asyncio.to_thread(pause, play, method)
            answer = await getattr(ctx, method)(*args) if method != "stand" else None
        return str(answer)

    @play.app.task(name="sync", retry=ONCE)
    def plain(ctx: SyncContext) -> str:
        for method, *args in body():
            pause(play, method)
            answer = getattr(ctx, method)(*args) if method != "stand" else None
        return str(answer)

    return awaited if kind == "async" else plain


def pause(play, method):
    if method == "stand":
        play.calls += 1
        play.go_on.wait(60)


@pytest.mark.parametrize("kind", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_a_transaction_waits_for_a_server_that_is_down(play, kind):
    task = declare(play, kind, lambda: [("stand",), ("transaction", play.insert, "a")])
    with play.app.worker(lease=30):
        run = task.enqueue()
        wait_until(lambda: play.calls)
        play.server.kill()
        play.go_on.set()
        wait_until(play.waits)
        play.server.start()
        assert play.result(run) == "a"
    assert play.rows() == ["a"]
    play.ended_in_one_attempt(run)


@pytest.mark.parametrize("kind", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_a_transaction_whose_server_dies_between_two_statements_is_called_again(play, kind):
    task = declare(play, kind, lambda: [("transaction", play.insert_while_it_dies, "a")])
    with play.app.worker(lease=30):
        run = task.enqueue()
        wait_until(lambda: play.calls == 1)
        play.server.start()
        assert play.result(run) == "a"
    assert play.calls == 2
    assert play.rows() == ["a", "a"]  # two statements of one call
    play.ended_in_one_attempt(run)


@pytest.mark.parametrize("kind", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_a_replay_that_needs_the_result_of_a_child_waits_for_a_server_that_is_down(play, kind):
    @play.app.task(name="child")
    async def child() -> str:
        return "child"

    def body():
        """The first time it comes to its sleep; in the replay it stands before the child."""
        return [*([("stand",)] if slept else []), *([("call", child)]), ("sleep", 0.3), ("call", child)]

    slept = []
    task = declare(play, kind, body)
    with play.app.worker(lease=30):
        run = task.enqueue()
        wait_until(lambda: run.info().state == "waiting" and not slept and first_child_done(play))
        slept.append(True)
        wait_until(lambda: play.calls)
        play.server.kill()
        play.go_on.set()
        wait_until(play.waits)
        play.server.start()
        assert play.result(run) == "child"
    play.ended_in_one_attempt(run)


def first_child_done(play):
    return any(info.task == "child" and info.state == "done" for info in play.app.runs())


def test_a_transaction_of_a_run_that_is_lost_meanwhile_gives_up(play):
    """The lease ends while the server is away; whoever takes the run over does the transaction."""
    task = declare(play, "async", lambda: [("stand",), ("transaction", play.insert, "a")])
    with play.app.worker(lease=2):
        run = task.enqueue()
        wait_until(lambda: play.calls)
        play.server.kill()
        play.go_on.set()
        wait_until(play.waits)
        since = time.monotonic()
        wait_until(lambda: any("session lost" in record.message for record in play.caplog.records))
        assert time.monotonic() - since < 10
        play.server.start()
        assert play.result(run) == "a"
    assert play.rows() == ["a"]
    with Holdfast(play.url) as other:
        assert other.get_run(run.id).info().crashes == 0
