"""Emit, send, publish, cancel and gates in the caller's transaction: all of it happens, or nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Context, Holdfast, Run
from holdfast.errors import ConfigError, KeyConflict, RunFinished
from tests.support.wait_until import wait_until
from tests.transactions.libraries import ASYNC, RolledBack, open_async


def declare(app: Holdfast) -> None:
    @app.task(name="wait")
    async def wait(ctx: Context, name: str) -> Any:
        waits = {
            "event": lambda: ctx.wait_for("paid"),
            "message": lambda: ctx.receive("note"),
            "topic": lambda: ctx.next("orders.paid", where={"id": 7}),
            "gate": lambda: ctx.gate("approve"),
            "cancel": lambda: ctx.sleep(3600),
        }
        return await waits[name]()

    @app.task(name="ship", on="orders.paid")
    def ship(order: Any) -> Any:
        return order


KINDS = ("event", "message", "topic", "gate", "cancel")


@pytest.fixture
def waiting(app) -> dict[str, Run[Any]]:
    """Runs that wait for each kind of action, by kind."""
    declare(app)
    task = app.registry.get("wait")
    runs = {name: task.enqueue(name) for name in KINDS}
    app.worker().drain(timeout=30)
    return runs


def act(app: Holdfast, runs: dict[str, Run[Any]], connection: Any) -> None:
    assert app.emit("paid", 1, connection=connection) is True
    assert app.emit("paid", 2, connection=connection) is False
    runs["message"].send("note", 2, connection=connection)
    published = app.publish("orders.paid", {"id": 7}, key="k", connection=connection)
    assert (published.runs, published.functions) == (1, 1)
    assert app.publish("orders.paid", {"id": 7}, key="k", connection=connection).id == published.id
    assert runs["gate"].gate("approve").complete(4, connection=connection) is True
    assert runs["cancel"].cancel("enough", connection=connection) is True


def outcomes(runs: dict[str, Run[Any]]) -> dict[str, Any]:
    done = {name: run.result(timeout=30) for name, run in runs.items() if name != "cancel"}
    return done | {"cancel": runs["cancel"].info().state}


ALL = {"event": 1, "message": 2, "topic": {"id": 7}, "gate": 4, "cancel": "cancelled"}


def test_what_is_committed_wakes_those_who_wait(app, waiting, library):
    with app.worker():
        with library.transaction() as connection:
            act(app, waiting, connection)
            assert {run.info().state for run in waiting.values()} == {"waiting"}, "others see nothing before the commit"
        assert outcomes(waiting) == ALL
        wait_until(lambda: [info.state for info in app.runs(task="ship")] == ["done"], 30)


def test_what_is_rolled_back_never_happened(app, waiting, library):
    before = {name: run.history() for name, run in waiting.items()}
    with pytest.raises(RolledBack), library.transaction() as connection:
        act(app, waiting, connection)
        raise RolledBack
    app.worker().drain(timeout=30)
    assert {run.info().state for run in waiting.values()} == {"waiting"}
    assert {name: run.history() for name, run in waiting.items()} == before
    assert app.runs(task="ship") == []
    with library.transaction() as connection:  # no key is left of it, and the event can be emitted
        act(app, waiting, connection)
    app.worker().drain(timeout=30)
    assert outcomes(waiting) == ALL


def test_a_failed_call_leaves_the_callers_transaction_whole(app, waiting, library):
    app.publish("orders.paid", {"id": 8}, key="k")
    app.worker().drain(timeout=30)
    done = app.get_run(app.runs(task="ship")[0].id)
    with library.transaction() as connection:
        app.emit("paid", 1, connection=connection)
        with pytest.raises(KeyConflict):
            app.publish("orders.paid", {"id": 9}, key="k", connection=connection)
        with pytest.raises(RunFinished):
            done.send("note", connection=connection)
        waiting["message"].send("note", 2, connection=connection)
    app.worker().drain(timeout=30)
    assert (waiting["event"].result(timeout=30), waiting["message"].result(timeout=30)) == (1, 2)


@pytest.mark.parametrize("kind", list(ASYNC))
async def test_awaited_calls_are_part_of_an_async_transaction(app, postgres_url, kind):
    declare(app)
    runs = {
        name: await app.registry.get("wait")._enqueuer.aenqueue([app.registry.get("wait").request(name)])
        for name in KINDS
    }
    waiting = {name: each[0] for name, each in runs.items()}
    await app.worker().adrain(timeout=30)

    async def act(connection: Any) -> None:
        assert await app.aemit("paid", 1, connection=connection) is True
        await waiting["message"].asend("note", 2, connection=connection)
        published = await app.apublish("orders.paid", {"id": 7}, key="k", connection=connection)
        assert (published.runs, published.functions) == (1, 1)
        assert await waiting["gate"].gate("approve").acomplete(4, connection=connection) is True
        assert await waiting["cancel"].acancel("enough", connection=connection) is True

    with pytest.raises(RolledBack):
        async with open_async(kind, postgres_url) as connection:
            await act(connection)
            raise RolledBack
    assert {(await run.ainfo()).state for run in waiting.values()} == {"waiting"}
    async with open_async(kind, postgres_url) as connection:
        await act(connection)
        with pytest.raises(ConfigError, match="aemit"):
            await asyncio.to_thread(app.emit, "paid", connection=connection)
    await app.worker().adrain(timeout=30)
    assert await asyncio.to_thread(outcomes, waiting) == ALL


async def test_a_cancelled_call_stops_before_the_rollback(app, postgres_url, monkeypatch):
    """The caller's connection is free for the rollback when the cancelled call returns."""
    entered = threading.Event()
    emit = app.store.events.emit

    def slow(*args: Any) -> Any:
        entered.set()
        for _ in range(1000):
            emit(*args)
        raise AssertionError("the call wasn't stopped")

    monkeypatch.setattr(app.store.events, "emit", slow)
    with pytest.raises(RolledBack):
        async with open_async("psycopg", postgres_url) as connection:
            call = asyncio.ensure_future(app.aemit("paid", connection=connection))
            await asyncio.to_thread(entered.wait, 30)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await connection.execute("select 1")
            raise RolledBack
    monkeypatch.undo()
    assert await app.aemit("paid") is True


