"""Bulk actions: preview, batches, operator names; and counts."""

from __future__ import annotations

from uuid import uuid4

import pytest

from holdfast import Context, Graph, Holdfast, Retry
from holdfast.control import Control, bulk
from holdfast.control.stats import Estimate
from holdfast.errors import ConfigError
from holdfast.model.filters import RunFilter
from holdfast.store import admin
from tests.support.store_harness import CANCELLED, DAY


def last(steps):
    return list(steps)[-1]


def failed(harness, count, **more):
    """Failed runs in the order of creation."""
    ids = harness.add_many(count, **more)
    fail_all(harness)
    return ids


def fail_all(harness):
    while claims := harness.claim("w", 10):
        for claim in claims:
            assert harness.end("w", claim, "failed", state="failed", error='{"message":"broken"}')


@pytest.fixture
def session(harness):
    return harness.session("w")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bulk, "BATCH_SIZE", 4)


def test_a_preview_counts_and_shows_some_and_changes_nothing(control, harness):
    mine = harness.add_many(12, tenant="acme")
    harness.add_many(3, tenant="other")
    seen = control.bulk.preview("cancel", RunFilter(tenant="acme"))
    assert seen.count == Estimate(12, exact=True)
    assert [str(run.id) for run in seen.sample] == mine[::-1][:5]
    assert control.bulk.preview("retry", RunFilter(tenant="acme")).count == Estimate(0)
    assert {harness.state(id) for id in mine} == {"ready"}


def test_matching_runs_are_cancelled_in_batches_by_a_named_operator(control, harness, small):
    mine = harness.add_many(10, tenant="acme")
    others = harness.add_many(3, tenant="other")
    steps = list(control.bulk.cancel(RunFilter(tenant="acme"), reason="moved", by="ada"))
    assert [step.changed for step in steps] == [4, 8, 10]
    assert steps[-1].after is None
    assert {harness.state(id) for id in mine} == {"cancelled"}
    assert {harness.state(id) for id in others} == {"ready"}
    entry = control.runs.details(control.runs.find(mine[0])).history[-1]
    assert (entry.kind, entry.data) == ("cancelled", {"reason": "moved", "by": "ada"})


def test_interrupted_action_continues_after_its_cursor(control, harness, small):
    mine = harness.add_many(10)
    begun = control.bulk.cancel(RunFilter())
    first = next(begun)
    begun.close()
    assert [harness.state(id) for id in mine] == ["ready"] * 6 + ["cancelled"] * 4
    assert last(control.bulk.cancel(RunFilter(), after=first.after)).changed == 6
    assert last(control.bulk.cancel(RunFilter())).looked_at == 0


def test_failed_runs_are_retried_but_none_twice_by_one_call(control, harness, session, small):
    mine = failed(harness, 6)
    steps = []
    for step in control.bulk.retry(RunFilter(error="BROKEN"), by="ada"):
        steps.append(step)
        fail_all(harness)  # again, at once
    assert (steps[-1].looked_at, steps[-1].changed) == (6, 6)
    entries = [entry for entry in control.runs.details(control.runs.find(mine[0])).history if entry.kind == "retried"]
    assert [entry.data for entry in entries] == [{"by": "ada"}]


def test_only_one_run_per_unique_name_is_retried(control, harness, session):
    for _ in range(3):
        harness.store.actions.cancel(harness.add(unique="one"), CANCELLED)
    free = failed(harness, 2)
    step = last(control.bulk.retry(RunFilter(states=("failed", "cancelled"))))
    assert (step.looked_at, step.changed, step.passed_over) == (5, 3, 2)
    assert {harness.state(id) for id in free} == {"ready"}


def test_ended_runs_are_pruned_with_their_families_and_others_stay(control, harness, session, small):
    parent = harness.running("w")
    children = harness.spawn("w", parent, 3)
    unfinished = harness.add("other")
    harness.store.actions.cancel(parent.id, CANCELLED)
    assert last(control.bulk.prune(RunFilter())).changed == 0, "a worker is still at it"
    harness.store.attempts.release("w", [(parent.id, parent.fence)])
    gone = failed(harness, 5)
    step = last(control.bulk.prune(RunFilter()))
    assert (step.looked_at, step.changed) == (9, 9)
    assert [str(run.id) for run in control.runs.page()] == [unfinished]
    assert harness.sql("select run from {schema}history") == []
    assert len({*gone, *children, parent.id}) == 9


def test_action_ignores_states_it_does_not_apply_to(control, harness):
    id = harness.add()
    assert last(control.bulk.retry(RunFilter(states=("ready",)))).looked_at == 0
    assert last(control.bulk.prune(RunFilter(states=("ready",)))).looked_at == 0
    assert harness.state(id) == "ready"


def test_counts_say_how_many_there_are_by_state_queue_and_task(control, harness, session):
    failed(harness, 2)
    harness.add_many(3, task="t", queue="q")
    harness.add("t", queue="q", delay=DAY)
    harness.running("w")
    counts = control.counts.overview()
    assert counts.total == Estimate(7)
    assert {state: count.value for state, count in counts.states.items()} == {
        "ready": 3, "scheduled": 1, "running": 1, "failed": 2, "done": 0,
    }  # fmt: skip
    assert counts.queues["q"] == {"ready": Estimate(3), "scheduled": Estimate(1)}
    assert counts.tasks["task"] == {"running": Estimate(1)}


def test_bounded_counts_are_marked(control, harness, monkeypatch):
    monkeypatch.setattr(admin, "MAX_INDEX_ENTRIES", 5)
    harness.add_many(8)
    counts = control.counts.overview()
    assert counts.states["ready"] == Estimate(5, exact=False)
    assert counts.states["done"].exact is False
    assert counts.total.exact is False


def test_runs_that_are_given_by_id_are_previewed_one_by_one_and_only_they_change(database_url):
    """What is kept and what may repeat of each, and which of them don't change, with the reason."""
    app = Holdfast(database_url)

    @app.task(name="order", retry=Retry(max_attempts=1))
    async def order(ctx: Context, number: int) -> None:
        await ctx.step(lambda: number, name="reserve")
        await ctx.step(pay, number)

    async def pay(number: int) -> None:
        if number < 3:
            raise ValueError("no funds")

    graph = Graph("etl")
    graph.add(order, 1, name="node")
    parent = app.submit(graph)
    runs = [order.enqueue(number) for number in (1, 2, 3)]
    app.worker().drain()
    control, node = Control(app.store), parent.nodes()["node"].id
    chosen = RunFilter(ids=(runs[0].id, runs[2].id, node))
    preview = control.bulk.preview("retry", chosen)
    assert (preview.count.value, [info.id for info in preview.sample], preview.kept) == (1, [runs[0].id], 1)
    (effect,) = preview.effects
    assert (effect.id, effect.summary, effect.kept) == (runs[0].id, "it continues after 1 recorded result", 1)
    assert effect.again == ["pay: failed, and runs again"]
    assert effect.may_repeat[0] == "pay: whatever it did before it failed"
    reasons = {each.id: each.reason for each in preview.unchanged}
    assert reasons[runs[2].id] == "is done"
    assert "retry the graph" in reasons[node]
    assert last(control.bulk.retry(chosen)).changed == 1
    assert [run.info().state for run in runs] == ["ready", "failed", "done"]
    (effect,) = control.bulk.preview("cancel", chosen).effects
    assert (effect.id, effect.summary) == (runs[0].id, "isn't executed anymore")
    with pytest.raises(ConfigError, match="at most 1,000 runs can be given by id"):
        RunFilter(ids=tuple(uuid4() for _ in range(1001)))
    control.close()
    app.close()
