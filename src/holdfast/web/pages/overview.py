"""The overview page: what is wrong, counts, charts, failures by error, queues and the newest runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from holdfast.control import Control
from holdfast.control.health_checks import Finding
from holdfast.control.stats import Stats, StatsSeries
from holdfast.control.workers import ClaimedRun
from holdfast.model.clock import format_duration
from holdfast.model.names import counted
from holdfast.web.pages.charts import PERIODS, build_charts, chosen_period
from holdfast.web.pages.failures import MAX_GROUPS, RECENT_FAILURES, group_failures
from holdfast.web.pages.page import PageRequest, PageSpec
from holdfast.web.pages.queues import QueueSummary, summarize_queues

NEWEST_RUNS = 8
BUSIEST_TASKS = 8
MAX_PROBLEMS = 5
"""How many problems of one kind are listed."""
MIN_FAILURE_RATE = 0.05
MAX_READY_AGE_S = 60.0
MIN_STUCK_S = 600.0
"""A run isn't called stuck before."""
_COMMAND = re.compile(r"(?:^|: )(holdfast [^`]+)$")
STUCK_FACTOR = 10
"""A run that has been running for this many times the p99 of its task is called stuck."""


@dataclass(frozen=True, slots=True)
class OverviewProblem:
    """Something that needs attention, and where to look at it."""

    level: str
    what: str
    do: str
    address: str
    label: str

    @property
    def command(self) -> str | None:
        """The command line at the end of `do`, ready to copy."""
        found = _COMMAND.search(self.do)
        return None if found is None else found[1]

    @property
    def advice(self) -> str:
        """What to do, without the command line."""
        return _COMMAND.sub("", self.do)


def _overview(request: PageRequest) -> dict[str, Any]:
    control, scope = request.control, request.principal.scope
    failed = control.runs.page(state="failed", scope=scope, limit=RECENT_FAILURES)
    values: dict[str, Any] = {
        "groups": group_failures(failed)[:MAX_GROUPS],
        "has_more_failures": failed.after is not None,
        "newest": control.runs.page(scope=scope, limit=NEWEST_RUNS),
        "gates": control.gates.open(scope, 100),
        "all_tenants": not scope.is_limited,
        "live": "/api/v1/live",
    }
    return values if scope.is_limited else values | _all_tenants(request)


def _all_tenants(request: PageRequest) -> dict[str, Any]:
    control, period = request.control, chosen_period(request.query)
    by_lane = control.counts.by_lane()
    counts = control.counts.overview(by_lane)
    hour = control.stats.lately(timedelta(hours=1))
    is_hour = period is PERIODS[0]
    series = StatsSeries(hour.whole, hour.minutes) if is_hour else control.stats.series(last=period.last)
    queues = summarize_queues(request, counts.queues, hour.queues)
    return {
        "counts": counts,
        "problems": _problems(control, control.doctor.glance(by_lane), queues, hour.tasks),
        "queues": queues,
        "tasks": sorted(hour.tasks, key=lambda each: -each.runs)[:BUSIEST_TASKS],
        "charts_of": build_charts(period, series),
        "periods": PERIODS,
        "alive": [worker for worker in control.workers.list() if worker.state != "dead"],
    }


def _problems(
    control: Control, findings: Sequence[Finding], queues: Sequence[QueueSummary], tasks: Sequence[Stats]
) -> list[OverviewProblem]:
    """Return what is wrong, most severe first."""
    found = [
        *map(_from_finding, findings),
        *_failing(tasks),
        *_late(queues),
        *_stuck(control.workers.claimed(), tasks),
    ]
    return sorted(found, key=lambda each: each.level, reverse=True)


def _from_finding(finding: Finding) -> OverviewProblem:
    data = finding.data
    pages = {
        "task": "tasks", "queue": "queues", "worker": "workers", "tenant": "tenants", "budget": "budgets",
        "run": "runs",
    }  # fmt: skip
    kind = next((each for each in pages if isinstance(data.get(each), str)), None)
    if kind is None:
        return OverviewProblem(finding.level, finding.what, finding.do, "/workers", "Workers")
    name = str(data[kind])
    label = {"worker": "Worker", "run": "The run"}.get(kind, f"{kind.capitalize()} {name}")
    return OverviewProblem(finding.level, finding.what, finding.do, f"/{pages[kind]}/{quote(name, safe='')}", label)


def _failing(tasks: Sequence[Stats]) -> Iterator[OverviewProblem]:
    failing = [each for each in tasks if each.failed and each.failure_rate >= MIN_FAILURE_RATE]
    for each in sorted(failing, key=lambda each: -each.failed)[:MAX_PROBLEMS]:
        times = counted(each.failed, "time")
        what = f"task {each.name} failed {times} in the last hour: {each.failure_rate:.0%} of its runs"
        do = "see its errors, fix the cause, then retry the failed runs"
        yield OverviewProblem("wrong", what, do, f"/tasks/{quote(str(each.name), safe='')}", f"Task {each.name}")


def _late(queues: Sequence[QueueSummary]) -> Iterator[OverviewProblem]:
    late = [each for each in queues if not each.paused and (each.oldest_ready or 0) > MAX_READY_AGE_S]
    for each in sorted(late, key=lambda each: -(each.oldest_ready or 0))[:MAX_PROBLEMS]:
        what = f"the oldest ready run of queue {each.name} has waited for {format_duration(each.oldest_ready or 0)}"
        do = "start more workers, or find out what keeps the running ones busy"
        yield OverviewProblem("wrong", what, do, f"/queues/{quote(each.name, safe='')}", f"Queue {each.name}")


def _stuck(running: Sequence[ClaimedRun], tasks: Sequence[Stats]) -> Iterator[OverviewProblem]:
    usual = {each.name: each.run.p99 for each in tasks}
    for run in running[:MAX_PROBLEMS]:
        p99 = usual.get(run.task)
        if p99 is not None and run.seconds > max(MIN_STUCK_S, STUCK_FACTOR * p99):
            what = (
                f"a run of {run.task} has been running for {format_duration(run.seconds)};"
                f" of its runs in the last hour, 99% took at most {format_duration(p99)}"
            )
            do = "look at its steps and logs; cancel it if it hangs, and give the task a timeout"
            yield OverviewProblem("note", what, do, f"/runs/{run.id}", "The run")


PAGES = (PageSpec(path="/", template="overview.html", section="overview", do=_overview, may_lag=True),)
