"""Pauses of tasks, tenants and runs: what is paused isn't claimed, in whatever state it becomes ready."""

from __future__ import annotations

import pytest

from holdfast.errors import RunFinished, RunNotFound
from holdfast.policy.admission import Rate
from tests.support.store_harness import SECOND, StoreHarness, end_of


def claimed(harness: StoreHarness, *tasks: str) -> list[str]:
    """Claim all that can be claimed, in both ways."""
    session = harness.session("claimer", lease=100_000)
    lanes = [harness.lane(task) for task in tasks or ("task",)]
    found = harness.store.claims.claim(session, lanes, 50)
    found += harness.store.claims.claim_limited(session, lanes, 50)
    return [claim.id for claim in found]


def tick(harness: StoreHarness) -> None:
    """Do what the timer loop does about pauses."""
    due = harness.store.timers.due()
    if due.tenants:
        harness.store.pauses.release_resumed()
    if due.paused or due.tenants:
        harness.store.pauses.hold_ready()


@pytest.mark.parametrize("after_tick", [False, True])
@pytest.mark.parametrize("limits", [None, '["[\\"l\\",\\"\\"]"]'])
def test_runs_of_a_paused_tenant_are_not_claimed(harness, after_tick, limits):
    pauses = harness.store.pauses
    before = harness.add(tenant="acme", limits=limits)
    assert pauses.pause("tenant", ["acme"], "ada") == ["acme"]
    assert pauses.pause("tenant", ["acme"], "bob") == []
    later = harness.add(tenant="acme", limits=limits)
    others = [harness.add(tenant="other", limits=limits), harness.add(limits=limits)]
    if after_tick:
        tick(harness)
        assert {harness.row(id)["held"] for id in (before, later)} == {"tenant:acme"}
    assert claimed(harness) == others
    assert not harness.store.claims.has_ready([harness.lane()])
    assert [(each.kind, each.name, each.paused_by) for each in pauses.list_all()] == [("tenant", "acme", "ada")]
    assert pauses.resume("tenant", ["acme", "nobody"]) == ["acme"]
    assert claimed(harness) == [before, later]
    tick(harness)
    assert harness.rows("pauses") == 0


def test_a_resume_that_died_half_way_is_continued_by_the_timers(harness, monkeypatch):
    runs = [harness.add(tenant="acme") for _ in range(3)]
    harness.store.pauses.pause("tenant", ["acme"], "ada")
    tick(harness)
    harness.store.pauses._execute("client", "resume_tenants", rows='[{"name": "acme"}]')
    assert claimed(harness) == [], "still held"
    tick(harness)
    assert claimed(harness) == runs


def test_a_paused_task_is_claimed_in_no_queue(harness):
    harness.store.pauses.pause("task", ["task"], "ada")
    runs = [harness.add(), harness.add(queue="mail")]
    other = harness.add("other")
    session = harness.session("worker")
    lanes = [harness.lane(), harness.lane(queue="mail"), harness.lane("other")]
    assert [each.id for each in harness.store.claims.claim(session, lanes, 10)] == [other]
    assert harness.store.pauses.resume("task", ["task"]) == ["task"]
    assert {each.id for each in harness.store.claims.claim(session, lanes, 10)} == set(runs)


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "retrying", "waiting"])
def test_a_paused_run_is_not_claimed_however_it_becomes_ready(harness, clock, state):
    session = harness.session("worker", lease=3600)
    if state == "scheduled":
        id = harness.add(delay=SECOND)
    elif state == "ready":
        id = harness.add()
    elif state == "waiting":
        id = harness.waiting(session, "sleep", delay=SECOND).id
    else:
        claim = harness.running(session)
        id = claim.id
    assert harness.store.pauses.pause_run(id, "ada")
    assert not harness.store.pauses.pause_run(id, "ada")
    if state == "running":
        assert harness.end(session, claim, "handed_back")
    elif state == "retrying":
        assert harness.end(session, claim, "retrying", delay=SECOND, error="{}")
    clock.advance(2)
    harness.store.timers.promote_due()
    harness.store.timers.resolve_due_waits()
    assert harness.state(id) == "ready"
    assert claimed(harness) == []
    tick(harness)
    assert (claimed(harness), harness.row(id)["held"]) == ([], "paused")
    assert harness.store.pauses.resume_run(id, "bob")
    assert not harness.store.pauses.resume_run(id, "bob")
    assert claimed(harness) == [id]
    assert [kind for kind in harness.kinds(id) if "pause" in kind] == ["paused", "unpaused"]


