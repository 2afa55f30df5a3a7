"""How the hot statements find their rows: by an index, whatever the planner knows or believes about the tables.

50,000 runs of mixed states; with true statistics, with none, and with stale ones that know only an empty table; with
generic and with custom plans. EXPLAIN of the statements as they are rendered, with real parameters.
"""

from __future__ import annotations

import json
import re

import psycopg
import pytest

from holdfast.database import Statements
from holdfast.store.part import batch
from holdfast.testing.server import create_database, database_of, drop_database
from tests.support.world import World

COUNT = 50_000
NOW = 1_800_000_000_000_000
DAY = 86_400 * 1_000_000

# Of 100 runs: 60 done, 10 failed, 10 scheduled, 15 ready in 5 lanes, 5 running by 20 sessions. Half of the finished
# ones have a unique name, a third of all a deadline.
FILL = """
insert into {runs} (id, lane, priority, state, due_at, deadline, session, fence, attempt, max_crashes, unique_name,
    args, keep, records, created_at, claimed_at, started_at, finished_at, expires_at)
select {id}, 1 + n % 5, n % 3,
    case when n % 100 < 60 then 'done' when n % 100 < 70 then 'failed' when n % 100 < 80 then 'scheduled'
        when n % 100 < 95 then 'ready' else 'running' end,
    case when n % 100 between 70 and 79 then {now} + (n - 49000) * cast(1000000 as bigint) end,
    case when n % 3 = 0 then {now} + (n - 1000) * cast(1000000 as bigint) end,
    case when n % 100 >= 95 then 'w' || (n % 20) end, 1, 1, 3,
    case when n % 2 = 0 then 'name ' || n end,
    '[]', 1000000, 1, {now}, {now}, {now},
    case when n % 100 < 70 then {now} end, case when n % 100 < 70 then {now} + (n - 1000) * cast(1000000 as bigint) end
from {series}
"""
IDS = [f"00000000-0000-7000-8000-{n:012d}" for n in range(1, 400, 4)]
GIVEN = batch({"id": id} for id in IDS)
VALUES = {
    "rows": GIVEN,
    "error": "{}",
    "session": "w19",
    "lanes": batch({"lane": lane} for lane in (1, 2, 3)),
    "now": NOW,
}
ENDS = batch(
    {"id": id, "seq": n, "fence": 1, "kind": "done", "state": "done", "result": "1", "failed": 0, "lingers": 0}
    for n, id in enumerate(IDS)
)
NAMES = batch({"unique_name": f"name {n}"} for n in range(0, 200, 2))
KEYS = batch({"scope": "s", "key": f"k{n}", "digest": "d", "run": IDS[0]} for n in range(100))
NEW = batch(
    {"id": id.replace("8000", "9000"), "lane": 1, "priority": 0, "unique_name": f"name {n}", "max_crashes": 3,
     "args": "[]", "keep": 1}
    for n, id in enumerate(IDS)
)  # fmt: skip
SESSIONS = batch({"session": f"w{n}"} for n in range(15, 20))
RECORDS = batch({"run": id, "n": 9, "kind": "done", "attempt": 1} for id in IDS)

