"""`Budgets`: inspect budgets and change what they allow at run time, from `app.budgets`."""

from __future__ import annotations

import builtins
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.budget import BudgetInfo, BudgetTotal
from holdfast.store.budget_settings import BudgetSettings
from holdfast.task.scope import refuse_in_body, reject_in_event_loop

if TYPE_CHECKING:
    from holdfast.client.client import Client

INSTEAD = "call it inside a step"


class Budgets:
    """The budgets of the database, from `app.budgets`. Runs that wait continue within a second of a raise.

    Limits that are set here count instead of those that the code declares with `app.budget`, also after a deploy, until
    they are reset. Methods that start with `a` are awaitable.

    Example:
        ```python
        app.budgets.set("usd", 10)                  # for all
        app.budgets.set("usd", 25, run=run.id)      # for one run
        app.budgets.reset("usd")
        ```
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def _settings(self) -> BudgetSettings:
        return BudgetSettings(self._client.store)

    def list(self) -> builtins.list[BudgetInfo]:
        """Return all budgets by name, with what was spent."""
        reject_in_event_loop("list", "use `await app.budgets.alist()`")
        return self._settings.list()

    async def alist(self) -> builtins.list[BudgetInfo]:
        """Return all budgets by name, with what was spent."""
        return await run_in_thread(self._settings.list)

    def get(self, name: str) -> BudgetInfo:
        """Return one budget with what was spent.

        Raises:
            ConfigError: The budget doesn't exist.
        """
        reject_in_event_loop("get", "use `await app.budgets.aget(…)`")
        return self._settings.list(name)[0]

    async def aget(self, name: str) -> BudgetInfo:
        """Return one budget with what was spent."""
        return (await run_in_thread(self._settings.list, name))[0]

    def total(self, name: str, *, run: UUID | str | None = None, tenant: str | None = None) -> BudgetTotal:
        """Return what one run has spent of a budget, its tree, or a tenant: as the budget is per.

        Raises:
            ConfigError: The budget doesn't exist, or is per something else.
            RunNotFound: The run doesn't exist.
        """
        reject_in_event_loop("total", "use `await app.budgets.atotal(…)`")
        return self._settings.total(name, run=run, tenant=tenant)

    async def atotal(self, name: str, *, run: UUID | str | None = None, tenant: str | None = None) -> BudgetTotal:
        """Return what one run has spent of a budget, its tree, or a tenant."""
        return await run_in_thread(self._settings.total, name, run=run, tenant=tenant)

    def set(
        self,
        name: str,
        limit: Decimal | float,
        *,
        run: UUID | str | None = None,
        tenant: str | None = None,
        by: str | None = None,
    ) -> BudgetInfo:
        """Set what a budget allows, until it is reset.

        Args:
            name: A budget that code has declared.
            limit: The new limit, from 0 to 999,999,999.
            run: Only for this run; for its whole tree, if the budget is per tree.
            tenant: Only for this tenant.
            by: Who sets it. Defaults to the user of this process.

        Raises:
            ConfigError: The budget doesn't exist, is per something else, or the limit is invalid.
            RunNotFound: The run doesn't exist.
        """
        refuse_in_body("budgets.set", INSTEAD)
        reject_in_event_loop("set", "use `await app.budgets.aset(…)`")
        return self._settings.set(name, limit, run=run, tenant=tenant, by=by)

    async def aset(
        self,
        name: str,
        limit: Decimal | float,
        *,
        run: UUID | str | None = None,
        tenant: str | None = None,
        by: str | None = None,
    ) -> BudgetInfo:
        """Set what a budget allows, until it is reset."""
        refuse_in_body("budgets.aset", INSTEAD)
        return await run_in_thread(self._settings.set, name, limit, run=run, tenant=tenant, by=by)

    def reset(self, name: str, *, run: UUID | str | None = None, tenant: str | None = None) -> BudgetInfo:
        """Return a budget to what the code declares; that of one run or tenant to what the budget allows.

        Raises:
            ConfigError: The budget doesn't exist, or is per something else.
            RunNotFound: The run doesn't exist.
        """
        refuse_in_body("budgets.reset", INSTEAD)
        reject_in_event_loop("reset", "use `await app.budgets.areset(…)`")
        return self._settings.reset(name, run=run, tenant=tenant)

    async def areset(self, name: str, *, run: UUID | str | None = None, tenant: str | None = None) -> BudgetInfo:
        """Return a budget to what the code declares."""
        refuse_in_body("budgets.areset", INSTEAD)
        return await run_in_thread(self._settings.reset, name, run=run, tenant=tenant)