def test_a_paused_run_can_be_cancelled_and_a_retry_starts_it(harness):
    id = harness.add()
    harness.store.pauses.pause_run(id, None)
    assert harness.store.actions.cancel(id, '{"code": "cancelled"}')
    with pytest.raises(RunFinished, match="only unfinished runs can be paused"):
        harness.store.pauses.pause_run(id, None)
    harness.store.actions.retry(id)
    assert claimed(harness) == [id]
    with pytest.raises(RunNotFound):
        harness.store.pauses.pause_run("0199a3f2-0000-7000-8000-000000000000", None)


def test_a_pause_includes_the_children(harness):
    session = harness.session("worker")
    parent = harness.running(session)
    children = harness.spawn(session, parent, 2)
    harness.store.pauses.pause_run(parent.id, "ada")
    assert claimed(harness, "child") == []
    harness.store.pauses.resume_run(parent.id, "ada")
    assert set(claimed(harness, "child")) == set(children)


def test_a_dead_workers_paused_run_stays_paused(harness, clock):
    claim = harness.running(harness.session("worker", lease=1))
    harness.store.pauses.pause_run(claim.id, None)
    clock.advance(2)
    harness.recover("worker")
    assert (harness.state(claim.id), claimed(harness)) == ("ready", [])


def test_a_paused_run_does_not_keep_a_permit_from_others(harness):
    harness.store.limits.declare([("one", 1, None)])
    session = harness.session("worker")
    counter = '["[\\"one\\",\\"\\"]"]'
    first, second, third = (harness.add(limits=counter) for _ in range(3))
    (running,) = harness.store.claims.claim_limited(session, [harness.lane()], 3)
    assert running.id == first
    harness.store.pauses.pause_run(second, None)
    harness.store.attempts.end(session, [end_of(running, limits=counter)])
    assert claimed(harness) == [third]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_run_that_is_paused_while_its_limit_is_full_is_claimed_as_soon_as_it_is_resumed(harness, weighted):
    harness.store.limits.declare([("one", 1, Rate(100, SECOND), weighted)])
    counter = '["[\\"one\\",\\"\\",5]"]' if weighted else '["[\\"one\\",\\"\\"]"]'
    session = harness.session("worker")
    first, second = harness.add(limits=counter), harness.add(limits=counter)
    (running,) = harness.store.claims.claim_limited(session, [harness.lane()], 2)
    assert (running.id, harness.row(second)["held"]) == (first, "full")
    harness.store.pauses.pause_run(second, None)
    harness.store.attempts.end(session, [end_of(running, limits=counter)])
    assert claimed(harness) == []
    harness.store.pauses.resume_run(second, None)
    assert claimed(harness) == [second]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_parked_run_of_a_paused_tenant_costs_no_polling_and_is_claimed_after_the_resume(harness, clock, weighted):
    harness.store.limits.declare([("one", 1, Rate(100, SECOND), weighted)])
    counter = '["[\\"one\\",\\"\\",5]"]' if weighted else '["[\\"one\\",\\"\\"]"]'
    session = harness.session("worker")
    first, second = harness.add(limits=counter), harness.add(limits=counter, tenant="acme")
    (running,) = harness.store.claims.claim_limited(session, [harness.lane()], 2)
    assert (running.id, harness.row(second)["held"]) == (first, "full")
    harness.store.pauses.pause("tenant", ["acme"], "ada")
    harness.store.attempts.end(session, [end_of(running, limits=counter)])
    clock.advance(1)
    harness.store.timers.unpark_due()
    assert harness.store.timers.due().limits >= SECOND, "checked again in a moment, although nothing can have changed"
    harness.store.pauses.resume("tenant", ["acme"])
    harness.store.timers.unpark_due()
    assert claimed(harness) == [second]
