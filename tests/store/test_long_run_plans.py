"""How many rows of a long run a statement reads that is about one of them: a few, whatever the planner believes.

Statements about one message, checkpoint or wait name its run. If a plan uses only that part of a key, it reads all
messages, checkpoints or waits of the run, and the cost of one of them grows with the run.
"""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from holdfast.database import Statements
from holdfast.store.module import json_rows
from holdfast.testing.server import create_database, database_of, drop_database
from tests.store.test_plans import explain, walk
from tests.support.plans import NOW
from tests.support.store_harness import StoreHarness

LENGTH = 20_000
MAX_ROWS = 510
"""As many as are woken at once, and a few."""
RUN = "00000000-0000-7000-8000-000000000001"
TABLES = ("runs", "checkpoints", "waits", "messages", "history", "chunks", "events")
SERIES = {
    "postgres": f"generate_series(1, {LENGTH}) n",
    "sqlite": f"(with recursive c (n) as (select 1 union all select n + 1 from c where n < {LENGTH}) select n from c)",
}
FILL = """
insert into {schema}runs (id, lane, priority, state, fence, attempt, max_crashes, args, keep, records, created_at)
values (cast('{run}' as {uuid}), 1, 0, 'waiting', 1, 1, 3, '[]', 1, {length}, 1);

insert into {schema}messages (run, n, topic, payload, sent_at, sent_by, taken_by)
select cast('{run}' as {uuid}), n, 'topic', '1', 1, 'sender ' || n,
    case when n < {length} / 2 then '0:$message-topic#' || n end
from {series};

insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, at)
select cast('{run}' as {uuid}), 0, n, '$message-topic#' || n, 'message', '1', 1, 1 from {series};

insert into {schema}waits (run, generation, key, kind, target, since)
select cast('{run}' as {uuid}), 0, '$event-' || n || '#1', 'event', 'e', n from {series};

insert into {schema}events (target, name, touched_at) values ('e', 'e', 1);

insert into {schema}history (run, n, at, kind, attempt, fence, session)
select cast('{run}' as {uuid}), n, 1, 'step_retrying', 1, 1, 'w' from {series};

insert into {schema}chunks (run, n, attempt, data, at) select cast('{run}' as {uuid}), n, 1, '1', 1 from {series}
"""


def row(**values):
    return {"rows": json_rows([{"run": RUN, "id": RUN, "generation": 0, "fence": 1, **values}])}


ONE = {"run": RUN, "id": RUN}
WAIT = row(key="$event-500#1", outcome="event", value="1")
# By statement: its parameters for one row of the run, and what SQLite's plan has to contain. Statements that are rare,
# such as those that repeat a call after a lost response, may read the run.
STATEMENTS = {
    "read_recorded": (row(n=500), "generation=? AND n=?"),
    "supersede_checkpoints": (row(n=500), "generation=? AND n=?"),
    "add_checkpoints": (row(n=LENGTH + 1, key="k", kind="step", value="1", undo=0), None),
    "last_checkpoint_numbers": (row(), "generation=?"),
    "load_checkpoint_page": (ONE | {"generation": 0, "after": LENGTH - 5, "bytes": 1000}, "n>?"),
    "add_message": (
        ONE | {"topic": "topic", "payload": "1", "sent_by": "x", "ask": None, "taken_by": None},
        "run=?",
    ),
    "first_unread_message": (ONE | {"topic": "topic"}, "holdfast_messages_new (run=? AND topic=?)"),
    "take_messages": (row(n=500, taken_by="x"), "n=?"),
    "find_waits": (WAIT, "(run=? AND generation=? AND key=?)"),
    "delete_waits_by_key": (WAIT, "key=?"),
    "resolve_waits": (WAIT, "key=?"),
    "find_event_waiters": ({"rows": json_rows([{"target": "e"}])}, "holdfast_waits_awaited (target=?)"),
    "wake_runs": (row(), "holdfast_waits_resolved (run=? AND generation=?)"),
    "read_resolved_waits": (row(), "holdfast_waits_resolved (run=? AND generation=?)"),
    "delete_history_entries": (row(n=500), "n=?"),
    "add_chunks": (row(number=1, attempt=1, data="1", step="s", step_try=2, fence=5, generation=0, serial=9), "run=?"),
    "list_chunks": (ONE | {"after": LENGTH - 5, "bytes": 1000}, "n>?"),
}


def fill(harness):
    text = FILL.replace("{run}", RUN).replace("{length}", str(LENGTH))
    for statement in text.replace("{series}", SERIES[harness.store.database.dialect.name]).split(";"):
        harness.sql(statement)


@pytest.fixture(scope="module")
def postgres(postgres_server_url):
    url = create_database(postgres_server_url)
    harness = StoreHarness(url)
    harness.store.prepare()
    for table in TABLES:
        harness.sql(f"alter table {{schema}}{table} set (autovacuum_enabled = off)")
    fill(harness)
    yield harness
    harness.close()
    drop_database(postgres_server_url, database_of(url))


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("statistics", ["none", "true"])
def test_a_statement_about_one_row_of_a_long_run_reads_few_rows(postgres, statistics, mode):
    statements = Statements("holdfast.store.sql", postgres.store.database.dialect)
    wrong = {}
    with psycopg.connect(postgres.url, cursor_factory=psycopg.RawCursor) as connection:
        if statistics == "true":
            connection.execute(f"analyze {', '.join(f'holdfast.{table}' for table in TABLES)}")
        connection.execute(f"set plan_cache_mode = {mode}")
        for name, (values, _) in STATEMENTS.items():
            with connection.transaction(force_rollback=True):
                plan = explain(connection, statements.get(name), {"now": NOW} | values, "analyze,")
                read = sum(map(rows_read, walk(plan)))
                if read > MAX_ROWS:
                    wrong[name] = read
        connection.rollback()
    assert wrong == {}, f"rows read: {wrong}"


def rows_read(node):
    """Return how many rows of a table a node has read."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    is_scan = "Scan" in node["Node Type"] and ("Relation Name" in node or "Index Name" in node)
    return (node["Actual Rows"] + removed) * node["Actual Loops"] if is_scan else 0


@pytest.mark.parametrize("analyzed", [False, True])
def test_sqlite_finds_one_row_of_a_long_run_by_its_whole_key(sqlite_url, analyzed):
    with closing(StoreHarness(sqlite_url)) as harness:
        fill(harness)
        if analyzed:
            harness.sql("analyze")
        statements = Statements("holdfast.store.sql", harness.store.database.dialect)
        wrong = {}
        for name, (values, expected) in STATEMENTS.items():
            statement = statements.get(name)
            parameters = {parameter: ({"now": NOW} | values)[parameter] for parameter in statement.parameters}
            plan = "\n".join(row[3] for row in harness.sql(f"explain query plan {statement.sql}", **parameters))
            if (expected and expected not in plan) or (name == "find_event_waiters" and "TEMP B-TREE" in plan):
                wrong[name] = plan
        assert wrong == {}
