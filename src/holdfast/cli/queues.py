"""Commands for queues, workers and limits: `queues`, `pause`, `resume`, `workers`, `limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_queues
from holdfast.cli.output import TableColumn, format_ago, format_duration, note, show_json, show_line, show_table
from holdfast.cli.root import SharedOptions, holdfast, pass_shared

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.control.limits import CounterInfo, LimitInfo
    from holdfast.control.queues import QueueInfo
    from holdfast.control.workers import WorkerInfo

QUEUE_COLUMNS = (
    TableColumn("QUEUE", whole=True),
    TableColumn("STATE", whole=True),
    TableColumn("READY", right=True),
    TableColumn("RUNNING", right=True),
    TableColumn("WAITING", right=True),
    TableColumn("SCHEDULED", right=True, drop=1),
    TableColumn("OLDEST READY", drop=2),
)
WORKER_COLUMNS = (
    TableColumn("WORKER", whole=True),
    TableColumn("STATE", whole=True),
    TableColumn("RUNS", right=True),
    TableColumn("SLOTS", right=True, drop=3),
    TableColumn("QUEUES", drop=2),
    TableColumn("LEASE", drop=4),
    TableColumn("STARTED", drop=1),
)
LIMIT_COLUMNS = (
    TableColumn("LIMIT", whole=True),
    TableColumn("KEY"),
    TableColumn("USED", right=True, whole=True),
    TableColumn("MAX", right=True, whole=True),
    TableColumn("STARTED", right=True, drop=1),
    TableColumn("RATE", drop=2),
    TableColumn("WAITING", right=True, whole=True),
)


@holdfast.command()
@pass_shared
def queues(shared: SharedOptions) -> None:
    """List queues with their backlog.

    WAITING counts suspended durable functions and blocked runs. OLDEST READY is the time since the first of the ready
    runs became ready.

    \b
    Examples:
      holdfast queues
      holdfast queues --json | jq '.[] | select(.paused) | .name'
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        found = control.queues.list()
    if shared.json:
        show_json(found)
    else:
        show_table(QUEUE_COLUMNS, [_queue_row(queue) for queue in found], "no queues: nothing has been enqueued")


def _queue_row(queue: QueueInfo) -> list[str]:
    states = (("ready",), ("running",), ("waiting", "blocked"), ("scheduled",))
    counts = [str(sum(queue.runs.get(state, 0) for state in some)) for some in states]
    return [queue.name, "paused" if queue.paused else "active", *counts, format_duration(queue.oldest_ready)]


@holdfast.command()
@click.argument("queue", nargs=-1, required=True, shell_complete=complete_queues)
@pass_shared
def pause(shared: SharedOptions, queue: tuple[str, ...]) -> None:
    """Pause queues: workers stop claiming their runs.

    Running runs continue, ready runs stay ready, and new runs may be enqueued. A queue may be paused before its first
    run.

    \b
    Examples:
      holdfast pause billing
      holdfast pause billing mail
    """
    from holdfast.cli.connect import connect

    with connect(shared) as control:
        known = control.queues.names()
        changed = control.queues.pause(queue)
    _show_changes(shared, queue, changed, paused=True)
    for name in () if shared.json else queue:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            note(f"queue {name} has never had a run; is the name correct? Known queues: {listed}")


@holdfast.command()
@click.argument("queue", nargs=-1, required=True, shell_complete=complete_queues)
@pass_shared
def resume(shared: SharedOptions, queue: tuple[str, ...]) -> None:
    """Resume paused queues.

    \b
    Examples:
      holdfast resume billing
    """
    from holdfast.cli.connect import connect

    with connect(shared) as control:
        changed = control.queues.resume(queue)
    _show_changes(shared, queue, changed, paused=False)


def _show_changes(shared: SharedOptions, queues: Sequence[str], changed: Collection[str], *, paused: bool) -> None:
    if shared.json:
        show_json([{"queue": name, "paused": paused, "changed": name in changed} for name in queues])
        return
    done, unchanged = ("paused", "already paused") if paused else ("resumed", "was not paused")
    for name in queues:
        show_line(f"{name}  {done if name in changed else unchanged}")


@holdfast.command()
@pass_shared
def workers(shared: SharedOptions) -> None:
    """List worker processes with their claimed runs and health.

    A worker is unhealthy while a task blocks its event loop, or when more than a quarter of its threads are lost to
    code that ignored its timeout or cancellation; a line below the table says why. A dead worker is listed until other
    workers have recovered its runs.

    \b
    Examples:
      holdfast workers
      holdfast workers --json
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        found = control.workers.list()
    if shared.json:
        show_json(found)
    else:
        show_table(
            WORKER_COLUMNS, [_worker_row(worker) for worker in found], "no workers: start one with `holdfast worker`"
        )
        for worker in found:
            if worker.problem is not None:
                lag = f" for {format_duration(worker.loop_lag)}" if worker.loop_lag else ""
                show_line(f"{worker.session} is unhealthy: {worker.problem}{lag}")


def _worker_row(worker: WorkerInfo) -> list[str]:
    left = (
        f"{format_duration(worker.lease_left)} left"
        if worker.lease_left > 0
        else f"expired {format_duration(-worker.lease_left)} ago"
    )
    return [
        worker.session,
        worker.state,
        str(worker.runs),
        "-" if worker.concurrency is None else str(worker.concurrency),
        "all" if worker.queues is None else ",".join(worker.queues),
        left,
        format_ago(worker.started_at),
    ]


@holdfast.command()
@click.argument("name", required=False)
@pass_shared
def limits(shared: SharedOptions, name: str | None) -> None:
    """List limits with their usage and waiting runs.

    One line per limit, or per key of a keyed limit, busiest first; with NAME, only that limit.

    \b
    Examples:
      holdfast limits
      holdfast limits openai --json
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        found = control.limits.list(name)
    if shared.json:
        show_json(found)
        return
    rows = [row for limit in found for row in _limit_rows(limit)]
    show_table(LIMIT_COLUMNS, rows, 'no limits: declare one with app.limit("name", concurrency=…)')


def _limit_rows(limit: LimitInfo) -> list[list[str]]:
    if not limit.counters:
        return [[limit.name, "", "0", _cap(limit.concurrency), "0", _rate(limit), "0"]]
    return [_limit_row(limit, counter) for counter in limit.counters]


def _limit_row(limit: LimitInfo, counter: CounterInfo) -> list[str]:
    key = "" if counter.key is None else str(counter.key)
    parked = f"{counter.parked:,}" + ("+" if counter.parked >= 1000 else "")
    return [
        limit.name, key, str(counter.used), _cap(limit.concurrency), str(counter.started), _rate(limit), parked,
    ]  # fmt: skip


def _cap(concurrency: int | None) -> str:
    return "-" if concurrency is None else str(concurrency)


def _rate(limit: LimitInfo) -> str:
    return "" if limit.rate is None else f"{limit.rate} per {format_duration(limit.period)}"
