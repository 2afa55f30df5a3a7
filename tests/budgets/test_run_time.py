"""Budgets that are set at run time: from the app, the command line, the API and the dashboard."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from click.testing import CliRunner, Result

from holdfast import Context, Holdfast
from holdfast.cli.commands import holdfast
from holdfast.errors import BlockingCall, ConfigError, RunNotFound
from holdfast.store import budgets
from tests.support.durable import drain, state
from tests.support.wait_until import wait_until


def redeployed(app: Holdfast, make_app, **settings) -> Holdfast:
    """Start a worker with other code."""
    other = make_app()
    other.budget("usd", **settings)
    other.worker().drain(timeout=10)
    return other


def declare_work(app: Holdfast):
    @app.task(name="work")
    async def work(ctx: Context, amount: float) -> None:
        await ctx.spend("usd", amount)

    return work


def test_a_set_limit_wins_until_it_is_reset_and_survives_deploys(app, make_app):
    app.budget("usd", limit=2)
    drain(app)
    found = app.budgets.set("usd", 5.5, by="ada")
    assert (found.limit, found.set_by, found.declared_limit) == (Decimal("5.5"), "ada", 2)
    redeployed(app, make_app, limit=3)
    assert app.budgets.get("usd").limit == Decimal("5.5"), "the code doesn't win"
    assert app.budgets.set("usd", 6).declared_limit == 3
    found = app.budgets.reset("usd")
    assert (found.limit, found.set_at, found.set_by) == (3, None, None)
    assert app.budgets.reset("usd") == found
    redeployed(app, make_app, limit=4, per="tenant", window=60)
    found = app.budgets.get("usd")
    assert (found.limit, found.per, found.window) == (4, "tenant", 60)
    assert app.budgets.list() == [found]


def test_a_deploy_with_a_higher_limit_resumes_runs_that_wait(app, make_app):
    app.budget("usd", limit=1)
    work = declare_work(app)
    run = work.enqueue(2)
    drain(app)
    assert state(run) == "waiting"
    other = make_app()
    other.budget("usd", limit=2)
    declare_work(other)
    drain(other)
    assert state(run) == "done"


def test_invalid_changes_are_rejected(app):
    app.budget("usd", limit=2)
    app.budget("tokens", limit=2, per="tenant")
    run = declare_work(app).enqueue(1)
    drain(app)
    for wrong, options, message in [
        (-1, {}, "budget usd: limit must be a number from 0 to 999,999,999, not '-1'"),
        (True, {}, "must be a number from 0"),
        (5, {"by": ""}, "by must not be empty"),
        (5, {"run": run.id, "tenant": "acme"}, "pass run= or tenant=, not both"),
        (5, {"tenant": "acme"}, "budget usd is per run: pass run= instead of tenant="),
    ]:
        with pytest.raises(ConfigError, match=message):
            app.budgets.set("usd", wrong, **options)
    with pytest.raises(ConfigError, match="budget tokens is per tenant: pass tenant= instead of run="):
        app.budgets.set("tokens", 5, run=run.id)
    with pytest.raises(RunNotFound):
        app.budgets.set("usd", 5, run="0199a3f2-6c1e-7b7f-8a11-000000000000")
    for call in (
        lambda: app.budgets.set("gone", 5),
        lambda: app.budgets.reset("gone"),
        lambda: app.budgets.get("gone"),
    ):
        with pytest.raises(ConfigError, match="budget 'gone' does not exist; known budgets: tokens, usd"):
            call()
    assert app.budgets.get("usd").set_at is None


async def test_every_method_has_an_awaitable_form(app):
    app.budget("usd", limit=1)
    run = await declare_work(app).aenqueue(2)
    await asyncio.to_thread(drain, app)
    assert (await run.aspent()) == {"usd": 2}
    assert (await app.budgets.atotal("usd", run=run.id)).spent == 2
    await app.budgets.aset("usd", 5)
    assert (await app.budgets.aget("usd")).limit == 5
    assert [each.name for each in await app.budgets.alist()] == ["usd"]
    await app.budgets.areset("usd")
    for call in (app.budgets.list, run.spent, lambda: app.budgets.set("usd", 1)):
        with pytest.raises(BlockingCall):
            call()


def test_a_raise_wakes_a_worker_that_has_nothing_to_do(app):
    app.budget("usd", limit=1)
    work = declare_work(app)
    with app.worker(max_resident=0):
        run = work.enqueue(2)
        wait_until(lambda: state(run) == "waiting")
        app.budgets.set("usd", 2)
        run.result(timeout=5)


def test_a_raise_that_died_half_way_is_continued_by_the_timers(app, monkeypatch):
    app.budget("usd", limit=1)
    work = declare_work(app)
    runs = [work.enqueue(2) for _ in range(5)]
    drain(app)
    monkeypatch.setattr(budgets.BudgetStore, "wake", lambda *_: 0)  # the caller died after its first transaction
    app.budgets.set("usd", 2)
    monkeypatch.undo()
    assert {state(run) for run in runs} == {"waiting"}
    drain(app)
    assert {state(run) for run in runs} == {"done"}


def test_many_runs_are_resumed_in_batches(app, monkeypatch):
    monkeypatch.setattr(budgets, "MAX_WOKEN_RUNS", 2)
    app.budget("usd", limit=1, per="tenant")
    runs = [declared.enqueue(1) for declared in [declare_work(app)] * 6]
    drain(app)
    assert app.budgets.get("usd").waiting == 5
    app.budgets.set("usd", 6)
    assert app.budgets.get("usd").waiting == 0
    drain(app)
    assert {state(run) for run in runs} == {"done"}


def test_the_command_line_lists_sets_and_resets_budgets(app):
    def holdfast_cli(*words: str) -> Result:
        return CliRunner().invoke(holdfast, ["--url", app.url, *words], env={"COLUMNS": "200"})

    assert "no budgets: declare app.budget" in holdfast_cli("budgets").stderr
    app.budget("usd", limit=1, per="tenant", window=86400)
    run = declare_work(app).options(tenant="acme").enqueue(2.5)
    drain(app)
    shown = holdfast_cli("budgets").output.split("\n")
    assert shown[0].split() == ["BUDGET", "PER", "KEY", "SPENT", "LIMIT", "WINDOW", "WAITING"]
    assert shown[1].split() == ["usd", "tenant", "acme", "2.5", "1", "1", "d", "1"]
    assert "waits for budget usd" in holdfast_cli("show", str(run.id)).output
    assert "spent" in holdfast_cli("show", str(run.id)).output
    assert "2.5 of 1 spent" in holdfast_cli("why", str(run.id)).output
    changed = holdfast_cli("budgets", "set", "usd", "2", "--by", "ada")
    assert "budget usd was set to 2 by ada (" in changed.stderr
    assert "; the code declares 1" in changed.stderr
    found = holdfast_cli("budgets", "set", "usd", "25", "--tenant", "acme", "--by", "ada", "--json").output
    assert '"set_by": "ada"' in found
    assert '"limit": "25"' in found
    drain(app)
    assert state(run) == "done"
    assert holdfast_cli("budgets", "reset", "usd", "--tenant", "acme").exit_code == 0
    assert holdfast_cli("budgets", "reset", "usd").output.split("\n")[1].split()[4] == "1"
    for wrong, message in [
        (("set", "usd"), "`holdfast budgets set NAME LIMIT`"),
        (("set",), "`holdfast budgets set NAME LIMIT`"),
        (("reset",), "`holdfast budgets reset NAME`"),
        (("set", "gone", "5"), "budget 'gone' does not exist"),
        (("set", "usd", "much"), "'much' is not a number"),
        (("set", "usd", "--", "-5"), "must be a number from 0 to 999,999,999"),
        (("set", "usd", "NaN"), "must be a number from 0 to 999,999,999"),
        (("usd", "--tenant", "acme"), "apply to `holdfast budgets set` and `holdfast budgets reset`"),
        (("drop", "usd"), "Use `holdfast budgets [NAME]`"),
    ]:
        failed = holdfast_cli("budgets", *wrong)
        assert failed.exit_code == 2, wrong
        assert message in failed.stderr
