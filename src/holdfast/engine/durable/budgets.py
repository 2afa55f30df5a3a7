"""Plans of budgets: record what a run spends, and wait or fail if that is more than a budget allows.

They are like the plans in `plans.py`, which lists them. What a step spends is kept in memory until the step ends, and
recorded beside its checkpoint, so that a replay waits where the first execution did.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from holdfast.engine.durable.history import BUDGET_KEY
from holdfast.errors import BudgetExceeded, TaskError
from holdfast.model.budget import BudgetStatus, format_amount
from holdfast.model.codec import decode, encode
from holdfast.store import commands
from holdfast.store.commands import NewCheckpoint, NewStepCheckpoint, Spend
from holdfast.task import operations as op
from holdfast.task.scope import current_scope

if TYPE_CHECKING:
    from holdfast.engine.durable.plans import OperationPlans, PlanExecutor

MARKER = "$spent:"
"""How the key of the record of what a step has spent begins; the key of the step follows."""
NOTHING: dict[str, list[Spend]] = {}


async def spend(plans: OperationPlans, executor: PlanExecutor, operation: op.SpendAmount) -> Any:
    """Record what the run spends; then wait or fail, if it is more than the budget allows."""
    new = Spend(operation.budget, operation.amount)
    current = current_scope.get()
    if current is not None and current.step is not None:
        _spend_in_step(plans, current.step, new)
        return
    key, record = await plans.perform_once(executor, operation.base, lambda n, key: _command(plans, n, key, new))
    await wait_for_room(plans, executor, record, BUDGET_KEY + key.removeprefix("$spend:"))


def _spend_in_step(plans: OperationPlans, step: str, new: Spend) -> None:
    plans.client.check_budget(new.budget)
    if plans.step_spends is NOTHING:
        plans.step_spends = {}
    if step in plans.transactions:
        raise TaskError(
            f"ctx.spend was used inside the transaction {step}, whose checkpoint is written by its own transaction: "
            "spend after ctx.transaction"
        )
    plans.step_spends.setdefault(step, []).append(new)


async def read_budget(plans: OperationPlans, executor: PlanExecutor, operation: op.ReadBudget) -> Any:
    """Return what is left of a budget."""
    _, record = await plans.perform_once(
        executor, operation.base, lambda n, key: _command(plans, n, key, Spend(operation.budget, 0), "left")
    )
    (found,) = decode(record)
    spent = Decimal(found["spent"])
    return BudgetStatus(spent if found["limit"] is None else Decimal(found["limit"]), spent)


def _command(plans: OperationPlans, n: int, key: str, new: Spend, kind: Any = "spend") -> commands.SpendCommand:
    plans.client.check_budget(new.budget)
    return commands.SpendCommand(plans.run_token, n, key, [new], kind)


async def replay_step(plans: OperationPlans, executor: PlanExecutor, key: str) -> None:
    """Wait or fail where the recorded execution of a step did."""
    if (record := plans.history.spent.get(MARKER + key)) is not None:
        await wait_after_step(plans, executor, key, record)


async def wait_after_step(plans: OperationPlans, executor: PlanExecutor, key: str, record: str) -> None:
    """Wait or fail after a step has spent more than a budget allows."""
    for found in decode(record):
        await wait_for_room(plans, executor, encode([found]), f"{BUDGET_KEY}{found['budget']}:{key}")


async def wait_for_room(plans: OperationPlans, executor: PlanExecutor, record: str, key: str) -> None:
    """Wait until there is room in the budget that a recorded spend has exceeded, or raise BudgetExceeded."""
    (found,) = decode(record)
    if found["exceeded"]:
        result = await plans.wait_for_outcome(executor, key, kind="budget", name=found["budget"])
        if result.outcome.kind == "exceeded":
            plans.raise_recorded(result.n, _exceeded(result.outcome.value or "{}"))


def _exceeded(text: str) -> BudgetExceeded:
    data = decode(text)
    name, spent, limit = data["budget"], Decimal(data["spent"]), Decimal(data["limit"])
    of = {"tenant": f" for tenant {data['key']}" if data["key"] else "", "tree": " for the tree of the run"}
    whose = of.get(data["per"], " for the run")
    return BudgetExceeded(
        f"{format_amount(spent)} of {format_amount(limit)} of budget {name} are spent{whose}: raise it with `holdfast "
        f"budgets set {name} LIMIT`, then retry the run",
        name,
        spent,
        limit,
    )


# What steps have spent


async def record_step(
    plans: OperationPlans,
    executor: PlanExecutor,
    key: str,
    record: NewStepCheckpoint | NewCheckpoint,
    spends: list[Spend],
) -> str:
    """Record a step with what it has spent, in one transaction; return what its spends found."""
    if isinstance(record, NewStepCheckpoint):
        record = record.to_checkpoint(plans.run_token.generation)
    marker = plans.next_marker_number()
    command = commands.SpendCommand(
        plans.run_token, record.n, record.key, _together(spends), "spent", record, marker, MARKER + key
    )
    text: str = await executor.write(command)
    return text


def _together(spends: list[Spend]) -> list[Spend]:
    """Add up what was spent of each budget."""
    amounts: dict[str, int] = {}
    for budget, amount in spends:
        amounts[budget] = amounts.get(budget, 0) + amount
    return [Spend(budget, amount) for budget, amount in amounts.items()]
