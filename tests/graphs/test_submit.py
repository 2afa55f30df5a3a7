"""Submit a graph in the caller's transaction, and as a child of a durable function."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Graph, Holdfast, RunFailed, SyncContext
from holdfast.errors import BlockingCall, ConfigError, GraphError, KeyConflict, TaskError
from tests.support.durable import drain, kinds, state
from tests.support.graphs import node, states
from tests.transactions.libraries import ASYNC, BLOCKING, RolledBack, open_async


@pytest.fixture
def pg_app(postgres_url):
    with Holdfast(postgres_url) as app:
        app.store.prepare()
        yield app


@pytest.fixture
def note(pg_app):
    @pg_app.task(name="note")
    def note(text: str) -> str:
        return text

    return note


def noted(note, key=None, text="a"):
    g = Graph("noted", key=key)
    g.add(note, g.add(note, text, name="first").output, name="second", after=[g.gate("gate")])
    return g


@pytest.mark.parametrize("kind", BLOCKING, ids=lambda kind: kind.name)
def test_a_graph_commits_or_rolls_back_with_the_callers_transaction(pg_app, note, postgres_url, kind):
    library = kind(postgres_url)
    with pytest.raises(RolledBack), library.transaction() as connection:
        pg_app.submit(noted(note, key="k"), connection=connection)
        raise RolledBack
    assert pg_app.runs() == []
    with library.transaction() as connection:
        run = pg_app.submit(noted(note, key="k", text="b"), connection=connection)
        assert pg_app.submit(noted(note, key="k", text="b"), connection=connection) == run
        with pytest.raises(KeyConflict):
            pg_app.submit(noted(note, key="k"), connection=connection)
        assert pg_app.runs() == [], "it must not be visible before the commit"
    library.close()
    run.gate("gate").complete(1)
    drain(pg_app)
    assert run.result(timeout=5) == {"first": "b", "gate": 1, "second": "b"}


@pytest.mark.parametrize("kind", list(ASYNC))
async def test_a_graph_commits_or_rolls_back_with_an_async_transaction(pg_app, note, postgres_url, kind):
    with pytest.raises(RolledBack):
        async with open_async(kind, postgres_url) as connection:
            await pg_app.asubmit(noted(note, key="k"), connection=connection)
            raise RolledBack
    assert await pg_app.aruns() == []
    async with open_async(kind, postgres_url) as connection:
        run = await pg_app.asubmit(noted(note, key="k", text="b"), connection=connection)
        assert await pg_app.asubmit(noted(note, key="k", text="b"), connection=connection) == run
        assert await pg_app.aruns() == []
    await run.gate("gate").acomplete(1)
    await pg_app.worker().adrain(timeout=60)
    assert await run.aresult(timeout=5) == {"first": "b", "gate": 1, "second": "b"}


async def test_sync_and_async_submit_reject_connections_of_the_other_kind(pg_app, note, postgres_url):
    async with open_async("psycopg", postgres_url) as connection:
        with pytest.raises(BlockingCall, match="asubmit"):
            pg_app.submit(noted(note), connection=connection)
    with BLOCKING[0](postgres_url).transaction() as connection:
        with pytest.raises(ConfigError, match=r"blocking connection: use submit\(\)"):
            await pg_app.asubmit(noted(note), connection=connection)


def test_on_sqlite_a_graph_joins_the_apps_transaction(sqlite_url):
    with Holdfast(sqlite_url) as app:

        @app.task(name="note")
        def note(text: str) -> str:
            return text

        with pytest.raises(RolledBack), app.transaction() as connection:
            app.submit(noted(note, key="k"))
            raise RolledBack
        assert app.runs() == []
        with app.transaction() as connection:
            connection.execute("create table orders (item text)")
            run = app.submit(noted(note, key="k", text="b"))
            assert run.gate("gate").complete(1) is True
        drain(app)
        assert run.result(timeout=5)["second"] == "b"
        with pytest.raises(ConfigError):
            app.submit(noted(note), connection=object())


# As a child


def squares(tasks, count=3):
    g = Graph("squares")
    nodes = [g.add(tasks.give, number * number) for number in range(count)]
    return g, g.add(tasks.give, [each.output for each in nodes], name="all")


def test_a_child_graph_is_created_once_and_joined(app, tasks, ledger):
    @app.task(name="parent")
    async def parent(ctx: Context) -> Any:
        g, whole = squares(tasks)
        run = await ctx.submit(g, result=whole)
        ledger.write("child", run.id)
        first = await ctx.join(run)
        await ctx.wait_for("go")
        other, _ = squares(tasks, 1)
        return [first, await ctx.join(await ctx.submit(other))]

    run = parent.options(tenant="acme").enqueue()
    drain(app)
    app.emit("go", tenant="acme")
    drain(app)
    assert run.result(timeout=5) == [[0, 1, 4], {"give": 0, "all": [0]}]
    assert len({line for line in ledger.lines() if "child" in line}) == 1
    graphs = app.runs(task="squares")
    assert len(graphs) == 2
    assert {(info.parent, info.tenant, info.state) for info in graphs} == {(run.id, "acme", "done")}
    assert ledger.counts()["give 4"] == 1


def test_submitting_the_same_graph_twice_creates_two_children(app, tasks):
    @app.task(name="parent")
    async def parent(ctx: Context) -> bool:
        one, two = await ctx.submit(squares(tasks)[0]), await ctx.submit(squares(tasks)[0])
        await ctx.join(two)
        await ctx.join(one)
        return one != two

    run = parent.enqueue()
    drain(app)
    assert run.result(timeout=5) is True


def test_sync_durable_functions_submit_graphs_too(app, tasks):
    @app.task(name="parent")
    def parent(ctx: SyncContext) -> Any:
        g, whole = squares(tasks)
        return ctx.join(ctx.submit(g, result=whole))

    run = parent.enqueue()
    drain(app)
    assert run.result(timeout=5) == [0, 1, 4]


def test_a_result_is_typed_by_the_task_of_its_node(app):
    @app.task(name="numbers")
    def numbers() -> tuple[int, ...]:
        return (1, 2)

    @app.task(name="parent")
    async def parent(ctx: Context) -> str:
        g = Graph("g")
        a = g.add(numbers, name="a")
        plain = await ctx.join(await ctx.submit(g))
        typed = await ctx.join(await ctx.submit(g, result=a))
        await ctx.wait_for("go")
        return f"{plain} {typed}"

    run = parent.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == "{'a': [1, 2]} (1, 2)"


def test_a_failed_graph_raises_run_failed_in_its_parent_live_and_on_replay(app, tasks, ledger):
    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        g = Graph("g")
        g.add(tasks.fail, name="bad")
        try:
            await ctx.join(await ctx.submit(g))
        except RunFailed as failed:
            ledger.write("saw", failed.error.code, failed.error.message)
        await ctx.wait_for("go")

    run = parent.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    assert ledger.lines()[1:] == ["saw node node bad failed: ValueError: broken"] * 2


def test_cancelling_the_parent_cancels_the_graph_and_its_nodes(app, tasks):
    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        inner = Graph("inner")
        inner.gate("within")
        g = Graph("g")
        g.add(inner, name="inner")
        g.add(tasks.give, name="then", after=["inner"])
        await ctx.join(await ctx.submit(g))

    run = parent.enqueue()
    drain(app)
    [info] = app.runs(task="g")
    graph = app.get_run(info.id)
    within = node(app, node(app, graph, "inner"), "within")
    assert run.cancel("enough") is True
    assert states(graph) == {"inner": "cancelled", "then": "cancelled"}
    assert (state(graph), state(within)) == ("cancelled", "cancelled")
    run.retry()
    drain(app)
    assert (state(run), state(graph), state(within)) == ("waiting", "waiting", "waiting")
    node(app, graph, "inner").gate("within").complete()
    drain(app)
    assert state(run) == "done"
    assert len(app.runs(task="g")) == 1


def test_the_parent_waits_until_the_gate_is_completed(app, tasks):
    @app.task(name="parent")
    async def parent(ctx: Context) -> Any:
        g = Graph("g")
        return await ctx.join(await ctx.submit(g, result=g.gate("ok")))

    run = parent.enqueue()
    drain(app)
    assert state(run) == "waiting"
    [info] = app.runs(task="g")
    app.get_run(info.id).gate("ok").complete("yes")
    drain(app)
    assert run.result(timeout=5) == "yes"
    assert kinds(run)[-2:] == ["resumed", "done"]


def test_ctx_submit_rejects_invalid_graphs(app, tasks, ledger):
    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        keyed = Graph("keyed", key="k")
        keyed.add(tasks.give)
        plain, _ = squares(tasks)
        for wrong in (lambda: ctx.submit(keyed), lambda: ctx.submit(Graph("empty")), lambda: app.asubmit(plain)):
            try:
                await wrong()
            except TaskError as error:
                ledger.write(type(error).__name__, error)

    run = parent.enqueue()
    drain(app)
    run.result(timeout=5)
    lines = ledger.lines()
    assert lines[0].startswith(f"{GraphError.__name__} ctx.submit: graph keyed has a key")
    assert lines[1].startswith("GraphError graph empty is empty")
    assert "ctx.submit(graph)" in lines[2]
    assert app.runs(task="squares") == []
