"""Checkpoints of steps from one turn of the event loop are written as one batch, also after failures."""

from __future__ import annotations

import asyncio
from collections import deque
from threading import get_ident
from types import SimpleNamespace

import pytest

from holdfast import Context
from holdfast.database import DataFault
from holdfast.engine.attempt import Session, WorkerState
from holdfast.engine.loops.committer import Committer
from holdfast.engine.write_queue import (
    MAX_BATCH_WRITES,
    MAX_CHECKPOINT_BATCH_BYTES,
    CheckpointBatch,
    PendingEnd,
    PendingWrite,
    WriteQueue,
    batch_checkpoints,
    take_batch,
)
from holdfast.errors import StoreUnavailable
from holdfast.store.commands import NewStepCheckpoint, RunToken, WithdrawCommand
from tests.support.lost_reply import FirstReplyLost
from tests.support.wait_until import wait_until

RUNS = 30


@pytest.fixture
def bundles(app, ledger):
    """Return a worker with a paused committer whose queue holds one batch with a checkpoint of each run."""
    go: asyncio.Event | None = None

    async def effect(n: int) -> int:
        ledger.write(n)
        await go.wait()
        return n

    @app.task(name="work")
    async def work(ctx: Context, n: int) -> int:
        nonlocal go
        go = go or asyncio.Event()
        await ctx.step(effect, n, name="effect")
        ledger.write(f"behind {n}")
        return n

    with app.worker(lease=20, concurrency=RUNS) as worker:
        runs = work.enqueue_many([(n,) for n in range(RUNS)])
        wait_until(lambda: len(ledger.lines()) == RUNS)
        committer = worker._components.committer
        committer.stop()
        worker._components.runner.loop.call_soon_threadsafe(go.set)
        wait_until(lambda: committer._queue.backlog == RUNS)
        wait_until(lambda: committer._queue._ready)
        assert [(type(task), task.count) for task in committer._queue._ready] == [(CheckpointBatch, RUNS)]
        yield worker._components, runs


def finish(components, runs):
    """Commit until no run is claimed."""
    queue, state = components.queue, components.state
    wait_until(lambda: components.committer.tick() and not queue.backlog and not len(state))
    return [run.info().state for run in runs]


def kept(app):
    return sorted(app.store.journal.load([(str(run.id), 0)])[str(run.id)].checkpoints[0].value for run in app.runs())


def test_a_checkpoint_batch_is_written_with_one_statement(app, bundles, monkeypatch):
    components, runs = bundles
    monkeypatch.setattr(components.store.journal, "record", None)
    assert finish(components, runs) == ["done"] * RUNS
    assert [run.result(timeout=5) for run in runs] == list(range(RUNS))
    assert kept(app) == sorted(str(n) for n in range(RUNS))


def test_a_checkpoint_of_a_lost_run_fails_alone(bundles, ledger):
    components, runs = bundles
    runs[7].cancel()
    states = finish(components, runs)
    assert {n for n in range(RUNS) if f"behind {n}" not in ledger.lines()} == {7}, "it doesn't go on"
    assert [at for at, state in enumerate(states) if state != "done"] == [7]
    assert states[7] == "cancelled"


def test_a_batch_is_recognized_after_its_reply_was_lost(app, bundles, monkeypatch, ledger):
    components, runs = bundles
    losing = FirstReplyLost(components.store.journal.record_steps)
    monkeypatch.setattr(components.store.journal, "record_steps", losing)
    with pytest.raises(StoreUnavailable):
        components.committer.tick()
    assert components.queue.backlog == RUNS
    assert finish(components, runs) == ["done"] * RUNS
    assert losing.replies == [True], "all were written; the retry took the general path"
    assert kept(app) == sorted(str(n) for n in range(RUNS))
    assert set(ledger.counts().values()) == {1}


def test_a_rejected_checkpoint_does_not_affect_the_others(bundles, monkeypatch):
    components, runs = bundles
    real, bad = components.store.journal.record, str(runs[13].id)

    def refuse(*_):
        raise DataFault("poison")

    def record(session, records):
        return refuse() if bad in [record.run for record in records] else real(session, records)

    monkeypatch.setattr(components.store.journal, "record_steps", refuse)
    monkeypatch.setattr(components.store.journal, "record", record)
    states = finish(components, runs)
    assert [at for at, state in enumerate(states) if state != "done"] == [13]
    assert "poison" in runs[13].info().error.message


