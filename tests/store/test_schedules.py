"""Schedules in the store: declarations, slots and their runs, catch-up, overlap, operator actions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.database.transfer import put_up_tenant_fence
from holdfast.errors import TenantMoved
from holdfast.policy.schedule_timing import MAX_MISSED_SLOTS, Timing
from holdfast.store.schedule_definitions import DeclaredSchedule, ScheduleRules
from tests.support.store_harness import CANCELLED, SECOND, StoreHarness

MINUTE = 60 * SECOND
EVERY_MINUTE = Timing(every=MINUTE)


def declared(harness: StoreHarness, name: str = "tick", timing: Timing = EVERY_MINUTE, **more: Any) -> DeclaredSchedule:
    run = {name: more.pop(name) for name in ("args", "delay", "unique", "options", "task") if name in more}
    return DeclaredSchedule(name, timing, ScheduleRules(**more), harness.new(**{"task": "task", **run}))


def declare(harness: StoreHarness, *names: str, app: str = "shop", **more: Any) -> Any:
    return harness.store.schedules.declare(app, [declared(harness, name, **more) for name in names])


def row(harness: StoreHarness, name: str = "tick") -> Any:
    return next(row for row in harness.store.schedules.list_all() if row.name == name)


def fire(harness: StoreHarness) -> list[tuple[str, int]]:
    """Fire all that is due; return the schedules and slots."""
    made = []
    while (left := harness.store.schedules.until_next()) is not None and left <= 0:
        made += [(each.schedule, each.slot) for each in harness.store.schedules.fire().created]
    return made


def minutes(harness: StoreHarness, *numbers: int) -> list[tuple[str, int]]:
    """Return slots of `tick`, in minutes since the start of the test."""
    begin = 1_800_000_000 * SECOND
    return [("tick", begin + number * MINUTE) for number in numbers]


def options(harness: StoreHarness, id: str) -> Any:
    return json.loads(harness.row(id)["options"])


# Slots


def test_slots_of_a_tenant_that_was_moved_away_are_passed_over_and_those_of_others_fire(harness, clock):
    for name, tenant in (("tick", "acme"), ("tock", "other")):
        template = harness.new(task="task", tenant=tenant)
        schedules = [DeclaredSchedule(name, EVERY_MINUTE, ScheduleRules(overlap="buffer_one"), template)]
        harness.store.schedules.declare(f"app of {name}", schedules)
    clock.advance(60)
    assert {made.schedule for made in harness.store.schedules.fire().created} == {"tick", "tock"}
    clock.advance(60)
    assert harness.store.schedules.fire().created == [], "the slots are buffered"
    database = harness.store.database

    def fence(connection):
        with connection.transaction():
            put_up_tenant_fence(database, connection, "acme", "acme is elsewhere")

    database.connection("client").run(fence)
    harness.sql("update {schema}runs set state = 'done', finished_at = 1")
    for _ in range(2):
        fired = harness.store.schedules.fire()
        assert [made.schedule for made in fired.created] == ["tock"]
        assert fired.refused == {"tick": "acme is elsewhere"}
        clock.advance(60)
        harness.sql("update {schema}runs set state = 'done', finished_at = 1")
    with pytest.raises(TenantMoved, match="acme is elsewhere"):
        harness.store.schedules.run_now("tick", "ann")


def test_a_due_slot_creates_one_run(harness, clock):
    declare(harness, "tick", args='{"x":1}')
    assert harness.store.schedules.until_next() == MINUTE
    assert harness.store.schedules.fire().created == []
    clock.advance(60)
    (made,) = harness.store.schedules.fire().created
    assert (made.schedule, made.slot) == minutes(harness, 1)[0]
    assert harness.state(made.run) == "ready"
    assert harness.row(made.run)["args"] == '{"x":1}'
    assert options(harness, made.run) == {"schedule": "tick", "scheduled_for": made.slot}
    assert harness.store.schedules.fire().created == []
    assert harness.store.schedules.until_next() == MINUTE
    assert harness.rows("runs") == 1


def test_eight_schedulers_create_one_run_per_slot(harness, clock):
    declare(harness, "tick", "tock")
    stores = [harness.another_store() for _ in range(8)]
    for store in stores:
        store.schedules.until_next()
    for turn in range(1, 6):
        clock.advance(60)
        together = threading.Barrier(8)
        made: list[Any] = []

        def look(store: Any, together: threading.Barrier = together, made: list[Any] = made) -> None:
            together.wait()
            made.extend(store.schedules.fire().created)

        threads = [threading.Thread(target=look, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(each.schedule for each in made) == ["tick", "tock"]
        assert harness.rows("runs") == harness.rows("slots") == 2 * turn


def test_an_interruption_between_run_and_next_slot_leaves_nothing(harness, clock):
    declare(harness, "tick")
    clock.advance(60)

    def break_off(name: str) -> None:
        if name == "advance_schedules":
            raise KeyboardInterrupt

    store = harness.another_store()
    with pytest.raises(KeyboardInterrupt), watching(store, break_off):
        store.schedules.fire()
    assert (harness.rows("runs"), harness.rows("slots")) == (0, 0)
    assert fire(harness) == minutes(harness, 1)
    clock.advance(60)
    assert fire(harness) == minutes(harness, 2)


@contextmanager
def watching(store: Any, before: Callable[[str], None]) -> Iterator[None]:
    """Calls a function before each statement of the store's schedules."""
    open_transaction = store.schedules._open

    def watched(connection: Any) -> Any:
        tx = open_transaction(connection)

        def call(name: str, **values: Any) -> Any:
            before(name)
            return tx.execute(name, **values)

        return SimpleNamespace(execute=call, payloads=tx.payloads)

    store.schedules._open = watched
    yield


