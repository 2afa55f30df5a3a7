"""How the hot statements find their rows: by an index, whatever the planner knows or believes about the tables.

50,000 runs of mixed states, with all that belongs to them; with true statistics, with none, and with stale ones that
know only an empty table; with generic and with custom plans. EXPLAIN of the statements as they are rendered, with real
parameters. What they may not do is walk: read a whole table, or an index without saying from where to where.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, closing

import apsw
import msgspec
import psycopg
import pytest

from holdfast.database import Statements
from holdfast.database.statements import Statement
from holdfast.store.claims import LaneCursor, ScanRange
from holdfast.store.commands import NewStepCheckpoint
from holdfast.store.module import json_rows
from holdfast.testing.server import create_database, database_of, drop_database
from tests.support.plans import HOT, TABLES, VALUES, fill
from tests.support.store_harness import StoreHarness, end_of

ONLY_POSTGRES = {"add_new_runs", "lock_expected_runs", "expect_unrecorded"}
ONLY_SQLITE = {"pick_claimable", "read_admitted", "add_end_history", "find_running_attempts"}
SIZED = {
    "claim", "pick_limited", "list_failed_tries", "list_history_outline", "list_step_outline", "list_graph_outputs",
    "pick_expired", "delete_descendants", "tag_lists", "scan_runs", "scan_unsuccessful", "oldest_runs",
    "oldest_finished", "last_due", "next_due", "aggregate_last_ended", "aggregate_ends_of_tenant", "long_waits",
} | {name for name in HOT if name.startswith(("newest_", "some_"))}  # fmt: skip
# What may compare every row with every other when statistics are stale: their batches are small, or rare.
COMPARING = {
    "find_keys", "redirect_keys", "find_joined_calls", "return_unread_messages", "return_messages",
    "resolve_child_waits", "filter_runs", "count_matching_runs",
}  # fmt: skip
BEGINNING = ("some_", "long_waits")
"""Statements that read the first entries of an index, in no particular order."""
SMALL_TABLES = {"workers", "watchers", "queues", "lanes", "limit_settings"}
# Indexes of rows that are few: as many as are held, or as events have waiters left, or counters that are waited for.
SMALL_INDEXES = {"holdfast_runs_owned", "holdfast_runs_held", "holdfast_events_more", "holdfast_limits_look"}


@pytest.fixture(scope="module")
def postgres(postgres_server_url):
    """The table, never analyzed: autovacuum is off for it."""
    url = create_database(postgres_server_url)
    harness = StoreHarness(url)
    for table in TABLES:
        harness.sql(f"alter table {{schema}}{table} set (autovacuum_enabled = off)")
    fill(harness)
    yield harness
    harness.close()
    drop_database(postgres_server_url, database_of(url))


@pytest.fixture(scope="module", params=["none", "true", "of an empty table"])
def believing(postgres, request):
    """A connection with what the planner believes, inside a transaction that is rolled back. Not all of it is: analyze
    leaves the sizes of tables behind, so what comes before any analyze comes first."""
    with psycopg.connect(postgres.url, cursor_factory=psycopg.RawCursor) as connection:
        tables = [f"holdfast.{table}" for table in TABLES]
        if request.param == "true":
            connection.execute(f"analyze {', '.join(tables)}")
        elif request.param == "of an empty table":
            for table in tables:
                connection.execute(f"create table aside as select * from {table}")
                connection.execute(f"delete from {table}")
                connection.execute(f"analyze {table}")
                columns = ", ".join(f'"{name}"' for (name,) in connection.execute(
                    "select attname from pg_attribute where attrelid = cast($1 as regclass) and attnum > 0", [table]
                ))  # fmt: skip
                connection.execute(
                    f"insert into {table} ({columns}) overriding system value select {columns} from aside"
                )
                connection.execute("drop table aside")
        connection.execute("set local jit = off")
        yield connection
        connection.rollback()


@pytest.fixture
def statistics(believing):
    """The same connection, rolled back after each test."""
    with believing.transaction(force_rollback=True):
        yield believing


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_hot_statements_on_postgres_find_their_rows_by_an_index(postgres, statistics, mode):
    statistics.execute(f"set local plan_cache_mode = {mode}")
    statements = Statements("holdfast.store.sql", postgres.store.database.dialect)
    wrong = {}
    for name, (own, index) in HOT.items():
        if name in ONLY_SQLITE:
            continue
        statement = statements.get(name, 64 if name in SIZED else None)
        plan = explain(statistics, statement, VALUES | own)
        nodes = list(walk(plan))
        indexes = {node.get("Index Name") for node in nodes}
        walks = [node for node in nodes if walks_on_postgres(node) and not begins_only(name, node, index)]
        if name not in COMPARING:
            walks += [node for node in nodes if compares_all_on_postgres(node)]
        if walks or (index and index not in indexes):
            wrong[name] = [(walk["Node Type"], walk.get("Index Name")) for walk in walks] or indexes
    assert wrong == {}


def explain(connection, statement, values, options=""):
    given = ", ".join(literal(values[parameter]) for parameter in statement.parameters)
    connection.execute(f"prepare p as {statement.sql}")
    call = f"execute p({given})" if given else "execute p"
    (plan,) = connection.execute(f"explain ({options} format json) {call}").fetchone()
    connection.execute("deallocate p")
    return (plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"]


def walks_on_postgres(node):
    """Return whether a node scans. The first row of an index, as for min(), is no scan."""
    if node["Node Type"] == "Seq Scan":
        return node["Relation Name"] not in SMALL_TABLES
    return (
        not node.get("first only")
        and node["Node Type"] in ("Index Scan", "Index Only Scan", "Bitmap Index Scan")
        and "Index Cond" not in node
        and node["Index Name"] not in SMALL_INDEXES
    )


def begins_only(name, node, index):
    """Return whether it reads the first entries of an index that has only matching rows."""
    return name.startswith(BEGINNING) and node.get("Index Name") == index


def compares_all_on_postgres(node):
    """Return whether it compares every row of a table with every row of a batch, which is quadratic."""
    if node["Node Type"] != "Nested Loop" or "Join Filter" not in node:
        return False
    below = [each["Node Type"] for child in node["Plans"] for each in walk(child)]
    return "Function Scan" in below or "CTE Scan" in below


def literal(value):
    return "null" if value is None else "'" + str(value).replace("'", "''") + "'"


@pytest.mark.parametrize("wanted", [1, 512])
def test_a_claim_of_any_size_reads_the_ready_index(postgres, statistics, wanted):
    statistics.execute("set local plan_cache_mode = force_generic_plan")
    statement = Statements("holdfast.store.sql", postgres.store.database.dialect).get("claim", wanted)
    places = {"ranges": json_rows(ScanRange(lane) for lane in (1, 2, 3))}
    plan = explain(statistics, statement, VALUES | places, "analyze,")
    nodes = list(walk(plan))
    scans = [node for node in nodes if node.get("Index Name") == "holdfast_runs_ready"]
    assert scans, plan
    assert all(scan["Actual Rows"] <= 2 * wanted for scan in scans), (
        "it looks no further into a lane than it may have to"
    )
    locks = [node for node in nodes if node["Node Type"] == "LockRows"]
    assert all(node["Actual Rows"] * node["Actual Loops"] <= wanted for node in locks), "it locks what it takes"
    updated = next(node for node in nodes if node["Node Type"] == "ModifyTable")
    assert updated["Actual Rows"] == wanted


MIXED = """
insert into {schema}runs (id, lane, priority, state, max_crashes, args, keep, created_at, finished_at)
select gen_random_uuid(), 1 + n * 7 % 20, 0, case when n % 4 = 0 then 'ready' else 'done' end, 3, '[]', 1, 1,
    case when n % 4 > 0 then 1 end
