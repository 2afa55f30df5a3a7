"""The queue for the write lock of a SQLite file: order, heartbeats first, frozen waiters, no lock file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.database import sqlite_write_queue
from holdfast.database.fair_lock import FairLock
from holdfast.database.sqlite_write_queue import SqliteWriteQueue
from holdfast.errors import StoreUnavailable
from tests.support.store_harness import StoreHarness
from tests.support.wait_until import wait_until

MAX_TRIES = 100
"""A waiter may poll just between the holder's release and its next acquire, and then gets the turn rightly."""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Callable[..., SqliteWriteQueue]]:
    """Each call gives another connection's access to the same queue."""
    file = tmp_path / "jobs.db"
    file.touch()
    made: list[SqliteWriteQueue] = []

    def make(**options: Any) -> SqliteWriteQueue:
        made.append(SqliteWriteQueue(str(file), **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Waiter:
    """A thread that takes a turn, notes its name, and gives the turn back."""

    def __init__(self, queue: SqliteWriteQueue, name: str, turns: list[str]) -> None:
        self.queue = queue
        self._name, self._turns = name, turns
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        wait_until(lambda: queue.waiting_since is not None, 10, "a place in the queue")

    def _run(self) -> None:
        self.queue.acquire()
        self._turns.append(self._name)
        self.queue.release()


def test_turns_come_in_the_order_of_arrival_and_heartbeats_first(queue: Callable[..., SqliteWriteQueue]) -> None:
    holder = queue()
    holder.acquire()
    turns: list[str] = []
    waiters = [Waiter(queue(), name, turns) for name in ("first", "second", "third")]
    waiters += [Waiter(queue(urgent=True), name, turns) for name in ("heartbeat 1", "heartbeat 2")]
    holder.release()
    for waiter in waiters:
        waiter.thread.join(10)
    assert turns == ["heartbeat 1", "heartbeat 2", "first", "second", "third"]
    assert all(waiter.queue.last_wait_s > 0 and waiter.queue.waiting_since is None for waiter in waiters)


def test_a_writer_that_wrote_for_long_does_not_pass_waiting_ones(queue: Callable[..., SqliteWriteQueue]) -> None:
    holder = queue()
    turns: list[str] = []
    holder.acquire()
    waiter = Waiter(queue(), "other", turns)
    time.sleep(2 * sqlite_write_queue.TURN_S)
    holder.release()
    holder.acquire()  # at once, as a loop of transactions does
    turns.append("holder")
    waiter.thread.join(10)
    assert turns == ["other", "holder"]


def test_within_its_turn_a_connection_passes_waiters_but_not_heartbeats(
    queue: Callable[..., SqliteWriteQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_write_queue, "TURN_S", 3600.0)
    monkeypatch.setattr(sqlite_write_queue, "WAITER_CHECK_S", 0.0)
    holder = queue()
    turns: list[str] = []
    holder.acquire()
    for _ in range(MAX_TRIES):
        turns.clear()
        waiter = Waiter(queue(), "other", turns)
        holder.release()
        holder.acquire()
        if not turns:
            break
    assert turns == [], "a connection within its turn always queued behind the waiter"
    heartbeat = Waiter(queue(urgent=True), "heartbeat", turns)
    holder.release()
    holder.acquire()
    turns.append("holder")
    holder.release()
    for each in (waiter, heartbeat):
        each.thread.join(10)
    assert turns[0] == "heartbeat"


@pytest.mark.parametrize("urgent", [False, True])
def test_a_frozen_waiter_loses_its_place(queue: Callable[..., SqliteWriteQueue], urgent: bool) -> None:
    frozen = queue(urgent=urgent)
    frozen._check_file(time.monotonic())
    frozen._join_queue(time.monotonic())
    writer = queue()
    writer.acquire()
    assert writer._holds_turn
    assert writer.last_wait_s >= sqlite_write_queue.STALE_S
    writer.release()
    writer.acquire()
    assert writer.last_wait_s == 0.0, "it is waited for only once"


def test_a_writer_whose_turn_does_not_come_proceeds_without_the_queue(
    queue: Callable[..., SqliteWriteQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_write_queue, "WAIT_TIMEOUT_S", 0.01)
    frozen, writer = queue(), queue()
    frozen.acquire()
    writer.acquire()
    assert writer.is_overdue
    assert not writer._holds_turn
    writer.wrote()  # SQLite had no objection: nobody is inside a transaction
    writer.acquire()
    assert (writer.last_wait_s, writer.is_overdue) == (0.0, False)


def test_a_lock_file_that_was_deleted_is_made_again(
    queue: Callable[..., SqliteWriteQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_write_queue, "RECHECK_S", 0.0)
    first, second = queue(), queue()
    first.acquire()
    first.release()
    Path(first.path).unlink()
    first.acquire()
    second._check_file(time.monotonic())
    assert second._is_locked(sqlite_write_queue.WRITER, 1), "both use the new file"


def test_a_forked_child_releases_nothing_of_its_parent(queue: Callable[..., SqliteWriteQueue]) -> None:
    holder, other = queue(), queue()
    holder.acquire()
    pid = os.fork()
    if not pid:
        holder.close()
        os._exit(0)
    os.waitpid(pid, 0)
    other._check_file(time.monotonic())
    assert other._is_locked(sqlite_write_queue.WRITER, 1)
    holder.release()
    assert not other._is_locked(sqlite_write_queue.WRITER, 1)


def test_without_a_lock_file_writers_go_straight_to_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "holdfast.db-lock").mkdir()  # can't be opened, whoever one is
    harness = StoreHarness(sqlite_url)
    assert harness.state(harness.add()) == "ready"
    with harness.store.database.transaction() as connection:
        assert connection.execute("select 1") == [(1,)]
    harness.close()


def test_the_holder_of_the_write_lock_is_named(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_write_queue, "WAIT_TIMEOUT_S", 0.05)
    monkeypatch.setattr("holdfast.database.sqlite_connection.BUSY_TIMEOUT_S", 0.02)
    harness = StoreHarness(sqlite_url)
    other = harness.another_store()
    lane = harness.lane()
    assert lane
    with harness.store.database.transaction():
        holder = harness.store.database.long_writer()
        assert holder is not None
        assert holder.pid == os.getpid()
        with pytest.raises(StoreUnavailable, match=f"held by process {os.getpid()}"):
            other.sessions.mark_idle("nobody", True)
    assert harness.store.database.long_writer() is None
    harness.close()


def test_another_programs_writer_is_waited_for(sqlite_url: str, tmp_path: Path) -> None:
    harness = StoreHarness(sqlite_url)
    harness.lane()
    other = apsw.Connection(str(tmp_path / "holdfast.db"))
    other.execute("begin immediate")
    threading.Timer(0.2, lambda: other.execute("rollback")).start()
    assert harness.state(harness.add()) == "ready"
    other.close()
    harness.close()


# Threads of one process


def test_a_thread_that_uses_a_connection_constantly_starves_no_other() -> None:
    lock = FairLock()
    order: list[str] = []
    stop = threading.Event()

    def hog() -> None:
        while not stop.is_set():
            with lock:
                order.append("hog")
                time.sleep(0.03)

    thread = threading.Thread(target=hog, daemon=True)
    thread.start()
    wait_until(lambda: order, 10)
    for _ in range(5):
        before = len(order)
        with lock:
            assert len(order) - before <= 2
    stop.set()
    thread.join(10)


def test_a_fair_lock_is_reentrant_times_out_and_goes_on_after_an_interrupt() -> None:
    lock = FairLock()
    got: list[bool] = []
    with lock, lock:
        thread = threading.Thread(target=lambda: got.append(lock.acquire(timeout=0.01)))
        thread.start()
        thread.join(10)
    assert got == [False]
    with pytest.raises(RuntimeError):
        lock.release()
    waiter = threading.Thread(target=lambda: got.append(lock.acquire()))
    with lock:
        waiter.start()
        wait_until(lambda: lock._waiting, 10)
    waiter.join(10)
    assert got == [False, True]


def test_a_lock_that_was_taken_away_goes_to_the_next_thread_and_late_releases_mean_nothing() -> None:
    lock = FairLock()
    got: list[bool] = []
    waiter = threading.Thread(target=lambda: got.append(lock.acquire(timeout=10)))
    with lock:
        with lock:
            waiter.start()
            wait_until(lambda: lock._waiting, 10)
            lock.revoke()
            waiter.join(10)
            assert got == [True]
            assert lock.is_revoked()
            with pytest.raises(RuntimeError):
                lock.acquire()
        assert lock.is_revoked()
    assert not lock.is_revoked()
    assert not lock.acquire(timeout=0.01), "the other thread has it"
