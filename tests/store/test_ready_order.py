"""Order of ready runs: a run that becomes ready again queues behind ready work of its priority."""

from __future__ import annotations

from importlib import resources

import pytest

from holdfast.database import migrations
from holdfast.database.dialect import TURN_EPOCH, TURN_STEP
from holdfast.database.migrate import newest_version
from tests.support.store_harness import CANCELLED, SECOND, end_of

FAIR = {"fair": {}}


def order(harness, count=20, tasks=("task",)):
    """Return runs in the order in which claims of one run each return them."""
    found = []
    while len(found) < count and (claims := harness.claim("w", 1, tasks)):
        found += [claim.id for claim in claims]
    return found


def moved(harness, claim):
    harness.end("w", claim, "moved", state="ready", in_tree=True)


def moved_later(harness, claim):
    harness.end("w", claim, "moved", state="scheduled", delay=1000, in_tree=True)
    harness.clock.advance(0.001)
    harness.store.timers.promote_due()


def restarted(harness, claim):
    harness.end("w", claim, "restarted", in_tree=True)


def retried_at_once(harness, claim):
    harness.end("w", claim, "retrying", delay=0)
    harness.store.timers.promote_due()


def failed_into_undoing(harness, claim):
    harness.end("w", claim, "undoing", in_tree=True)


def woken(harness, claim):
    harness.wait("w", claim, "sleep", delay=1000)
    harness.suspend("w", claim)
    harness.clock.advance(0.001)
    harness.store.timers.resolve_due_waits()


def woken_while_it_suspends(harness, claim):
    harness.wait("w", claim, "sleep", delay=0)
    harness.store.timers.resolve_due_waits()
    harness.suspend("w", claim)


def retried_by_an_operator(harness, claim):
    harness.end("w", claim, "failed")
    harness.store.actions.retry(claim.id)


AGAIN = [
    moved, moved_later, restarted, retried_at_once, failed_into_undoing, woken, woken_while_it_suspends,
    retried_by_an_operator,
]  # fmt: skip


@pytest.mark.parametrize("again", AGAIN)
def test_a_run_that_reschedules_itself_queues_behind_ready_runs(harness, again):
    harness.session("w")
    restless = harness.running("w")
    jobs = [*harness.add_many(3), harness.add("other")]
    again(harness, restless)
    assert order(harness, tasks=("task", "other")) == [*jobs, restless.id]


@pytest.mark.parametrize("again", AGAIN)
def test_it_runs_before_later_ready_runs_and_after_more_urgent_ones(harness, again):
    harness.session("w")
    restless = harness.running("w")
    again(harness, restless)
    harness.clock.advance(1)
    job, urgent = harness.add(), harness.add(priority=1)
    assert order(harness) == [urgent, restless.id, job]


def handed_back(harness, claim):
    harness.end("w", claim, "handed_back")


def recovered(harness, claim):
    harness.sql("update {schema}workers set lease_until = 0")
    harness.recover("w")
    harness.session("w")


def crashed(harness, claim):
    harness.store.attempts.crash("w", [end_of(claim, "handed_back", error=CANCELLED)])


@pytest.mark.parametrize("back", [handed_back, recovered, crashed])
def test_a_run_that_returns_through_no_fault_of_its_own_keeps_its_turn(harness, back):
    harness.session("w")
    first = harness.running("w")
    harness.clock.advance(1)
    job = harness.add()
    back(harness, first)
    assert order(harness) == [first.id, job]


def test_runs_created_at_one_time_start_in_order_of_creation(harness):
    harness.session("w")
    first, batch, last = harness.add(), harness.add_many(5), harness.add()
    assert order(harness) == [first, *batch, last]


def test_children_and_forks_queue_behind_ready_runs(harness):
    harness.session("w")
    parent = harness.running("w")
    harness.clock.advance(1)
    job = harness.add()
    harness.clock.advance(1)
    (child,) = harness.spawn("w", parent)
    fork = str(harness.new().id)
    harness.store.actions.fork(parent.id, fork, None, None)
    assert order(harness, tasks=("task", "child")) == [job, child, fork]


# Fair queues


def fair(harness, tenant, count=1):
    return harness.store.enqueuer.enqueue([harness.new(tenant=tenant, **FAIR) for _ in range(count)])


@pytest.mark.parametrize("again", [moved, moved_later, retried_at_once, woken, retried_by_an_operator])
def test_in_a_fair_queue_it_gets_the_next_turn_of_its_tenant(harness, again):
    harness.session("w")
    fair(harness, "a")
    (restless,) = harness.claim("w")
    own, others = fair(harness, "a", 2), fair(harness, "b", 3)
    again(harness, restless)
    assert order(harness) == [own[0], others[0], own[1], others[1], restless.id, others[2]]


def test_in_a_fair_queue_a_rescheduling_run_alternates_with_other_tenants(harness):
    harness.session("w")
    fair(harness, "a")
    (restless,) = harness.claim("w")
    others = fair(harness, "b", 4)
    moved(harness, restless)
    started = []
    for _ in range(8):
        (claim,) = harness.claim("w")
        started.append(claim.id)
        if claim.id == restless.id:
            moved(harness, claim)
    assert started == [id for other in others for id in (other, restless.id)]


def test_turns_of_fair_queues_are_positive_and_others_negative(harness):
    """The index of fair turns has only positive ones."""
    harness.session("w")
    fair(harness, "a")
    plain = harness.add()
    assert [claim.turn for claim in harness.claim("w", 2)] == [harness.clock.now - TURN_EPOCH, TURN_STEP]
    assert harness.row(plain)["turn"] < 0


# Rows of earlier versions


def test_unfinished_runs_of_an_earlier_version_come_before_new_ones(harness):
    harness.session("w")
    old = harness.add_many(3)
    scheduled = harness.add(delay=SECOND)
    harness.sql("update {schema}runs set turn = 0")
    text = (resources.files(migrations) / "0015_turns.sql").read_text()
    harness.sql(text)
    harness.clock.advance(5)
    new = harness.add()
    harness.store.timers.promote_due()
    assert newest_version() >= 15
    assert order(harness) == [*old, scheduled, new]
