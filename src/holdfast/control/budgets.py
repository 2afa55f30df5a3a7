"""Budgets with what was spent and what waits for them; change what they allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.control.audit import audited
from holdfast.control.health_checks import Finding
from holdfast.model.budget import BudgetInfo as BudgetInfo
from holdfast.model.budget import BudgetTotal as BudgetTotal
from holdfast.model.budget import format_amount, from_units
from holdfast.model.names import counted
from holdfast.store.budget_settings import BudgetSettings
from holdfast.store.budgets import BUDGET_TARGET, parse_counter_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from decimal import Decimal

    from holdfast.store import Store


class BudgetControl(BudgetSettings):
    """Lists budgets with their totals, and sets and resets what they allow."""

    set = audited("set budget", "name")(BudgetSettings.set)
    reset = audited("reset budget", "name")(BudgetSettings.reset)


def awaited_budget(target: str | None) -> str:
    """Return the name of the budget that a wait is for."""
    return parse_counter_name((target or "").removeprefix(BUDGET_TARGET))[0]


def describe_budget(store: Store, target: str | None) -> tuple[str, dict[str, object]]:
    """Describe the budget that a run waits for, with its total, for people and for programs."""
    name, per, key = parse_counter_name((target or "").removeprefix(BUDGET_TARGET))
    whose = {
        "tenant": f" of tenant {key}" if key else " of runs without a tenant",
        "tree": f" of the tree of run {key}",
    }
    option = {"tenant": f" --tenant {key}" if key else ""}.get(per, f" --run {key}")
    totals = store.budgets.totals(name, key, 1)
    data: dict[str, object] = {"budget": name, "per": per, "key": key}
    if not totals:
        return f"budget {name}", data
    spent, limit = from_units(totals[0].spent), from_units(totals[0].bound)
    text = (
        f"budget {name}{whose.get(per, '')}: {format_amount(spent)} of {format_amount(limit)} spent; raise it with "
        f"holdfast budgets set {name} LIMIT{option}"
    )
    return text, data | {"spent": spent, "limit": limit}


def spent_by(store: Store, run: str) -> dict[str, Decimal]:
    """Return what a run has spent, by budget."""
    return {name: from_units(units) for name, units in store.budgets.spending([run]).get(run, {}).items()}


def check_budgets(store: Store) -> Iterator[Finding]:
    """Report budgets that runs wait for."""
    for name, waiting in sorted(store.budgets.count_waiting().items()):
        if waiting:
            number = f"{waiting:,} or more runs" if waiting >= 1000 else counted(waiting, "run")
            yield Finding(
                "budget", "note", f"{number} {'waits' if waiting == 1 else 'wait'} for budget {name}",
                "they have spent more than it allows, and continue when it is raised or its window ends",
                f"run `holdfast budgets {name}`; raise it with `holdfast budgets set {name} LIMIT`, or cancel the runs",
                {"budget": name, "runs": waiting},
            )  # fmt: skip
