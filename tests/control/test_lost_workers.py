"""Operators see which runs were recovered from a lost worker: CLI, API, dashboard and doctor."""

from __future__ import annotations

from holdfast.engine.attempt import crash_error
from holdfast.model.failure import error_to_json
from tests.support.history_queries import fetch
from tests.web.conftest import open_visitor, shop  # noqa: F401


def lose(shop):  # noqa: F811
    """Claim two runs, one of which may not crash, in two sessions that die."""
    fragile = shop.app.task(name="fragile", max_crashes=0)(lambda: None)
    kept, failed = shop.add.enqueue(1, 2), fragile.enqueue()
    sessions = shop.app.store.sessions
    for session, run in (("web1:1:a", kept), ("web2:2:b", failed)):
        sessions.open(session, session[:4], 60_000_000, "{}")
        lanes = [id for id, (_, task) in shop.app.store.lanes.refresh().items() if task == run.task]
        assert [claim.id for claim in shop.app.store.claims.claim(session, lanes, 1)] == [str(run.id)]
    fetch(shop.app, "update {}workers set lease_until = 1")
    sessions.recover(sessions.find_dead(), error_to_json(crash_error()))
    return kept, failed


def test_recovered_runs_are_listed(shop, open_visitor):  # noqa: F811
    kept, failed = lose(shop)
    lost = {worker.session: worker for worker in shop.control.workers.lost()}
    (run,) = lost["web1:1:a"].runs
    assert (run.id, run.outcome, run.task, run.state) == (kept.id, "requeued", "add", "ready")
    (run,) = lost["web2:2:b"].runs
    assert (run.id, run.outcome, run.state) == (failed.id, "failed", "failed")
    shop.drain()
    told = open_visitor.get("/api/v1/workers/lost").json["workers"]
    assert {each["session"]: each["runs"][0]["state"] for each in told} == {"web1:1:a": "done", "web2:2:b": "failed"}
    assert open_visitor.get("/api/v1/workers/lost?since=-1").status == 422
    page = open_visitor.get("/workers").text
    assert "Lost in the last 24 hours" in page
    assert f"/runs/{kept.id}" in page
    (finding,) = [each for each in shop.control.doctor.examine().findings if each.code == "lost_workers"]
    assert {run for each in finding.data["workers"] for run in each["runs"]} == {str(kept.id)}
    fetch(shop.app, f"delete from {{}}runs where id = '{kept.id}'")
    assert {run.state for worker in shop.control.workers.lost() for run in worker.runs} == {None, "failed"}


def test_without_losses_there_is_nothing_to_see(shop, open_visitor):  # noqa: F811
    assert shop.control.workers.lost() == []
    assert "Lost in the last" not in open_visitor.get("/workers").text
