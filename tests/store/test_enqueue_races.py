"""Enqueues that race: another transaction holds the key or the unique name and then commits or rolls back.

On PostgreSQL with two connections driven by hand. On SQLite writers exclude each other, so there is one order only.
"""

from __future__ import annotations

import threading

import pytest

from holdfast.errors import KeyConflict
from holdfast.model.payloads import Payloads
from holdfast.store.enqueue import enqueue_steps
from tests.support.manual_transaction import BlockedCall, ManualTransaction
from tests.support.store_harness import CANCELLED, StoreHarness


@pytest.fixture
def postgres(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.store.prepare()
    yield harness
    harness.close()


def test_when_the_winner_of_a_key_commits_the_waiter_gets_its_run(postgres):
    winner = ManualTransaction(postgres)
    first = winner.enqueue(postgres.new(key="k"))
    waiter = BlockedCall(postgres, lambda: postgres.add(key="k"))
    winner.commit()
    assert waiter.result() == first
    assert postgres.rows("runs") == 1


def test_when_the_winner_of_a_key_rolls_back_the_waiter_inserts(postgres):
    winner = ManualTransaction(postgres)
    first = winner.enqueue(postgres.new(key="k"))
    waiter = BlockedCall(postgres, lambda: postgres.add(key="k"))
    winner.rollback()
    assert waiter.result() != first
    assert postgres.state(waiter.result()) == "ready"
    assert postgres.rows("runs") == postgres.rows("keys") == 1


def test_when_the_winner_of_a_key_asked_for_something_else_the_waiter_conflicts(postgres):
    winner = ManualTransaction(postgres)
    winner.enqueue(postgres.new(key="k", digest="one"))
    waiter = BlockedCall(postgres, lambda: postgres.add(key="k", digest="two"))
    winner.commit()
    with pytest.raises(KeyConflict):
        waiter.result()


def test_when_the_winner_of_a_unique_name_commits_the_waiter_gets_its_run(postgres):
    winner = ManualTransaction(postgres)
    first = winner.enqueue(postgres.new(unique="u"))
    waiter = BlockedCall(postgres, lambda: postgres.add(unique="u"))
    winner.commit()
    assert waiter.result() == first


def test_when_the_winner_of_a_unique_name_rolls_back_the_waiter_inserts(postgres):
    winner = ManualTransaction(postgres)
    first = winner.enqueue(postgres.new(unique="u"))
    waiter = BlockedCall(postgres, lambda: postgres.add(unique="u"))
    winner.rollback()
    assert waiter.result() != first
    assert postgres.rows("runs") == 1


def test_a_successor_that_waited_for_the_cancel_of_its_predecessor_is_held(postgres):
    """The insert's snapshot is older than the cancel; only a later statement sees that the code is still running."""
    postgres.session("w")
    claim = postgres.running("w", unique="u")
    canceller = ManualTransaction(postgres)
    rows = f'[{{"id":"{claim.id}"}}]'
    canceller.do("lock_runs", rows=rows)
    assert canceller.do("end_runs", rows=rows, state="cancelled", error=CANCELLED, overdue=0)
    successor = BlockedCall(postgres, lambda: postgres.add(unique="u"))
    canceller.commit()
    assert successor.result() != claim.id
    assert postgres.row(successor.result())["held"] == "quiescing"
    assert postgres.claim("w") == []


def test_a_retry_that_waited_for_a_new_run_of_its_unique_name_is_a_conflict(postgres):
    old = postgres.add(unique="u")
    postgres.store.actions.cancel(old, CANCELLED)
    enqueuer = ManualTransaction(postgres)
    new = enqueuer.enqueue(postgres.new(unique="u"))
    retry = BlockedCall(postgres, lambda: postgres.store.actions.retry(old))
    enqueuer.commit()
    with pytest.raises(KeyConflict, match=new):
        retry.result()
    assert postgres.state(old) == "cancelled"


def test_batches_with_the_same_unique_names_in_another_order_do_not_deadlock(postgres):
    """The second waits before it has locked anything, so the first can lock its second name."""
    lane = postgres.lane()
    first = ManualTransaction(postgres)
    steps = enqueue_steps([postgres.new(unique="a"), postgres.new(unique="b")], {("default", "task"): lane}, Payloads())
    name, values = next(steps)
    assert name == "lock_unique_names"
    first.do(name, **values)
    second = BlockedCall(
        postgres, lambda: postgres.store.enqueuer.enqueue([postgres.new(unique="b"), postgres.new(unique="a")])
    )
    name, values = steps.send([])
    made = [row[0] for row in first.do(name, **values)]
    first.commit()
    assert second.result() == made[::-1]


def test_a_writer_that_rolls_back_on_sqlite_leaves_the_key_to_the_next(sqlite_url):
    harness = StoreHarness(sqlite_url)
    peer = harness.another_store()
    harness.store.prepare()
    held, rolled_back = threading.Event(), threading.Event()
    run = harness.new(key="k")

    class Stop(Exception):
        pass

    def work(tx):
        tx.execute("add_keys", rows=f'[{{"scope":"[null,\\"task\\"]","key":"k","digest":"same","run":"{run.id}"}}]')
        held.set()
        rolled_back.wait(0.2)
        raise Stop

    def winner():
        with pytest.raises(Stop):
            harness.store.enqueuer._transaction("client", work)

    thread = threading.Thread(target=winner)
    thread.start()
    held.wait(10)
    waiter = harness.new(key="k")
    assert peer.enqueuer.enqueue([waiter]) == [waiter.id]
    thread.join()
    assert harness.rows("runs") == 1
    harness.close()