def test_a_slot_never_fires_twice_whatever_next_at_says(harness, clock):
    declare(harness, "tick", catch_up="all")
    clock.advance(120)
    assert fire(harness) == minutes(harness, 1, 2)
    harness.sql("update {schema}schedules set next_at = next_at - :two", two=2 * MINUTE)
    clock.advance(60)
    assert fire(harness) == minutes(harness, 3)


def test_many_schedules_due_at_once_all_fire(harness, clock):
    names = [f"s{n:03}" for n in range(120)]
    declare(harness, *names)
    clock.advance(60)
    assert sorted(name for name, _ in fire(harness)) == names


@pytest.mark.parametrize("part", ["timing", "rules", "template"])
def test_an_unreadable_schedule_is_skipped_and_does_not_block_others(harness, clock, part):
    declare(harness, "new", "tick")
    harness.sql(f"update {{schema}}schedules set {part} = :new where name = 'new'", new='{"moon":"full"}')
    clock.advance(60)
    fired = harness.store.schedules.fire()
    assert [each.schedule for each in fired.created] == ["tick"]
    assert "moon" in fired.unreadable["new"]
    assert row(harness, "new").next_at == clock.now


def test_many_unreadable_schedules_do_not_block_others(harness, clock):
    names = [f"new {n:03}" for n in range(120)]
    declare(harness, *names, "tick")
    harness.sql("update {schema}schedules set timing = :timing where name <> 'tick'", timing='{"moon":"full"}')
    clock.advance(60)
    fired = harness.store.schedules.fire()
    assert [each.schedule for each in fired.created] == ["tick"]
    assert sorted(fired.unreadable) == names


def test_an_ended_schedule_fires_no_more(harness, clock):
    declare(harness, "tick", timing=Timing(every=MINUTE, end=clock.now + 2 * MINUTE), catch_up="all")
    clock.advance(600)
    assert fire(harness) == minutes(harness, 1, 2)
    assert row(harness).next_at is None
    assert harness.store.schedules.until_next() is None


def test_jitter_delays_the_run_but_not_the_slot(harness, clock):
    declare(harness, *(f"s{n}" for n in range(50)), jitter=30 * SECOND)
    clock.advance(60)
    made = harness.store.schedules.fire().created
    slot = minutes(harness, 1)[0][1]
    begins = [harness.row(each.run)["due_at"] for each in made]
    assert all(slot < at <= slot + 30 * SECOND for at in begins)
    assert len(set(begins)) > 40
    assert {options(harness, each.run)["scheduled_for"] for each in made} == {slot}
    assert set(harness.states(each.run for each in made)) == {"scheduled"}


def test_the_delay_of_a_request_counts_from_the_slot(harness, clock):
    declare(harness, "tick", delay=5 * SECOND)
    clock.advance(61)
    (made,) = harness.store.schedules.fire().created
    assert harness.row(made.run)["due_at"] == made.slot + 5 * SECOND


def test_only_the_last_slots_are_kept(harness, clock):
    declare(harness, "tick", "tock", catch_up="all")
    clock.advance(130 * 60)
    assert len(fire(harness)) == 260
    kept = harness.sql("select schedule, count(*), max(slot) from {schema}slots group by schedule order by schedule")
    assert kept == [("tick", 100, clock.now), ("tock", 100, clock.now)]


# Catching up and overlap


