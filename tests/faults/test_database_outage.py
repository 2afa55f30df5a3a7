"""A database outage delays a durable function but costs it no attempt."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import psycopg
import pytest

from holdfast import Context, Holdfast, Retry, SyncContext
from tests.support.step_functions import step_function
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


class OutageScenario:
    """A server, an app on it, and a function in this process that pauses until the test resumes it."""

    def __init__(self, server, caplog):
        self.server = server
        self.caplog = caplog
        self.url = server.create_database()
        self.app = Holdfast(self.url)
        self.calls = 0
        self.resume = threading.Event()
        with psycopg.connect(self.url) as own:
            own.execute("create table effects (name text)")

    @step_function
    def insert(self, connection, name):
        connection.execute("insert into effects values (%s)", (name,))
        return name

    @step_function
    def insert_while_it_dies(self, connection, name):
        """Stop the server between two statements, once."""
        self.insert(connection, name)
        if self.calls == 0:
            self.server.kill()
        self.calls += 1
        self.insert(connection, name)
        return name

    def waits(self):
        return any("waiting for the database" in record.message for record in self.caplog.records)

    def result(self, run):
        """Read the result with a separate app, because connections of this one may be broken."""
        with Holdfast(self.url) as other:
            return other.get_run(run.id).result(timeout=60)

    def rows(self):
        with psycopg.connect(self.url) as own:
            return [name for (name,) in own.execute("select name from effects")]

    def ended_in_one_attempt(self, run):
        with Holdfast(self.url) as other:
            kinds = [entry.kind for entry in other.get_run(run.id).history()]
        assert [kind for kind in kinds if kind in ("started", "crashed", "failed", "done")] == ["started", "done"]

    def charged_nobody(self, run):
        with Holdfast(self.url) as other:
            info, kinds = other.get_run(run.id).info(), [entry.kind for entry in other.get_run(run.id).history()]
        assert (info.crashes, "worker_lost" in kinds, "crashed" in kinds) == (0, True, False)


@pytest.fixture
def scenario(durable_server, caplog):
    caplog.set_level(logging.WARNING, "holdfast")
    scenario = OutageScenario(durable_server, caplog)
    yield scenario
    scenario.resume.set()
    scenario.app.close()


def declare(scenario, kind, body):
    """Return the async or sync version of a function whose `body` yields context methods and arguments."""

    @scenario.app.task(name="async", retry=ONCE)
    async def awaited(ctx: Context) -> str:
        for method, *args in body():
            await asyncio.to_thread(pause, scenario, method)
            answer = await getattr(ctx, method)(*args) if method != "stand" else None
        return str(answer)

    @scenario.app.task(name="sync", retry=ONCE)
    def plain(ctx: SyncContext) -> str:
        for method, *args in body():
            pause(scenario, method)
            answer = getattr(ctx, method)(*args) if method != "stand" else None
        return str(answer)

    return awaited if kind == "async" else plain


def pause(scenario, method):
    if method == "stand":
        scenario.calls += 1
        scenario.resume.wait(60)


@pytest.mark.parametrize("kind", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_a_transaction_waits_for_a_server_that_is_down(scenario, kind):
    task = declare(scenario, kind, lambda: [("stand",), ("transaction", scenario.insert, "a")])
    with scenario.app.worker(lease=30):
        run = task.enqueue()
        wait_until(lambda: scenario.calls)
        scenario.server.kill()
        scenario.resume.set()
        wait_until(scenario.waits)
        scenario.server.start()
        assert scenario.result(run) == "a"
    assert scenario.rows() == ["a"]
    scenario.ended_in_one_attempt(run)


@pytest.mark.parametrize("kind", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_a_transaction_is_repeated_if_the_server_dies_between_two_statements(scenario, kind):
    task = declare(scenario, kind, lambda: [("transaction", scenario.insert_while_it_dies, "a")])
    with scenario.app.worker(lease=30):
        run = task.enqueue()
        wait_until(lambda: scenario.calls == 1)
        scenario.server.start()
        assert scenario.result(run) == "a"
    assert scenario.calls == 2
    assert scenario.rows() == ["a", "a"]  # two statements of one call
    scenario.ended_in_one_attempt(run)


@pytest.mark.parametrize("kind", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_a_replay_that_needs_the_result_of_a_child_waits_for_a_server_that_is_down(scenario, kind):
    @scenario.app.task(name="child")
    async def child() -> str:
        return "child"

    def body():
        """Sleep in the first attempt; in the replay, pause before the child."""
        return [*([("stand",)] if slept else []), *([("call", child)]), ("sleep", 0.3), ("call", child)]

    slept = []
    task = declare(scenario, kind, body)
    with scenario.app.worker(lease=30, max_resident=0):
        run = task.enqueue()
        wait_until(lambda: run.info().state == "waiting" and not slept and first_child_done(scenario))
        slept.append(True)
        wait_until(lambda: scenario.calls)
        scenario.server.kill()
        scenario.resume.set()
        wait_until(scenario.waits)
        scenario.server.start()
        assert scenario.result(run) == "child"
    scenario.ended_in_one_attempt(run)


def first_child_done(scenario):
    return any(info.task == "child" and info.state == "done" for info in scenario.app.runs())


def test_a_transaction_gives_up_when_its_run_is_lost(scenario):
    """The lease expires during the outage, and the next owner of the run repeats the transaction."""
    task = declare(scenario, "async", lambda: [("stand",), ("transaction", scenario.insert, "a")])
    with scenario.app.worker(lease=4):  # a process that stands still for a third of it is not excused
        run = task.enqueue()
        wait_until(lambda: scenario.calls)
        scenario.server.kill()
        scenario.resume.set()
        wait_until(scenario.waits)
        since = time.monotonic()
        wait_until(lambda: any("session lost" in record.message for record in scenario.caplog.records))
        assert time.monotonic() - since < 10
        scenario.server.start()
        assert scenario.result(run) == "a"
    assert scenario.rows() == ["a"]
    scenario.charged_nobody(run)
