"""The PostgreSQL roles of `holdfast roles`: each can do what it must, and nothing else."""

from __future__ import annotations

import os
import uuid
from urllib.parse import quote, urlencode

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from holdfast import Context, Graph, Holdfast
from holdfast.control import Control
from holdfast.control.maintenance import DatabaseRoles, database_roles
from holdfast.database.dialect import PostgresDialect
from holdfast.database.faults import AccessDenied
from holdfast.database.migrate import table_names
from holdfast.database.statements import Statements, read_sources
from holdfast.errors import ConfigError
from tests.support.hostile_schema import create_hostile_objects

SOURCES = [source for source in read_sources("holdfast.store.sql") if source.only in (None, "postgres")]
NOT_PREPARABLE = {"begin_enqueue", "rollback_enqueue", "release_enqueue"}
ACCESS = {
    "add_token", "list_tokens", "find_token", "has_token", "has_token_row", "touch_token", "revoke_token", "add_login",
    "find_login", "touch_login", "pick_extra_logins", "delete_logins", "count_logins",
}  # fmt: skip
ENQUEUE = {
    "add_keys", "find_keys", "take_expired_keys", "redirect_keys", "add_runs", "add_new_runs", "hold_successors",
    "find_unique_holders", "find_existing",
    "read_identity", "read_turns", "add_nodes", "add_edges", "add_metadata", "add_lanes", "list_lanes",
    "mark_lanes_limited", "add_limits", "add_budgets", "upsert_watcher", "delete_watcher",
}  # fmt: skip
HOLDING = {
    "mark_quarantined", "release_held_runs", "pick_retired_lanes", "mark_lanes_used", "mark_lanes_unused",
    "prune_watchers", "postpone_key_pruning",
}  # fmt: skip
"""What an enqueuer may do besides, because an enqueue writes the same columns: hold runs, mark lanes, keep keys."""
WITHOUT_TABLES = {
    "lock_unique_names", "find_tables", "estimate_total", "read_server_facts", "list_old_snapshots", "list_table_bloat",
    "read_clock",
}  # fmt: skip
PASSWORD = "a password of a test"
ARGS = "the arguments"


def url_as(url: str, user: str) -> str:
    parts = conninfo_to_dict(url) | {"user": user, "password": PASSWORD}
    return f"postgresql:///{parts.pop('dbname')}?{urlencode(parts, safe='/', quote_via=quote)}"


