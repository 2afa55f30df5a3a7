"""Budgets: exact totals per run, tree and tenant; runs that exceed one wait or fail."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, Run, SyncContext
from holdfast.cli.render_history import awaited
from holdfast.control import Control
from holdfast.control.explainer import Explainer
from holdfast.control.history_text import describe_entry
from holdfast.errors import BadArguments, BudgetExceeded, ConfigError
from holdfast.model.budget import UNITS_PER_ONE, from_units, to_units
from holdfast.testing import context, sync_context
from tests.support.durable import drain, kinds, state


def spent(app: Holdfast, name: str, **whose: Any) -> Decimal:
    return app.budgets.total(name, **whose).spent


def reasons(app: Holdfast, run: Run[Any]) -> list[str]:
    return [each.text for each in Explainer(app.store).why(run.id).reasons]


def history(run: Run[Any]) -> list[str]:
    kinds = ("budget_exceeded", "budget_raised")
    return [" ".join((each.kind, *describe_entry(each))) for each in run.history() if each.kind in kinds]


# Amounts


@pytest.mark.parametrize(
    ("amount", "units"),
    [
        (0, 0),
        (5, 5 * UNITS_PER_ONE),
        (0.1, UNITS_PER_ONE // 10),
        (0.1 + 0.2, 3 * UNITS_PER_ONE // 10),
        (Decimal("0.013"), 13_000_000),
        (0.00000015, 150),
        (1e-12, 0),
        (999_999_999, 999_999_999 * UNITS_PER_ONE),
        (Decimal("0.0000000015"), 2),
    ],
)
def test_amounts_are_exact_to_nine_digits(amount, units):
    assert to_units(amount, "it") == units


@pytest.mark.parametrize(
    "amount",
    [-1, -0.001, math.nan, math.inf, True, "5", None, [1], 10**9, Decimal("NaN"), Decimal("1e99999")],
)
def test_an_amount_that_is_no_number_is_refused(amount):
    with pytest.raises(BadArguments, match="it must be a number from 0 to 999,999,999, not"):
        to_units(amount, "it")


def test_an_amount_of_thousands_of_digits_is_refused():
    with pytest.raises(BadArguments, match="it must be a number from 0 to"):
        to_units(10**5000, "it")


def test_stored_amounts_are_shown_without_needless_zeros():
    assert [str(from_units(units)) for units in (0, 13_000_000, 5 * 10**9, 100 * 10**9, 1)] == [
        "0", "0.013", "5", "100", "1E-9",
    ]  # fmt: skip


def test_invalid_declarations_are_rejected(app):
    for settings, message in [
        ({"limit": -1}, "budget usd: limit must be a number from 0"),
        ({"limit": "5"}, "budget usd: limit must be a number from 0"),
        ({"limit": 1, "per": "task"}, "budget usd: per must be one of run, tree, tenant, not 'task'"),
        ({"limit": 1, "on_exceeded": "stop"}, "budget usd: on_exceeded must be one of wait, fail"),
        ({"limit": 1, "window": 0}, "budget usd: window must be longer than 0"),
        ({"limit": 1, "window": "day"}, "budget usd: window must be a timedelta"),
    ]:
        with pytest.raises(ConfigError, match=message):
            app.budget("usd", **settings)
    app.budget("usd", limit=1)
    app.budget("usd", limit=1.0)
    with pytest.raises(ConfigError, match="declared twice, with different settings"):
        app.budget("usd", limit=2)


# Spend


def test_what_a_run_spends_is_added_up_exactly_and_once(app):
    app.budget("usd", limit=100)
    app.budget("tokens", limit=10**6)

    @app.task(name="work")
    async def work(ctx: Context) -> str:
        for _ in range(30):
            await ctx.spend("usd", 0.1)
        await ctx.spend("tokens", 1200)
        status = await ctx.budget("usd")
        await ctx.wait_for("go")
        return f"{status.spent} {status.left} {status.limit}"

    run = work.enqueue()
    assert run.spent() == {}
    drain(app, max_resident=0)
    app.emit("go")
    drain(app, max_resident=0)  # replays all of it
    assert run.result(timeout=1) == "3 97 100"
    assert run.spent() == {"usd": 3, "tokens": 1200}
    assert Control(app.store).runs.details(run.id).spent == run.spent()


def test_a_run_that_exceeds_its_budget_waits_until_it_is_raised(app):
    app.budget("usd", limit=1)

    @app.task(name="work")
    async def work(ctx: Context) -> int:
        for count in range(4):
            await ctx.spend("usd", 0.4)
            await ctx.set("count", count + 1)
        return 4

    run, other = work.enqueue(), work.enqueue()
    drain(app, max_resident=0)
    assert state(run) == "waiting"
    assert run.get("count") == 2, "the third call hasn't returned"
    assert spent(app, "usd", run=run.id) == Decimal("1.2"), "what was spent counts"
    assert reasons(app, run) == [
        f"waiting for budget usd: 1.2 of 1 spent; raise it with holdfast budgets set usd LIMIT --run {run.id}"
    ]
    (wait,) = Control(app.store).runs.waits(run.id)
    assert (wait.kind, awaited(wait).split(",")[0]) == ("budget", "budget usd")
    assert app.budgets.get("usd").waiting == 2
    (finding,) = [each for each in Control(app.store).doctor.examine().findings if each.code == "budget"]
    assert finding.what == "2 runs wait for budget usd"
    app.budgets.set("usd", 1.1, run=run.id, by="ada")
    drain(app, max_resident=0)
    assert state(run) == "waiting", "it isn't enough"
    app.budgets.set("usd", 1.2, run=run.id, by="ada")
    drain(app, max_resident=0)
    assert (state(run), run.get("count"), state(other)) == ("waiting", 3, "waiting")
    app.budgets.set("usd", 2, by="bob")
    drain(app, max_resident=0)
    assert (state(run), state(other)) == ("waiting", "done"), "the run keeps its own limit"
    app.budgets.reset("usd", run=run.id)
    drain(app, max_resident=0)
    assert run.result(timeout=1) == 4
    assert run.spent() == {"usd": Decimal("1.6")}
    assert history(run) == [
        "budget_exceeded usd: 1.2 of 1 spent",
        "budget_raised usd to 1.2 by ada",
        "budget_exceeded usd: 1.6 of 1.2 spent",
        "budget_raised usd to 2 by bob",
    ]


def test_a_function_that_fails_on_an_exceeded_budget_is_retried_after_a_raise(app):
    app.budget("usd", limit=1, on_exceeded="fail")

    @app.task(name="work", retry=Retry(max_attempts=5, delay=0))
    def work(ctx: SyncContext) -> str:
        ctx.spend("usd", 0.75)
        ctx.spend("usd", 0.75)
        return "done"

    run = work.enqueue()
    drain(app)
    error = run.info().error
    assert (state(run), error.type) == ("failed", "holdfast.errors.BudgetExceeded")
    assert error.message == (
        "1.5 of 1 of budget usd are spent for the run: raise it with `holdfast budgets set usd LIMIT`, then retry the"
        " run"
    )
    assert kinds(run).count("started") == 1, "it was retried, but nothing had changed"
    run.retry()
    drain(app)
    assert state(run) == "failed"
    app.budgets.set("usd", 1.5)
    run.retry()
    drain(app)
    assert run.result(timeout=1) == "done"
    assert run.spent() == {"usd": Decimal("1.5")}, "a retry has spent again"
    assert history(run)[0] == "budget_exceeded usd: 1.5 of 1 spent"


def test_a_function_may_catch_an_exceeded_budget_and_a_replay_catches_it_again(app):
    app.budget("usd", limit=1, on_exceeded="fail")
    seen: list[tuple[str, Decimal | None, Decimal | None]] = []

    @app.task(name="work")
    async def work(ctx: Context) -> str:
        try:
            await ctx.spend("usd", 3)
        except BudgetExceeded as error:
            seen.append((error.budget, error.spent, error.limit))
        await ctx.wait_for("go")
        return "cheap"

    run = work.enqueue()
    drain(app, max_resident=0)
    app.budgets.set("usd", 10)
    app.emit("go")
    drain(app, max_resident=0)
    assert run.result(timeout=1) == "cheap"
    assert seen == [("usd", 3, 1)] * 2


def test_nothing_is_spent_to_wait_for_room(app):
    app.budget("usd", limit=1, per="tenant")

    @app.task(name="spend")
    async def spend(ctx: Context) -> None:
        await ctx.spend("usd", 5)

    @app.task(name="careful")
    async def careful(ctx: Context) -> None:
        await ctx.spend("usd", 0)

    first = spend.options(tenant="acme").enqueue()
    drain(app)
    second, other = careful.options(tenant="acme").enqueue(), careful.options(tenant="tiny").enqueue()
    drain(app)
    assert (state(first), state(second), state(other)) == ("waiting", "waiting", "done")
    app.budgets.set("usd", 5, tenant="acme")
    drain(app)
    assert (state(first), state(second)) == ("done", "done")


def test_an_unknown_budget_is_named_with_those_that_are_declared(app):
    app.budget("usd", limit=1)

    @app.task(name="work", retry=Retry(max_attempts=1))
    async def work(ctx: Context, how: str) -> None:
        await (ctx.spend("eur", 1) if how == "spend" else ctx.budget("eur"))

    runs = [work.enqueue(how) for how in ("spend", "read")]
    drain(app)
    for run in runs:
        message = "budget 'eur' is not declared: add app.budget('eur', limit=…); declared budgets: usd"
        assert run.info().error.message == message
        assert run.spent() == {}


# Per tree, per tenant, windows


def test_a_budget_per_tree_counts_the_children(app):
    app.budget("usd", limit=2, per="tree")

    @app.task(name="child")
    async def child(ctx: Context, amount: float) -> None:
        await ctx.spend("usd", amount)

    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        await ctx.spend("usd", 0.5)
        await ctx.map(child, [0.5, 0.5])
        await ctx.call(child, 0.75)

    run, other = parent.enqueue(), parent.enqueue()
    drain(app, max_resident=0)
    (last,) = [each for each in app.runs(task="child", state="waiting") if each.parent == run.id]
    assert (state(run), state(other)) == ("waiting", "waiting")
    assert spent(app, "usd", run=last.id) == spent(app, "usd", run=run.id) == Decimal("2.25")
    assert run.spent() == {"usd": Decimal("0.5")}, "its own share"
    app.budgets.set("usd", 3, run=last.id)
    drain(app, max_resident=0)
    assert (state(run), state(other)) == ("done", "waiting")


def test_a_budget_per_tenant_is_shared_by_its_runs(app):
    app.budget("usd", limit=1, per="tenant")

    @app.task(name="work")
    async def work(ctx: Context, amount: float) -> None:
        await ctx.spend("usd", amount)

    runs = [work.options(tenant=tenant).enqueue(0.75) for tenant in ("acme", "acme", "tiny")] + [work.enqueue(0.75)]
    drain(app)
    assert sorted(map(state, runs[:2])) == ["done", "waiting"]
    assert [state(run) for run in runs[2:]] == ["done", "done"]
    assert [spent(app, "usd", tenant=name) for name in ("acme", "tiny", "")] == [1.5, 0.75, 0.75]
    assert [run.spent() for run in runs] == [{"usd": Decimal("0.75")}] * 4
    for whose, message in [({"run": runs[0].id}, "pass tenant= instead"), ({}, "pass run= or tenant=")]:
        with pytest.raises(ConfigError, match=message):
            app.budgets.total("usd", **whose)


def test_a_budget_with_a_window_starts_again_with_the_next_one(timed_app, clock):
    app = timed_app
    app.budget("usd", limit=1, per="tenant", window=timedelta(hours=1))

    @app.task(name="work")
    async def work(ctx: Context, amount: float) -> None:
        await ctx.spend("usd", amount)

    clock.forward(3600 - clock() / 10**6 % 3600 + 1800)
    run = work.options(tenant="acme").enqueue(3)
    drain(app)
    assert state(run) == "waiting"
    assert "or until its window ends at" in reasons(app, run)[0]
    assert spent(app, "usd", tenant="acme") == 3
    clock.forward(3600)
    drain(app)
    assert state(run) == "done"
    assert spent(app, "usd", tenant="acme") == 0
    again = work.options(tenant="acme").enqueue(1)
    drain(app)
    assert (state(again), spent(app, "usd", tenant="acme")) == ("done", 1)
    assert run.spent() == {"usd": 3}, "a run's own total isn't renewed"


# Inside steps


def test_what_a_step_spends_is_recorded_with_its_checkpoint(app, ledger):
    app.budget("usd", limit=1)
    app.budget("calls", limit=10)
    app.limit("slow", concurrency=1)

    async def model(ctx: Context, amount: float) -> float:
        ledger.write("model")
        await ctx.spend("usd", amount)
        await ctx.spend("usd", amount)
        await ctx.spend("calls", 1)
        return amount

    @app.task(name="work")
    async def work(ctx: Context) -> float:
        step = ctx.options(name="model")
        first = await step.step(model_of(ctx, 0.25))
        second = await ctx.options(name="limited", limits=["slow"]).step(model_of(ctx, 0.5))
        return first + second

    def model_of(ctx: Context, amount: float) -> Any:
        async def call() -> float:
            return await model(ctx, amount)

        return call

    run = work.enqueue()
    drain(app, max_resident=0)
    assert state(run) == "waiting", "it waits after the second step"
    assert run.spent() == {"usd": 1.5, "calls": 2}
    drain(app, max_resident=0)
    app.budgets.set("usd", 2)
    drain(app, max_resident=0)
    assert run.result(timeout=1) == 0.75
    assert run.spent() == {"usd": 1.5, "calls": 2}
    assert ledger.counts() == {"model": 2}
    assert [each.used for each in app.limits.get("slow").counters] in ([], [0])


def test_a_step_that_fails_has_spent(app):
    app.budget("usd", limit=10)

    @app.task(name="work", retry=Retry(max_attempts=1))
    def work(ctx: SyncContext) -> None:
        def call() -> None:
            ctx.spend("usd", 1)
            raise ValueError("no")

        ctx.options(name="call", retry=Retry(max_attempts=3, delay=0)).step(call)

    run = work.enqueue()
    drain(app)
    assert (state(run), run.spent()) == ("failed", {"usd": 3})


def test_a_step_that_exceeds_a_budget_fails_after_its_checkpoint(app, ledger):
    app.budget("usd", limit=1, on_exceeded="fail")

    @app.task(name="work")
    def work(ctx: SyncContext) -> str:
        def call() -> str:
            ledger.write("call")
            ctx.spend("usd", 2)
            return "answer"

        return ctx.options(name="call").step(call)

    run = work.enqueue()
    drain(app)
    assert state(run) == "failed"
    assert "BudgetExceeded" in str(run.info().error)
    app.budgets.set("usd", 2)
    run.retry()
    drain(app)
    assert (run.result(timeout=1), run.spent(), ledger.counts()) == ("answer", {"usd": 2}, {"call": 1})


def test_a_cancelled_run_keeps_what_a_step_with_a_compensation_has_spent(app):
    app.budget("usd", limit=10)
    undone: list[str] = []

    @app.task(name="work")
    def work(ctx: SyncContext) -> None:
        def call() -> str:
            ctx.spend("usd", 2)
            run.cancel()
            return "charged"

        ctx.options(name="call", undo=undone.append).step(call)

    run = work.enqueue()
    drain(app)
    drain(app)
    assert (state(run), undone, run.spent()) == ("cancelled", ["charged"], {"usd": 2})


def test_a_transaction_cannot_spend(app):
    app.budget("usd", limit=10)

    @app.task(name="work", retry=Retry(max_attempts=1))
    def work(ctx: SyncContext) -> None:
        contexts.append(ctx)
        ctx.transaction(spend_in_transaction)

    run = work.enqueue()
    drain(app)
    assert "spend after ctx.transaction" in str(run.info().error)
    assert run.spent() == {}


contexts: list[SyncContext] = []


def spend_in_transaction(connection: Any) -> None:
    contexts.pop().spend("usd", 2)


# Whole runs


def test_a_fork_and_a_run_that_starts_over_do_not_count_twice(app):
    app.budget("usd", limit=10)

    @app.task(name="work")
    async def work(ctx: Context, again: bool) -> None:
        await ctx.spend("usd", 1)
        if again:
            await ctx.restart(False)
        await ctx.step(noted)

    run = work.enqueue(True)
    drain(app)
    assert run.spent() == {"usd": 2}
    fork = run.fork(from_step="noted")
    drain(app)
    assert (state(fork), fork.spent()) == ("done", {})


def noted() -> None: ...


def test_a_run_that_ended_while_it_waited_goes_on_when_it_is_retried_after_a_raise(app):
    app.budget("usd", limit=1)

    @app.task(name="work")
    async def work(ctx: Context) -> str:
        await ctx.spend("usd", 2)
        return "done"

    run = work.enqueue()
    drain(app)
    run.cancel()
    assert app.budgets.get("usd").waiting == 0
    app.budgets.set("usd", 2)
    run.retry()
    drain(app)
    assert (run.result(timeout=1), run.spent()) == ("done", {"usd": 2})


def test_a_branch_that_gives_up_waiting_goes_on(app):
    app.budget("usd", limit=1)

    @app.task(name="work")
    async def work(ctx: Context) -> str:
        spending = asyncio.ensure_future(ctx.spend("usd", 2))
        await ctx.wait_for("go")
        spending.cancel()
        await asyncio.wait([spending])
        return "gave up"

    run = work.enqueue()
    drain(app, max_resident=0)
    app.emit("go")
    drain(app, max_resident=0)
    assert (run.result(timeout=1), run.spent()) == ("gave up", {"usd": 2})
    assert app.budgets.get("usd").waiting == 0


def test_totals_are_deleted_with_their_runs(app):
    app.budget("usd", limit=1, per="tree")

    @app.task(name="work", keep=0)
    async def work(ctx: Context) -> None:
        await ctx.spend("usd", 0.5)

    work.enqueue()
    drain(app)
    assert len(app.budgets.get("usd").totals) == 1
    assert app.store.retention.prune()[0] == 1
    assert app.budgets.get("usd").totals == []


# Direct calls


async def test_direct_calls_add_up_what_is_spent():
    ctx = context()
    await ctx.spend("usd", 0.1)
    await ctx.spend("usd", 0.2)
    assert (await ctx.budget("usd")).spent == Decimal("0.3")
    assert ctx.spent == {"usd": Decimal("0.3")}
    blocking = sync_context()
    blocking.spend("usd", 1)
    assert blocking.spent == {"usd": 1}
