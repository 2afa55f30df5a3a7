"""Group commit: one bad command, a lost fence, a lost connection."""

from __future__ import annotations

import threading
from collections import deque

import psycopg
import pytest

from holdfast import Context, Holdfast, SyncContext
from holdfast.database import DataFault
from holdfast.engine.write_queue import MAX_BATCH_WRITES, PendingEnd, take_batch
from holdfast.errors import ConfigError, ErrorInfo, StoreError, StoreUnavailable
from holdfast.store import AttemptEnd
from tests.support.lost_reply import FirstReplyLost
from tests.support.wait_until import wait_until


@pytest.fixture
def gathered(app, ledger):
    """A worker whose attempts all end together, so that their ends share one batch or few."""
    go = threading.Event()

    @app.task(name="work")
    def work(n: int) -> int:
        ledger.write(n)
        go.wait(60)
        return n

    with app.worker(lease=20) as worker:
        runs = work.enqueue_many([(n,) for n in range(40)])
        wait_until(lambda: len(ledger.lines()) == 40)
        yield worker._components, runs, go
        go.set()


def end_all(components, runs, go):
    """Let all attempts end while the committer is paused, so that their ends share one batch."""
    components.committer.stop()
    go.set()
    wait_until(lambda: components.queue.backlog == len(runs))


def test_a_command_that_lost_its_fence_fails_alone(gathered, caplog):
    components, runs, go = gathered
    end_all(components, runs, go)
    runs[7].cancel()
    runs[21].cancel()
    while components.queue.backlog:
        components.committer.tick()
    states = [run.info().state for run in runs]
    assert [at for at, state in enumerate(states) if state == "cancelled"] == [7, 21]
    assert states.count("done") == 38
    assert caplog.text.count("result discarded") == 2
    assert len(components.state) == 0
    assert components.store.claims.list_owned(components.state.session.id) == []


@pytest.mark.parametrize("always", [False, True], ids=["its data", "whatever is written"])
@pytest.mark.parametrize("fault", [DataFault, ValueError])
def test_a_rejected_write_does_not_affect_the_rest_of_its_batch(gathered, monkeypatch, caplog, always, fault):
    components, runs, go = gathered
    end_all(components, runs, go)
    real, sizes = components.store.attempts.end, []

    def refusing(session, ends, *claim):
        sizes.append(len(ends))
        if any(end.id == str(runs[13].id) and (always or end.result is not None) for end in ends):
            raise fault("poison")
        return real(session, ends, *claim)

    monkeypatch.setattr(components.store.attempts, "end", refusing)
    while components.queue.backlog:
        components.committer.tick()
    assert sizes[0] == 40
    assert sizes.count(20) == 2, "written in halves"
    assert [run.info().state for run in runs].count("done") == 39
    assert "poison" in caplog.text
    if always:
        assert runs[13].info().state == "running", "left to the heartbeat"
    else:
        error = runs[13].info().error
        assert (runs[13].info().state, error.message) == ("failed", "poison")
        assert error.type.endswith(fault.__name__)
    assert components.committer.ended_attempts == (39 if always else 40)


def test_a_crash_that_cannot_be_written_fails_only_its_run(gathered, monkeypatch):
    components, runs, go = gathered
    end_all(components, runs, go)
    attempts = [over.attempt for over in _all(components.queue._ready)]
    for attempt in attempts:
        components.queue.submit(PendingEnd(attempt, attempt.crashed(ErrorInfo("crashed", "Crashed", "died"))))
    real = components.store.attempts.crash

    def refusing(session, ends, *claim):
        if any(end.id == str(runs[13].id) for end in ends):
            raise ValueError("poison")
        return real(session, ends, *claim)

    monkeypatch.setattr(components.store.attempts, "crash", refusing)
    components.claimer.stop()
    components.committer.tick()
    assert components.queue.backlog == 0
    assert [run.info().state for run in runs] == [("failed" if at == 13 else "ready") for at in range(40)]
    assert (runs[13].info().error.message, runs[7].info().crashes) == ("poison", 1)
    assert len(components.state) == 0


@pytest.mark.parametrize("trouble", [StoreError, StoreUnavailable, ConfigError])
def test_a_failure_of_the_store_does_not_bisect_the_batch(gathered, monkeypatch, trouble):
    components, runs, go = gathered
    end_all(components, runs, go)
    real, sizes = components.store.attempts.end, []

    def failing(session, ends, *claim):
        sizes.append(len(ends))
        if len(sizes) == 1:
            raise trouble("not now")
        return real(session, ends, *claim)

    monkeypatch.setattr(components.store.attempts, "end", failing)
    with pytest.raises(trouble):
        components.committer.tick()
    components.committer.tick()
    assert sizes == [40, 40]
    assert [run.info().state for run in runs] == ["done"] * 40