class Users:
    """A database with tables and roles, and one user per role."""

    def __init__(self, url: str, tenants: tuple[str, ...] = (), *, as_of_version_14: bool = False) -> None:
        self.url = self.admin_url = url
        self.prefix = f"t{uuid.uuid4().hex[:12]}"
        self.made: DatabaseRoles = database_roles("holdfast", self.prefix, tenants)
        script = self.made.sql
        if as_of_version_14:
            script = script.replace(">= 150000", ">= 990000")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("grant create on schema public to public")  # the default of PostgreSQL 14
            connection.execute(script)
            for what, role in self.made.roles.items():
                user = self.user(what)
                connection.execute(f'create role "{user}" login password \'{PASSWORD}\' in role "{role}"')
            connection.execute(script)  # again, now that there are tables and users

    def user(self, what: str) -> str:
        return f"{self.made.roles[what]}_user"

    def url_of(self, what: str) -> str:
        return url_as(self.url, self.user(what))

    def connect(self, what: str) -> psycopg.Connection:
        return psycopg.connect(self.url_of(what), autocommit=True)

    def drop(self) -> None:
        """Drop the roles, with their privileges: they belong to the whole server."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            for what, role in self.made.roles.items():
                for name in (self.user(what), role):
                    connection.execute(f'drop owned by "{name}" cascade; drop role "{name}"')


@pytest.fixture(scope="module")
def users(databases):
    url = databases.create("holdfast")
    users = Users(url)
    yield users
    users.drop()
    databases.drop(url)


def allowed_statements(connection: psycopg.Connection) -> set[str]:
    """Return the statements that a user may execute: EXPLAIN checks the privileges."""
    rendered = Statements("holdfast.store.sql", PostgresDialect("holdfast"))
    allowed = set()
    connection.execute("set plan_cache_mode = force_generic_plan; set search_path = pg_catalog")
    for source in SOURCES:
        if source.name in NOT_PREPARABLE:
            continue
        statement = rendered.get(source.name, 10)
        values = f"({', '.join(['null'] * len(statement.parameters))})" if statement.parameters else ""
        connection.execute(f"prepare tested as {statement.sql}")
        try:
            connection.execute(f"explain execute tested {values}")
            allowed.add(source.name)
        except pg.InsufficientPrivilege:
            pass
        connection.execute("deallocate tested")
    return allowed


AUDIT = {"bound_audit", "list_audit"}


def every_statement() -> set[str]:
    return {source.name for source in SOURCES} - NOT_PREPARABLE


def reads_only(name: str) -> bool:
    statement = Statements("holdfast.store.sql", PostgresDialect("holdfast")).get(name, 10)
    return not statement.writes and " for " not in statement.sql.replace(" for ordinality", "").partition("--")[0]


def test_each_role_may_execute_exactly_the_statements_of_its_work(users):
    with users.connect("operate") as connection:
        assert allowed_statements(connection) == every_statement()
    with users.connect("work") as connection:
        denied = every_statement() - allowed_statements(connection)
        assert denied == ACCESS | {"pause_names", "pause_queues", "resume_queues"}
    with users.connect("enqueue") as connection:
        allowed = allowed_statements(connection)
        assert allowed >= ENQUEUE
        assert {name for name in allowed if not reads_only(name)} - WITHOUT_TABLES <= ENQUEUE | HOLDING
    with users.connect("read") as connection:
        allowed = allowed_statements(connection)
    assert allowed == {name for name in every_statement() - ACCESS - AUDIT if reads_only(name)} | WITHOUT_TABLES


@pytest.mark.parametrize("what", ["work", "operate", "enqueue", "read"])
def test_only_the_role_of_migrations_changes_the_schema(users, what):
    with users.connect(what) as connection:
        for statement in (
            "create table holdfast.mine (n int)",
            "create function holdfast.now() returns int language sql as 'select 1'",
            "alter table holdfast.runs add column mine int",
            "create trigger mine after insert on holdfast.runs execute function suppress_redundant_updates_trigger()",
            "create index on holdfast.runs (args)",
            "alter table holdfast.runs disable row level security",
            "drop table holdfast.history",
            "truncate holdfast.runs",
            "update holdfast.meta set value = '99'",
            "drop schema holdfast cascade",
        ):
            with pytest.raises(pg.InsufficientPrivilege):
                connection.execute(statement)


def test_every_table_has_a_role_that_uses_it(users):
    """A new table fails here until the roles name it."""
    with users.connect("operate") as connection:
        for table in table_names():
            connection.execute(f"select 1 from holdfast.{table}")


@pytest.mark.no_tables
def test_the_role_of_migrations_creates_the_tables(postgres_url):
    users = Users(postgres_url)
    try:
        with pytest.raises(AccessDenied, match="permission denied"):
            Holdfast(users.url_of("work")).store.prepare()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f'alter role "{users.user("migrate")}" set role = "{users.made.roles["migrate"]}"')
        with Holdfast(users.url_of("migrate")) as app:
            assert app.store.prepare()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(users.made.sql)
            owners = connection.execute(
                "select distinct pg_get_userbyid(relowner) from pg_class where relnamespace = 'holdfast'::regnamespace"
            ).fetchall()
        assert owners == [(users.made.roles["migrate"],)]
        with Holdfast(users.url_of("work")) as app:
            app.store.prepare()
    finally:
        users.drop()


# Apps and workers


def tasks_of(app: Holdfast) -> None:
    app.limit("few", concurrency=2)
    app.queue("fair", fair=True)

    @app.task(name="job", limits=["few"])
    def job(text: str) -> str:
        return text

    @app.task(name="function")
    async def function(ctx: Context, text: str) -> str:
        await ctx.sleep(0.001)
        return await ctx.call(job, text) + str(await ctx.wait_for("go"))


def graph_of(app: Holdfast, tenant: str | None = None) -> Graph:
    graph = Graph("two", key="k", tenant=tenant)
    job = app.registry.get("job")
    graph.add(job, graph.add(job, ARGS, name="first").output, name="second")
    return graph


def enqueue_all(app: Holdfast, tenant: str | None = None) -> list:
    """Enqueue in every way there is."""
    job, function = app.registry.get("job"), app.registry.get("function")
    each = job.options(tenant=tenant)
    runs = [
        each.enqueue(ARGS),
        each.options(key="k").enqueue(ARGS),
        each.options(unique="u").enqueue(ARGS),
        each.options(queue="fair", delay=0.001).enqueue(ARGS),
        function.options(tenant=tenant, queue="fair").enqueue(ARGS),
        app.submit(graph_of(app, tenant)),
    ]
    assert each.options(key="k").enqueue(ARGS).id == runs[1].id
    assert each.options(unique="u", key="other").enqueue(ARGS).id == runs[2].id
    return runs


def test_apps_enqueue_workers_work_and_people_read(users):
    with (
        Holdfast(users.url_of("enqueue")) as web,
        Holdfast(users.url_of("work")) as worker,
        Holdfast(users.url_of("read")) as person,
        Holdfast(users.url_of("operate")) as operator,
    ):
        for app in (web, worker, person, operator):
            tasks_of(app)
        runs = enqueue_all(web)
        with psycopg.connect(users.url_of("enqueue")) as connection:
            runs.append(web.registry.get("job").options(connection=connection, key="own").enqueue(ARGS))
        with worker.worker():
            worker.emit("go", "!")
            results = [worker.get_run(run.id).result(timeout=30) for run in runs]
        assert results == [*[ARGS] * 4, f"{ARGS}!", {"first": ARGS, "second": ARGS}, ARGS]
        worker.store.stats.aggregate()
        worker.store.retention.prune()
        worker.store.lane_collector.collect()

        assert person.get_run(runs[0].id).result(timeout=30) == ARGS
        assert len(person.runs()) == 10
        assert person.get_run(runs[5].id).history()
        for use in (
            lambda: person.registry.get("job").enqueue(ARGS),
            lambda: person.get_run(runs[0].id).retry(),
            runs[0].cancel,
            lambda: web.emit("go", "!"),
            lambda: runs[1].result(timeout=30),
            lambda: Control(worker.store, worker.registry).tokens.list(),
            lambda: Control(person.store, person.registry).tokens.list(),
            lambda: Control(worker.store, worker.registry).queues.pause("default"),
        ):
            with pytest.raises(AccessDenied, match=r"permission denied .* `holdfast roles`"):
                use()
        control = Control(operator.store, operator.registry)
        control.tokens.create(["viewer"], None, "a test")
        control.queues.pause("default")
        control.queues.resume("default")
        control.doctor.examine()
        Control(person.store, person.registry).doctor.examine()


def test_an_enqueuer_reads_no_payload_and_writes_nothing_but_new_runs(users):
    with users.connect("enqueue") as connection:
        for statement in (
            "select args from holdfast.runs",
            "select * from holdfast.shown_runs",
            "select * from holdfast.readable_runs",
            "select result, error from holdfast.runs",
            "update holdfast.runs set state = 'ready'",
            "update holdfast.runs set args = '[]'",
            "delete from holdfast.runs",
            "delete from holdfast.keys",
            "update holdfast.workers set lease_until = 0",
            "insert into holdfast.workers (session, name, lease_until, started_at, info) values ('s', 'n', 9, 0, '')",
            "insert into holdfast.runs (session, id, lane) values ('s', gen_random_uuid(), 1)",
            "insert into holdfast.history (run, n, at, kind, attempt) values (gen_random_uuid(), 1, 0, 'done', 1)",
            "select payload from holdfast.messages",
            "select * from holdfast.tokens",
            "select * from holdfast.checkpoints",
        ):
            with pytest.raises(pg.InsufficientPrivilege):
                connection.execute(statement)
        new = "insert into holdfast.runs (id, lane, priority, state, max_crashes, args, keep, created_at)"
        for state in ("running", "done", "failed"):
            with pytest.raises(pg.CheckViolation):
                connection.execute(f"{new} values (gen_random_uuid(), 1, 0, '{state}', 1, '', 0, 0)")


@pytest.mark.no_tables
def test_the_script_works_for_the_owner_of_a_database_and_calls_no_hostile_function(postgres_url):
    """PostgreSQL 14 lets every role create objects in `public`, and many administrators are no superusers."""
    admin = f"admin_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create role {admin} login createrole password '{PASSWORD}'")
        connection.execute(f"alter database {connection.info.dbname} owner to {admin}")
    with psycopg.connect(postgres_url) as connection:
        create_hostile_objects(connection, ["format", "to_regclass", "current_setting", "starts_with", "jsonb_exists"])
    owned = url_as(postgres_url, admin)
    users = Users(owned, tenants=("acme",))
    users.admin_url = postgres_url
    with Holdfast(owned) as app:
        app.store.prepare()
    with psycopg.connect(owned, autocommit=True) as connection:
        connection.execute(users.made.sql)
    try:
        with Holdfast(users.url_of("work")) as app:
            tasks_of(app)
            with app.worker():
                assert app.registry.get("job").enqueue(ARGS).result(timeout=30) == ARGS
        with Holdfast(users.url_of("tenant acme")) as app:
            tasks_of(app)
            enqueue_all(app, "acme")
    finally:
        users.drop()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"reassign owned by {admin} to current_user; drop owned by {admin}; drop role {admin}")


# Tenants

HOSTILE_TENANT = """o'neill \\ "x", $$ $1 {schema} :now %s"""