def test_delivered_writes_are_not_repeated_after_a_failure(bundles, monkeypatch):
    components, runs = bundles
    real, sizes = components.store.journal.record, []

    def record(session, records):
        sizes.append(len(records))
        if len(records) == RUNS:
            raise DataFault("poison")
        if len(sizes) == 3:
            raise StoreUnavailable("gone")
        return real(session, records)

    monkeypatch.setattr(components.store.journal, "record_steps", lambda *_: False)
    monkeypatch.setattr(components.store.journal, "record", record)
    with pytest.raises(StoreUnavailable):
        components.committer.tick()
    assert sizes == [RUNS, RUNS // 2, RUNS // 2]
    left = [task for task in components.queue._ready if isinstance(task, PendingWrite)]
    assert [task.command.run for task in left] == [str(run.id) for run in runs[RUNS // 2 :]]
    assert finish(components, runs) == ["done"] * RUNS


def write(session: str = "s", size: int = 1) -> PendingWrite:
    attempt = SimpleNamespace(session=session)
    return PendingWrite(attempt, NewStepCheckpoint("id", 1, 1, 1, "key", "x" * size, 1), print, True)


def test_only_small_checkpoints_of_one_session_are_batched():
    asks = [write(), write()]
    (bundle,) = batch_checkpoints(asks)
    assert (bundle.session, bundle.writes, bundle.count, bundle.size) == ("s", asks, 2, 2)
    large = [write(size=MAX_CHECKPOINT_BATCH_BYTES), write()]
    assert batch_checkpoints(large) is large
    mixed = [write("s"), write("t")]
    assert batch_checkpoints(mixed) is mixed


@pytest.fixture
def alone():
    """Return a committer, its session and the store calls that it made."""
    state, calls = WorkerState(), []

    def end(*_given):
        raise StoreUnavailable("gone")

    def record_steps(session, *_given):
        calls.append(session)
        return True

    store = SimpleNamespace(
        journal=SimpleNamespace(record_steps=record_steps), attempts=SimpleNamespace(end=end, release=end)
    )
    session = Session("worker", "{}")
    state.begin(session)
    committer = Committer(store, state, WriteQueue(), None, print, print, print, print, print)  # type: ignore[arg-type]
    return committer, session.id, calls


def test_writes_of_an_ended_session_are_discarded(alone):
    committer, _, calls = alone
    committer._queue._ready.extend(batch_checkpoints([write("an earlier one"), write("an earlier one")]))
    assert committer._queue.backlog == 2
    committer.tick()
    assert committer._queue.backlog == 0
    assert calls == []


def over(session, *, durable):
    claim = SimpleNamespace(id="id", fence=1)
    return PendingEnd(SimpleNamespace(session=session, claim=claim, durable=durable), None)  # type: ignore[arg-type]


def on_loop(committer):
    committer._queue._loop_thread = get_ident()
    committer._loop = committer._queue._loop = SimpleNamespace(
        call_soon=lambda *_: None, call_soon_threadsafe=lambda *_: None
    )


def test_checkpoints_follow_earlier_writes_of_their_turn(alone):
    """Otherwise replay would not know of a wait that task code cancelled before the checkpoint."""
    committer, session, _ = alone
    on_loop(committer)
    withdraw = PendingWrite(
        SimpleNamespace(session=session), WithdrawCommand(RunToken("id", 1, 1, 0), 1, "wait"), print, True
    )
    committer._queue.submit(write(session))
    committer._queue.submit(withdraw)
    committer._queue.submit(write(session))
    committer._queue._end_iteration()
    first, bundle = committer._queue._ready
    assert (first, bundle.count) == (withdraw, 2)


def test_only_checkpoints_and_their_ends_wait_for_the_end_of_the_turn(alone):
    committer, session, _ = alone
    on_loop(committer)
    job, first, second = over(session, durable=False), over(session, durable=True), over(session, durable=True)
    committer._queue.submit(first)
    committer._queue.submit(write(session))
    committer._queue.submit(job)
    committer._queue.submit(second)
    assert (list(committer._queue._ready), committer._queue.available, committer._queue.backlog) == ([first, job], 2, 4)


def test_a_batch_counts_as_backlog_while_it_is_taken(alone, monkeypatch):
    """Another thread submits a write right after the committer took the queue."""
    committer, session, _ = alone
    seen = []

    def take(waiting):
        waiting.append(over(session, durable=False))
        group = take_batch(waiting)
        seen.append(committer._queue.backlog)
        return group

    monkeypatch.setattr("holdfast.engine.write_queue.take_batch", take)
    with pytest.raises(StoreUnavailable):
        committer.tick()
    assert seen == [1]


def test_an_end_follows_the_checkpoints_before_it(alone):
    committer, session, calls = alone
    on_loop(committer)
    end = over(session, durable=True)
    committer._queue.submit(write(session))
    committer._queue.submit(end)
    committer._queue.submit(write(session))
    assert committer._queue.backlog == 3
    committer._queue._end_iteration()
    assert [task.count for task in committer._queue._ready] == [2, 1]
    with pytest.raises(StoreUnavailable):
        committer.tick()
    assert (calls, list(committer._queue._ready)) == ([session], [end]), "what is written isn't written again"


def test_batch_size_counts_the_writes_in_checkpoint_batches():
    (bundle,) = batch_checkpoints([write() for _ in range(200)])
    over = PendingEnd(None, None)  # type: ignore[arg-type]
    waiting = deque([bundle, over, bundle, *[over] * 120, bundle])
    group = take_batch(waiting)
    assert sum(task.count for task in group) == MAX_BATCH_WRITES
    assert len(waiting) == 21 + 1