@pytest.mark.parametrize(
    ("catch_up", "late", "made"),
    [
        ("skip", 0, [1]),
        ("skip", 50, [1]),
        ("skip", 250, [5]),
        ("latest", 0, [1]),
        ("latest", 250, [5]),
        ("all", 0, [1]),
        ("all", 250, [1, 2, 3, 4, 5]),
    ],
)
def test_what_becomes_of_missed_slots(harness, clock, catch_up, late, made):
    declare(harness, "tick", catch_up=catch_up)
    clock.advance(60 + late)
    assert fire(harness) == minutes(harness, *made)
    clock.advance(60)
    assert fire(harness) == minutes(harness, made[-1] + 1), "the next slot is intact"


@pytest.mark.parametrize(("catch_up", "made"), [("skip", []), ("latest", [60]), ("all", [60])])
def test_a_slot_that_is_long_past(harness, clock, catch_up, made):
    declare(harness, "tick", timing=Timing(every=60 * MINUTE), catch_up=catch_up)
    clock.advance(60 * 60 + 61)
    assert fire(harness) == minutes(harness, *made)
    assert row(harness).next_at == minutes(harness, 120)[0][1]


def test_after_a_very_long_time_the_last_thousand_are_caught_up(harness, clock):
    declare(harness, "tick", timing=Timing(every=SECOND), catch_up="all")
    clock.advance(365 * 86_400)
    made = fire(harness)
    assert len(made) == MAX_MISSED_SLOTS
    assert (made[0][1], made[-1][1]) == (clock.now - (MAX_MISSED_SLOTS - 1) * SECOND, clock.now)


@pytest.mark.parametrize("end", ["unfinished", "cancelled", "pruned"])
def test_with_overlap_skip_a_slot_is_skipped_while_a_run_is_unfinished(harness, clock, end):
    declare(harness, "tick", overlap="skip")
    clock.advance(60)
    (first,) = harness.store.schedules.fire().created
    clock.advance(60)
    fired = harness.store.schedules.fire()
    assert (fired.created, fired.skipped) == ([], minutes(harness, 2))
    assert row(harness).passed_at == minutes(harness, 2)[0][1]
    if end != "unfinished":
        harness.store.actions.cancel(first.run, CANCELLED)
    if end == "pruned":
        harness.sql("delete from {schema}runs")
    clock.advance(60)
    assert fire(harness) == ([] if end == "unfinished" else minutes(harness, 3))


def test_with_overlap_skip_the_first_of_many_missed_slots_fires(harness, clock):
    declare(harness, "tick", overlap="skip", catch_up="all")
    clock.advance(5 * 60)
    assert fire(harness) == minutes(harness, 1)
    assert row(harness).passed_at == minutes(harness, 5)[0][1]


def test_with_overlap_allow_runs_pile_up(harness, clock):
    declare(harness, "tick")
    for number in (1, 2, 3):
        clock.advance(60)
        assert fire(harness) == minutes(harness, number)
    assert harness.rows("runs") == 3


def test_a_request_with_a_unique_name_stands_for_its_unfinished_run(harness, clock):
    declare(harness, "tick", unique="one")
    clock.advance(60)
    (first,) = harness.store.schedules.fire().created
    clock.advance(60)
    (second,) = harness.store.schedules.fire().created
    assert first.run == second.run
    assert harness.rows("runs") == 1


# What code declares


def test_the_same_declaration_again_changes_nothing(harness, clock):
    assert declare(harness, "tick") == (["tick"], [], [], {}, {}, [])
    clock.advance(30)
    assert declare(harness, "tick") == ([], [], [], {}, {}, [])
    assert row(harness).next_at == minutes(harness, 1)[0][1]


def test_a_new_timing_starts_anew_and_drops_missed_slots(harness, clock):
    declare(harness, "tick", catch_up="all")
    clock.advance(190)
    assert declare(harness, "tick", catch_up="all", timing=Timing(every=2 * MINUTE)) == ([], ["tick"], [], {}, {}, [])
    assert fire(harness) == []
    assert row(harness).next_at == minutes(harness, 4)[0][1]


def test_other_arguments_leave_the_slots_as_they_are(harness, clock):
    declare(harness, "tick", catch_up="all")
    clock.advance(130)
    assert declare(harness, "tick", catch_up="all", args='{"x":2}') == ([], ["tick"], [], {}, {}, [])
    made = harness.store.schedules.fire().created
    assert [each[:2] for each in made] == minutes(harness, 1, 2)
    assert {harness.row(each.run)["args"] for each in made} == {'{"x":2}'}