@pytest.fixture
def shared(postgres_url, request):
    """A database that tenants share, as it is on PostgreSQL 15 and later, or as on 14."""
    users = Users(postgres_url, ("acme", "globex", HOSTILE_TENANT), as_of_version_14=request.param == 14)
    yield users
    users.drop()


@pytest.mark.parametrize("shared", [14, 15], indirect=True)
def test_a_tenant_creates_and_reads_its_own_runs_only(shared, request):
    modern = request.node.callspec.params["shared"] == 15
    apps = {tenant: Holdfast(shared.url_of(f"tenant {tenant}")) for tenant in ("acme", "globex", HOSTILE_TENANT)}
    with Holdfast(shared.url_of("work")) as worker:
        tasks_of(worker)
        runs = {}
        for tenant, app in apps.items():
            tasks_of(app)
            runs[tenant] = enqueue_all(app, tenant)  # the same keys and unique names
        enqueue_all(worker, None)
        with worker.worker():
            for tenant in (None, *apps):
                worker.emit("go", "!", tenant=tenant)
            for mine in runs.values():
                assert [run.result(timeout=30) for run in mine][4:] == [f"{ARGS}!", {"first": ARGS, "second": ARGS}]
    for tenant, app in apps.items():
        for other, theirs in runs.items():
            with shared.connect(f"tenant {tenant}") as connection:
                seen = connection.execute("select distinct tenant from holdfast.runs").fetchall()
                assert seen == [(tenant,)]
                keys = connection.execute("select count(*) from holdfast.keys").fetchone()
                assert keys == (3,)
                for table in ("history", "checkpoints", "waits", "messages", "chunks"):
                    strange = f"select run from holdfast.{table} except select id from holdfast.runs"
                    assert connection.execute(strange).fetchall() == []
                assert connection.execute("select count(*) from holdfast.edges").fetchone() == (1,)
                assert connection.execute("select count(*) from holdfast.events").fetchone() == (1,)
            if modern and other == tenant:
                assert {run.tenant for run in app.runs()} == {tenant}
                assert app.get_run(theirs[0].id).history()
        if not modern:
            with pytest.raises(AccessDenied):
                app.runs()
        with pytest.raises(AccessDenied, match="row-level security"):
            app.registry.get("job").options(tenant="acme" if tenant != "acme" else "globex").enqueue(ARGS)
        with pytest.raises(AccessDenied, match="row-level security"):
            app.registry.get("job").enqueue(ARGS)
        app.close()


