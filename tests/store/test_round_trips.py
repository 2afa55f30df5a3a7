"""How many statements and round trips continuations take. Bounds, so that what was gained isn't lost unnoticed.

A round trip is counted on PostgreSQL only; SQLite has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.database.postgres import PostgresConnection
from holdfast.store.rows import AttemptEnd
from tests.support.store_harness import StoreHarness, end_of, spawn_of, wait_of


@pytest.fixture
def harness(database_url):
    harness = StoreHarness(database_url)
    harness.session("w")
    yield harness
    harness.close()


@pytest.fixture
def count(harness, monkeypatch) -> Callable[[Callable[[], Any]], tuple[list[str], int | None]]:
    """Return a function that calls another one and returns its statements and how many round trips they took."""
    flushes: list[int] = []
    flush = PostgresConnection._flush
    monkeypatch.setattr(PostgresConnection, "_flush", lambda self, *calls: flushes.append(1) or flush(self, *calls))
    statements = harness.store._context.statements
    get, names = statements.get, []
    monkeypatch.setattr(statements, "get", lambda name, limit=None: names.append(name) or get(name, limit))

    def counted(call: Callable[[], Any]) -> tuple[list[str], int | None]:
        names.clear()
        flushes.clear()
        call()
        return list(names), len(flushes) if harness.store._context.on_postgres else None

    return counted


def claiming(harness) -> Callable[[Any], None]:
    """Claim in the transaction, as the committer does."""
    lanes = harness.store.lanes.refresh("claim")
    return lambda tx: harness.store.claims.claim_before_commit(tx, "w", lanes, 2)


def end(claim, kind="done", **more) -> AttemptEnd:
    """Return the end that a worker reports for the first attempt of a run without checkpoints."""
    parents = () if claim.parent is None else (str(claim.parent),)
    return end_of(claim, kind, in_tree=True, parents=parents, is_blank=True, **more)


def test_a_move_and_the_claim_of_the_next_state_take_two_round_trips(harness, count):
    claim = harness.running("w")
    move = end(claim, "moved", state="ready")
    before_commit = claiming(harness)
    names, trips = count(lambda: harness.store.attempts.end("w", [move], before_commit))
    claimed = ["claim"] if trips is not None else ["pick_claimable", "claim"]
    assert names == ["lock_session", "lock_runs", "end_tree_attempts", "add_tree_history", *claimed]
    assert trips in (None, 2), "one with begin and the locks, one with the rest and the commit"


def test_a_spawn_and_the_claim_of_the_child_take_two_round_trips(harness, count):
    claim = harness.running("w")
    before_commit = claiming(harness)
    command = spawn_of(claim, [harness.new()])
    harness.store.lanes.for_runs(command.runs())
    names, trips = count(lambda: harness.store.journal.write("w", [command], before_commit))
    assert names[:5] == ["lock_session", "lock_runs", "read_recorded", "add_children", "add_checkpoints"]
    assert len(names) <= 7
    assert trips in (None, 2)


def test_the_end_of_a_child_takes_two_round_trips(harness, count):
    claim = harness.running("w")
    harness.spawn("w", claim)
    child = harness.child("w")
    names, trips = count(lambda: harness.store.attempts.end("w", [end(child)]))
    assert names == ["lock_session", "lock_runs", "end_tree_attempts", "add_tree_history", "resolve_child_waits"]
    assert trips in (None, 2)


def test_a_message_takes_three_round_trips(harness, count):
    claim = harness.running("w")
    harness.store.journal.write("w", [wait_of(claim, "message", "go")])
    names, trips = count(lambda: harness.store.actions.send(claim.id, "go", "1"))
    assert names[-5:] == [
        "add_messages", "first_waiting_receiver", "first_unread_message", "take_messages", "resolve_waits"
    ]  # fmt: skip
    assert trips in (None, 3)


def test_an_event_takes_four_round_trips(harness, count):
    claim = harness.running("w")
    harness.store.journal.write("w", [wait_of(claim, "event", "go")])
    names, trips = count(lambda: harness.store.events.emit(None, "go", "1"))
    assert names == [
        "create_event_rows", "lock_events", "read_emitted", "find_event_waiters", "lock_runs", "emit_events",
        "resolve_waits",
    ]  # fmt: skip
    assert trips in (None, 4)


def test_a_transaction_that_executes_nothing_takes_no_round_trip(harness, count):
    assert count(lambda: harness.store.claims._transaction("commit", lambda tx: None)) in (([], None), ([], 0))
