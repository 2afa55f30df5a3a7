"""Order of ready runs: a run that becomes ready again queues behind ready work of its priority."""

from __future__ import annotations

from importlib import resources

import pytest

from holdfast.database import migrations
from holdfast.database.dialect import TURN_EPOCH, TURN_STEP
from holdfast.database.migrate import newest_version
from tests.support.world import CANCELLED, SECOND, end_of

FAIR = {"fair": {}}


def order(world, count=20, tasks=("task",)):
    """Return runs in the order in which claims of one run each return them."""
    found = []
    while len(found) < count and (claims := world.claim("w", 1, tasks)):
        found += [claim.id for claim in claims]
    return found


def moved(world, claim):
    world.end("w", claim, "moved", state="ready", in_tree=True)


def moved_later(world, claim):
    world.end("w", claim, "moved", state="scheduled", delay=1000, in_tree=True)
    world.clock.advance(0.001)
    world.store.timers.promote_due()


def restarted(world, claim):
    world.end("w", claim, "restarted", in_tree=True)


def retried_at_once(world, claim):
    world.end("w", claim, "retrying", delay=0)
    world.store.timers.promote_due()


def failed_into_undoing(world, claim):
    world.end("w", claim, "undoing", in_tree=True)


def woken(world, claim):
    world.wait("w", claim, "sleep", delay=1000)
    world.suspend("w", claim)
    world.clock.advance(0.001)
    world.store.timers.resolve_due_waits()


def woken_while_it_suspends(world, claim):
    world.wait("w", claim, "sleep", delay=0)
    world.store.timers.resolve_due_waits()
    world.suspend("w", claim)


def retried_by_an_operator(world, claim):
    world.end("w", claim, "failed")
    world.store.actions.retry(claim.id)


AGAIN = [
    moved, moved_later, restarted, retried_at_once, failed_into_undoing, woken, woken_while_it_suspends,
    retried_by_an_operator,
]  # fmt: skip


@pytest.mark.parametrize("again", AGAIN)
def test_a_run_that_reschedules_itself_queues_behind_ready_runs(world, again):
    world.session("w")
    restless = world.running("w")
    jobs = [*world.add_many(3), world.add("other")]
    again(world, restless)
    assert order(world, tasks=("task", "other")) == [*jobs, restless.id]


@pytest.mark.parametrize("again", AGAIN)
def test_it_runs_before_later_ready_runs_and_after_more_urgent_ones(world, again):
    world.session("w")
    restless = world.running("w")
    again(world, restless)
    world.clock.advance(1)
    job, urgent = world.add(), world.add(priority=1)
    assert order(world) == [urgent, restless.id, job]


def handed_back(world, claim):
    world.end("w", claim, "handed_back")


def recovered(world, claim):
    world.sql("update {schema}workers set lease_until = 0")
    world.recover("w")
    world.session("w")


def crashed(world, claim):
    world.store.attempts.crash("w", [end_of(claim, "handed_back", error=CANCELLED)])


@pytest.mark.parametrize("back", [handed_back, recovered, crashed])
def test_a_run_that_returns_through_no_fault_of_its_own_keeps_its_turn(world, back):
    world.session("w")
    first = world.running("w")
    world.clock.advance(1)
    job = world.add()
    back(world, first)
    assert order(world) == [first.id, job]


def test_runs_created_at_one_time_start_in_order_of_creation(world):
    world.session("w")
    first, batch, last = world.add(), world.add_many(5), world.add()
    assert order(world) == [first, *batch, last]


def test_children_and_forks_queue_behind_ready_runs(world):
    world.session("w")
    parent = world.running("w")
    world.clock.advance(1)
    job = world.add()
    world.clock.advance(1)
    (child,) = world.spawn("w", parent)
    fork = str(world.new().id)
    world.store.actions.fork(parent.id, fork, None, None)
    assert order(world, tasks=("task", "child")) == [job, child, fork]


# Fair queues


def fair(world, tenant, count=1):
    return world.store.enqueuer.enqueue([world.new(tenant=tenant, **FAIR) for _ in range(count)])


@pytest.mark.parametrize("again", [moved, moved_later, retried_at_once, woken, retried_by_an_operator])
def test_in_a_fair_queue_it_gets_the_next_turn_of_its_tenant(world, again):
    world.session("w")
    fair(world, "a")
    (restless,) = world.claim("w")
    own, others = fair(world, "a", 2), fair(world, "b", 3)
    again(world, restless)
    assert order(world) == [own[0], others[0], own[1], others[1], restless.id, others[2]]


def test_in_a_fair_queue_a_rescheduling_run_alternates_with_other_tenants(world):
    world.session("w")
    fair(world, "a")
    (restless,) = world.claim("w")
    others = fair(world, "b", 4)
    moved(world, restless)
    started = []
    for _ in range(8):
        (claim,) = world.claim("w")
        started.append(claim.id)
        if claim.id == restless.id:
            moved(world, claim)
    assert started == [id for other in others for id in (other, restless.id)]


def test_turns_of_fair_queues_are_positive_and_others_negative(world):
    """The index of fair turns has only positive ones."""
    world.session("w")
    fair(world, "a")
    plain = world.add()
    assert [claim.turn for claim in world.claim("w", 2)] == [world.clock.now - TURN_EPOCH, TURN_STEP]
    assert world.row(plain)["turn"] < 0


# Rows of earlier versions


def test_unfinished_runs_of_an_earlier_version_come_before_new_ones(world):
    world.session("w")
    old = world.add_many(3)
    scheduled = world.add(delay=SECOND)
    world.sql("update {schema}runs set turn = 0")
    text = (resources.files(migrations) / "0015_turns.sql").read_text()
    world.sql(text)
    world.clock.advance(5)
    new = world.add()
    world.store.timers.promote_due()
    assert newest_version() >= 15
    assert order(world) == [*old, scheduled, new]
