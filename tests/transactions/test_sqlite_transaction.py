"""`app.transaction()` on SQLite: one transaction for the caller's tables and Holdfast's."""

from __future__ import annotations

import sqlite3
import threading

import apsw
import pytest

from holdfast import Holdfast, KeyConflict
from holdfast.database import sqlite
from holdfast.errors import BlockingCall, ConfigError, StoreUnavailable, TaskError
from tests.support.wait_until import wait_until


@pytest.fixture
def app(sqlite_url):
    with Holdfast(sqlite_url) as app:
        with app.transaction() as connection:
            connection.execute("create table orders (id integer primary key, item text)")
        yield app


@pytest.fixture
def note(app):
    @app.task(name="note")
    def note(text: str) -> str:
        return text

    return note


def orders(app):
    with app.transaction() as connection:
        return [item for (item,) in connection.execute("select item from orders order by id")]


def test_what_is_written_and_enqueued_inside_commits_together(app, note):
    with app.transaction() as connection:
        connection.executemany("insert into orders (item) values (?)", [("rope",), ("anchor",)])
        run = note.options(key="k").enqueue("a")
        assert run.info().state == "ready", "verbs on the same thread see the transaction"
        assert len(app.runs()) == 1
    assert orders(app) == ["rope", "anchor"]
    assert app.worker().drain(timeout=60) == 1
    assert run.result(timeout=30) == "a"


def test_an_error_rolls_everything_back(app, note):
    with pytest.raises(ZeroDivisionError), app.transaction() as connection:
        connection.execute("insert into orders (item) values (:item)", {"item": "rope"})
        note.options(key="k").enqueue("a")
        note.options(unique="u").enqueue("b")
        note.enqueue_many([("c",)] * 700)
        raise ZeroDivisionError
    assert orders(app) == []
    assert app.runs() == []
    assert note.options(key="k").enqueue("other").info().state == "ready"


def test_another_process_sees_nothing_before_the_commit(app, note, sqlite_url):
    with app.transaction():
        note.enqueue("a")
        with Holdfast(sqlite_url) as other:
            assert other.runs() == []
    assert len(app.runs()) == 1


def test_a_key_conflict_leaves_the_transaction_usable(app, note):
    note.options(key="k").enqueue("a")
    with app.transaction() as connection:
        connection.execute("insert into orders (item) values ('rope')")
        with pytest.raises(KeyConflict):
            app.enqueue_many([note.options(key="new").request("b"), note.options(key="k").request("c")])
        note.enqueue("d")
    assert orders(app) == ["rope"]
    assert len(app.runs()) == 2


def test_verbs_of_other_threads_do_not_join(app, note):
    with pytest.raises(ZeroDivisionError), app.transaction():
        other = threading.Thread(target=note.enqueue, args=("from another thread",))
        other.start()
        raise ZeroDivisionError
    other.join(30)
    assert len(app.runs()) == 1


@pytest.mark.parametrize("busy", [True, False], ids=["in-sql", "in-python"])
def test_a_transaction_that_takes_too_long_is_interrupted(app, note, monkeypatch, busy):
    monkeypatch.setattr(sqlite, "MAX_TRANSACTION_S", 0.2)
    endless = (
        "with recursive n(i) as (select 1 union all select i + 1 from n) insert into orders (item) select i from n"
    )
    with pytest.raises(StoreUnavailable, match="took longer than"), app.transaction() as connection:
        connection.execute("insert into orders (item) values ('rope')")
        run = note.enqueue("a")
        if busy:
            connection.execute(endless)
        else:
            wait_until(lambda: not _still_open(connection))
            note.enqueue("too late")
    monkeypatch.undo()
    assert orders(app) == []
    assert app.runs() == []
    assert run.id
    assert note.enqueue("b").info().state == "ready", "the writer is free again"


def _still_open(connection):
    try:
        connection.execute("select 1")
    except StoreUnavailable:
        return False
    return True