# Statement, its own values, and an index that its plan must name.
HOT = {
    "any_ready": ({}, "holdfast_runs_ready"),
    "claim": ({}, "holdfast_runs_ready"),
    "end_attempts": ({"rows": ENDS}, "runs_pkey"),
    "recorded_ends": ({"rows": batch({"id": id, "fence": 1} for id in IDS)}, "history_pkey"),
    "let_go": ({"rows": batch({"id": id, "fence": 1} for id in IDS)}, "runs_pkey"),
    "crash_attempts": ({"rows": batch({"id": id, "fence": 1, "error": "{}"} for id in IDS)}, "runs_pkey"),
    "owned": ({}, "holdfast_runs_owned"),
    "add_keys": ({"rows": KEYS}, None),
    "find_keys": ({"rows": KEYS}, "keys_pkey"),
    "point_keys": ({"rows": KEYS}, "keys_pkey"),
    "add_runs": ({"rows": NEW}, None),
    "hold_successors": ({}, "runs_pkey"),
    "find_unique": ({"rows": NAMES}, "holdfast_runs_unique"),
    "find_ids": ({}, "runs_pkey"),
    "unhold_successors": ({}, "holdfast_runs_held"),
    "promote_due": ({}, "holdfast_runs_due"),
    "next_due": ({}, "holdfast_runs_due"),
    "pick_overdue": ({}, "holdfast_runs_deadline"),
    "fail_overdue": ({}, "runs_pkey"),
    "prune_runs": ({}, "holdfast_runs_expiry"),
    "prune_history": ({}, "history_pkey"),
    "hold_runs": ({}, "runs_pkey"),
    "hold_lost": ({}, "runs_pkey"),
    "hold_free_runs": ({}, "runs_pkey"),
    "cancel_runs": ({}, "runs_pkey"),
    "retry_runs": ({}, "runs_pkey"),
    "dead_sessions": ({}, None),
    "pick_lost": ({"rows": SESSIONS}, "holdfast_runs_owned"),
    "recover_lost": ({}, "runs_pkey"),
    "release_lost": ({}, "runs_pkey"),
    "forget_sessions": ({"rows": SESSIONS}, "holdfast_runs_owned"),
    "close_session": ({}, "holdfast_runs_owned"),
    "add_history": ({"rows": RECORDS}, None),
    "run_end": ({"id": IDS[0]}, "runs_pkey"),
    "run_info": ({"id": IDS[0]}, "runs_pkey"),
    "run_more": ({"id": IDS[0]}, "runs_pkey"),
    "runs_between": ({"low": IDS[0], "high": IDS[5], "size": 6}, "runs_pkey"),
    "run_history": ({"id": IDS[0]}, "history_pkey"),
}

WALK = re.compile(  # the whole table, or the whole of an index that covers it
    r"Seq Scan on (runs|history|keys)|Scan using (runs_pkey|history_pkey|keys_pkey) on [^\n]*(?!\n *Index Cond)\n"
)
SMALL = re.compile("USING (COVERING )?INDEX holdfast_runs_(owned|held)")  # as large as what is held, never more


def fill(world, runs, id, series):
    """The runs, a record for each, and their sessions."""
    world.sql(FILL.format(runs=runs, id=id, series=series, now=NOW))
    world.sql(
        "insert into {schema}history (run, n, at, kind, attempt, fence, session, since)"
        " select id, 1, 1, 'done', 1, 1, 'w', 1 from {schema}runs"
    )
    world.sql(
        "insert into {schema}keys (scope, key, digest, run, created_at)"
        " select 's', 'k' || seq, 'd', id, 1 from {schema}runs"
    )
    for n in range(10, 20):
        world.session(f"w{n}")


@pytest.fixture(scope="module")
def postgres(postgres_server_url):
    """The table, never analyzed: autovacuum is off for it."""
    url = create_database(postgres_server_url)
    world = World(url)
    for table in ("runs", "history", "workers", "keys"):
        world.sql(f"alter table {{schema}}{table} set (autovacuum_enabled = off)")
    fill(
        world, "holdfast.runs",
        "cast('00000000-0000-7000-8000-' || lpad(cast(n as text), 12, '0') as uuid)",
        f"generate_series(1, {COUNT}) n",
    )  # fmt: skip
    yield world
    world.close()
    drop_database(postgres_server_url, database_of(url))


