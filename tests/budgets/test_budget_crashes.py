"""Budgets while the worker crashes at every write: nothing is counted twice or lost, and no wait is forgotten."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal

import pytest

from holdfast import BudgetExceeded, Context, Holdfast, SyncContext
from holdfast.testing import Kit, crash_at_every_step

app = Holdfast("sqlite:///never-made.db")
app.budget("usd", limit=1)
app.budget("calls", limit=2, per="tree", on_exceeded="fail")
calls: defaultdict[str, int] = defaultdict(int)


@pytest.fixture
def holdfast_app():
    calls.clear()
    return app


@app.task(name="agent")
async def agent(ctx: Context) -> str:
    for _ in range(3):
        await ctx.spend("usd", 0.4)
    left = (await ctx.budget("usd")).left

    async def model() -> str:
        calls["model"] += 1
        await ctx.spend("usd", 0.1)
        return "answer"

    return f"{await ctx.options(name='model').step(model)} {left}"


@crash_at_every_step
def test_a_crash_repeats_and_loses_no_spend_and_no_wait(kit: Kit):
    run = agent.enqueue()
    kit.drain()
    assert run.info().state == "waiting"
    assert run.spent() == {"usd": Decimal("1.2")}
    app.budgets.set("usd", 2, run=run.id)
    kit.drain()
    assert run.result() == "answer 0.8"
    assert run.spent() == {"usd": Decimal("1.3")}


@app.task(name="counted")
def counted(ctx: SyncContext, above: int) -> str:
    try:
        for _ in range(4):
            ctx.spend("calls", 1)
    except BudgetExceeded as error:
        return f"{error.spent} {ctx.call(counted, above - 1) if above else ''}"
    return "unlimited"


@crash_at_every_step
def test_a_crash_changes_no_refusal(kit: Kit):
    run = counted.enqueue(1)
    kit.drain()
    assert run.result() == "3 4 "
    assert app.budgets.total("calls", run=run.id).spent == 4
