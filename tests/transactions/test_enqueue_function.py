"""`holdfast.enqueue(…)` on PostgreSQL: creates the same runs as Python, in the caller's transaction."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import errors as pg

from holdfast import Holdfast
from holdfast.database.migrate import migrations
from holdfast.database.statements import read_sources
from tests.support.hostile_schema import create_hostile_objects
from tests.support.wait_until import wait_until

ALL_OPTIONS = {
    "queue": "billing", "priority": -7, "key": 'k "1"', "tenant": "acme", "start_by": timedelta(hours=2),
    "deadline": timedelta(hours=1), "tags": ["a", 'b"'],
}  # fmt: skip
"""Those that Python and SQL take alike."""
COLUMNS = re.compile(r"insert into \{schema\}runs(?: as r)? \(([^)]*)\)")


@pytest.fixture
def app(postgres_url):
    app = Holdfast(postgres_url)

    @app.task(name="shop.charge")
    async def charge(order: int, note: str = "") -> str:
        return f"{order} {note}".strip()

    app.store.prepare()
    yield app
    app.close()


@pytest.fixture
def db(app):
    with psycopg.connect(app.url, autocommit=True) as connection:
        yield connection


def enqueue(db, task="shop.charge", args="[42]", **options):
    named = "".join(f", {name} => %({name})s" for name in options)
    query = f"select holdfast.enqueue(%(task)s, %(args)s{named})"
    return db.execute(query, {"task": task, "args": args, **options}).fetchone()[0]


def at_once(calls):
    """Make calls in as many threads, each with a connection of its own; return what they return."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [begun.result(60) for begun in [pool.submit(call) for call in calls]]


def row(db, id):
    cursor = db.execute(
        "select r.*, l.queue, l.task from holdfast.runs r join holdfast.lanes l on l.id = r.lane where r.id = %s", [id]
    )
    found = dict(zip([column.name for column in cursor.description], cursor.fetchone(), strict=True))
    return found | {"args": json.loads(found["args"])}


def metadata(db, id):
    return db.execute("select name, value from holdfast.metadata where run = %s order by name", [id]).fetchall()


@pytest.mark.parametrize(
    ("args", "python", "sql"),
    [
        ((), {}, {}),
        ((42,), {}, {}),
        (
            (42, "ø \"quoted\" \\"),
            ALL_OPTIONS
            | {"unique": "u \\ ø", "delay": 90, "key_ttl": 60, "metadata": {"a": 42, "b": "ø", "c": None, "d": 1.5}},
            ALL_OPTIONS
            | {
                "unique_name": "u \\ ø", "delay": timedelta(seconds=90), "key_ttl": timedelta(seconds=60),
                "metadata": '{"a": 42, "b": "ø", "c": null, "d": 1.50}',
            },
        ),
        ((1,), {"run_at": datetime(2099, 1, 1, tzinfo=UTC)}, {"run_at": datetime(2099, 1, 1, tzinfo=UTC)}),
        ((1,), {"run_at": datetime(2001, 1, 1, tzinfo=UTC)}, {"run_at": datetime(2001, 1, 1, tzinfo=UTC)}),
    ],
)  # fmt: skip
def test_a_run_from_sql_has_the_same_columns_as_one_from_python(app, db, args, python, sql):
    names = {"queue": python.get("queue", "default")}
    options = {name: value for name, value in python.items() if name != "queue"}
    theirs = app.remote("shop.charge", **names).options(**options).enqueue(*args).id
    expected, expected_metadata = row(db, theirs), metadata(db, theirs)
    db.execute("delete from holdfast.keys")
    db.execute("delete from holdfast.runs")
    ours = enqueue(db, args=json.dumps(list(args)), **sql)
    found = row(db, ours)
    for name in ("id", "seq"):
        assert found.pop(name) != expected.pop(name)
    for name in ("created_at", "turn", "due_at", "deadline", "start_by"):
        one, other = found.pop(name), expected.pop(name)
        assert one == other or abs(one - other) < 60_000_000, name
    assert found == expected
    assert metadata(db, ours) == expected_metadata
    assert ours.version == 7


def test_the_function_writes_every_column_that_an_enqueue_writes():
    """A column that a later migration adds and Python writes has to be written by a new version of the function."""
    functions = [
        each.text
        for each in migrations()
        if "create function {schema}enqueue(" in each.text or "replace function {schema}enqueue(" in each.text
    ]
    (added,) = (source for source in read_sources("holdfast.store.sql") if source.name == "add_runs")
    columns = [{name.strip() for name in COLUMNS.search(text)[1].split(",")} for text in (functions[-1], added.text)]
    assert columns[0] == columns[1]


def test_runs_from_sql_are_executed_and_bad_arguments_fail_where_they_start(app, db):
    good, named = enqueue(db), enqueue(db, args='{"order": 1, "note": "é"}')
    bad = enqueue(db, args='{"nothing": 1}')
    with app.worker():
        assert app.get_run(good).result(timeout=30) == "42"
        assert app.get_run(named).result(timeout=30) == "1 é"
        wait_until(lambda: app.get_run(bad).info().final)
    assert app.get_run(bad).info().error.code == "bad_arguments"


def test_it_wakes_an_idle_worker(app, db):
    with app.worker():
        wait_until(lambda: db.execute("select 1 from holdfast.workers where idle = 1").fetchone())
        channel = db.execute("select wake_channel from holdfast.workers").fetchone()[0]
        with psycopg.connect(app.url, autocommit=True) as listener:
            listener.execute(f'listen "{channel}"')
            run = enqueue(db)
            (told,) = listener.notifies(timeout=30, stop_after=1)
        assert told.channel == channel
        assert app.get_run(run).result(timeout=30) == "42"


