"""Changes of runs that have not started, where other features have changed them before."""

from __future__ import annotations

from holdfast.store.run_actions import RunChanges
from tests.support.store_harness import SECOND, end_of

ONE = '["[\\"one\\",\\"\\"]"]'


def test_a_parked_run_with_a_later_time_leaves_its_permit_to_the_next(harness, clock):
    harness.store.limits.declare([("one", 1, None)])
    session = harness.session("worker")
    first, second, third = (harness.add(limits=ONE) for _ in range(3))
    (running,) = harness.store.claims.claim_limited(session, [harness.lane()], 4)
    assert running.id == first
    harness.store.actions.update(second, RunChanges(run_at=clock.now + 60 * SECOND))
    harness.store.attempts.end(session, [end_of(running, limits=ONE)])
    (running,) = harness.store.claims.claim_limited(session, [harness.lane()], 4)
    assert running.id == third
    clock.advance(59)
    harness.store.sessions.renew(session, 60 * SECOND)
    harness.store.attempts.end(session, [end_of(running, limits=ONE)])
    clock.advance(1)
    harness.store.timers.promote_due()
    assert [claim.id for claim in harness.store.claims.claim_limited(session, [harness.lane()], 4)] == [second]


def test_a_ready_run_whose_arguments_were_replaced_has_not_started(harness):
    run = harness.add(unique="u", args="[1]")
    assert harness.add(unique="u", args="[2]", if_taken="replace") == run
    harness.store.actions.update(run, RunChanges(priority=5, args="[3]"))
    (claim,) = harness.claim(harness.session("worker"))
    assert (claim.id, claim.priority, claim.args) == (run, 5, "[3]")