def test_a_schedule_removed_from_the_code_is_orphaned_and_does_not_fire(harness, clock):
    declare(harness, "tick", "tock", catch_up="all")
    assert declare(harness, "tock", catch_up="all").orphaned == ["tick"]
    assert declare(harness, "tock", catch_up="all").orphaned == [], "once"
    clock.advance(60)
    assert [name for name, _ in fire(harness)] == ["tock"]
    assert row(harness).orphaned == 1
    clock.advance(300)
    assert declare(harness, "tick", "tock", catch_up="all").changed == ["tick"]
    assert row(harness).orphaned == 0
    assert row(harness).next_at == minutes(harness, 7)[0][1], "from now on: what it missed as an orphan is gone"


def test_apps_that_share_a_database_leave_each_others_schedules_alone(harness, clock):
    declare(harness, "tick", app="shop")
    assert declare(harness, "tock", app="bank") == (["tock"], [], [], {}, {}, [])
    assert declare(harness, app="press") == ([], [], [], {}, {}, [])
    clock.advance(60)
    assert sorted(name for name, _ in fire(harness)) == ["tick", "tock"]


def test_a_name_belongs_to_the_app_that_declared_it_last(harness, clock):
    declare(harness, "tick", app="shop")
    clock.advance(30)
    assert declare(harness, "tick", app="shop.main") == ([], ["tick"], [], {"tick": "shop"}, {}, [])
    assert row(harness).next_at == minutes(harness, 1)[0][1]
    assert declare(harness, app="shop").orphaned == []
    assert declare(harness, app="shop.main").orphaned == ["tick"]


def test_eight_workers_that_start_together_declare_once(harness, clock):
    stores = [harness.another_store() for _ in range(8)]
    for store in stores:
        store.prepare()
    names = [f"s{n}" for n in range(10)]
    together = threading.Barrier(8)
    troubles: list[BaseException] = []

    def start(store: Any) -> None:
        try:
            together.wait()
            store.schedules.declare("shop", [declared(harness, name) for name in names])
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=start, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []
    assert [each.name for each in harness.store.schedules.list_all()] == names
    assert {each.orphaned for each in harness.store.schedules.list_all()} == {0}


# Operators


def test_a_paused_schedule_does_not_fire_and_continues_from_its_resumption(harness, clock):
    declare(harness, "tick", catch_up="all")
    assert harness.store.schedules.pause(["tick", "nobody"], "ada") == ["tick"]
    assert harness.store.schedules.pause(["tick"], "ada") == []
    clock.advance(200)
    assert harness.store.schedules.until_next() is None
    assert harness.store.schedules.fire().created == []
    declare(harness, "tick", catch_up="all")
    assert row(harness).paused == 1, "a worker that starts doesn't resume it"
    assert harness.store.schedules.resume(["tick", "nobody"], "ada") == ["tick"]
    assert harness.store.schedules.resume(["tick"], "ada") == []
    assert fire(harness) == []
    clock.advance(40)
    assert fire(harness) == minutes(harness, 4)


@pytest.mark.parametrize("paused", [False, True])
def test_run_now_creates_a_run_beside_the_slots(harness, clock, paused):
    declare(harness, "tick", jitter=30 * SECOND)
    if paused:
        harness.store.schedules.pause(["tick"], "ada")
    clock.advance(10)
    ids = [harness.store.schedules.run_now("tick", "ada") for _ in range(2)]
    assert ids[0] != ids[1]
    assert harness.states(ids) == ["ready", "ready"]
    assert options(harness, ids[0])["scheduled_for"] == clock.now
    assert row(harness).last_run == ids[1]
    assert row(harness).next_at == minutes(harness, 1)[0][1]


def test_run_now_at_a_slot_does_not_replace_the_slot(harness, clock):
    declare(harness, "tick")
    clock.advance(60)
    harness.store.schedules.run_now("tick", "ada")
    assert fire(harness) == minutes(harness, 1)
    assert harness.rows("runs") == 2


def test_the_list_shows_the_last_run_and_its_state(harness, clock):
    declare(harness, "tick", "tock", task="report")
    assert (row(harness).last_run, row(harness).last_state, row(harness).task) == (None, None, "report")
    clock.advance(60)
    fire(harness)
    assert (row(harness).last_slot, row(harness).last_state) == (clock.now, "ready")
    harness.store.actions.cancel(row(harness).last_run, CANCELLED)
    assert (row(harness).last_state, row(harness, "tock").last_state) == ("cancelled", "ready")
    harness.sql("delete from {schema}runs")
    assert (row(harness).last_slot, row(harness).last_state) == (clock.now, None)
