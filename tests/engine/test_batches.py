"""Batches of writes are bounded by bytes wherever many payloads come together."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from holdfast import Context, Graph
from holdfast.database.base import DatabaseConnection
from holdfast.database.postgres import PostgresConnection
from holdfast.database.sqlite_connection import SqliteConnection
from tests.support.durable import drain

TEXT = "x" * 5000
MANY = 20


@pytest.fixture
def sent(monkeypatch):
    """Return the batch sizes by statement, with batches limited to four texts."""
    sizes = defaultdict(list)

    def watch(kind):
        execute = kind.execute

        def watched(self, statement, values):
            sizes[statement.name].append(len(values.get("rows") or ""))
            return execute(self, statement, values)

        monkeypatch.setattr(kind, "execute", watched)
        monkeypatch.setattr(kind, "queue", DatabaseConnection.queue)  # which executes

    watch(PostgresConnection)
    watch(SqliteConnection)
    monkeypatch.setattr("holdfast.store.module.MAX_BATCH_BYTES", 4 * len(TEXT) + 100)
    return sizes


@pytest.fixture
def echo(app):
    @app.task(name="echo")
    async def echo(text: str = TEXT) -> str:
        return text

    return echo


def bounded(sizes):
    return len(sizes) >= MANY / 4 and max(sizes) < 5 * len(TEXT)


def test_batches_of_new_runs_are_bounded(app, echo, sent):
    echo.enqueue_many([(TEXT,)] * MANY)
    assert bounded(sent["add_new_runs" if app.store.database.dialect.name == "postgres" else "add_runs"])


def test_batches_of_mapped_children_are_bounded(app, echo, sent):
    @app.task(name="parent")
    async def parent(ctx: Context) -> int:
        return len(await ctx.map(echo, [TEXT] * MANY))

    run = parent.enqueue()
    drain(app)
    assert run.result() == MANY
    assert bounded(sent["add_children"])


def test_batches_of_graph_nodes_and_their_arguments_are_bounded(app, echo, sent):
    graph = Graph("wide")
    first = graph.add(echo, name="first")
    for number in range(MANY):
        graph.add(echo, TEXT, name=f"plain {number}")
        graph.add(echo, first.output, name=f"filled {number}")
    run = app.submit(graph)
    drain(app)
    assert set(run.result().values()) == {TEXT}
    assert bounded(sent["add_nodes"])
    assert bounded(sent["release_nodes"])


def test_batches_of_gates_completed_early_are_bounded(app, echo, sent):
    graph = Graph("gates")
    first = graph.add(echo, name="first")
    for number in range(MANY):
        graph.gate(f"gate {number}", after=[first])
    run = app.submit(graph)
    for number in range(MANY):
        run.gate(f"gate {number}").complete(TEXT)
    drain(app)
    assert set(run.result().values()) == {TEXT}
    assert bounded([size for size in sent["end_without_attempt"] if size > len(TEXT)])


def test_batches_of_event_payloads_are_bounded(app, sent):
    @app.task(name="waits")
    async def waits(ctx: Context) -> int:
        first = await asyncio.gather(*(ctx.wait_for("told") for _ in range(MANY)))
        return len(first + await asyncio.gather(*(ctx.wait_for("told") for _ in range(MANY))))

    run = waits.enqueue()
    drain(app)
    app.emit("told", TEXT)
    assert bounded(sent["resolve_waits"])
    drain(app)
    assert run.result() == 2 * MANY
    assert bounded([size for size in sent["add_checkpoints"] if size > len(TEXT)])


def test_the_database_copies_the_values_of_a_forked_history(app, sent):
    @app.task(name="steps")
    async def steps(ctx: Context) -> int:
        for number in range(MANY):
            await ctx.step(lambda: TEXT, name=f"step {number}")
        return await ctx.step(lambda: 1, name="last")

    run = steps.enqueue()
    drain(app)
    fork = run.fork(from_step="last")
    drain(app)
    assert fork.result() == 1
    assert sum(sent["copy_checkpoints"]) < len(TEXT)
    values = [step.value for step in app.store.queries.steps(str(fork.id)) if step.key.startswith("step ")]
    assert values == [f'"{TEXT}"'] * MANY
