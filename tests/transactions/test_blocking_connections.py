"""Enqueue in the transaction of a caller's blocking connection, of every library that we take."""

from __future__ import annotations

import threading

import psycopg
import pytest
import sqlalchemy

from holdfast import Context, Holdfast, KeyConflict
from holdfast.errors import ConfigError
from tests.support.wait_until import wait_until
from tests.transactions.libraries import THREADED, Django, RolledBack, SqlAlchemyConnection


def test_a_committed_enqueue_runs(app, note, library):
    with library.transaction() as connection:
        run = note.options(connection=connection).enqueue("a")
        assert app.runs() == [], "others must not see it before the commit"
    assert app.worker().drain(timeout=60) == 1
    assert run.result(timeout=30) == "a"


def test_a_rolled_back_enqueue_does_not_exist(app, note, library):
    with pytest.raises(RolledBack), library.transaction() as connection:
        note.options(connection=connection).enqueue("a")
        note.options(connection=connection, key="k").enqueue("b")
        note.options(connection=connection, unique="u").enqueue("c")
        note.options(connection=connection).enqueue_many([("d",), ("e",)])
        raise RolledBack
    assert app.runs() == []
    with library.transaction() as connection:  # nothing of it is left: no key, no unique name
        note.options(connection=connection, key="k").enqueue("other")
        note.options(connection=connection, unique="u").enqueue("c")
    assert len(app.runs()) == 2


def test_an_event_is_emitted_with_the_commit_and_wakes_its_waiter(app, library):
    @app.task(name="waits")
    async def waits(ctx: Context) -> str:
        return await ctx.wait_for("paid")

    run = waits.enqueue()
    app.worker().drain(timeout=60)
    with pytest.raises(RolledBack), library.transaction() as connection:
        app.emit("paid", "never", connection=connection)
        raise RolledBack
    app.worker().drain(timeout=60)
    assert run.info().state == "waiting"
    with library.transaction() as connection:
        app.emit("paid", "order 17", connection=connection)
        assert run.info().state == "waiting", "others must not see it before the commit"
    app.worker().drain(timeout=60)
    assert run.result(timeout=30) == "order 17"


def test_keys_unique_names_delays_and_many_work_there(app, note, library):
    with library.transaction() as connection:
        first = note.options(connection=connection, key="k").enqueue("a")
        again = note.options(connection=connection, key="k").enqueue("a")
        alone = note.options(connection=connection, unique="u").enqueue("b")
        other = note.options(connection=connection, unique="u").enqueue("c")
        later = note.options(connection=connection, delay=3600).enqueue("d")
        quiet = note.options(connection=connection, debounce="q", delay=3600).enqueue("e")
        newer = note.options(connection=connection, debounce="q", delay=3600).enqueue("f")
        many = note.options(connection=connection).enqueue_many([(f"{n}",) for n in range(1200)])
    assert first == again
    assert alone == other
    assert quiet == newer
    assert newer.info().args == {"text": "f"}
    assert later.info().state == "scheduled"
    assert len({run.id for run in many}) == 1200
    assert many[-1].info().state == "ready"


def test_a_key_conflict_leaves_the_callers_transaction_whole(app, note, library):
    note.options(key="k").enqueue("a")
    with library.transaction() as connection:
        before = note.options(connection=connection).enqueue("before")
        with pytest.raises(KeyConflict):
            app.enqueue_many(
                [
                    note.options(connection=connection, key="new").request("b"),
                    note.options(connection=connection, key="k").request("other"),
                ]
            )
        after = note.options(connection=connection).enqueue("after")
    assert {info.id for info in app.runs()} >= {before.id, after.id}
    assert len(app.runs()) == 3
    assert note.options(key="new").enqueue("anything").info().state == "ready", "the other key must be free"


