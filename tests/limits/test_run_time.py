"""Limits that are set at run time: from the app, the command line, the API and the dashboard."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.commands import holdfast
from holdfast.control import Control
from holdfast.errors import BlockingCall, ConfigError
from tests.support.durable import drain
from tests.support.wait_until import wait_until


def bounds(app: Holdfast, name: str) -> tuple[int | None, int | None, float | None]:
    limit = app.limits.get(name)
    return limit.concurrency, limit.rate, limit.period


def redeployed(app: Holdfast, make_app, **limit) -> Holdfast:
    """Start a worker with other code."""
    other = make_app()
    other.limit("some", **limit)
    other.worker().drain(timeout=10)
    return other


def test_set_values_win_until_they_are_reset_and_survive_deploys(app, make_app):
    app.limit("some", concurrency=2, rate="5/min")
    drain(app)
    found = app.limits.set("some", rate="50/min", by="ada")
    assert bounds(app, "some") == (2, 50, 60.0)
    assert (found.set_by, found.declared_concurrency, found.declared_rate) == ("ada", 2, 5)
    assert found.set_at is not None
    app.limits.set("some", concurrency=None, by="bob")
    assert bounds(app, "some") == (None, 50, 60.0)
    redeployed(app, make_app, concurrency=3, rate="7/s")
    assert bounds(app, "some") == (None, 50, 60.0), "the code doesn't win"
    limit = app.limits.get("some")
    assert (limit.set_by, limit.declared_concurrency, limit.declared_rate, limit.declared_period) == ("bob", 3, 7, 1.0)
    limit = app.limits.reset("some")
    assert (limit.concurrency, limit.rate, limit.set_at, limit.set_by) == (3, 7, None, None)
    assert app.limits.reset("some") == limit
    redeployed(app, make_app, concurrency=4)
    assert bounds(app, "some") == (4, None, None)


def test_invalid_changes_are_rejected(app):
    app.limit("some", concurrency=2)
    drain(app)
    for wrong, message in [
        ({}, "set rate=, concurrency= or both"),
        ({"concurrency": 0}, "from 1 to"),
        ({"concurrency": True}, "from 1 to"),
        ({"rate": "often"}, "must be a rate such as"),
        ({"rate": "0/s"}, "must allow 1 to"),
        ({"rate": "5/s", "by": ""}, "by must not be empty"),
    ]:
        with pytest.raises(ConfigError, match=message):
            app.limits.set("some", **wrong)
    for call in (
        lambda: app.limits.set("gone", rate="5/s"),
        lambda: app.limits.reset("gone"),
        lambda: app.limits.get("gone"),
    ):
        with pytest.raises(ConfigError, match="limit 'gone' does not exist; known limits: some"):
            call()
    assert bounds(app, "some") == (2, None, None)
    assert app.limits.get("some").set_at is None


async def test_every_method_has_an_awaitable_form(app):
    app.limit("some", concurrency=2)
    await asyncio.to_thread(drain, app)
    await app.limits.aset("some", concurrency=5)
    assert (await app.limits.aget("some")).concurrency == 5
    await app.limits.areset("some")
    assert [limit.concurrency for limit in await app.limits.alist()] == [2]
    for call in (app.limits.list, lambda: app.limits.set("some", rate=None), lambda: app.limits.reset("some")):
        with pytest.raises(BlockingCall):
            call()


def test_parked_runs_start_when_their_limit_is_raised(app):
    app.limit("some", rate="1/day")

    @app.task(name="work", limits=["some"])
    async def work() -> None: ...

    runs = [work.enqueue() for _ in range(4)]
    with app.worker():
        wait_until(lambda: sum(run.info().state == "done" for run in runs) == 1)
        app.limits.set("some", rate="3/day")
        wait_until(lambda: sum(run.info().state == "done" for run in runs) == 3)
        app.limits.set("some", rate=None)
        for run in runs:
            run.result(timeout=30)


def test_the_transaction_that_raises_a_limit_releases_what_waits(timed_app):
    app = timed_app
    app.limit("some", rate="1/day")

    @app.task(name="work", limits=["some"])
    async def work() -> None: ...

    work.enqueue_many([()] * 4)
    drain(app)
    assert app.limits.get("some").counters[0].parked == 3
    app.limits.set("some", rate="3/day")
    assert app.limits.get("some").counters[0].parked == 1
    app.limits.set("some", rate=None)
    assert app.limits.get("some").counters[0].parked == 0


def test_a_lowered_concurrency_lets_running_runs_finish(app):
    app.limit("some", concurrency=3)

    @app.task(name="work", limits=["some"])
    def work() -> None: ...

    runs = work.enqueue_many([()] * 5)
    app.store.sessions.open("s", "w", 60_000_000, "{}")
    lanes = list(app.store.lanes.refresh())
    assert len(app.store.claims.claim_limited("s", lanes, 8)) == 3
    app.limits.set("some", concurrency=1)
    assert app.store.claims.claim_limited("s", lanes, 8) == []
    assert Control(app.store).limits.list("some")[0].counters[0].used == 3
    assert len(runs) == 5


def test_the_command_line_sets_and_resets_limits(app):
    def holdfast_cli(*words: str) -> Result:
        return CliRunner().invoke(holdfast, ["--url", app.url, *words])

    app.limit("some", concurrency=2, rate="5/min")
    drain(app)
    shown = holdfast_cli("limits", "set", "some", "--rate", "50/min", "--concurrency", "none", "--by", "ada")
    assert "50 per 1 min" in shown.output
    assert "limit some was set by ada (" in shown.stderr
    assert "the code declares concurrency 2, 5 per 1 min" in shown.stderr
    assert bounds(app, "some") == (None, 50, 60.0)
    assert (
        '"set_by": "ada"' in holdfast_cli("limits", "set", "some", "--concurrency", "7", "--by", "ada", "--json").output
    )
    assert "5 per 1 min" in holdfast_cli("limits", "reset", "some").output
    assert bounds(app, "some") == (2, 5, 60.0)
    for wrong, message in [
        (("set", "some"), "Pass what to set: --rate, --concurrency or both"),
        (("set",), "`holdfast limits set NAME`"),
        (("reset",), "`holdfast limits reset NAME`"),
        (("set", "gone", "--rate", "5/s"), "limit 'gone' does not exist"),
        (("set", "some", "--concurrency", "few"), "'few' is neither a number from 1 on nor `none`"),
        (("some", "--rate", "5/s"), "apply to `holdfast limits set NAME`"),
        (("drop", "some"), "Use `holdfast limits [NAME]`"),
    ]:
        failed = holdfast_cli("limits", *wrong)
        assert failed.exit_code == 2
        assert message in failed.stderr