@pytest.fixture(params=["true", "none", "of an empty table"])
def statistics(postgres, request):
    """What the planner believes, inside a transaction that is rolled back."""
    with psycopg.connect(postgres.url, cursor_factory=psycopg.RawCursor) as connection:
        tables = "holdfast.runs, holdfast.history, holdfast.workers, holdfast.keys"
        if request.param == "true":
            connection.execute(f"analyze {tables}")
        elif request.param == "of an empty table":
            for table in tables.split(", "):
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
        yield connection
        connection.rollback()


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_hot_statements_on_postgres_find_their_rows_by_an_index(postgres, statistics, mode):
    statistics.execute(f"set local plan_cache_mode = {mode}")
    statistics.execute("set local jit = off")
    statements = Statements("holdfast.store.sql", postgres.store.database.dialect)
    wrong = {}
    for name, (own, index) in HOT.items():
        statement = statements.get(name, 64 if name == "claim" else None)
        values = VALUES | own
        given = ", ".join(literal(values[parameter]) for parameter in statement.parameters)
        statistics.execute(f"prepare p as {statement.sql}")
        call = f"execute p({given})" if given else "execute p"
        plan = "\n".join(row[0] for row in statistics.execute(f"explain (costs off) {call}"))
        statistics.execute("deallocate p")
        if WALK.search(plan) or (index and index not in plan):
            wrong[name] = plan
    assert wrong == {}, "\n\n".join(f"{name}:\n{plan}" for name, plan in wrong.items())


def literal(value):
    return "null" if value is None else "'" + str(value).replace("'", "''") + "'"


@pytest.mark.parametrize("wanted", [1, 512])
def test_a_claim_of_any_size_reads_the_ready_index(postgres, statistics, wanted):
    statistics.execute("set local plan_cache_mode = force_generic_plan")
    statement = Statements("holdfast.store.sql", postgres.store.database.dialect).get("claim", wanted)
    statistics.execute(f"prepare p as {statement.sql}")
    given = ", ".join(literal(VALUES[parameter]) for parameter in statement.parameters)
    (plan,) = statistics.execute(f"explain (analyze, format json) execute p({given})").fetchone()
    statistics.execute("deallocate p")
    plan = plan if isinstance(plan, list) else json.loads(plan)
    nodes = list(walk(plan[0]["Plan"]))
    scans = [node for node in nodes if node.get("Index Name") == "holdfast_runs_ready"]
    assert scans, plan
    assert all(scan["Actual Rows"] <= wanted for scan in scans), "it reads no more of a lane than it wants"
    updated = next(node for node in nodes if node["Node Type"] == "ModifyTable")
    assert updated["Actual Rows"] == wanted


def walk(node):
    yield node
    for child in node.get("Plans", ()):
        yield from walk(child)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory):
    world = World(f"sqlite:///{tmp_path_factory.mktemp('plans') / 'holdfast.db'}")
    world.store.prepare()
    numbers = f"(with recursive c(n) as (select 1 union all select n + 1 from c where n < {COUNT}) select n from c)"
    fill(world, "holdfast_runs", "printf('00000000-0000-7000-8000-%012d', n)", numbers)
    yield world
    world.close()


@pytest.mark.parametrize("analyzed", [False, True])
def test_hot_statements_on_sqlite_find_their_rows_by_an_index(sqlite, analyzed):
    if analyzed:
        sqlite.sql("analyze")
    statements = Statements("holdfast.store.sql", sqlite.store.database.dialect)
    wrong = {}
    for name, (own, index) in HOT.items():
        text = statements.get(name, 64 if name == "claim" else None).sql
        plan = "\n".join(row[3] for row in sqlite.sql(f"explain query plan {text}", **(VALUES | own)))
        scans = re.findall(r"SCAN (?:holdfast_runs|holdfast_history|holdfast_keys|r|x|k|h|old|run|other)\b.*", plan)
        bad = [scan for scan in scans if not SMALL.search(scan) and f"MATERIALIZE {scan.split()[1]}" not in plan]
        if bad or (index and index.startswith("holdfast_") and index not in plan):
            wrong[name] = plan
        if name == "end_attempts":
            assert "SEARCH holdfast_runs USING INDEX sqlite_autoindex_holdfast_runs_1 (id=?)" in plan, plan
        if name == "claim":
            assert "SEARCH holdfast_runs USING INTEGER PRIMARY KEY (rowid=?)" in plan, plan
    assert wrong == {}, "\n\n".join(f"{name}:\n{plan}" for name, plan in wrong.items())
