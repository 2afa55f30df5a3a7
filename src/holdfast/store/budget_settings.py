"""Read budgets with what was spent, and change what they allow at run time."""

from __future__ import annotations

import builtins
from decimal import Decimal
from typing import TYPE_CHECKING, cast
from uuid import UUID

from holdfast.errors import ConfigError, RunNotFound
from holdfast.model.budget import BudgetInfo, BudgetTotal, OnExceeded, Per, from_units, to_units
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime_or_none
from holdfast.model.names import actor_or_user, check_name
from holdfast.store.budgets import BudgetRow, TotalRow

if TYPE_CHECKING:
    from holdfast.store.store import Store


class BudgetSettings:
    """The budgets of a database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, name: str | None = None) -> builtins.list[BudgetInfo]:
        """List all budgets with what was spent, or the one with this name."""
        rows = self._store.budgets.list_all()
        found = [row for row in rows if name is None or row.name == name]
        if name is not None and not found:
            raise _unknown(name, rows)
        waiting = self._store.budgets.count_waiting() if found else {}
        return [_info(row, self._store.budgets.totals(row.name), waiting.get(row.name, 0)) for row in found]

    def exists(self, name: str) -> bool:
        """Return whether a budget with this name is declared."""
        return self._store.budgets.find(name) is not None

    def total(self, name: str, *, run: UUID | str | None = None, tenant: str | None = None) -> BudgetTotal:
        """Return what a run (or its tree) or a tenant has spent of a budget."""
        budget = self._find(name)
        key = self._key(budget, run, tenant)
        found = self._store.budgets.totals(name, key, 1)
        return _total(found[0]) if found else BudgetTotal(key, from_units(0), from_units(budget.bound), 0)

    def set(
        self,
        name: str,
        limit: Decimal | float,
        *,
        run: UUID | str | None = None,
        tenant: str | None = None,
        by: str | None = None,
    ) -> BudgetInfo:
        """Set what a budget allows, until `reset`: for all, or for one run (or its tree) or tenant.

        Raises ConfigError for unknown budgets and invalid limits.
        """
        budget = self._find(name)
        bound, actor = to_units(limit, f"budget {name}: limit", ConfigError), actor_or_user(by)
        if run is None and tenant is None:
            self._store.budgets.set(name, bound, actor)
        else:
            self._store.budgets.set_total(budget, self._key(budget, run, tenant), bound, actor)
        return self.list(name)[0]

    def reset(self, name: str, *, run: UUID | str | None = None, tenant: str | None = None) -> BudgetInfo:
        """Return a budget to what the code declares; or that of one run (or its tree) or tenant to the budget's."""
        budget = self._find(name)
        if run is None and tenant is None:
            self._store.budgets.reset(name)
        else:
            self._store.budgets.set_total(budget, self._key(budget, run, tenant), None, None)
        return self.list(name)[0]

    def _find(self, name: str) -> BudgetRow:
        check_name(name, "the name of a budget")
        found = self._store.budgets.find(name)
        if found is None:
            raise _unknown(name, self._store.budgets.list_all())
        return found

    def _key(self, budget: BudgetRow, run: UUID | str | None, tenant: str | None) -> str:
        """Return the key of the counter that is meant."""
        if (run is None) == (tenant is None):
            raise ConfigError(f"budget {budget.name}: pass run= or tenant=, not both")
        if budget.per == "tenant":
            if tenant is None:
                raise ConfigError(f"budget {budget.name} is per tenant: pass tenant= instead of run=")
            return tenant
        if run is None:
            raise ConfigError(f"budget {budget.name} is per {budget.per}: pass run= instead of tenant=")
        root = self._store.budgets.root_of(str(run))
        if root is None:
            raise RunNotFound.of(run)
        return root if budget.per == "tree" else str(run)


def _unknown(name: str, rows: builtins.list[BudgetRow]) -> ConfigError:
    known = ", ".join(row.name for row in rows)
    return ConfigError(
        f"budget {name!r} does not exist" + (f"; known budgets: {known}" if known else ": no worker has declared one")
    )


def _info(row: BudgetRow, totals: builtins.list[TotalRow], waiting: int) -> BudgetInfo:
    return BudgetInfo(
        row.name,
        from_units(row.bound),
        cast(Per, row.per),
        None if row.period is None else row.period / MICROS_PER_SECOND,
        cast(OnExceeded, row.on_exceeded),
        [_total(total) for total in totals],
        to_datetime_or_none(row.set_at),
        row.set_by,
        from_units(row.bound if row.declared_bound is None else row.declared_bound),
        waiting,
    )


def _total(row: TotalRow) -> BudgetTotal:
    return BudgetTotal(
        row.key, from_units(row.spent), from_units(row.bound), row.waiting, to_datetime_or_none(row.set_at), row.set_by
    )
