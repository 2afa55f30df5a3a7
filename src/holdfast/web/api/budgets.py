"""API operations on budgets: list them, and change what they allow."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from holdfast.control.budgets import BudgetInfo
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.responses import RequestError


class BudgetChange(msgspec.Struct, forbid_unknown_fields=True):
    """The new limit, a number or its text: of the budget, or only of one run (or its tree) or tenant."""

    limit: Decimal
    run: str | None = None
    tenant: str | None = None


class BudgetReset(msgspec.Struct, forbid_unknown_fields=True):
    """The run (or its tree) or the tenant whose limit is reset; without either, that of the budget."""

    run: str | None = None
    tenant: str | None = None


def _budgets(call: ApiRequest) -> dict[str, Any]:
    return {"budgets": call.control.budgets.list()}


def _set_budget(call: ApiRequest) -> BudgetInfo:
    body: BudgetChange = call.body
    run = None if body.run is None else call.control.runs.parse_id(body.run)
    return call.control.budgets.set(_name(call), body.limit, run=run, tenant=body.tenant, by=call.principal.by)


def _reset_budget(call: ApiRequest) -> BudgetInfo:
    body: BudgetReset = call.body
    run = None if body.run is None else call.control.runs.parse_id(body.run)
    return call.control.budgets.reset(_name(call), run=run, tenant=body.tenant)


def _name(call: ApiRequest) -> str:
    name = call.path["budget"]
    if not call.control.budgets.exists(name):
        raise RequestError(404, f"budget {name[:100]!r} does not exist", "budget_not_found")
    return name


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET", path="/budgets", name="list_budgets", may_lag=True, summary="List budgets with what was spent.",
        do=_budgets, answer={"budgets": list[BudgetInfo]}, all_tenants=True,
    ),
    Operation(
        method="POST", path="/budgets/{budget:path}/set", name="set_budget",
        summary="Set what a budget allows, until it is reset: for all, or for one run, tree or tenant.",
        do=_set_budget, body=BudgetChange, answer=BudgetInfo, all_tenants=True,
    ),
    Operation(
        method="POST", path="/budgets/{budget:path}/reset", name="reset_budget",
        summary="Return a budget to what the code declares, or that of one run, tree or tenant to the budget's limit.",
        do=_reset_budget, body=BudgetReset, answer=BudgetInfo, all_tenants=True,
    ),
)  # fmt: skip
