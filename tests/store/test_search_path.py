"""A role that may create objects in `public` can't make Holdfast call them, whatever it overloads."""

from __future__ import annotations

import re

import psycopg
import pytest

from holdfast import Context, Holdfast
from holdfast.control import Control
from holdfast.database.dialect import PostgresDialect
from holdfast.database.faults import AccessDenied
from holdfast.database.postgres import PostgresDatabase
from holdfast.database.statements import Statements, read_sources
from tests.support import bouncer
from tests.support.hostile_schema import create_hostile_objects

PURPOSES = ["client", "claim", "commit", "heartbeat", "housekeeping", "read", "listener", "ends"]
STATEMENTS = [source for source in read_sources("holdfast.store.sql") if source.only in (None, "postgres")]
RESTRICTED = "pg_catalog,pg_temp"
CALL = re.compile(r"pg_catalog\.(\w+)\(")
NOT_PREPARABLE = {"begin_enqueue", "rollback_enqueue", "release_enqueue"}


def rendered() -> Statements:
    return Statements("holdfast.store.sql", PostgresDialect("holdfast"))


def called_functions() -> set[str]:
    """Return the built-in functions that statements call."""
    statements = rendered()
    return {name for source in STATEMENTS for name in CALL.findall(statements.get(source.name, 10).sql)}


@pytest.fixture(scope="module")
def hostile_url(databases):
    url = databases.create("holdfast")
    with psycopg.connect(url) as connection:
        create_hostile_objects(connection, called_functions())
    yield url
    databases.drop(url)


def use(app: Holdfast) -> None:
    """Use most of the store: jobs, steps, waits, keys, limits, checks and housekeeping."""
    app.limit("few", concurrency=1)

    @app.task(name="job", limits=["few"])
    def job(n: int) -> int:
        return n

    @app.task(name="function")
    async def function(ctx: Context, n: int) -> str:
        children = [await ctx.call(job, n) for _ in range(2)]
        await ctx.sleep(0.001)
        return f"{children} {await ctx.wait_for('go')}"

    runs = [
        job.enqueue(1),
        job.options(key="k").enqueue(2),
        job.options(unique="u").enqueue(3),
        job.options(delay=0.001).enqueue(4),
    ]
    waiting = function.enqueue(5)
    with app.worker():
        assert [run.result(timeout=30) for run in runs] == [1, 2, 3, 4]
        app.emit("go", "now")
        assert waiting.result(timeout=30) == "[5, 5] now"
    control = Control(app.store, app.registry)
    control.doctor.examine()
    assert len(app.runs()) >= 7
    app.store.stats.aggregate()
    app.store.retention.prune()


def test_no_statement_resolves_to_an_overloaded_operator_or_function(hostile_url):
    """Statements on a caller's connection, and single ones through a pooler, run with the user's own `search_path`.

    The planner finds the functions that a statement calls, and the executor checks that the role may call them.
    """
    statements = rendered()
    role = "holdfast_without_hostile_functions"
    with psycopg.connect(hostile_url, prepare_threshold=None) as connection:
        connection.execute(f"create role {role}")
        connection.execute(
            f"grant usage on schema holdfast to {role}; grant all on all tables in schema holdfast to {role}"
        )
        connection.execute(f"set role {role}; set search_path = public; set plan_cache_mode = force_generic_plan")
        for source in STATEMENTS:
            if source.name in NOT_PREPARABLE:
                continue
            statement = statements.get(source.name, 10)
            values = f"({', '.join(['null'] * len(statement.parameters))})" if statement.parameters else ""
            connection.execute(f"prepare tested as {statement.sql}")
            connection.execute(f"explain execute tested {values}")  # raises if it calls a hostile function
            connection.execute("deallocate tested")
        connection.rollback()


def test_the_app_and_its_worker_call_no_hostile_function(hostile_url):
    with Holdfast(hostile_url) as app:
        use(app)


@pytest.mark.parametrize("path", ["public", "public, pg_catalog"])
def test_every_connection_sees_only_built_in_objects(postgres_url, path):
    """Also if the role or the URL set another path. SQL of tasks keeps the path that its author expects."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"alter database {connection.info.dbname} set search_path = {path}")
    for url in (postgres_url, f"{postgres_url}&options=-csearch_path%3Dpublic"):
        database = PostgresDatabase(url, "holdfast")
        for purpose in PURPOSES:
            opened = database.connect(purpose, 20)
            assert opened._psycopg.execute("show search_path").fetchone() == (RESTRICTED,), purpose
            opened.close()
        opened = database.connect("transaction-1", 20)
        assert "public" in opened._psycopg.execute("show search_path").fetchone()[0]
        opened.close()
        database.close()


@pytest.mark.no_tables
def test_views_created_by_a_migration_contain_no_hostile_operator(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        create_hostile_objects(connection)
    with Holdfast(postgres_url) as app:
        app.store.prepare()
    with psycopg.connect(postgres_url) as connection:
        query = """select count(*) from pg_depend d where d.refobjid in (
            select oid from pg_operator where oprnamespace = 'public'::regnamespace
            union all select oid from pg_proc where pronamespace = 'public'::regnamespace
        ) and d.classid not in ('pg_operator'::regclass, 'pg_proc'::regclass)"""
        assert connection.execute(query).fetchone() == (0,)


def test_an_enqueue_on_the_callers_connection_keeps_its_search_path(hostile_url):
    with Holdfast(hostile_url) as app, psycopg.connect(hostile_url) as connection:
        task = app.remote("job").options(tags=["caller"])
        connection.execute("set local search_path = public")
        task.options(connection=connection, key="caller").enqueue(1)
        task.options(connection=connection, key="caller").enqueue(1)
        task.options(connection=connection, unique="caller").enqueue(2)
        task.options(connection=connection, unique="caller").enqueue(2)
        task.options(connection=connection, delay=5).enqueue_many([(3,), (4,)])
        assert connection.execute("show search_path").fetchone() == ("public",)
        connection.commit()
        assert len(app.runs(tag="caller")) == 4


@pytest.mark.skipif(bouncer.program() is None, reason="pgbouncer isn't installed: apt-get install pgbouncer")
class TestPgbouncer:
    """Behind pgbouncer in transaction mode there are no startup options, and settings of a session reach others."""

    def test_the_app_and_its_worker_call_no_hostile_function(self, hostile_url):
        with bouncer.bouncer(hostile_url) as through, Holdfast(through) as app:
            use(app)
            with psycopg.connect(through, autocommit=True) as other:
                assert "public" in other.execute("show search_path").fetchone()[0], "the setting reached another client"

    def test_transactions_see_only_built_in_objects(self, postgres_url):
        with bouncer.bouncer(postgres_url) as through:
            database = PostgresDatabase(through, "holdfast")
            opened = database.connect("client", 20)
            with opened.transaction():
                assert opened._psycopg.execute("show search_path").fetchone() == ("pg_catalog, pg_temp",)
            opened.close()

    def test_a_path_that_hides_built_in_functions_is_refused(self, postgres_url):
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"alter database {connection.info.dbname} set search_path = public, pg_catalog")
        with bouncer.bouncer(postgres_url) as through, pytest.raises(AccessDenied, match="before pg_catalog"):
            PostgresDatabase(through, "holdfast").connect("client", 20)
