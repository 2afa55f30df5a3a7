"""The pages of queues, and the actions that pause and resume queues, tasks and tenants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.control.pauses import PauseKind
from holdfast.control.stats import Estimate, Stats, sum_counts
from holdfast.web.pages.charts import PERIODS, build_charts, chosen_period
from holdfast.web.pages.failures import MAX_GROUPS, RECENT_FAILURES, group_failures
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec
from holdfast.web.pages.render import link
from holdfast.web.responses import RequestError


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A queue with its backlog and its last hour."""

    name: str
    paused: bool
    counts: dict[str, Estimate]
    oldest_ready: float | None
    """Seconds."""
    stats: Stats | None


def summarize_queues(
    request: PageRequest, counts: dict[str, dict[str, Estimate]], hour: list[Stats]
) -> list[QueueSummary]:
    """Summarize all queues, by name."""
    by_queue = {each.name: each for each in hour}
    oldest = request.control.queues.oldest_ready()
    return [
        QueueSummary(name, paused, counts.get(name, {}), oldest.get(name), by_queue.get(name))
        for name, paused in request.control.queues.paused().items()
    ]


def _list(request: PageRequest) -> dict[str, Any]:
    period, counted = chosen_period(request.query), request.control.counts.unfinished()
    counts = {queue: sum_counts(states for (of, _), states in counted.items() if of == queue) for queue, _ in counted}
    stats = [each.now for each in request.control.stats.trends(last=period.last, by="queue")]
    return {
        "queues": summarize_queues(request, counts, stats),
        "period": period,
        "periods": PERIODS,
        "pauses": request.control.pauses.list(),
        "live": "/api/v1/live",
    }


def _show(request: PageRequest) -> dict[str, Any]:
    control, name, period = request.control, request.path["queue"], chosen_period(request.query)
    paused = control.queues.paused()
    if name not in paused:
        raise RequestError(404, f"there is no queue {name[:100]!r}", "not_found")
    by_task = {task: states for (_, task), states in control.counts.unfinished(queue=name).items()}
    alive = [worker for worker in control.workers.list() if worker.state != "dead"]
    return {
        "name": name,
        "paused": paused[name],
        "counts": sum_counts(by_task.values()),
        "by_task": dict(sorted(by_task.items())),
        "oldest_ready": control.queues.oldest_ready().get(name),
        "workers": [worker for worker in alive if worker.queues is None or name in worker.queues],
        "charts_of": build_charts(period, control.stats.series(last=period.last, by="queue", name=name)),
        "periods": PERIODS,
        "groups": group_failures(control.runs.page(state="failed", queue=name, limit=RECENT_FAILURES))[:MAX_GROUPS],
        "live": "/api/v1/live",
    }


def _change_queue(request: PageRequest) -> str:
    name, pause = request.form.get("queue", ""), request.form.get("verb") == "pause"
    change = request.control.queues.pause if pause else request.control.queues.resume
    change([name])
    return link(_back(request, "queue", name), did="paused" if pause else "resumed")


def _change_pause(request: PageRequest) -> str:
    form, pauses = request.form, request.control.pauses
    kind: PauseKind = "tenant" if form.get("kind") == "tenant" else "task"
    name = form.get("name", "").strip()
    if form.get("verb") == "resume":
        pauses.resume(kind, [name])
        return link(_back(request, kind, name), did="resumed")
    pauses.pause(kind, [name], request.principal.by)
    return link(_back(request, kind, name), did="paused")


def _back(request: PageRequest, kind: str, name: str) -> str:
    """Return the page from which a form was sent: the one of the queue, task or tenant, the list, or the overview."""
    return {"page": f"/{kind}s/{quote(name, safe='')}", "list": "/queues"}.get(request.form.get("back", ""), "/")


PAGES = (
    PageSpec(path="/queues", template="queues.html", section="queues", do=_list, all_tenants=True, may_lag=True),
    PageSpec(
        path="/queues/{queue:path}", template="queue.html", section="queues", do=_show, all_tenants=True, may_lag=True
    ),
)
ACTIONS = (
    FormAction(path="/queues", do=_change_queue, all_tenants=True),
    FormAction(path="/pauses", do=_change_pause, all_tenants=True),
)
