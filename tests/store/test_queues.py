"""Queues: pausing keeps claims away, resuming allows them, and both return what they changed."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from holdfast.database.sqlite import (
    BUSY_POLL_INTERVAL_S,
    BUSY_POLLS,
    POLL_INTERVAL_S,
    DataVersionPoller,
    SqliteDatabase,
)
from holdfast.database.statements import Statement
from tests.support.world import CANCELLED


def lanes(world, *queues):
    return [world.lane("task", queue) for queue in queues]


def test_runs_of_a_paused_queue_stay_ready_and_are_not_claimed(world):
    world.session("w")
    paused, other = world.add(queue="billing"), world.add(queue="mail")
    assert world.store.queues.pause(["billing"]) == ["billing"]
    claims = world.store.claims.claim("w", lanes(world, "billing", "mail"), 8)
    assert [claim.id for claim in claims] == [other]
    assert world.state(paused) == "ready"


def test_no_store_claims_after_the_pause_has_committed(world):
    world.add(queue="billing")
    world.session("w")
    asked = lanes(world, "billing")
    other = world.another_store()
    assert other.claims.has_ready(asked)
    world.store.queues.pause(["billing"])
    assert other.claims.claim("w", asked, 1) == []
    assert not other.claims.has_ready(asked)


def test_a_run_enqueued_into_a_paused_queue_waits(world):
    world.session("w")
    world.store.queues.pause(["new queue"])
    world.add(queue="new queue")
    assert world.store.claims.claim("w", lanes(world, "new queue"), 1) == []


def test_a_resumed_queue_is_claimed_from_in_the_old_order(world):
    world.session("w")
    ids = [world.add(queue="billing") for _ in range(3)]
    world.store.queues.pause(["billing"])
    assert world.store.queues.resume(["billing"]) == ["billing"]
    assert [claim.id for claim in world.store.claims.claim("w", lanes(world, "billing"), 4)] == ids


def test_pause_and_resume_return_only_what_they_changed(world, clock):
    assert world.store.queues.pause(["b", "a", "a"]) == ["a", "b"]
    clock.advance(5)
    assert world.store.queues.pause(["a", "c"]) == ["c"]
    assert world.store.queues.resume(["a", "never named"]) == ["a"]
    rows = {row.name: row for row in world.store.queues.list_all()}
    assert {name: row.paused for name, row in rows.items()} == {"a": 0, "b": 1, "c": 1}
    assert rows["c"].paused_at == rows["b"].paused_at + 5_000_000
    assert rows["a"].paused_at is None


def test_a_running_run_of_a_queue_that_is_paused_finishes(world):
    world.session("w")
    claim = world.running("w")
    world.store.queues.pause(["default"])
    assert world.end("w", claim)
    assert world.state(claim.id) == "done"


def test_lanes_of_a_paused_queue_count_as_busy_only_while_something_runs(world):
    world.session("w")
    asked = [world.lane()]
    claim = world.running("w")
    world.add()
    world.store.queues.pause(["default"])
    assert world.store.claims.has_active(asked)
    world.end("w", claim)
    assert not world.store.claims.has_active(asked)
    world.store.queues.resume(["default"])
    assert world.store.claims.has_active(asked)


def test_a_scheduled_run_of_a_paused_queue_is_not_active(world):
    world.session("w")
    claim = world.running("w")
    world.store.actions.cancel(claim.id, CANCELLED)
    world.store.actions.retry(claim.id)
    asked = [world.lane()]
    assert world.row(claim.id)["session"] == "w", "its worker has not let go yet"
    assert world.store.claims.has_active(asked)
    world.store.queues.pause(["default"])
    assert not world.store.claims.has_active(asked)


def test_unfinished_runs_are_counted_by_queue_and_state_and_finished_ones_are_not(world, clock):
    world.session("w")
    world.end("w", world.running("w"))
    world.running("w")
    oldest = clock.now
    world.add()
    clock.advance(10)
    world.add("other")
    world.add(delay=60_000_000)
    world.add(queue="mail")
    counted = {(c.queue, c.state): c for c in world.store.queues.count_unfinished()}
    assert {place: count.runs for place, count in counted.items()} == {
        ("default", "running"): 1,
        ("default", "ready"): 2,
        ("default", "scheduled"): 1,
        ("mail", "ready"): 1,
    }
    assert counted["default", "ready"].oldest == oldest
    assert counted["default", "ready"].now == oldest + 10_000_000


def test_held_runs_count_as_ready(world):
    id = world.add()
    world.sql("update {schema}runs set held = 'quiescing'")
    (count,) = world.store.queues.count_unfinished()
    assert (count.state, count.runs) == ("ready", 1), id


def test_every_queue_that_was_ever_used_or_paused_is_listed_by_name(world):
    world.add(queue="b")
    world.add(queue="b", task="other")
    world.store.queues.pause(["c"])
    world.store.queues.pause(["a"])
    world.store.queues.resume(["a"])
    assert [row.name for row in world.store.queues.list_all()] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["'; drop table runs; --", "with space", "ü☂", "%s $1 :x {y}"])
def test_odd_queue_names_are_paused_like_any_other(world, name):
    world.session("w")
    world.add(queue=name)
    world.store.queues.pause([name])
    assert world.store.claims.claim("w", lanes(world, name), 1) == []


def test_resuming_notifies_listeners(world):
    world.session("w")
    world.store.sessions.mark_idle("w", True)
    world.store.queues.pause(["default"])
    watch = world.store.database.change_listener()
    heard: list[bool] = []
    stop = threading.Event()
    watch.wait(0, stop)  # the first look only begins to watch
    listening = threading.Thread(target=lambda: heard.append(watch.wait(30, stop)))
    listening.start()
    began = time.monotonic()
    world.store.queues.resume(["default"])
    listening.join(30)
    watch.close()
    assert heard == [True]
    assert time.monotonic() - began < 20


def test_an_interrupted_listener_stops_at_once(world):
    watch = world.store.database.change_listener()
    stop = threading.Event()
    watch.wait(0, stop)  # the first look only begins to watch
    while watch.wait(0.01, stop):  # what was heard of the beginning
        pass
    listening = threading.Thread(target=watch.wait, args=(3600, stop))
    listening.start()
    stop.set()
    watch.interrupt()
    listening.join(5)
    stopped = not listening.is_alive()
    listening.join()
    watch.close()
    assert stopped


def test_a_listener_polls_less_often_while_its_own_process_writes_constantly():
    class Stop(threading.Event):
        def wait(self, timeout=None):
            paused.append(timeout)
            writer.use_count += writes
            return len(paused) % 10 == 0

    paused: list[float] = []
    writes = 2
    writer = SimpleNamespace(use_count=0)
    line = SimpleNamespace(run=lambda work: (None, 1))
    watch, stop = DataVersionPoller(line, writer), Stop()
    assert watch.wait(60, stop)  # the first look only begins to watch
    assert not watch.wait(60, stop)
    assert paused == [POLL_INTERVAL_S] * BUSY_POLLS + [BUSY_POLL_INTERVAL_S] * (10 - BUSY_POLLS)
    writes = 0
    assert not watch.wait(60, stop)
    assert paused[10:] == [BUSY_POLL_INTERVAL_S] + [POLL_INTERVAL_S] * 9, "a pause, and it looks as ever"


def test_a_listener_rarely_mistakes_its_own_writes_for_those_of_others(tmp_path, monkeypatch):
    ours = SqliteDatabase(str(tmp_path / "shared.db"))
    theirs = SqliteDatabase(str(tmp_path / "shared.db"))
    write = Statement("write", "create table if not exists t (n); insert into t values (1)", ())
    watch, stop = ours.change_listener(), threading.Event()

    def written(database: SqliteDatabase) -> bool:
        database.connection("commit").run(lambda connection: connection.execute(write, {}))
        return watch.wait(0, stop)

    monkeypatch.setattr("holdfast.database.sqlite.BUSY_POLL_INTERVAL_S", 3600)
    assert watch.wait(0, stop)  # the first look only begins to watch
    assert not written(ours)
    assert written(theirs)
    assert not written(ours)
    monkeypatch.setattr("holdfast.database.sqlite.BUSY_POLL_INTERVAL_S", 0)
    assert written(ours), "it may as well have been another's"
    for database in (ours, theirs):
        database.close()
