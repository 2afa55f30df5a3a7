"""How many statements and round trips continuations take. Bounds, so that what was gained isn't lost unnoticed.

A round trip is counted on PostgreSQL only; SQLite has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.database.postgres import PostgresConnection
from holdfast.model.asks import ANY_ASK, AskAnswer, decode_envelope
from holdfast.store.rows import AttemptEnd
from tests.support.graph_harness import node, submit
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


def test_a_move_and_the_claim_of_the_next_state_take_one_round_trip(harness, count):
    claim = harness.running("w")
    move = end(claim, "moved", state="ready")
    before_commit = claiming(harness)
    names, trips = count(lambda: harness.store.attempts.end("w", [move], before_commit, claims={claim.id: claim}))
    written = ["end_tree_attempts", "add_tree_history"]
    if trips is None:
        assert names == ["lock_session", "lock_runs", *written, "pick_claimable", "claim"]
    else:
        assert (names, trips) == (["lock_expected_runs", *written, "claim"], 1)


def test_a_move_without_the_claim_takes_two_round_trips(harness, count):
    claim = harness.running("w")
    move = end(claim, "moved", state="ready")
    before_commit = claiming(harness)
    names, trips = count(lambda: harness.store.attempts.end("w", [move], before_commit))
    claimed = ["claim"] if trips is not None else ["pick_claimable", "claim"]
    assert names == ["lock_session", "lock_runs", "end_tree_attempts", "add_tree_history", *claimed]
    assert trips in (None, 2), "one with begin and the locks, one with the rest and the commit"


def test_a_spawn_and_the_claim_of_the_child_take_one_round_trip(harness, count):
    claim = harness.running("w")
    before_commit = claiming(harness)
    command = spawn_of(claim, [harness.new()])
    harness.store.lanes.for_runs(command.runs())
    names, trips = count(lambda: harness.store.journal.write("w", [command], before_commit, {claim.id: claim}))
    if trips is None:
        locked = ["lock_session", "lock_runs", "read_recorded"]
        assert names == [*locked, "add_children", "add_checkpoints", "pick_claimable", "claim"]
    else:
        assert names == ["lock_expected_runs", "expect_unrecorded", "add_children", "add_checkpoints", "claim"]
        assert trips == 1


def test_a_spawn_without_the_claim_takes_two_round_trips(harness, count):
    claim = harness.running("w")
    before_commit = claiming(harness)
    command = spawn_of(claim, [harness.new()])
    harness.store.lanes.for_runs(command.runs())
    names, trips = count(lambda: harness.store.journal.write("w", [command], before_commit))
    assert names[:5] == ["lock_session", "lock_runs", "read_recorded", "add_children", "add_checkpoints"]
    assert len(names) <= 7
    assert trips in (None, 2)


def test_the_end_of_a_child_takes_one_round_trip(harness, count):
    claim = harness.running("w")
    harness.spawn("w", claim)
    child = harness.child("w")
    claims = {each.id: each for each in (claim, child)}
    names, trips = count(lambda: harness.store.attempts.end("w", [end(child)], claims=claims))
    written = ["end_tree_attempts", "add_tree_history", "resolve_child_waits"]
    if trips is None:
        assert names == ["lock_session", "lock_runs", *written]
    else:
        assert (names, trips) == (["lock_expected_runs", *written], 1)


def test_the_end_of_a_node_and_the_claim_of_the_next_one_take_two_round_trips(harness, count):
    submit(harness, node(harness, "a"), node(harness, "b", "a"), node(harness, "c", "b"))
    (claim,) = harness.claim("w")
    before_commit = claiming(harness)
    names, trips = count(lambda: harness.store.attempts.end("w", [end(claim)], before_commit, claims={claim.id: claim}))
    assert "release_nodes" in names
    assert trips in (None, 2)


def test_the_end_of_a_child_without_the_claims_takes_two_round_trips(harness, count):
    claim = harness.running("w")
    harness.spawn("w", claim)
    child = harness.child("w")
    names, trips = count(lambda: harness.store.attempts.end("w", [end(child)]))
    assert names == ["lock_session", "lock_runs", "end_tree_attempts", "add_tree_history", "resolve_child_waits"]
    assert trips in (None, 2)


class Claim:
    """Claims in the transactions of clients, as a worker of their process does."""

    session_id = "w"

    def __init__(self, before_commit: Callable[[Any], None]) -> None:
        self._before_commit = before_commit

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, tx: Any) -> None:
        self._before_commit(tx)


def test_an_enqueue_and_the_claim_of_the_run_take_one_round_trip(harness, count):
    run = harness.new()
    harness.store.lanes.for_runs([run])
    claim = Claim(claiming(harness))
    remove = harness.store.claim_for_clients(lambda: claim)
    names, trips = count(lambda: harness.store.enqueuer.enqueue([run]))
    claimed = (
        ["act_for_session", "add_new_runs", "claim"] if trips is not None else ["add_runs", "pick_claimable", "claim"]
    )
    assert names == claimed
    assert trips in (None, 1), "with begin and commit"
    remove()
    names, trips = count(lambda: harness.store.enqueuer.enqueue([harness.new()]))
    assert names == claimed[-2:-1] if trips is not None else ["add_runs"]
    assert trips in (None, 1)


def test_a_message_takes_two_round_trips(harness, count):
    claim = harness.running("w")
    harness.store.journal.write("w", [wait_of(claim, "message", "go")])
    names, trips = count(lambda: harness.store.actions.send(claim.id, "go", "1"))
    assert names == ["lock_runs", "first_waiting_receiver", "first_unread_message", "add_message", "resolve_waits"]
    assert trips in (None, 2), "the lock and who waits, the rest and the commit"


def test_a_message_to_a_suspended_function_takes_two_round_trips(harness, count):
    claim = harness.running("w")
    harness.store.journal.write("w", [wait_of(claim, "message", "go")])
    harness.suspend("w", claim)
    names, trips = count(lambda: harness.store.actions.send(claim.id, "go", "1"))
    assert names[-3:] == ["add_message", "resolve_waits", "wake_runs"]
    assert trips in (None, 2), "the lock and who waits, the rest and the commit"


def test_an_event_takes_three_round_trips(harness, count):
    claim = harness.running("w")
    harness.store.journal.write("w", [wait_of(claim, "event", "go")])
    names, trips = count(lambda: harness.store.events.emit(None, "go", "1"))
    assert names == [
        "create_event_rows", "lock_events", "read_emitted", "find_event_waiters", "lock_runs", "emit_events",
        "resolve_waits",
    ]  # fmt: skip
    assert trips in (None, 3)


def test_an_ask_takes_two_round_trips(harness, count):
    claim = harness.running("w")
    harness.store.journal.write("w", [wait_of(claim, "message", ANY_ASK)])
    names, trips = count(lambda: harness.store.asks.ask(claim.id, "add", "1", "key"))
    reads = ["first_waiting_receiver", "first_unread_message", "first_waiting_receiver", "first_unread_ask"]
    assert names == ["lock_runs", "find_ask", *reads, "add_message", "resolve_waits"]
    assert trips in (None, 2), "the lock and who waits, the rest and the commit"


def test_an_answer_and_the_wait_for_the_next_ask_take_two_round_trips(harness, count):
    claim = harness.running("w")
    harness.store.journal.write("w", [wait_of(claim, "message", ANY_ASK)])
    harness.store.asks.ask(claim.id, "add", "1", "key")
    ((_, _, _, received),) = harness.store.journal.resolved_waits([(claim.id, claim.generation)])
    answer = AskAnswer("key", decode_envelope(received.value).id, "reply", "2")
    names, trips = count(
        lambda: harness.store.journal.write("w", [wait_of(claim, "message", ANY_ASK, n=11, key="next", answer=answer)])
    )
    assert "answer_asks" in names
    assert trips in (None, 2)
    names, trips = count(lambda: harness.store.asks.answers([(claim.id, "key")]))
    assert (names, trips) in ((["read_answers"], None), (["read_answers"], 1))


def test_the_wait_for_the_next_ask_takes_two_round_trips(harness, count):
    claim = harness.running("w")
    names, trips = count(lambda: harness.store.journal.write("w", [wait_of(claim, "message", ANY_ASK)]))
    assert names == ["lock_session", "lock_runs", "read_recorded", "find_waits", "first_unread_ask", "add_waits"]
    assert trips in (None, 2)


@pytest.mark.parametrize("emitted", [False, True], ids=["waiting", "emitted"])
def test_the_wait_for_an_event_takes_four_round_trips(harness, count, emitted):
    claim = harness.running("w")
    if emitted:
        harness.store.events.emit(None, "go", "1")
    names, trips = count(lambda: harness.store.journal.write("w", [wait_of(claim, "event", "go")]))
    assert names[-1] == ("add_checkpoints" if emitted else "add_waits")
    assert trips in (None, 4)


def test_a_transaction_that_executes_nothing_takes_no_round_trip(harness, count):
    assert count(lambda: harness.store.claims._transaction("commit", lambda tx: None)) in (([], None), ([], 0))
