"""The pruner deletes in batches, with pauses as long as a batch takes."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from holdfast import Context, Graph, Keep
from holdfast.control.explainer import Explainer
from holdfast.engine.loops.maintenance import Pruner
from holdfast.errors import ConfigError
from holdfast.store.module import json_rows
from tests.support.durable import drain
from tests.support.history_queries import fetch

OLD = 40 * 86_400_000_000


def add_expired(harness, count):
    for _ in range(count // 400):
        harness.store.enqueuer.enqueue([harness.new() for _ in range(400)])
    harness.sql("update {schema}runs set state = 'done', finished_at = :now, expires_at = :now", now=harness.clock())
    harness.clock.advance(OLD / 1_000_000)


def test_the_pause_between_batches_is_no_longer_than_a_batch(harness):
    add_expired(harness, 1200)
    pruner = Pruner(harness.store, OLD)
    pauses = []
    while not pauses or pauses[-1] < 1:
        since = time.monotonic()
        pauses.append(pruner.tick())
        assert pauses[-1] > 1 or pauses[-1] <= time.monotonic() - since
    if harness.on_postgres:  # the second batch is larger, because the first one did not suffice
        assert (len(pauses), pauses[0]) == (2, 0.0)
    else:
        assert len(pauses) == 3
    assert harness.rows("runs") == 0
    assert pauses[-1] < 10, "as many may expire soon"
    assert pruner.tick() > 10


def test_a_backlog_of_runs_does_not_keep_events_from_being_pruned(harness):
    harness.store.events.emit(None, "old", "1")
    add_expired(harness, 1200)
    pruner = Pruner(harness.store, OLD // 2)
    assert pruner.tick() < 1, "more runs have expired"
    assert harness.rows("events") == 0
    assert harness.rows("runs") == 700


def test_counters_of_limits_are_pruned_in_batches(harness):
    harness.sql(
        "insert into {schema}limits (place, name, touched_at)"
        " select each.place, 'by user', cast(:now as bigint) from {each(:rows, place text)} where true",
        rows=json_rows({"place": f'["by user", "{n}"]'} for n in range(1200)), now=harness.clock(),
    )  # fmt: skip
    harness.clock.advance(3601)
    pruner = Pruner(harness.store, OLD)
    pauses = [pruner.tick() for _ in range(3)]
    assert [pause < 1 for pause in pauses] == [True, True, False]
    assert harness.rows("limits") == 0


def test_an_event_is_forgotten_after_keep_events_and_why_says_so(make_app, clock, caplog):
    app = make_app(clock=clock, keep=timedelta(days=1), keep_events=timedelta(days=365))

    @app.task(name="ship")
    async def ship(ctx: Context, order: int) -> str:
        return await ctx.wait_for(f"paid-{order}", type=str)

    app.emit("paid-1", "first")
    app.emit("paid-2", "first")
    pruner = app.worker()._components.pruner
    clock.forward(364 * 86_400)
    pruner.tick()
    assert app.emit("paid-1", "second") is False, "kept for longer than runs"
    in_time = ship.enqueue(1)
    drain(app)
    assert in_time.result(timeout=5) == "first"
    clock.forward(2 * 86_400)
    with caplog.at_level("INFO"):
        pruner.tick()
    assert "emitted events pruned events=2" in caplog.text
    late = ship.enqueue(2)
    drain(app)
    (reason,) = Explainer(app.store).why(late.id).reasons
    assert reason.text.startswith("waiting for event paid-2; events emitted until ")
    assert reason.text.endswith("have been deleted: emit it again if it is one")
    assert app.emit("paid-2", "second") is True
    drain(app)
    assert late.result(timeout=5) == "second"


def test_runs_of_a_tenant_are_kept_as_long_as_the_tenant_wants(make_app):
    acme = Keep(done=timedelta(days=365), failed=timedelta(days=1))
    app = make_app(keep=timedelta(days=7), keep_by_tenant={"acme": acme, "bob": timedelta(days=2)})

    @app.task(name="work", keep=timedelta(days=30))
    def work() -> None: ...

    def kept(tenant: str | None) -> list[tuple[int, int | None]]:
        graph = Graph("g", tenant=tenant)
        inner = Graph("inner")
        inner.gate("gate")
        graph.add(inner)
        graph.add(work)
        runs = [work.options(tenant=tenant).enqueue(), app.submit(graph)]
        day = 86_400_000_000
        found = []
        for run in (*runs, app.get_run(runs[1].nodes()["inner"].id)):
            ((keep, failed),) = fetch(app, f"select keep, keep_failed from {{}}runs where id = '{run.id}'")
            found.append((keep // day, None if failed is None else failed // day))
        return found

    assert kept("acme") == [(365, 1)] * 3
    assert kept("bob") == [(2, None)] * 3
    assert kept(None) == kept("other") == [(30, None), (7, None), (7, None)]
    with pytest.raises(ConfigError, match="keep_by_tenant"):
        make_app(keep_by_tenant={"acme": -1})
