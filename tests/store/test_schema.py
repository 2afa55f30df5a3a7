"""What the constraints of the schema reject."""

from __future__ import annotations

import pytest

from holdfast.database import DataFault
from holdfast.model.run import FINAL_STATES, RUN_STATES
from tests.support.world import CANCELLED

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
def test_constraints_reject_inconsistent_ready_runs(world, change):
    id = world.add()
    before = world.row(id)
    with pytest.raises(DataFault):
        world.sql(SET + change)
    assert world.row(id) == before


def test_a_running_run_cant_lose_its_session(world):
    world.session("w")
    world.running("w")
    with pytest.raises(DataFault):
        world.sql(SET + "session = null")


def test_a_finished_run_cant_lose_its_end(world):
    world.store.actions.cancel(world.add(), CANCELLED)
    with pytest.raises(DataFault):
        world.sql(SET + "finished_at = null")
    with pytest.raises(DataFault):
        world.sql(SET + "state = 'ready'")


def test_every_state_of_the_model_is_one_of_the_schema(world):
    world.add()
    for state in RUN_STATES:
        finished = "1" if state in FINAL_STATES else "null"
        world.sql(SET + f"state = :state, session = 'w', due_at = 1, finished_at = {finished}", state=state)
        assert world.sql("select state from {schema}runs") == [(state,)]


def test_two_unfinished_runs_cant_have_one_unique_name(world):
    world.add(unique="a")
    world.add(unique="b")
    with pytest.raises(DataFault):
        world.sql(SET + "unique_name = 'same'")


def test_two_finished_runs_may_have_one_unique_name(world):
    for _ in range(2):
        world.store.actions.cancel(world.add(unique="u"), CANCELLED)
    assert world.sql("select count(distinct unique_name), count(*) from {schema}runs") == [(1, 2)]


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
def test_duplicate_rows_are_rejected(world, table, columns, values):
    run = "cast('00000000-0000-7000-8000-000000000000' as {uuid})"
    insert = f"insert into {{schema}}{table} ({columns}) values ({values.replace('{run}', run)})"
    world.sql(insert)
    with pytest.raises(DataFault):
        world.sql(insert)


def test_one_id_is_one_run(world):
    world.add_many(2)
    with pytest.raises(DataFault):
        world.sql(SET + "id = cast('00000000-0000-7000-8000-000000000000' as {uuid})")
