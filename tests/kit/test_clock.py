"""The virtual clock: everything that depends on time follows it, and nothing waits in real time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Fatal, Retry, SyncContext, WaitTimeout
from holdfast.errors import ConfigError, RunFailed
from holdfast.testing import Kit, VirtualClock
from tests.support.wait_until import wait_until

NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


def state(run):
    return run.info().state


def test_a_sleeping_run_wakes_when_the_clock_is_advanced(kit):
    @kit.app.task(name="remind")
    async def remind(ctx: Context) -> list[datetime]:
        before = await ctx.now()
        await ctx.sleep(timedelta(days=30))
        return [before, await ctx.now()]

    start = kit.clock.now
    run = remind.enqueue()
    kit.drain()
    kit.clock.advance(timedelta(days=30) - timedelta(microseconds=1))
    kit.drain()
    assert state(run) == "waiting"
    kit.clock.advance(timedelta(microseconds=1))
    kit.drain()
    assert run.result(timeout=0) == [start, start + timedelta(days=30)]


def test_a_drain_leaves_delayed_runs_until_the_clock_is_advanced(kit):
    @kit.app.task(name="later")
    def later() -> str:
        return "done"

    by_delay = later.options(delay=3600).enqueue()
    at_a_time = later.options(run_at=kit.clock.now + timedelta(hours=2)).enqueue()
    assert kit.drain() == 0
    kit.clock.advance(hours=1)
    assert kit.drain() == 1
    assert (state(by_delay), state(at_a_time)) == ("done", "scheduled")
    kit.clock.advance(hours=1)
    assert kit.drain() == 1


def test_retry_delays_of_a_run_follow_the_clock(kit):
    tries = []

    @kit.app.task(name="flaky", retry=Retry(max_attempts=2, delay=60, jitter=0))
    def flaky() -> int:
        tries.append(kit.clock.now)
        if len(tries) == 1:
            raise ValueError
        return len(tries)

    run = flaky.enqueue()
    kit.drain()
    assert (state(run), len(tries)) == ("scheduled", 1)
    kit.clock.advance(minutes=1)
    kit.drain()
    assert run.result(timeout=0) == 2
    assert tries[1] - tries[0] == timedelta(minutes=1)


@pytest.mark.parametrize("blocking", [False, True])
def test_retry_delays_of_a_step_are_skipped(kit, blocking):
    tries = []

    def flaky() -> int:
        tries.append(1)
        if len(tries) < 4:
            raise ValueError
        return len(tries)

    patient = Retry(max_attempts=5, delay=3600, max_delay=36_000)

    @kit.app.task(name="awaits")
    async def awaits(ctx: Context) -> int:
        return await ctx.step(flaky, name="flaky", retry=patient)

    @kit.app.task(name="blocks")
    def blocks(ctx: SyncContext) -> int:
        return ctx.step(flaky, name="flaky", retry=patient)

    run = (blocks if blocking else awaits).enqueue()
    kit.drain()
    assert run.result(timeout=0) == 4


def test_schedules_fire_by_the_clock(kit):
    @kit.app.task(name="report")
    async def report(ctx: Context) -> datetime | None:
        return ctx.scheduled_for

    kit.app.schedule("nightly", report, cron="0 3 * * *", tz="UTC", catch_up="all")
    kit.clock.set(NEW_YEAR)
    assert kit.drain() == 0
    kit.clock.advance(days=3)
    kit.drain()
    slots = [run.result(timeout=0) for run in kit.enqueued(report)]
    assert slots == [NEW_YEAR + timedelta(days=day, hours=3) for day in range(3)]


def test_triggers_are_polled_by_the_clock(kit):
    polls = []

    @kit.app.task(name="ingest")
    def ingest(at: str) -> str:
        return at

    @kit.app.trigger("files", every=3600)
    def files():
        polls.append(kit.clock.now)
        yield ingest.options(key=str(len(polls))).request(str(len(polls)))

    kit.drain()
    before = len(polls)
    kit.drain()
    assert len(polls) == before
    kit.clock.advance(hours=1)
    kit.drain()
    assert len(polls) == before + 1
    assert len(kit.enqueued(ingest)) == before + 1


def test_a_wait_times_out_by_the_clock(kit):
    @kit.app.task(name="ask")
    async def ask(ctx: Context) -> str:
        try:
            return await ctx.wait_for("answer", timeout=timedelta(days=7))
        except WaitTimeout:
            return "nobody"

    run = ask.enqueue()
    kit.drain()
    assert state(run) == "waiting"
    kit.clock.advance(days=7)
    kit.drain()
    assert run.result(timeout=0) == "nobody"


def test_a_deadline_passes_by_the_clock(kit):
    @kit.app.task(name="late")
    def late() -> None:
        raise Fatal("it began after all")

    run = late.options(delay=60, deadline=30).enqueue()
    kit.clock.advance(seconds=60)
    kit.drain()
    with pytest.raises(RunFailed) as failed:
        run.result(timeout=0)
    assert failed.value.error.code == "deadline"


def test_a_rate_gives_permits_by_the_clock(kit):
    kit.app.limit("mail", rate="2/hour")

    @kit.app.task(name="send", limits=["mail"])
    def send(number: int) -> int:
        return number

    for number in range(3):
        send.enqueue(number)
    assert kit.drain() == 2
    kit.clock.advance(hours=1)
    assert kit.drain() == 1


def test_the_lease_of_a_dead_worker_runs_out_by_the_clock(kit):
    @kit.app.task(name="work")
    def work() -> str:
        return "done"

    run = work.enqueue()
    store = kit.app.store
    store.sessions.open("dead", "a worker that was killed", 60_000_000, "{}")
    (claim,) = store.claims.claim("dead", [store.lanes.ids([("default", "work")])["default", "work"]], 1)
    assert claim.id == str(run.id)
    kit.clock.advance(seconds=60)
    kit.drain()
    assert (run.result(timeout=0), run.info().crashes) == ("done", 1)


def test_a_background_worker_keeps_its_lease_and_polls_at_once(kit):
    @kit.app.task(name="sleeper")
    async def sleeper(ctx: Context) -> str:
        await ctx.sleep(timedelta(days=365))
        return "awake"

    run = sleeper.enqueue()
    with kit.app.worker(lease=60):
        (session,) = [row[0] for row in kit.app.store.sessions.list_live()]
        wait_until(lambda: state(run) == "waiting")
        kit.clock.advance(days=365)
        assert run.result(timeout=30) == "awake"
        assert [row[0] for row in kit.app.store.sessions.list_live()] == [session]
    assert run.info().crashes == 0


def test_a_step_may_advance_the_clock(kit):
    def take_a_year() -> None:
        kit.clock.advance(days=365)

    @kit.app.task(name="slow")
    async def slow(ctx: Context) -> timedelta:
        before = await ctx.now()
        await ctx.step(take_a_year, name="slow")
        return await ctx.now() - before

    run = slow.enqueue()
    kit.drain()
    assert run.result(timeout=0) == timedelta(days=365)
    assert run.info().crashes == 0


def test_a_kit_can_begin_at_any_time():
    with Kit(now=NEW_YEAR) as kit:

        @kit.app.task(name="now")
        async def now(ctx: Context) -> datetime:
            return await ctx.now()

        run = now.enqueue()
        kit.drain()
        assert run.result(timeout=0) == NEW_YEAR


def test_the_clock_rejects_invalid_times():
    clock = VirtualClock(NEW_YEAR)
    with pytest.raises(ConfigError, match="must not be negative"):
        clock.advance(days=-1)
    with pytest.raises(ConfigError, match="needs a time zone"):
        clock.set(datetime(2027, 1, 2))  # noqa: DTZ001
    with pytest.raises(ConfigError, match="timedelta or a number of seconds"):
        clock.advance("tomorrow")
    assert clock.now == NEW_YEAR


def test_the_clock_moves_back_only_without_a_worker(kit):
    kit.clock.set(NEW_YEAR)
    assert kit.clock.now == NEW_YEAR
    with kit.app.worker():
        with pytest.raises(ConfigError, match="while a worker is running"):
            kit.clock.set(NEW_YEAR - timedelta(days=1))
    assert kit.clock.set(NEW_YEAR - timedelta(days=1)) < NEW_YEAR


def test_workers_are_notified_before_and_after_the_clock_moves():
    told = []

    class Worker:
        session = "s1"

        def time_moves(self, by):
            told.append((clock.now, by))

        def time_moved(self):
            told.append(clock.now)

    clock, worker = VirtualClock(NEW_YEAR), Worker()
    clock.follow(worker)
    assert clock.worker("s1") is worker
    clock.advance(hours=1)
    clock.leave(worker)
    clock.advance(hours=1)
    later = NEW_YEAR + timedelta(hours=1)
    assert told == [(NEW_YEAR, 3_600_000_000), later]
    assert clock.now == later + timedelta(hours=1)
    assert clock.worker("s1") is None


def test_the_clock_takes_a_duration_or_its_parts_but_not_both():
    clock = VirtualClock(NEW_YEAR)
    with pytest.raises(ConfigError, match="not both"):
        clock.advance(60, days=1)
    assert clock.now == NEW_YEAR
    assert clock.advance(days=1, hours=2) == NEW_YEAR + timedelta(hours=26)


# Schedules


@pytest.fixture
def nightly(kit):
    slots = []

    @kit.app.task(name="nightly")
    async def nightly(ctx: Context) -> None:
        slots.append(ctx.scheduled_for)

    kit.clock.set(NEW_YEAR)
    kit.app.schedule("nightly", nightly, cron="0 3 * * *")
    return slots


@pytest.mark.parametrize("drained", [False, True])
def test_slots_that_an_advance_passes_are_due(kit, nightly, drained):
    if drained:
        kit.drain()
    kit.clock.advance(hours=2)
    kit.drain()
    assert nightly == []
    kit.clock.advance(days=1)
    kit.drain()
    assert nightly == [NEW_YEAR + timedelta(hours=3)]
    kit.clock.advance(days=2)
    kit.drain()
    assert sorted(nightly) == [NEW_YEAR + timedelta(days=day, hours=3) for day in range(3)]


def test_the_time_at_which_a_test_starts_passes_no_slots(kit, nightly):
    kit.clock.set(NEW_YEAR + timedelta(days=100))
    kit.drain()
    assert nightly == []
    kit.clock.set(NEW_YEAR + timedelta(days=101))
    kit.drain()
    assert nightly == [NEW_YEAR + timedelta(days=100, hours=3)]


def test_an_advance_passes_at_most_a_thousand_slots_of_a_schedule(kit):
    done = []

    @kit.app.task(name="often")
    def often() -> None:
        done.append(1)

    kit.app.schedule("often", often, every=60)
    kit.clock.advance(days=1)
    kit.drain()
    assert len(done) == 1000


def test_slots_are_due_in_a_running_worker(kit, nightly):
    with kit.app.worker():
        kit.clock.advance(days=1)
        wait_until(lambda: nightly == [NEW_YEAR + timedelta(hours=3)])


async def test_an_advance_works_in_async_tests(kit, nightly):
    kit.clock.advance(days=1)
    await kit.adrain()
    assert nightly == [NEW_YEAR + timedelta(hours=3)]