def test_a_trigger_enqueues_with_its_transaction_and_rolls_back_with_it(app, db):
    db.execute("create table orders (id int primary key, note text)")
    db.execute(
        "create function charge_order() returns trigger language plpgsql as $$ begin"
        " perform holdfast.enqueue('shop.charge', jsonb_build_array(new.id, new.note), key => 'order-' || new.id);"
        " return new; end $$"
    )
    db.execute("create trigger charge after insert on orders for each row execute function charge_order()")
    db.execute("insert into orders values (1, 'one'), (2, 'two')")
    with db.transaction(force_rollback=True):
        db.execute("insert into orders values (3, 'three')")
        assert db.execute("select count(*) from holdfast.runs").fetchone() == (3,)
    with app.worker():
        wait_until(lambda: [run.state for run in app.runs()] == ["done", "done"])
    assert sorted(app.get_run(run.id).info().result for run in app.runs()) == ["1 one", "2 two"]
    assert db.execute("select count(*) from holdfast.keys").fetchone() == (2,)


def test_a_key_creates_one_run_also_with_64_callers_at_once(app, db):
    def call(number: int) -> object:
        with psycopg.connect(app.url, autocommit=True) as own:
            return enqueue(own, key="k", unique_name="u" if number % 2 else None)

    found = at_once([lambda number=number: call(number) for number in range(64)])
    assert len(set(found)) == 1
    assert db.execute("select count(*) from holdfast.runs").fetchone() == (1,)
    with pytest.raises(pg.UniqueViolation, match="was used for another request"):
        enqueue(db, key="k", args="[43]")
    assert enqueue(db, key="k", tenant="acme") not in found


def test_a_unique_name_returns_the_unfinished_run(app, db):
    first = enqueue(db, unique_name="u")
    assert enqueue(db, unique_name="u", args="[43]", key="k") == first
    assert enqueue(db, args="[43]", key="k") == first, "the key names the run that has the unique name"
    assert app.remote("shop.charge").options(unique="u").enqueue(1).id == first
    app.get_run(first).cancel()
    assert enqueue(db, unique_name="u") != first


def test_an_expired_key_creates_another_run(db):
    first = enqueue(db, key="k", key_ttl=timedelta(days=1))
    assert enqueue(db, key="k") == first
    db.execute("update holdfast.keys set expires_at = 1")
    assert enqueue(db, key="k") != first


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"task": ""}, "task must not be empty"),
        ({"task": None}, "task must not be empty"),
        ({"task": "x" * 201}, "at most 200 characters"),
        ({"task": "a\nb"}, "control character"),
        ({"queue": "$graph"}, "reserved"),
        ({"queue": "a\x85"}, "control character"),
        ({"tenant": ""}, "tenant must not be empty"),
        ({"key": "k" * 501}, "at most 500"),
        ({"unique_name": "\x7f"}, "control character"),
        ({"tags": ["ok", ""]}, "a tag must not be empty"),
        ({"tags": ["t"] * 101}, "at most 100 names"),
        ({"args": '"text"'}, "JSON array"),
        ({"args": '{"*": [1]}'}, "JSON array"),
        ({"args": json.dumps(["x" * 2_100_000])}, "exceed the limit"),
        ({"priority": 1_000_001}, "priority"),
        ({"delay": timedelta(seconds=-1)}, "delay must be from 0"),
        ({"delay": timedelta(1), "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "mutually exclusive"),
        ({"key_ttl": timedelta(1)}, "needs a key"),
        ({"metadata": "[1]"}, "JSON object"),
        ({"metadata": '{"a": [1]}'}, "must be a string"),
        ({"metadata": json.dumps({"a": "x" * 9000})}, "8,192 bytes"),
        ({"metadata": '{"": 1}'}, "a name in metadata must not be empty"),
        ({"max_crashes": -1}, "max_crashes"),
        ({"keep": None}, "must not be null"),
    ],
)
def test_invalid_input_is_refused_with_its_name(db, given, error):
    with pytest.raises(psycopg.Error, match=re.escape(error)) as refused:
        enqueue(db, **given)
    assert refused.value.sqlstate in ("22023", "54000")
    assert db.execute(
        "select (select count(*) from holdfast.runs) + (select count(*) from holdfast.keys)"
    ).fetchone() == (0,)


def test_a_task_with_limits_is_refused_unless_they_are_ignored(app, db):
    app.limit("one", concurrency=1)
    app.remote("shop.charge").options(limits=["one"]).enqueue(1)
    with pytest.raises(pg.ObjectNotInPrerequisiteState, match="have limits"):
        enqueue(db)
    assert row(db, enqueue(db, ignore_limits=True))["limits"] is None


def test_objects_of_others_in_the_search_path_are_not_called(app, db):
    create_hostile_objects(db, ["length", "sha256", "to_hex", "pg_notify"])
    db.execute("set search_path = public, pg_catalog")
    assert row(db, enqueue(db, key="k", unique_name="u", tags=["a"], metadata='{"a": 1}'))["task"] == "shop.charge"


def test_threads_are_not_needed_for_a_new_lane(app):
    """Two callers that create the same lane at once both succeed."""
    barrier = threading.Barrier(4)

    def call() -> object:
        with psycopg.connect(app.url, autocommit=True) as own:
            barrier.wait(30)
            return enqueue(own, "shop.new", queue="new")

    assert len(set(at_once([call] * 4))) == 4
