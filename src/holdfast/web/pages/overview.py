"""The overview page: counts, the last hour, failures by error, queues and the newest runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from holdfast.control import Control
from holdfast.control.pauses import PauseKind
from holdfast.control.stats import Estimate, Stats
from holdfast.model.run import RunInfo
from holdfast.policy.error_patterns import constant_part, error_pattern
from holdfast.web.pages.charts import build_charts
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec
from holdfast.web.pages.render import link

NEWEST_RUNS = 8
BUSIEST_TASKS = 8
RECENT_FAILURES = 200
"""This many of the latest failures are grouped by error."""
MAX_GROUPS = 8
MAX_MESSAGE_CHARS = 160
MIN_SEARCH_CHARS = 8


@dataclass(slots=True)
class FailureGroup:
    """Runs of one task that failed with the same error, apart from ids and numbers in its message."""

    task: str
    kind: str
    message: str
    """The message, or what the different messages have in common."""
    last: datetime
    example: UUID
    search: str
    """A text that finds these errors: the part of their messages that is the same."""
    count: int = 0


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A queue with its backlog and its last hour."""

    name: str
    paused: bool
    counts: dict[str, Estimate]
    stats: Stats | None


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
    return values if scope.is_limited else values | _all_tenants(control)


def _all_tenants(control: Control) -> dict[str, Any]:
    counts = control.counts.overview()
    hour = control.stats.lately(timedelta(hours=1))
    by_queue = {each.name: each for each in hour.queues}
    queues = [
        QueueSummary(name, paused, counts.queues.get(name, {}), by_queue.get(name))
        for name, paused in control.queues.paused().items()
    ]
    return {
        "counts": counts,
        "queues": queues,
        "pauses": control.pauses.list(),
        "tasks": sorted(hour.tasks, key=lambda each: -each.runs)[:BUSIEST_TASKS],
        "hour": hour.whole,
        "charts": build_charts(hour.minutes),
        "alive": [worker for worker in control.workers.list() if worker.state != "dead"],
    }


def group_failures(runs: Iterable[RunInfo[Any]]) -> list[FailureGroup]:
    """Group failed runs by task and error, regardless of ids and numbers in messages, the most frequent first."""
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    for run in runs:
        if run.error is None:
            continue
        message = (run.error.message.splitlines() or [""])[0][:MAX_MESSAGE_CHARS]
        pattern = error_pattern(message)
        key = run.task, run.error.type, pattern
        if key not in groups:
            search = constant_part(pattern)
            groups[key] = FailureGroup(
                run.task,
                run.error.type,
                message,
                run.finished_at or run.created_at,
                run.id,
                search if len(search) >= MIN_SEARCH_CHARS else run.error.type,
            )
        elif groups[key].message != message:
            groups[key].message = pattern
        groups[key].count += 1
    return sorted(groups.values(), key=lambda group: -group.count)


def _change_queue(request: PageRequest) -> str:
    pause = request.form.get("verb") == "pause"
    change = request.control.queues.pause if pause else request.control.queues.resume
    change([request.form.get("queue", "")])
    return link("/", did="paused" if pause else "resumed")


PAGES = (PageSpec(path="/", template="overview.html", section="overview", do=_overview),)


def _change_pause(request: PageRequest) -> str:
    form, pauses = request.form, request.control.pauses
    kind: PauseKind = "tenant" if form.get("kind") == "tenant" else "task"
    if form.get("verb") == "resume":
        pauses.resume(kind, [form.get("name", "")])
        return link("/", did="resumed")
    pauses.pause(kind, [form.get("name", "").strip()], request.principal.by)
    return link("/", did="paused")


ACTIONS = (
    FormAction(path="/queues", do=_change_queue, all_tenants=True),
    FormAction(path="/pauses", do=_change_pause, all_tenants=True),
)
