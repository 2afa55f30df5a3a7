"""The pages of tenants."""

from __future__ import annotations

from typing import Any

from holdfast.web.pages.charts import PERIODS, build_charts, chosen_period
from holdfast.web.pages.failures import MAX_GROUPS, RECENT_FAILURES, group_failures
from holdfast.web.pages.page import PageRequest, PageSpec

NEWEST_RUNS = 20
MAX_TENANTS = 500


def _list(request: PageRequest) -> dict[str, Any]:
    found = request.control.tenants.list(MAX_TENANTS + 1)
    return {"tenants": found[:MAX_TENANTS], "more": len(found) > MAX_TENANTS, "live": "/api/v1/live"}


def _show(request: PageRequest) -> dict[str, Any]:
    control, name, period = request.control, request.path["tenant"], chosen_period(request.query)
    series = control.stats.of_tenant(name, last=period.last)
    budgets = [
        (budget, total)
        for budget in control.budgets.list()
        for total in budget.totals
        if budget.per == "tenant" and total.key == name
    ]
    return {
        "name": name,
        "pause": next((each for each in control.pauses.list() if (each.kind, each.name) == ("tenant", name)), None),
        "budgets": budgets,
        "charts_of": build_charts(period, series),
        "created_since": series.created_since,
        "periods": PERIODS,
        "groups": group_failures(control.runs.page(state="failed", tenant=name, limit=RECENT_FAILURES))[:MAX_GROUPS],
        "newest": control.runs.page(tenant=name, limit=NEWEST_RUNS),
        "live": "/api/v1/live",
    }


PAGES = (
    PageSpec(path="/tenants", template="tenants.html", section="tenants", do=_list, all_tenants=True, may_lag=True),
    PageSpec(
        path="/tenants/{tenant:path}",
        template="tenant.html",
        section="tenants",
        do=_show,
        all_tenants=True,
        may_lag=True,
    ),
)
