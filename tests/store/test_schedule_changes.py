"""Schedules that are created and changed at run time, overlaps, backfills, and releases that run side by side."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.policy.schedule_timing import Timing
from holdfast.store.schedule_definitions import KEEP_ORPHANED_MICROS, DeclaredSchedule, ScheduleRules
from tests.store.test_schedules import EVERY_MINUTE, MINUTE, declare, declared, fire, minutes, row
from tests.support.store_harness import SECOND, StoreHarness


def create(harness: StoreHarness, name: str = "tick", **more: Any) -> bool:
    return harness.store.schedules.create(declared(harness, name, **more), "ada")


def update(harness: StoreHarness, name: str = "tick", timing: Timing | None = None, **rules: Any) -> bool:
    def change(current: DeclaredSchedule) -> DeclaredSchedule:
        return DeclaredSchedule(name, timing or current.timing, ScheduleRules(**rules), current.template)

    return harness.store.schedules.update(name, change, "bob", None)


def actions(harness: StoreHarness, name: str = "tick") -> list[tuple[str, str]]:
    return [(each.by, each.did) for each in harness.store.schedules.actions(name)]


def open_worker(harness: StoreHarness, session: str, *schedules: DeclaredSchedule, app: str = "shop") -> None:
    """Let a worker live whose code declares these."""
    info = json.dumps({"app": app, "schedules": {each.name: each.digest for each in schedules}})
    harness.store.sessions.open(session, session, 60 * SECOND, info)


def finish_all(harness: StoreHarness) -> None:
    """Execute every ready run."""
    session = harness.session("finisher")
    while claims := harness.claim(session, 10):
        for claim in claims:
            harness.end(session, claim)


# Create, update, delete


def test_a_created_schedule_fires_and_no_declaration_orphans_it(harness, clock):
    assert create(harness)
    assert not create(harness), "an equal one exists"
    declare(harness, "other")
    clock.advance(60)
    assert ("tick", minutes(harness, 1)[0][1]) in fire(harness)
    assert (row(harness).app, row(harness).orphaned) == ("", 0)
    assert actions(harness) == [("ada", "created")]
    with pytest.raises(ConfigError, match="exists with other settings"):
        create(harness, overlap="skip")
    with pytest.raises(ConfigError, match="app shop declares schedule 'other'"):
        create(harness, "other")
    assert declare(harness, "other", "tick").refused.keys() == {"tick"}


def test_an_update_gives_no_slot_a_second_run(harness, clock):
    create(harness)
    clock.advance(60)
    assert fire(harness) == minutes(harness, 1)
    clock.advance(7)
    for seconds in (5, 60, 20, 120):
        assert update(harness, timing=Timing(every=seconds * SECOND))
        assert fire(harness) == [], "its slots start after now"
    assert not update(harness, timing=Timing(every=120 * SECOND)), "nothing changed"
    clock.advance(23)
    update(harness, timing=EVERY_MINUTE)
    update(harness, catch_up="all")
    assert row(harness).next_at == minutes(harness, 2)[0][1]
    clock.advance(30)
    update(harness, jitter=5 * SECOND, catch_up="all")
    assert fire(harness) == minutes(harness, 2), "due, and not lost by an update of something else"
    assert fire(harness) == []
    update(harness, timing=Timing(every=MINUTE, start=clock.now - 10 * MINUTE), catch_up="all")
    assert fire(harness) == []
    runs = harness.sql("select slot, count(*) from {schema}slots where asked = 0 group by slot having count(*) > 1")
    assert runs == []


def test_declared_schedules_change_in_code_only_until_they_are_orphaned(harness, clock):
    declare(harness, "tick")
    with pytest.raises(ConfigError, match="is declared by app shop: change it in its code"):
        update(harness, overlap="skip")
    with pytest.raises(ConfigError, match="delete it in its code"):
        harness.store.schedules.delete("tick")
    declare(harness)
    harness.store.schedules.delete("tick")
    assert harness.store.schedules.list_all() == []


def test_a_deleted_schedule_is_gone_and_its_runs_stay(harness, clock):
    create(harness)
    clock.advance(60)
    fire(harness)
    harness.store.schedules.delete("tick")
    clock.advance(600)
    assert fire(harness) == []
    assert harness.sql("select count(*) from {schema}slots") == [(0,)]
    assert harness.sql("select count(*) from {schema}runs") == [(1,)]
    with pytest.raises(ConfigError, match="does not exist"):
        harness.store.schedules.delete("tick")


def test_changes_name_who_made_them(harness, clock):
    create(harness)
    schedules = harness.store.schedules
    schedules.pause(["tick"], "bob")
    schedules.resume(["tick"], "eve")
    schedules.run_now("tick", "ada")
    update(harness, overlap="skip")
    assert actions(harness) == [
        ("bob", "updated"),
        ("ada", "run"),
        ("eve", "resumed"),
        ("bob", "paused"),
        ("ada", "created"),
    ]


# Backfill


def test_a_backfill_creates_what_is_missing_once(harness, clock):
    create(harness)
    clock.advance(10 * 60)
    assert fire(harness) == minutes(harness, 10), "missed slots are skipped"
    begin, end = minutes(harness, 3)[0][1], clock.now
    made = harness.store.schedules.backfill("tick", begin, end, "ada")
    assert [(each.schedule, each.slot) for each in made] == minutes(harness, *range(3, 10))
    assert harness.store.schedules.backfill("tick", begin, end, "ada") == []
    harness.sql("delete from {schema}slots")
    again = harness.store.schedules.backfill("tick", begin, minutes(harness, 9)[0][1], "ada")
    assert again == [], "the keys of its runs outlive the slots"
    assert harness.store.schedules.backfill("tick", end + 1, end + 5 * MINUTE, "ada") == [], (
        "the clock fires later ones"
    )
    with pytest.raises(ConfigError, match="more than 10,000 slots"):
        harness.store.schedules.backfill("tick", begin - 10_001 * MINUTE, end, "ada")
    with pytest.raises(ConfigError, match=r"'tick': the start .* is after the end"):
        harness.store.schedules.backfill("tick", end, begin, "ada")


def test_a_backfilled_slot_that_is_due_does_not_fire_again(harness, clock):
    create(harness)
    clock.advance(60)
    assert len(harness.store.schedules.backfill("tick", clock.now, clock.now, "ada")) == 1
    assert fire(harness) == []


# Overlap


def test_buffer_one_creates_one_run_when_the_current_one_has_ended(harness, clock):
    create(harness, overlap="buffer_one")
    clock.advance(60)
    assert fire(harness) == minutes(harness, 1)
    for _ in range(3):
        clock.advance(60)
        assert fire(harness) == []
    assert row(harness).buffered == minutes(harness, 2)[0][1]
    assert row(harness).passed_at == minutes(harness, 4)[0][1]
    finish_all(harness)
    assert fire(harness) == minutes(harness, 2), "the first of those that waited"
    assert row(harness).buffered is None
    clock.advance(60)
    assert fire(harness) == []
    assert row(harness).buffered == minutes(harness, 5)[0][1]
    harness.store.schedules.pause(["tick"], "ada")
    finish_all(harness)
    harness.store.schedules.resume(["tick"], "ada")
    assert fire(harness) == [], "a pause drops it, like the slots that pass meanwhile"


def test_cancel_running_cancels_and_waits_until_the_code_has_stopped(harness, clock):
    create(harness, overlap="cancel_running")
    clock.advance(60)
    fire(harness)
    (claim,) = harness.claim(harness.session("worker", lease=3600))
    clock.advance(60)
    assert fire(harness) == []
    assert harness.row(claim.id)["state"] == "cancelled"
    clock.advance(60)
    assert fire(harness) == [], "its code is still running"
    assert row(harness).buffered == minutes(harness, 3)[0][1], "the newest slot"
    harness.store.attempts.release("worker", [(claim.id, claim.fence)])
    assert fire(harness) == minutes(harness, 3)


# Releases side by side


def test_an_older_release_neither_orphans_nor_reverts_while_the_newer_one_runs(harness, clock):
    old, new = declared(harness, "tick"), declared(harness, "tick", timing=Timing(every=2 * MINUTE))
    extra = declared(harness, "extra")
    schedules = harness.store.schedules
    schedules.declare("shop", [old])
    open_worker(harness, "old-1", old)
    assert schedules.declare("shop", [new, extra]).changed == ["tick"]
    open_worker(harness, "new-1", new, extra)
    for _ in range(3):  # a worker of the old release starts again, and again
        changes = schedules.declare("shop", [old])
        assert not changes.any()
        assert changes.refused == {"tick": "workers with a newer declaration are running"}
        assert not schedules.declare("shop", [new, extra]).any()
    assert json.loads(row(harness).timing) == {"every": 2 * MINUTE, "tz": "UTC"}
    harness.store.sessions.expire(["new-1"])
    rolled_back = schedules.declare("shop", [old])
    assert (rolled_back.changed, rolled_back.orphaned) == (["tick"], ["extra"])


def test_a_schedule_ends_with_the_last_worker_that_declares_it_and_is_removed_later(harness, clock):
    tick = declared(harness, "tick")
    schedules = harness.store.schedules
    schedules.declare("shop", [tick])
    open_worker(harness, "old-1", tick)
    assert schedules.declare("shop", []).orphaned == []
    harness.store.sessions.expire(["old-1"])
    assert schedules.declare("shop", []).orphaned == ["tick"]
    clock.advance(KEEP_ORPHANED_MICROS / SECOND - 1)
    assert not schedules.declare("shop", []).any()
    clock.advance(2)
    assert schedules.declare("shop", []).removed == ["tick"]
    assert schedules.list_all() == []


def test_a_short_absence_loses_no_slot(harness, clock):
    declare(harness, "tick", catch_up="all")
    declare(harness)
    clock.advance(70)
    declare(harness, "tick", catch_up="all")
    assert fire(harness) == minutes(harness, 1)


def test_two_apps_with_the_same_name_do_not_take_it_from_each_other(harness, clock):
    tick = declared(harness, "tick")
    harness.store.schedules.declare("shop", [tick])
    open_worker(harness, "shop-1", tick)
    assert harness.store.schedules.declare("bank", [tick]).refused == {"tick": "app shop declares it too: rename one"}
    harness.store.sessions.expire(["shop-1"])
    assert harness.store.schedules.declare("bank", [tick]).taken == {"tick": "shop"}