NEW = "insert into holdfast.runs (id, lane, priority, state, max_crashes, args, keep, created_at, tenant{})"
ROW = "values (gen_random_uuid(), 1, 0, 'waiting', 1, '', 0, 0, 'acme'{})"


@pytest.mark.parametrize("shared", [14, 15], indirect=True)
def test_a_hostile_tenant_reaches_no_other_tenant(shared):
    with Holdfast(shared.url_of("tenant globex")) as app:
        tasks_of(app)
        theirs = enqueue_all(app, "globex")
    graph = theirs[-1].id
    other = shared.made.roles["tenant globex"]
    with shared.connect("tenant acme") as connection:
        for statement in (
            NEW.format(", unique_name") + ROW.format(""", '["globex","job","u"]'"""),
            NEW.format(", parent") + ROW.format(f", '{graph}'"),
            NEW.format(", root") + ROW.format(f", '{graph}'"),
            NEW.format(", plan") + ROW.format(""", '{"gr\\u0061ph": {"nodes": [{"tenant": "globex"}]}}'"""),
            *(NEW.format(", turn") + ROW.format(f", {turn}") for turn in (-(2**63), 2**63 - 1)),
            *(
                NEW.format(f", {column}") + ROW.format(f", {time}")
                for column in ("due_at", "deadline", "lifetime", "keep_failed", "start_by")
                for time in (-(2**63), 2**63 - 1)
            ),
            (
                "insert into holdfast.keys (scope, key, digest, run, created_at)"
                """ values ('["globex","job"]', 'new', '', gen_random_uuid(), 0)"""
            ),
            f"insert into holdfast.edges (needs, node) values ('{graph}', gen_random_uuid())",
            "delete from holdfast.runs",
            "update holdfast.runs set tenant = 'globex'",
            "alter table holdfast.runs disable row level security",
            f'alter policy "{shared.made.roles["tenant acme"]}" on holdfast.runs using (true)',
            "create policy mine on holdfast.runs using (true)",
            f'set role "{other}"',
            f'set session authorization "{other}"',
            "create function holdfast.run_has_tenant(uuid, text) returns boolean language sql as 'select true'",
            (
                "create or replace function holdfast.run_has_tenant(run uuid, tenant text) returns boolean language sql"
                " as 'select true'"
            ),
            "select * from holdfast.tokens",
            "select * from holdfast.readable_tallies",
        ):
            with pytest.raises(pg.InsufficientPrivilege):
                connection.execute(statement)
        connection.execute("set row_security = off")
        with pytest.raises(pg.InsufficientPrivilege, match="row-level security"):
            connection.execute("select * from holdfast.runs")
        connection.execute("set row_security = on")
        # Functions in errors and conditions see only rows that the policies let through.
        connection.execute(
            "create function public.leak(text) returns boolean language plpgsql cost 0.0001 as"
            " 'begin raise exception ''saw %'', $1; end'"
        )
        assert connection.execute("select id from holdfast.runs where public.leak(args)").fetchall() == []
        assert connection.execute("update holdfast.runs set held = 'full'").rowcount == 0
        assert connection.execute("update holdfast.keys set run = gen_random_uuid()").rowcount == 0
    with psycopg.connect(shared.url) as connection:
        assert connection.execute("select count(*) from holdfast.runs where tenant <> 'globex'").fetchone() == (0,)