def test_transactions_inside_transactions_are_parts_of_the_outer_one(app, note):
    with app.transaction() as outer:
        outer.execute("insert into orders (item) values ('rope')")
        with pytest.raises(ZeroDivisionError), app.transaction() as inner:
            inner.execute("insert into orders (item) values ('anchor')")
            note.enqueue("lost")
            raise ZeroDivisionError
        note.enqueue("kept")
    assert orders(app) == ["rope"]
    assert len(app.runs()) == 1


def test_a_foreign_sqlite_connection_is_rejected(app, note):
    for foreign in (sqlite3.connect(":memory:"), apsw.Connection(":memory:")):
        with pytest.raises(ConfigError, match=r"app\.transaction.*file locks"):
            note.options(connection=foreign).enqueue("a")
    assert app.runs() == []


async def test_it_is_refused_in_a_running_loop(app):
    with pytest.raises(BlockingCall, match="to_thread"):
        app.transaction()


def test_on_postgresql_it_is_refused_and_names_the_other_way(postgres_url):
    with Holdfast(postgres_url) as app, pytest.raises(ConfigError, match="connection="):
        app.transaction()


def test_nothing_is_written_after_an_outer_transaction_expired_inside_an_inner_one(app, note, monkeypatch):
    monkeypatch.setattr(sqlite, "MAX_TRANSACTION_S", 0.2)
    with pytest.raises(StoreUnavailable, match="took longer than"):
        with app.transaction() as outer:
            outer.execute("insert into orders (item) values ('before')")
            with pytest.raises(StoreUnavailable):
                with app.transaction() as inner:
                    wait_until(lambda: not _still_open(inner))
                    inner.execute("insert into orders (item) values ('inside')")
            note.enqueue("after")
    monkeypatch.undo()
    assert orders(app) == []
    assert app.runs() == []


@pytest.mark.parametrize("made", ["inside", "before"])
def test_waiting_for_a_result_inside_a_transaction_is_rejected(app, note, made):
    done = note.enqueue("done")
    app.worker().drain(timeout=60)
    run = note.enqueue("before")
    with app.transaction():
        run = note.enqueue("inside") if made == "inside" else run
        with pytest.raises(TaskError, match=f"{run.id} can't finish while this thread holds"):
            run.result(timeout=1)
        with pytest.raises(TaskError, match=f"{run.id} can't finish while this thread holds"):
            list(run.stream())
        assert done.result() == "done", "what has ended can be looked at"
    app.worker().drain(timeout=60)
    assert run.result(timeout=30) == made


ENDINGS = [
    "rollback",
    "commit",
    "end",
    "/* mine */ COMMIT",
    "rollback; begin",
    "insert or rollback into orders values (1, 'x')",
]


@pytest.mark.parametrize("sql", ENDINGS)
def test_a_statement_that_ends_the_transaction_is_noticed_and_nothing_is_kept(app, note, sql):
    def misuse(connection):
        connection.execute("insert into orders (id, item) values (1, 'before')")
        note.enqueue("a")
        with pytest.raises((TaskError, apsw.ConstraintError)):
            connection.execute(sql)
        with pytest.raises(TaskError, match="don't commit or roll back"):
            connection.execute("insert into orders (item) values ('behind')")
        with pytest.raises(TaskError, match="don't commit or roll back"):
            note.options(key="k").enqueue("b")

    with pytest.raises(TaskError, match="don't commit or roll back"), app.transaction() as connection:
        misuse(connection)
    with pytest.raises(ZeroDivisionError), app.transaction() as connection:
        misuse(connection)
        raise ZeroDivisionError
    assert orders(app) == []
    assert app.runs() == []
    note.enqueue("later")
    assert len(app.runs()) == 1, "the connection can be used again"


def test_savepoints_of_the_caller_are_parts_of_the_transaction(app, note):
    with app.transaction() as connection:
        connection.execute("savepoint mine")
        connection.execute("insert into orders (item) values ('taken back')")
        connection.execute("rollback to mine")
        connection.execute("release mine")
        connection.execute("insert into orders (item) values ('kept')")
        note.enqueue("a")
    assert orders(app) == ["kept"]
    assert len(app.runs()) == 1


def test_a_broken_connection_raises_its_own_error(app):
    with pytest.raises(ZeroDivisionError), app.transaction() as connection:
        connection._connection.close()
        raise ZeroDivisionError