from generate_series(1, 40000) n
"""


def test_a_claim_reads_lanes_in_their_order_where_it_may_want_all_that_is_ready(postgres_url):
    """Sorting a few rows would cost less, but the cached plan stays when they have become many."""
    with closing(StoreHarness(postgres_url)) as harness:
        harness.sql(MIXED)
        harness.sql("analyze {schema}runs")
        claim = Statements("holdfast.store.sql", harness.store.database.dialect).get("claim", 512)
        values = {"session": "w", "ranges": json_rows([ScanRange(1), ScanRange(2)]), "now": None}
        explained = Statement("explained", f"explain {claim.sql}", claim.parameters)
        rows = harness.store.database.connection("claim").run(lambda connection: connection.execute(explained, values))
        plan = "\n".join(row[0] for row in rows)
        assert plan.count("Index Scan using holdfast_runs_ready") == 2, plan


def test_claims_do_not_read_parked_runs_and_unparking_reads_only_what_it_unparks(postgres, statistics):
    statements = Statements("holdfast.store.sql", postgres.store.database.dialect)
    picked = list(walk(explain(statistics, statements.get("pick_limited", 64), VALUES, "analyze,")))
    scans = [node for node in picked if node.get("Index Name") == "holdfast_runs_ready"]
    assert scans
    assert all(scan["Actual Rows"] <= 64 and not scan.get("Rows Removed by Filter") for scan in scans)
    values = VALUES | {"parked_on": '["one","25"]', "size": 3}
    let_in = list(walk(explain(statistics, statements.get("unpark_runs"), values, "analyze,")))
    (parked,) = [node for node in let_in if node.get("Index Name") == "holdfast_runs_parked"]
    assert parked["Actual Rows"] == 3


def test_pruning_reads_no_more_than_it_deletes_however_many_runs_expired(postgres, statistics):
    statement = Statements("holdfast.store.sql", postgres.store.database.dialect).get("pick_expired", 500)
    nodes = list(walk(explain(statistics, statement, VALUES | {"now": 2 * VALUES["now"]}, "analyze,")))
    (expired,) = [node for node in nodes if node.get("Index Name") == "holdfast_runs_expiry"]
    assert expired["Actual Rows"] == 500
    families = [node for node in nodes if node.get("Index Name") == "holdfast_runs_tree"]
    assert families
    assert all(node["Actual Rows"] * node["Actual Loops"] <= 500 for node in families)


def walk(node):
    yield node
    for child in node.get("Plans", ()):
        child["first only"] = node["Node Type"] == "Limit" and node["Plan Rows"] == 1
        yield from walk(child)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory):
    harness = StoreHarness(f"sqlite:///{tmp_path_factory.mktemp('plans') / 'holdfast.db'}")
    fill(harness)
    yield harness
    harness.close()


@pytest.mark.parametrize("analyzed", [False, True])
def test_hot_statements_on_sqlite_find_their_rows_by_an_index(sqlite, analyzed):
    if analyzed:
        sqlite.sql("analyze")
    statements = Statements("holdfast.store.sql", sqlite.store.database.dialect)
    wrong = {}
    for name, (own, index) in HOT.items():
        if name in ONLY_POSTGRES:
            continue
        text = statements.get(name, 64 if name in SIZED else None).sql
        lines = sqlite.sql(f"explain query plan {text}", **(VALUES | own))
        plan = "\n".join(row[3] for row in lines)
        walks = [scan for scan in re.findall(r"^SCAN .*", plan, re.MULTILINE) if walks_on_sqlite(scan, plan)]
        walks += re.findall(r"SEARCH .* USING INTEGER PRIMARY KEY \(rowid[<>].*", plan)
        if name.startswith(BEGINNING):  # which begins at an index that has only what is wanted
            walks = [scan for scan in walks if not scan.endswith(f"INDEX {index}")]
        if walks or compares_with_the_batch(lines) or (index and index.startswith("holdfast_") and index not in plan):
            wrong[name] = plan
        if name in ("claim", "end_attempts", "add_end_history"):
            assert "USING INTEGER PRIMARY KEY (rowid=?)" in plan, plan
    assert wrong == {}, "\n\n".join(f"{name}:\n{plan}" for name, plan in wrong.items())


@pytest.mark.parametrize("name", ["count_scheduled", "count_suspended"])
def test_unfinished_runs_are_counted_from_the_index_alone(sqlite, name):
    """PostgreSQL has the same indexes, and reads the rows only of pages that were changed lately."""
    statement = Statements("holdfast.store.sql", sqlite.store.database.dialect).get(name, 64)
    plan = [row[3] for row in sqlite.sql(f"explain query plan {statement.sql}")]
    assert any("COVERING INDEX holdfast_runs_" in step for step in plan), plan


def test_a_claim_on_sqlite_isnt_misled_by_statistics_of_equal_runs(sqlite_url):
    """All runs have one lane, priority and turn, and were ready when analyzed."""
    with closing(StoreHarness(sqlite_url)) as harness:
        harness.session("w19")
        harness.add_many(2000)
        harness.sql("analyze")
        text = harness.store.claims._context.statements.get("claim").sql
        plan = [row[3] for row in harness.sql(f"explain query plan {text}", **(VALUES | HOT["claim"][0]))]
        assert [step for step in plan if "rowid<" in step or step.startswith("SCAN x")] == []


def compares_with_the_batch(lines):
    """Return whether the whole batch is read for each row of another loop; loops are in order of nesting."""
    loops = {}
    for _, parent, _, line in lines:
        if line.startswith(("SCAN", "SEARCH")):
            loops.setdefault(parent, []).append(line)
    return any("SCAN json_each" in line for nested in loops.values() for line in nested[1:])


def walks_on_sqlite(scan, plan):
    """Return whether it scans something other than a batch, a small table or index, or a CTE."""
    name = scan.split()[1]
    if (
        "jsonb_each" in scan
        or "json_each" in scan
        or name in ("CONSTANT", "each", "l", "q", "s", "w")
        or name.removeprefix("holdfast_") in SMALL_TABLES
    ):
        return False
    if any(index in scan for index in SMALL_INDEXES):
        return False
    return not re.search(rf"(MATERIALIZE|CO-ROUTINE) {re.escape(name)}$", plan, re.MULTILINE)


def test_sqlite_prepares_hot_statements_once_whatever_their_values(sqlite_url):
    with closing(StoreHarness(sqlite_url)) as harness:
        harness.session("w")
        harness.add_many(6)
        harness.sql("analyze")  # SQLite could plan with statistics about the values of parameters
        prepared = []
        with ExitStack() as stack:
            for purpose in ("pick", "claim", "commit"):
                connection = stack.enter_context(harness.store.database.connection(purpose).exclusive())
                connection._apsw.authorizer = lambda *event: prepared.append(event) or apsw.SQLITE_OK
        run_one_with_a_step(harness)
        prepared.clear()
        run_one_with_a_step(harness)
        assert prepared == []


def run_one_with_a_step(harness):
    claim = harness.claim("w")[0]
    row = msgspec.json.encode(NewStepCheckpoint(claim.id, claim.seq, claim.fence, 1, "step#1", "1", 0)).decode()
    assert harness.store.journal.record_steps("w", f"[{row}]", 1)
    assert harness.store.attempts.end("w", [end_of(claim)])


def test_resumed_claims_do_not_scan_dead_index_entries_kept_by_an_old_snapshot(postgres_url):
    with closing(StoreHarness(postgres_url)) as harness, psycopg.connect(postgres_url) as old:
        harness.session("w")
        old.execute("set transaction isolation level repeatable read")
        old.execute("select 1 from holdfast.runs limit 1")
        for _ in range(4):
            harness.add_many(500)
            while claims := harness.claim("w", 512):
                harness.store.attempts.end("w", [end_of(claim) for claim in claims])
                last = claims[-1]
        harness.sql("analyze {schema}runs")
        reached = LaneCursor(last.lane)
        reached.advance(last)
        on = pages_read(harness, "claim", ranges=json_rows(reached.ranges()))
        assert 3 * on < pages_read(harness, "claim", ranges=json_rows(reached.ranges(resume=False)))


def pages_read(harness, name, **values):
    values |= {"session": "w", "now": harness.clock.now}
    statement = Statements("holdfast.store.sql", harness.store.database.dialect).get(name, 64)
    with psycopg.connect(harness.url, cursor_factory=psycopg.RawCursor) as connection:
        plan = explain(connection, statement, values, "analyze, buffers,")
        connection.rollback()
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