def test_names_of_roles_are_valid_and_differ():
    tenants = ["acme", "Acme", "acme ", "0123456789abcdef", "x" * 200, HOSTILE_TENANT]
    made = database_roles("Shop", None, tenants)
    assert made.roles["read"] == "shop_read"
    assert len(set(made.roles.values())) == 5 + len(tenants)
    assert max(len(os.fsencode(name)) for name in made.roles.values()) < 64
    for schema, prefix in (("holdfast", 'x"; drop'), ("holdfast", ""), ("holdfast", "x" * 31), ("x" * 50, None)):
        with pytest.raises(ConfigError, match="prefix"):
            database_roles(schema, prefix)
    for tenant in ("", "a\0b", "$holdfast$"):
        with pytest.raises(ConfigError, match="tenant"):
            database_roles("holdfast", None, [tenant])


def test_the_enqueue_function_needs_no_more_than_the_role_of_enqueuers(users):
    call = "select holdfast.enqueue('shop.sql', '[1]', key => 'k1', unique_name => 'u1', metadata => '{\"a\": 1}')"
    for what in ("enqueue", "work", "operate"):
        with users.connect(what) as connection:
            assert connection.execute(call).fetchone()[0] is not None
    with users.connect("read") as connection, pytest.raises(pg.InsufficientPrivilege):
        connection.execute(call)


@pytest.mark.parametrize("shared", [15], indirect=True)
def test_a_tenant_enqueues_from_sql_only_for_itself(shared):
    with shared.connect("tenant acme") as connection:
        assert connection.execute("select holdfast.enqueue('shop.sql', tenant => 'acme', key => 'k')").fetchone()[0]
        with pytest.raises(pg.InsufficientPrivilege):
            connection.execute("select holdfast.enqueue('shop.sql', tenant => 'globex')")
