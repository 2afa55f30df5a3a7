"""Limits with many keys: the cost of a counter doesn't depend on the number of counters."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.database import Statements
from holdfast.database.dialect import PostgresDialect
from holdfast.store.limits import counter_key
from holdfast.store.module import json_rows
from tests.store.test_plans import literal

KEYS = 5_000
BATCH = 20


@pytest.mark.parametrize("name", ["lock_counters", "store_counters", "return_permits"])
def test_a_plan_that_was_cached_while_there_were_few_keys_does_not_read_the_table_when_there_are_many(
    postgres_url, name
):
    """The table was analyzed while it was one page: the planner prefers to read all of it, and the plan stays."""
    statement = Statements("holdfast.store.sql", PostgresDialect("holdfast")).get(name)

    def call(keys: range) -> str:
        rows = json_rows(
            {"place": counter_key("one", str(key)), "name": "one", "used": 1, "log": "[]", "number": 1} for key in keys
        )
        values = {"rows": rows, "now": None}
        return f"execute p({', '.join(literal(values[parameter]) for parameter in statement.parameters)})"

    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor, autocommit=True) as connection:
        connection.execute(insert(range(3)))
        connection.execute("analyze holdfast.limits")
        connection.execute("set plan_cache_mode = force_generic_plan")
        connection.execute(f"prepare p as {statement.sql}")
        connection.execute(call(range(3)))
        connection.execute(insert(range(3, KEYS)))
        with connection.transaction():
            before = rows_touched(connection)
            connection.execute(call(range(100, 100 + BATCH)))
            read, fetched = (after - first for first, after in zip(before, rows_touched(connection), strict=True))
    assert read == 0, "sequential scans"
    assert fetched <= 2 * BATCH


def rows_touched(connection):
    """Return the rows that this session has read: by sequential scans, and by index."""
    return connection.execute(
        "select seq_tup_read, idx_tup_fetch from pg_stat_xact_user_tables where relname = 'limits'"
    ).fetchone()


def insert(keys: range) -> str:
    return (
        "insert into holdfast.limits (place, name, used, touched_at) select '[\"one\",\"' || n || '\"]', 'one', 1, 1"
        f" from generate_series({keys.start}, {keys.stop - 1}) n"
    )
