"""Metadata: what an application attaches to runs, and finding runs by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Graph, Holdfast, Retry, Secret, SyncContext
from holdfast.control import Control
from holdfast.errors import ConfigError, NotSerializable, TooLarge
from tests.support.durable import drain, state
from tests.support.history_queries import fetch


@pytest.fixture
def charge(app: Holdfast):
    @app.task(name="charge", retry=Retry(max_attempts=1))
    async def charge(order: int) -> int:
        if order == 13:
            raise ValueError("declined")
        return order

    return charge


def found(app: Holdfast, **filters: object) -> list[object]:
    return [info.id for info in app.runs(**filters)]


def test_runs_are_found_by_metadata_however_they_are_created(app, charge):
    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        await ctx.call(charge.options(metadata={"order": 42, "how": "call"}), 1)
        await ctx.map(charge.options(metadata={"order": 42, "how": "map"}), [1, 2])
        await ctx.enqueue(charge.options(metadata={"order": 42, "how": "enqueue"}), 1)
        await ctx.enqueue(charge.options(metadata={"order": 42, "how": "keyed"}, key="k"), 1)

    graph = Graph("order")
    first = graph.add(charge.options(metadata={"order": 42, "how": "node"}), 1)
    nested = Graph("inner")
    nested.add(charge.options(metadata={"order": 42, "how": "nested"}), 1)
    graph.add(nested, after=[first])
    app.submit(graph)
    parent.enqueue()
    charge.options(metadata={"order": 42, "how": "one"}).enqueue(1)
    charge.options(metadata={"order": 42, "how": "many"}).enqueue_many([(1,), (2,)])
    charge.options(metadata={"order": 42, "how": "unique"}, unique="u").enqueue(1)
    charge.options(metadata={"order": 43}).enqueue(1)
    charge.enqueue(1)
    drain(app)
    ways = sorted(info.metadata["how"] for info in app.runs(metadata={"order": 42}))
    assert ways == [
        "call", "enqueue", "keyed", "many", "many", "map", "map", "nested", "node", "one", "unique",
    ]  # fmt: skip
    assert len(app.runs(metadata={"order": 42, "how": "many"})) == 2
    assert app.runs(metadata={"order": "42"}) == app.runs(metadata={"order": 42, "how": "none"}) == []


def test_a_second_enqueue_of_a_key_or_unique_name_keeps_the_metadata_of_the_first(app, charge):
    first = charge.options(key="k", unique="u", metadata={"n": 1}).enqueue(1)
    for options in ({"key": "k"}, {"unique": "u"}):
        again = charge.options(**options, metadata={"n": 2}).enqueue(1)
        assert (again.id, again.created, again.info().metadata) == (first.id, False, {"n": 1})
    assert found(app, metadata={"n": 2}) == []


def test_metadata_combines_with_other_filters_and_pages(app, charge):
    runs = [charge.options(metadata={"plan": "free", "n": n}).enqueue(n) for n in range(10, 16)]
    drain(app)
    page = app.runs(metadata={"plan": "free"}, limit=4)
    rest = app.runs(metadata={"plan": "free"}, limit=4, after=page.after)
    assert [info.metadata["n"] for info in (*page, *rest)] == [15, 14, 13, 12, 11, 10]
    now = datetime.now(UTC)
    assert found(app, metadata={"plan": "free"}, state="failed") == [runs[3].id]
    assert found(app, metadata={"plan": "free"}, error="DECLINED") == [runs[3].id]
    assert found(app, error="declined", created_after=now + timedelta(days=1)) == []
    assert found(app, error="declined", created_before=now + timedelta(days=1)) == [runs[3].id]


@pytest.mark.parametrize("name", ["created_after", "created_before", "finished_after", "finished_before"])
def test_a_time_without_a_zone_is_refused_by_the_name_that_was_given(app, name):
    with pytest.raises(ConfigError, match=f"^{name} needs a time zone"):
        app.runs(**{name: datetime.now(UTC).replace(tzinfo=None)})


def test_values_are_compared_as_json_however_long_they_are(app, charge):
    values = [1, 1.5, True, None, "1", "ä\x00", [1, {"b": 2, "a": 1}], "x" * 3000 + "y", "x" * 3000 + "z"]
    ids = {}
    for at, value in enumerate(values):
        ids[at] = charge.options(metadata={"value": value}).enqueue(at).id
    for at, value in enumerate(values):
        assert found(app, metadata={"value": value}) == [ids[at]], value
        assert app.get_run(ids[at]).info().metadata == {"value": value}


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ([("a", 1)], ConfigError, "must be a dict of names and JSON values, not list"),
        ({1: 2}, ConfigError, "a name in option metadata must be a str, not int"),
        ({"": 2}, ConfigError, "must not be empty"),
        ({"a" * 101: 2}, ConfigError, "at most 100 characters"),
        ({"a": object()}, NotSerializable, "option metadata"),
        ({"a": float("nan")}, NotSerializable, "option metadata"),
        ({"card": {"number": Secret("4242")}}, NotSerializable, "must not contain a Secret"),
        ({f"n{n}": n for n in range(51)}, TooLarge, "at most 50 names, not 51"),
        ({"a": "x" * 9000}, TooLarge, "at most 8,192 bytes"),
    ],
)
def test_bad_metadata_is_refused_by_the_sender(app, charge, metadata, error, message):
    with pytest.raises(error, match=message) as refused:
        charge.options(metadata=metadata)
    assert "4242" not in str(refused.value)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_replay_does_not_set_old_values_again(app, kind):
    if kind == "async":

        @app.task(name="work")
        async def work(ctx: Context) -> None:
            await ctx.annotate(phase="one", order=42)
            await ctx.wait_for("go")
            await ctx.annotate(phase="two")
            await ctx.wait_for("end")
    else:

        @app.task(name="work")
        def work(ctx: SyncContext) -> None:
            ctx.annotate(phase="one", order=42)
            ctx.wait_for("go")
            ctx.annotate(phase="two")
            ctx.wait_for("end")

    run = work.options(metadata={"phase": "zero", "kept": True}).enqueue()
    drain(app)
    assert run.info().metadata == {"kept": True, "order": 42, "phase": "one"}
    assert found(app, metadata={"phase": "one"}) == [run.id]
    assert found(app, metadata={"phase": "zero"}) == []
    app.emit("go")
    drain(app)
    assert run.info().metadata["phase"] == "two"
    fetch(app, f"update {{}}metadata set value = '\"changed\"' where name = 'phase' and run = '{run.id}'")
    app.emit("end")
    drain(app)
    assert (state(run), run.info().metadata["phase"]) == ("done", "changed")


def test_a_run_cannot_collect_metadata_without_bound(app):
    @app.task(name="work", retry=Retry(max_attempts=1))
    async def work(ctx: Context) -> str:
        for n in range(60):
            try:
                await ctx.annotate(**{f"n{n}": n})
            except TooLarge as error:
                return f"{n}: {error}"
        return "no limit"

    run = work.enqueue()
    drain(app)
    assert run.result().startswith("50: ")
    assert "at most 50 names" in run.result()
    assert len(run.info().metadata) == 50


def test_a_fork_takes_metadata_over_and_pruning_deletes_it(app):
    @app.task(name="work", keep=timedelta(0))
    async def work(ctx: Context) -> None:
        await ctx.annotate(order=42)

    run = work.enqueue()
    drain(app)
    fork = run.fork()
    assert fork.info().metadata == {"order": 42}
    drain(app)
    app.store.retention.prune()
    assert found(app, metadata={"order": 42}) == []
    assert fetch(app, "select count(*) from {}metadata") == [(0,)]


def test_corrupt_metadata_is_left_out_and_named(app, charge):
    run = charge.options(metadata={"order": 42}).enqueue(1)
    fetch(app, "update {}metadata set value = 'no json'")
    (info,) = app.runs()
    assert (info.metadata, info.corrupt) == ({}, ("metadata",))
    assert Control(app.store).runs.details(run.id).info.corrupt == ("metadata",)
