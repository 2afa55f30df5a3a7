"""The overview: is it well? Counts, what ended lately and how, what failed and why, who works."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from holdfast.control import Control
from holdfast.control.stats import Estimate, Stats
from holdfast.model.run import RunInfo
from holdfast.web.pages.charts import build_charts
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec
from holdfast.web.pages.render import link

NEWEST = 8
FAILURES = 200
"""So many of the runs that failed last are grouped by their errors."""
SHOWN_GROUPS = 8
LONGEST_MESSAGE = 160


@dataclass(slots=True)
class Failures:
    """Runs of one task that failed in the same way."""

    task: str
    kind: str
    message: str
    last: datetime
    example: UUID
    count: int = 0


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A queue: what waits in it, and how the last hour went."""

    name: str
    paused: bool
    counts: dict[str, Estimate]
    stats: Stats | None


def _overview(visit: PageRequest) -> dict[str, Any]:
    control, tenant = visit.control, visit.principal.tenant
    failed = control.runs.page(state="failed", tenant=tenant, limit=FAILURES)
    values: dict[str, Any] = {
        "groups": grouped(failed)[:SHOWN_GROUPS],
        "most_failed": failed.after is not None,
        "newest": control.runs.page(tenant=tenant, limit=NEWEST),
        "gates": control.gates.open(tenant, 100),
        "whole": tenant is None,
        "live": "/api/v1/live",
    }
    return values if tenant is not None else values | _whole(control)


def _whole(control: Control) -> dict[str, Any]:
    counts = control.counts.overview()
    hour = control.stats.lately(timedelta(hours=1))
    by_queue = {each.name: each for each in hour.queues}
    queues = [
        QueueSummary(name, paused, counts.queues.get(name, {}), by_queue.get(name))
        for name, paused in control.queues.paused().items()
    ]
    alive = [worker for worker in control.workers.list() if worker.state != "dead"]
    return {
        "counts": counts,
        "queues": queues,
        "tasks": sorted(hour.tasks, key=lambda each: -each.runs)[:NEWEST],
        "hour": hour.whole,
        "charts": build_charts(hour.minutes),
        "alive": alive,
    }


def grouped(runs: Iterable[RunInfo[Any]]) -> list[Failures]:
    """Failed runs by task and error, those that failed most often first."""
    groups: dict[tuple[str, str, str], Failures] = {}
    for run in runs:
        if run.error is None:
            continue
        message = (run.error.message.splitlines() or [""])[0][:LONGEST_MESSAGE]
        key = run.task, run.error.type, message
        found = groups.setdefault(key, Failures(*key, run.finished_at or run.created_at, run.id))
        found.count += 1
    return sorted(groups.values(), key=lambda group: -group.count)


def _queue(visit: PageRequest) -> str:
    pause = visit.form.get("verb") == "pause"
    change = visit.control.queues.pause if pause else visit.control.queues.resume
    change([visit.form.get("queue", "")])
    return link("/", did="paused" if pause else "resumed")


PAGES = (PageSpec(path="/", template="overview.html", section="overview", do=_overview),)
ACTIONS = (FormAction(path="/queues", do=_queue, all_tenants=True),)
