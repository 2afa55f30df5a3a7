"""Waiting counts from when a run became ready, not from its creation: in statistics and for the oldest ready run."""

from __future__ import annotations

import pytest

from holdfast.policy.error_patterns import constant_part, error_pattern
from tests.support.graph_harness import node, submit
from tests.support.store_harness import CANCELLED, end_of

HOUR = 3600
PATIENT = {"lease": 1e9}


def created(harness):
    harness.add()


def delayed(harness):
    harness.add(delay=HOUR * 1_000_000)
    harness.clock.advance(HOUR)
    harness.store.timers.promote_due()


def promoted_late(harness):
    """Without a worker, nobody promotes a run that is due. It waits all the same."""
    harness.add(delay=HOUR * 1_000_000)
    harness.clock.advance(HOUR + 5)
    harness.store.timers.promote_due()
    harness.clock.advance(-5)


def retried_by_policy(harness):
    claim = harness.running("w")
    harness.clock.advance(HOUR)
    harness.end("w", claim, "retrying", delay=HOUR * 1_000_000)
    harness.clock.advance(HOUR)
    harness.store.timers.promote_due()


def retried_by_an_operator(harness):
    claim = harness.running("w")
    harness.end("w", claim, "failed")
    harness.clock.advance(HOUR)
    harness.store.actions.retry(claim.id)


def handed_back(harness):
    claim = harness.running("w")
    harness.clock.advance(HOUR)
    harness.end("w", claim, "handed_back")


def crashed(harness):
    claim = harness.running("w")
    harness.clock.advance(HOUR)
    harness.store.attempts.crash("w", [end_of(claim, "crashed", runs_in_process=1, isolate=False)])


def woken(harness):
    harness.waiting("w", "event", "e")
    harness.clock.advance(HOUR)
    harness.store.events.emit(None, "e", "1")


def resolved_before_it_suspended(harness):
    claim = harness.running("w")
    harness.clock.advance(HOUR)
    harness.wait("w", claim, "sleep", delay=0)
    harness.store.timers.resolve_due_waits()
    harness.suspend("w", claim)


def moved(harness):
    claim = harness.running("w")
    harness.clock.advance(HOUR)
    harness.end("w", claim, "moved", state="ready", in_tree=True)


def released_by_its_graph(harness):
    submit(harness, node(harness, "a", task="first"), node(harness, "b", "a"))
    (first,) = harness.claim("w", 1, ["first"])
    harness.clock.advance(HOUR)
    harness.end("w", first, in_tree=True)


def released_by_its_map(harness):
    parent = harness.running("w")
    harness.spawn("w", parent, 2, concurrency=1)
    child = harness.child("w")
    harness.clock.advance(HOUR)
    harness.end("w", child, in_tree=True)


def undoing(harness):
    claim = harness.running("w")
    harness.sql("update {schema}runs set undos = 1")
    harness.end("w", claim, "waiting", in_tree=True)
    harness.clock.advance(HOUR)
    harness.store.actions.cancel(claim.id, CANCELLED)


WAYS = [
    created, delayed, promoted_late, retried_by_policy, retried_by_an_operator, handed_back, crashed, woken,
    resolved_before_it_suspended, moved, released_by_its_graph, released_by_its_map, undoing,
]  # fmt: skip


@pytest.mark.parametrize("become_ready", WAYS, ids=lambda way: way.__name__)
def test_waiting_counts_from_when_a_run_became_ready(control, harness, clock, become_ready):
    harness.session("w", **PATIENT)
    become_ready(harness)
    clock.advance(30)
    (queue,) = control.queues.list()
    assert queue.oldest_ready == 30
    task = "child" if become_ready is released_by_its_map else "task"
    (claim,) = harness.claim("w", 1, [task])
    clock.advance(5)
    assert harness.end("w", claim, in_tree=True)
    (times,) = control.stats.summary(last=300, by="task", name=task)
    assert times.wait.p99 == pytest.approx(30, rel=0.12)


def test_a_run_that_is_cancelled_while_it_is_ready_again_has_no_wait(control, harness, clock):
    harness.session("w", **PATIENT)
    claim = harness.running("w")
    harness.end("w", claim, "retrying", delay=1_000_000)
    clock.advance(2)
    harness.store.timers.promote_due()
    clock.advance(30)
    harness.store.actions.cancel(claim.id, CANCELLED)
    (stats,) = control.stats.summary(last=300)
    assert (stats.runs, stats.wait.p50) == (1, None)


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("order 42: no funds", "order #: no funds"),
        ("order-17 took 3.25 s at 12:30:05", "order-# took # s at #"),
        ("run 0199a3f2-6c1e-7b3a-9d61-2f4f0c7f5a10 failed", "run # failed"),
        ("no such object at 0x7f3a", "no such object at #"),
        ("unknown token tok_8f3a9b2c", "unknown token #"),
        ("no funds", "no funds"),
        ("", ""),
    ],
)
def test_a_pattern_leaves_out_ids_and_numbers(message, pattern):
    assert error_pattern(message) == pattern


def test_the_constant_part_of_a_pattern_finds_its_messages():
    assert constant_part(error_pattern("order 42: no funds on card 17")) == ": no funds on card"
    assert constant_part("") == ""
