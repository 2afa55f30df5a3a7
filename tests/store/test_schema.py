"""What the constraints of the schema reject."""

from __future__ import annotations

import pytest

from holdfast.database import DataFault
from holdfast.model.run import FINAL_STATES, RUN_STATES
from tests.support.store_harness import CANCELLED, StoreHarness, wait_of

SET = "update {schema}runs set "


@pytest.mark.parametrize(
    "change",
    [
        "state = 'flying'",
        "state = 'done'",
        "state = 'failed'",
        "state = 'cancelled'",
        "state = 'skipped'",
        "finished_at = 1",
        "state = 'running'",
        "state = 'scheduled'",
        "state = null",
        "lane = null",
        "args = null",
        "priority = null",
        "keep = null",
        "max_crashes = null",
        "created_at = null",
        "fence = null",
    ],
)
def test_constraints_reject_inconsistent_ready_runs(harness, change):
    id = harness.add()
    before = harness.row(id)
    with pytest.raises(DataFault):
        harness.sql(SET + change)
    assert harness.row(id) == before


@pytest.mark.parametrize(
    "change",
    [
        "outcome = 'event'",
        "outcome = 'flying', settled_at = 1",
        "settled_at = 1",
        "kind = 'flying'",
        "kind = null",
    ],
)
def test_constraints_reject_inconsistent_open_waits(harness, change):
    harness.session("w")
    harness.store.journal.write("w", [wait_of(harness.running("w"), "event", "go")])
    with pytest.raises(DataFault):
        harness.sql("update {schema}waits set " + change)
    harness.sql("update {schema}waits set outcome = 'event', settled_at = 1")
    with pytest.raises(DataFault):
        harness.sql("update {schema}waits set outcome = null")


@pytest.mark.parametrize(("table", "longest"), [("runs", 3_200), ("waits", 2_300)])
def test_constraints_are_short(postgres_url, table, longest):
    """PostgreSQL parses them for every statement that changes a row (decision 59)."""
    harness = StoreHarness(postgres_url)
    ((length,),) = harness.sql(
        "select sum(length(cast(conbin as text))) from pg_constraint"
        f" where conrelid = cast('{{schema}}{table}' as regclass) and contype = 'c'"
    )
    harness.close()
    assert length < longest


def test_a_running_run_cant_lose_its_session(harness):
    harness.session("w")
    harness.running("w")
    with pytest.raises(DataFault):
        harness.sql(SET + "session = null")


def test_a_finished_run_cant_lose_its_end(harness):
    harness.store.actions.cancel(harness.add(), CANCELLED)
    with pytest.raises(DataFault):
        harness.sql(SET + "finished_at = null")
    with pytest.raises(DataFault):
        harness.sql(SET + "state = 'ready'")


def test_every_state_of_the_model_is_one_of_the_schema(harness):
    harness.add()
    for state in RUN_STATES:
        finished = "1" if state in FINAL_STATES else "null"
        harness.sql(SET + f"state = :state, session = 'w', due_at = 1, finished_at = {finished}", state=state)
        assert harness.sql("select state from {schema}runs") == [(state,)]


def test_two_unfinished_runs_cant_have_one_unique_name(harness):
    harness.add(unique="a")
    harness.add(unique="b")
    with pytest.raises(DataFault):
        harness.sql(SET + "unique_name = 'same'")


def test_two_finished_runs_may_have_one_unique_name(harness):
    for _ in range(2):
        harness.store.actions.cancel(harness.add(unique="u"), CANCELLED)
    assert harness.sql("select count(distinct unique_name), count(*) from {schema}runs") == [(1, 2)]


@pytest.mark.parametrize(
    ("table", "columns", "values"),
    [
        ("keys", "scope, key, digest, run, created_at", "'s', 'k', 'd', {run}, 1"),
        ("history", "run, n, at, kind, attempt", "{run}, 1, 1, 'done', 1"),
        ("workers", "session, name, lease_until, started_at, info", "'w', 'n', 1, 1, ''"),
        ("lanes", "queue, task", "'q', 't'"),
        ("meta", "name, value", "'x', '1'"),
    ],
)
def test_duplicate_rows_are_rejected(harness, table, columns, values):
    run = "cast('00000000-0000-7000-8000-000000000000' as {uuid})"
    insert = f"insert into {{schema}}{table} ({columns}) values ({values.replace('{run}', run)})"
    harness.sql(insert)
    with pytest.raises(DataFault):
        harness.sql(insert)


def test_one_id_is_one_run(harness):
    harness.add_many(2)
    with pytest.raises(DataFault):
        harness.sql(SET + "id = cast('00000000-0000-7000-8000-000000000000' as {uuid})")
