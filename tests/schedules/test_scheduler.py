"""Schedules in workers: reconciled at the start, fired by the database clock, one run per slot."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import psycopg
import pytest

from holdfast import Context, Holdfast, SyncContext
from holdfast.engine.loops.scheduler import POLL_INTERVAL_S
from holdfast.model.clock import to_datetime
from tests.support.wait_until import wait_until

START = 1_800_000_000  # 2027-01-15 08:00 UTC, where the test's clock begins


def slot(minutes: int) -> datetime:
    return datetime.fromtimestamp(START + minutes * 60, UTC)


def shown(app, name="tick"):
    return next(row for row in app.store.schedules.list_all() if row.name == name)


@pytest.fixture
def noting(timed_app, ledger):
    """A job that writes down what it was given."""

    @timed_app.task(name="note")
    def note(text: str = "tick") -> str:
        ledger.write(text)
        return text

    return note


def test_a_drain_fires_due_slots(timed_app, clock, noting, ledger):
    timed_app.schedule("tick", noting, every=60)
    assert timed_app.worker().drain(timeout=60) == 0
    clock.forward(60)
    assert timed_app.worker().drain(timeout=60) == 1
    assert timed_app.worker().drain(timeout=60) == 0
    clock.forward(60)
    assert timed_app.worker().drain(timeout=60) == 1
    assert ledger.lines() == ["tick"] * 2


def test_the_run_knows_its_slot(timed_app, clock):
    seen: list[datetime | None] = []

    @timed_app.task(name="async")
    async def later(ctx: Context) -> None:
        seen.append(ctx.scheduled_for)
        await ctx.sleep(0.001)
        seen.append(ctx.scheduled_for)

    @timed_app.task(name="sync")
    def plain(ctx: SyncContext) -> None:
        seen.append(ctx.scheduled_for)

    timed_app.schedule("a", later, every=60)
    timed_app.schedule("b", plain.options(timeout=5), every=60)
    timed_app.worker().drain(timeout=60)
    clock.forward(75)
    timed_app.worker().drain(timeout=60)
    clock.forward(1)
    timed_app.worker().drain(timeout=60)
    assert set(seen) == {slot(1)}
    assert len(seen) >= 4
    runs = timed_app.runs()
    assert {run.scheduled_for for run in runs} == {slot(1)}
    told = timed_app.get_run(runs[0].id).history()[0].data
    assert (told["schedule"], told["scheduled_for"]) == ("b", slot(1).isoformat())
    assert {run.state for run in runs} == {"done"}
    beside = plain.enqueue()
    timed_app.worker().drain(timeout=60)
    assert seen[-1] is None
    assert beside.info().scheduled_for is None


def test_a_retried_run_keeps_its_slot(timed_app, clock):
    seen: list[datetime | None] = []

    @timed_app.task(name="flaky")
    async def flaky(ctx: Context) -> None:
        seen.append(ctx.scheduled_for)
        if len(seen) == 1:
            raise ValueError("once")

    timed_app.schedule("tick", flaky, every=60)
    timed_app.worker().drain(timeout=60)
    clock.forward(60)
    timed_app.worker().drain(timeout=60)
    clock.forward(10)
    timed_app.worker().drain(timeout=60)
    assert seen == [slot(1)] * 2


def test_slots_follow_the_zone(timed_app, clock, noting):
    clock.micros = int(datetime(2027, 3, 27, 12, tzinfo=UTC).timestamp()) * 1_000_000
    timed_app.schedule("tick", noting, cron="30 1 * * *", tz="Europe/London", catch_up="all")
    timed_app.worker().drain(timeout=60)
    clock.forward(3 * 86_400)
    timed_app.worker().drain(timeout=60)
    slots = [f"{run.scheduled_for:%d %H:%M}" for run in timed_app.runs()]
    assert sorted(slots) == ["28 01:00", "29 00:30", "30 00:30"]


def test_a_starting_worker_updates_stored_schedules(make_app, clock, ledger):
    def shop(*names: str, every: int = 60, text: str = "old") -> Holdfast:
        app = make_app(clock=clock, name="shop")

        @app.task(name="note")
        def note(text: str) -> None:
            ledger.write(text)

        for name in names:
            app.schedule(name, note, args=(text,), every=every)
        return app

    shop("tick", "tock").worker().drain(timeout=60)
    new = shop("tick", text="new")
    clock.forward(60)
    new.worker().drain(timeout=60)
    assert ledger.lines() == ["new"]
    assert shown(new, "tock").orphaned == 1
    slow = shop("tick", every=3600)
    slow.worker().drain(timeout=60)
    assert to_datetime(shown(slow).next_at) == slot(60)
    shop().worker().drain(timeout=60)
    clock.forward(7200)
    shop().worker().drain(timeout=60)
    assert (shown(slow).orphaned, ledger.lines()) == (1, ["new"])


def test_the_scheduler_sleeps_until_the_next_slot(timed_app, clock, noting):
    timed_app.schedule("tick", noting, every=60)
    scheduler = timed_app.worker()._components.scheduler
    assert scheduler.tick() == POLL_INTERVAL_S
    scheduler.declare()
    assert scheduler.tick() == POLL_INTERVAL_S
    clock.forward(59.25)
    assert scheduler.tick() == 0.75
    clock.forward(0.75)
    assert scheduler.tick() == 0.0
    assert scheduler.tick() == POLL_INTERVAL_S


def test_a_wrong_worker_clock_does_not_affect_slots(timed_app, clock, noting, monkeypatch):
    real = time.time
    for off in (600, -600):
        monkeypatch.setattr(time, "time", lambda off=off: real() + off)
        monkeypatch.setattr(time, "time_ns", lambda off=off: int((real() + off) * 1e9))
        timed_app.schedule("tick", noting, every=60)
        scheduler = timed_app.worker()._components.scheduler
        scheduler.declare()
        assert scheduler.tick() == POLL_INTERVAL_S
        clock.forward(60)
        assert scheduler.tick() == 0.0
    assert [run.scheduled_for for run in timed_app.runs()] == [slot(2), slot(1)]


def test_two_workers_create_one_run_per_slot(make_app, ledger):
    def start() -> Holdfast:
        app = make_app(name="shop")

        @app.task(name="note")
        def note(ctx: SyncContext) -> None:
            assert ctx.scheduled_for is not None
            ledger.write(int(ctx.scheduled_for.timestamp()))

        app.schedule("tick", note, every=1)
        return app

    with start().worker(), start().worker():
        wait_until(lambda: len(ledger.lines()) >= 3)
    slots = [int(line) for line in ledger.lines()]
    assert len(set(slots)) == len(slots)


def test_an_idle_worker_is_woken_by_a_slot(make_app):
    app = make_app()

    @app.task(name="nothing")
    async def nothing() -> None: ...

    app.schedule("tick", nothing, every=1)
    with app.worker():
        wait_until(lambda: any(run.state == "done" for run in app.runs()))
    run = next(run for run in reversed(app.runs()) if run.state == "done")
    assert run.created_at >= run.scheduled_for


def test_schedules_and_triggers_add_no_connections(postgres_url):
    app = Holdfast(postgres_url)

    @app.task(name="nothing")
    async def nothing() -> None: ...

    for n in range(20):
        app.schedule(f"s{n}", nothing, every=1, jitter=0.5)
    app.trigger("files", every=1)(lambda: [nothing.options(key="a").request()])
    with app.worker():
        wait_until(lambda: len([run for run in app.runs() if run.state == "done"]) >= 41)
        with psycopg.connect(postgres_url) as looking:
            ours = "select application_name from pg_stat_activity where datname = current_database()"
            names = [name for (name,) in looking.execute(ours) if name.startswith("holdfast ")]
    app.close()
    assert len(names) == len(set(names)) <= 6, names