def test_a_transaction_of_a_run_publishes_with_its_checkpoint(app):
    declare(app)
    tries = []

    def place(connection: Any, order: int) -> int:
        tries.append(order)
        published = app.publish("orders.paid", {"id": order}, connection=connection)
        if len(tries) == 1:
            raise ValueError("rolled back")
        return published.runs

    @app.task(name="order")
    async def order(ctx: Context) -> int:
        try:
            await ctx.transaction(place, 1, name="first")
        except Exception:
            return await ctx.transaction(place, 2, name="second")
        raise AssertionError("it must fail")

    run = order.enqueue()
    app.worker().drain(timeout=30)
    assert run.result(timeout=30) == 1
    assert [app.get_run(info.id).result(timeout=30) for info in app.runs(task="ship")] == [{"id": 2}]


def test_sqlite_takes_the_connection_of_its_transaction(sqlite_url):
    with Holdfast(sqlite_url) as app:
        declare(app)
        task = app.registry.get("wait")
        runs = {name: task.enqueue(name) for name in KINDS}
        app.worker().drain(timeout=30)
        with pytest.raises(RolledBack), app.transaction() as connection:
            act(app, runs, connection)
            assert app.registry.get("ship").options(connection=connection).enqueue(1).created
            raise RolledBack
        assert {run.info().state for run in runs.values()} == {"waiting"}
        assert app.runs(task="ship") == []
        with app.transaction() as connection:
            act(app, runs, connection)
            found: list[BaseException] = []

            def elsewhere() -> None:
                try:
                    app.emit("other", connection=connection)
                except BaseException as error:
                    found.append(error)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join(10)
            assert isinstance(found[0], ConfigError)
        with pytest.raises(ConfigError, match=r"app\.transaction"):
            app.emit("late", connection=connection)
        app.worker().drain(timeout=30)
        assert outcomes(runs) == ALL
