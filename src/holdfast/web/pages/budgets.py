"""The page of budgets."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import quote

from holdfast.errors import ConfigError
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec
from holdfast.web.pages.render import link
from holdfast.web.responses import RequestError


def _budgets(request: PageRequest) -> dict[str, Any]:
    return {"budgets": request.control.budgets.list(), "only": None, "live": "/api/v1/live"}


def _budget(request: PageRequest) -> dict[str, Any]:
    name = request.path["budget"]
    found = [each for each in request.control.budgets.list() if each.name == name]
    if not found:
        raise RequestError(404, f"there is no budget {name[:100]!r}", "not_found")
    return {"budgets": found, "only": name, "live": "/api/v1/live"}


def _change_budget(request: PageRequest) -> str:
    form, budgets = request.form, request.control.budgets
    name, key = form.get("budget", ""), form.get("key", "").strip()
    per = budgets.list(name)[0].per
    back = f"/budgets/{quote(name, safe='')}" if form.get("back") else "/budgets"
    run, tenant = (None, key) if per == "tenant" else (key, None)
    whose = {"run": run, "tenant": tenant} if key or "key" in form else {}
    if form.get("verb") == "reset":
        budgets.reset(name, **whose)
        return link(back, did="budget-reset")
    try:
        limit = Decimal(form.get("limit", "").strip())
    except InvalidOperation:
        raise ConfigError("the limit must be a number, such as 5 or 0.25") from None
    budgets.set(name, limit, by=request.principal.by, **whose)
    return link(back, did="budget-set")


PAGES = (
    PageSpec(path="/budgets", template="budgets.html", section="budgets", do=_budgets, all_tenants=True, may_lag=True),
    PageSpec(path="/budgets/{budget:path}", template="budgets.html", section="budgets", do=_budget, all_tenants=True),
)
ACTIONS = (FormAction(path="/budgets", do=_change_budget, all_tenants=True),)