def test_written_ends_of_a_failed_batch_are_not_counted_twice(gathered, monkeypatch):
    components, runs, go = gathered
    end_all(components, runs, go)
    real, halves = components.store.attempts.end, []

    def failing(session, ends, *claim):
        if len(ends) == 40:
            raise DataFault("poison")
        halves.append(len(ends))
        if len(halves) == 2:
            raise StoreUnavailable("gone")
        return real(session, ends, *claim)

    monkeypatch.setattr(components.store.attempts, "end", failing)
    with pytest.raises(StoreUnavailable):
        components.committer.tick()
    assert halves == [20, 20]
    assert components.queue.backlog == 20
    while components.queue.backlog:
        components.committer.tick()
    assert components.committer.ended_attempts == 40
    assert [run.info().state for run in runs] == ["done"] * 40


def test_a_batch_whose_reply_was_lost_is_repeated_and_accepted(gathered, monkeypatch):
    components, runs, go = gathered
    end_all(components, runs, go)
    losing = FirstReplyLost(components.store.attempts.end)
    monkeypatch.setattr(components.store.attempts, "end", losing)
    with pytest.raises(StoreUnavailable):
        components.committer.tick()
    assert components.queue.backlog == 40
    components.committer.tick()
    assert len(losing.replies) == 2
    assert components.committer.ended_attempts == 40
    assert [run.result(timeout=5) for run in runs] == list(range(40))
    assert [[e.kind for e in run.history()].count("done") for run in runs] == [1] * 40


@pytest.mark.parametrize("slots", [1, 5])
def test_claimed_runs_stay_below_twice_the_concurrency_while_ends_are_written(app, ledger, monkeypatch, slots):
    """Otherwise a crash would repeat far more work than the concurrency suggests."""

    @app.task(name="quick")
    async def quick(n: int) -> int:
        ledger.write(n)
        return n

    real, go = app.store.attempts.end, threading.Event()
    monkeypatch.setattr(app.store.attempts, "end", lambda *given: go.wait(60) and real(*given))
    worker = app.worker(concurrency=slots)
    with worker:
        components = worker._components
        runs = quick.enqueue_many([(n,) for n in range(30)])
        wait_until(lambda: components.queue.backlog == 2 * slots - 1)
        for _ in range(3):
            assert components.claimer.tick() > 0, "it found a free slot"
        assert len(ledger.lines()) == 2 * slots - 1
        go.set()
        assert [run.result(timeout=30) for run in runs] == list(range(30))
    assert ledger.counts() == {str(n): 1 for n in range(30)}


def test_a_batch_is_bounded_by_count_and_bytes():
    def command(size: int) -> PendingEnd:
        return PendingEnd(None, AttemptEnd("id", 1, 1, "done", "done", result="x" * size), size)  # type: ignore[arg-type]

    def taken(*tasks: PendingEnd) -> int:
        waiting = deque(tasks)
        group = take_batch(waiting)
        assert [*group, *waiting] == [*tasks]  # none is lost, and they stay in order
        return len(group)

    assert taken() == 0
    assert taken(*[command(1)] * 2000) == MAX_BATCH_WRITES
    assert taken(*[command(2 * 1024 * 1024 + n) for n in range(10)]) == 3
    assert taken(*[command(9 * 1024 * 1024)] * 2) == 1
    assert taken(*[PendingEnd(None, None)] * 3) == 3  # type: ignore[arg-type]


def test_queued_writes_know_their_size(app, monkeypatch):
    seen = []
    monkeypatch.setattr("holdfast.engine.write_queue.take_batch", lambda waiting: seen.extend(waiting) or _all(waiting))

    @app.task(name="large")
    async def large(ctx: Context) -> str:
        await ctx.step(lambda: "s" * 1000, name="made")
        await ctx.emit("told", "e" * 2000)
        return "r" * 3000

    @app.task(name="large too")
    def large_too(ctx: SyncContext) -> None:
        ctx.step(lambda: "s" * 1000, name="made")

    @app.task(name="again")
    async def again(ctx: Context, text: str) -> None:
        if not text:
            await ctx.restart("a" * 4000)

    large.enqueue()
    large_too.enqueue()
    again.enqueue("")
    app.worker().drain()
    sizes = sorted(task.size // 1000 for task in seen)
    assert sizes == [0, 0, 1, 1, 2, 3, 4]


def _all(waiting):
    return [waiting.popleft() for _ in range(len(waiting))]


def kill_backends(url: str, name: str) -> int:
    query = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where datname = current_database() and application_name = %s"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query, [name]).fetchone()[0]


@pytest.mark.parametrize("purpose", ["commit", "claim", "heartbeat", "client"])
def test_work_continues_while_connections_are_killed_repeatedly(postgres_url, ledger, purpose):
    killed = 0
    with Holdfast(postgres_url) as app:

        @app.task(name="work")
        async def work(n: int) -> int:
            ledger.write(n)
            return n

        with app.worker(concurrency=10, lease=6):
            for _ in range(5):
                runs = work.enqueue_many([(n,) for n in range(100)])
                killed += kill_backends(postgres_url, f"holdfast {purpose}")
                wait_until(lambda runs=runs: all(run.info().final for run in runs))
                assert [run.result(timeout=30) for run in runs] == list(range(100))
        histories = [[entry.kind for entry in run.history()] for run in runs]
    assert killed >= 1, "the fault never fired"
    assert histories == [["enqueued", "started", "done"]] * 100
    assert ledger.counts() == {str(n): 5 for n in range(100)}
