"""The pages of tasks: how often each runs, fails and how long it takes, compared with the period before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.control.stats import Estimate, Stats, StatsTrend, sum_counts
from holdfast.control.tasks import TaskInfo
from holdfast.web.pages.charts import PERIODS, build_charts, chosen_period
from holdfast.web.pages.failures import MAX_GROUPS, RECENT_FAILURES, group_failures
from holdfast.web.pages.page import PageRequest, PageSpec
from holdfast.web.pages.render import link
from holdfast.web.responses import RequestError

NEWEST_RUNS = 10
MAX_TASKS = 500


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A task with its unfinished runs and its statistics."""

    name: str
    declared: TaskInfo | None
    paused: bool
    counts: dict[str, Estimate]
    trend: StatsTrend | None

    @property
    def now(self) -> Stats | None:
        return None if self.trend is None else self.trend.now


SORTS: dict[str, tuple[str, Callable[[TaskSummary], Any]]] = {
    "runs": ("Most runs", lambda it: -(it.now.runs if it.now else 0)),
    "failed": ("Most failures", lambda it: -(it.now.failed if it.now else 0)),
    "slower": ("Slower than before", lambda it: -((it.trend.slowdown if it.trend else None) or 0)),
    "name": ("Name", lambda it: it.name),
}


def _list(request: PageRequest) -> dict[str, Any]:
    control, period = request.control, chosen_period(request.query)
    sort = request.query.get("sort", "")
    sort = sort if sort in SORTS else "runs"
    declared = {each.name: each for each in control.tasks.list()}
    trends = {each.name: each for each in control.stats.trends(last=period.last)}
    paused = {each.name for each in control.pauses.list() if each.kind == "task"}
    counted = control.counts.unfinished()
    counts = {task: sum_counts(states for (_, of), states in counted.items() if of == task) for _, task in counted}
    names = sorted({*declared, *trends, *counts, *paused} - {""})
    summaries = [
        TaskSummary(name, declared.get(name), name in paused, counts.get(name, {}), trends.get(name)) for name in names
    ]
    return {
        "tasks": sorted(summaries, key=SORTS[sort][1])[:MAX_TASKS],
        "more": max(len(summaries) - MAX_TASKS, 0),
        "period": period,
        "periods": [(each, link("/tasks", last=each.name, sort=sort)) for each in PERIODS],
        "sort": sort,
        "sorts": [(key, label, link("/tasks", last=period.name, sort=key)) for key, (label, _) in SORTS.items()],
        "live": "/api/v1/live",
    }


def _show(request: PageRequest) -> dict[str, Any]:
    control, name, period = request.control, request.path["task"], chosen_period(request.query)
    declared = next((each for each in control.tasks.list() if name == each.name or name in each.aliases), None)
    counted = control.counts.unfinished(task=name)
    if declared is None and not counted and name not in control.queues.task_names():
        raise RequestError(404, f"no run has task {name[:100]!r}, and this app doesn't declare it", "not_found")
    failed = control.runs.page(state="failed", task=name, limit=RECENT_FAILURES)
    return {
        "name": name,
        "declared": declared,
        "pause": next((each for each in control.pauses.list() if (each.kind, each.name) == ("task", name)), None),
        "counts": sum_counts(counted.values()),
        "queues": sorted({queue for queue, _ in counted} | ({declared.queue} if declared else set())),
        "charts_of": build_charts(period, control.stats.series(last=period.last, by="task", name=name)),
        "periods": PERIODS,
        "groups": group_failures(failed)[:MAX_GROUPS],
        "more_failures": failed.after is not None,
        "newest": control.runs.page(task=name, limit=NEWEST_RUNS),
        "live": "/api/v1/live",
    }


PAGES = (
    PageSpec(path="/tasks", template="tasks.html", section="tasks", do=_list, all_tenants=True, may_lag=True),
    PageSpec(
        path="/tasks/{task:path}", template="task.html", section="tasks", do=_show, all_tenants=True, may_lag=True
    ),
)