@pytest.mark.parametrize("kind", THREADED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("option", ["key", "unique"])
def test_sixteen_transactions_of_which_half_roll_back_make_one_run(app, note, postgres_url, kind, option):
    library = kind(postgres_url)
    together = threading.Barrier(16)
    committed, troubles = [], []

    def one(number: int) -> None:
        try:
            together.wait()
            with library.transaction() as connection:
                run = note.options(connection=connection, **{option: "one"}).enqueue("a")
                if number % 2:
                    raise RolledBack
            committed.append(run.id)
        except RolledBack:
            pass
        except Exception as error:
            troubles.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    library.close()
    assert troubles == []
    assert len(committed) == 8
    assert len(set(committed)) == 1
    assert [info.id for info in app.runs()] == committed[:1]


def test_a_winner_that_rolls_back_lets_a_waiter_insert(app, note, postgres_url):
    with psycopg.connect(postgres_url) as first, psycopg.connect(postgres_url) as second:
        lost = note.options(connection=first, key="k").enqueue("a")
        got = []
        waiter = threading.Thread(target=lambda: got.append(note.options(connection=second, key="k").enqueue("a")))
        waiter.start()

        waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        with psycopg.connect(postgres_url, autocommit=True) as watcher:
            wait_until(lambda: watcher.execute(waiting).fetchone(), what="the second waits for the first")
        first.rollback()
        waiter.join(30)
        second.commit()
    assert got[0] != lost
    assert [info.id for info in app.runs()] == [got[0].id]


def test_a_failed_transaction_is_refused_with_what_to_do(note, postgres_url):
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("nonsense")
        with pytest.raises(ConfigError, match="has failed; roll it back"):
            note.options(connection=connection).enqueue("a")
        connection.rollback()


def test_a_closed_connection_is_refused(note, postgres_url):
    connection = psycopg.connect(postgres_url)
    connection.close()
    with pytest.raises(ConfigError, match="is closed"):
        note.options(connection=connection).enqueue("a")
    engine = SqlAlchemyConnection(postgres_url).engine
    with engine.connect() as closed:
        pass
    with pytest.raises(ConfigError, match="is closed"):
        note.options(connection=closed).enqueue("a")
    engine.dispose()


def test_a_connection_without_a_transaction_is_refused(app, note, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(ConfigError, match="autocommit"):
            note.options(connection=connection).enqueue("a")
        with connection.transaction():
            note.options(connection=connection).enqueue("b")
    django_connection = Django(postgres_url)
    with pytest.raises(ConfigError, match=r"transaction\.atomic"):
        note.options(connection="django").enqueue("a")
    django_connection.close()
    engine = SqlAlchemyConnection(postgres_url).engine
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as autocommit:
        with pytest.raises(ConfigError, match="AUTOCOMMIT"):
            note.options(connection=autocommit).enqueue("a")
    engine.dispose()
    assert len(app.runs()) == 1


def test_a_connection_to_another_database_is_refused(app, note, postgres_url, postgres_server_url):
    with psycopg.connect(postgres_server_url) as elsewhere:
        with pytest.raises(ConfigError, match="same database and schema"):
            note.options(connection=elsewhere).enqueue("a")
        assert elsewhere.execute("select 1").fetchone() == (1,), "the caller's transaction goes on"


def test_a_connection_to_another_apps_tables_is_refused(app, note, other_url):
    with Holdfast(other_url) as other:
        other.store.prepare()
    with psycopg.connect(other_url) as elsewhere, pytest.raises(ConfigError, match="tables of its own"):
        note.options(connection=elsewhere).enqueue("a")


def test_two_connections_in_one_call_are_refused(app, note, postgres_url):
    with psycopg.connect(postgres_url) as one, psycopg.connect(postgres_url) as two:
        requests = [note.options(connection=each).request("a") for each in (one, two)]
        with pytest.raises(ConfigError, match="same connection"):
            app.enqueue_many(requests)


@pytest.mark.parametrize("thing", [5, object(), "postgres"])
def test_what_is_no_connection_is_refused_with_what_is_taken(note, thing):
    with pytest.raises(ConfigError, match=r"accepts a psycopg connection.*asyncpg.*SQLAlchemy.*django"):
        note.options(connection=thing).enqueue("a")


def test_a_sqlalchemy_connection_to_something_else_is_refused(note):
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        with pytest.raises(ConfigError, match=r"app\.transaction"):
            note.options(connection=connection).enqueue("a")


def test_a_unique_successor_waits_also_when_the_callers_transaction_sees_only_its_beginning(app, postgres_url):
    released, began = threading.Event(), []

    @app.task(name="work")
    def work(n: int) -> int:
        began.append(n)
        if n == 1:
            released.wait(60)
        return n

    first = work.options(unique="one").enqueue(1)
    with app.worker(lease=1.5), psycopg.connect(postgres_url) as connection:
        wait_until(lambda: began)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select 1 from holdfast.runs")
        first.cancel()
        second = work.options(unique="one", connection=connection).enqueue(2)
        connection.commit()
        assert second != first
        wait_until(lambda: "cancelled" in [entry.kind for entry in first.history()])
        assert second.info().state == "ready"
        assert began == [1]
        released.set()
        assert second.result(timeout=60) == 2


def test_a_callers_open_transaction_does_not_stop_the_worker_of_the_same_process(app, note, postgres_url):
    with app.worker(), psycopg.connect(postgres_url) as connection:
        note.options(connection=connection, key="k").enqueue("a")
        rival = threading.Thread(target=lambda: note.options(key="k").enqueue("a"))
        rival.start()
        with Holdfast(postgres_url) as other:
            late = other.remote("note").options(delay=0.05).enqueue("promoted meanwhile")
            assert late.result(timeout=60) == "promoted meanwhile"
        connection.commit()
        rival.join(60)
    assert not rival.is_alive()
