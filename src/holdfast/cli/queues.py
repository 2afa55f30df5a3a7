"""Queues and who works on them: `queues`, `pause`, `resume`, `workers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_queues
from holdfast.cli.output import Column, ago, note, show_json, show_line, show_table, span
from holdfast.cli.root import Given, holdfast, pass_given

if TYPE_CHECKING:
    from holdfast.control.queues import QueueInfo
    from holdfast.control.workers import WorkerInfo

QUEUE_COLUMNS = (
    Column("QUEUE", whole=True),
    Column("STATE", whole=True),
    Column("READY", right=True),
    Column("RUNNING", right=True),
    Column("WAITING", right=True),
    Column("SCHEDULED", right=True, drop=1),
    Column("OLDEST READY", drop=2),
)
WORKER_COLUMNS = (
    Column("WORKER", whole=True),
    Column("STATE", whole=True),
    Column("RUNS", right=True),
    Column("SLOTS", right=True, drop=3),
    Column("QUEUES", drop=2),
    Column("LEASE", drop=4),
    Column("STARTED", drop=1),
)


@holdfast.command()
@pass_given
def queues(given: Given) -> None:
    """List queues: what waits in them, and which are paused.

    WAITING are durable functions that wait for something, and runs that wait for others. OLDEST READY is how long ago
    the oldest of the ready runs was made.

    \b
    Examples:
      holdfast queues
      holdfast queues --json | jq '.[] | select(.paused) | .name'
    """
    from holdfast.cli.connect import opened_or_empty

    with opened_or_empty(given) as control:
        found = control.queues.list()
    if given.json:
        show_json(found)
    else:
        show_table(QUEUE_COLUMNS, [_queue_row(queue) for queue in found], "no queues: nothing was ever enqueued")


def _queue_row(queue: QueueInfo) -> list[str]:
    states = (("ready",), ("running",), ("waiting", "blocked"), ("scheduled",))
    counts = [str(sum(queue.runs.get(state, 0) for state in some)) for some in states]
    return [queue.name, "paused" if queue.paused else "open", *counts, span(queue.oldest_ready)]


@holdfast.command()
@click.argument("queue", nargs=-1, required=True, shell_complete=complete_queues)
@pass_given
def pause(given: Given, queue: tuple[str, ...]) -> None:
    """Let no worker take runs of these queues.

    Ready runs stay ready, new ones may come; what runs goes on. A queue may be paused before its first run.

    \b
    Examples:
      holdfast pause billing
      holdfast pause billing mail
    """
    from holdfast.cli.connect import opened

    with opened(given) as control:
        known = control.queues.names()
        changed = control.queues.pause(queue)
    if given.json:
        show_json([{"queue": name, "paused": True, "changed": name in changed} for name in queue])
        return
    for name in queue:
        show_line(f"{name}  {'paused' if name in changed else 'was paused before'}")
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            note(f"no run was ever put into queue {name}; is that its name? Known queues: {listed}")


@holdfast.command()
@click.argument("queue", nargs=-1, required=True, shell_complete=complete_queues)
@pass_given
def resume(given: Given, queue: tuple[str, ...]) -> None:
    """Let workers take runs of these queues again.

    \b
    Examples:
      holdfast resume billing
    """
    from holdfast.cli.connect import opened

    with opened(given) as control:
        changed = control.queues.resume(queue)
    if given.json:
        show_json([{"queue": name, "paused": False, "changed": name in changed} for name in queue])
        return
    for name in queue:
        show_line(f"{name}  {'open again' if name in changed else 'was not paused'}")


@holdfast.command()
@pass_given
def workers(given: Given) -> None:
    """List worker processes: how many runs they have claimed, and whether they are alive and healthy.

    A worker is unhealthy while a task blocks its event loop, or when more than a quarter of its threads are lost to
    code that ignored its timeout or cancellation; a line below the table says why. A dead worker is listed until other
    workers have recovered its runs.

    \b
    Examples:
      holdfast workers
      holdfast workers --json
    """
    from holdfast.cli.connect import opened_or_empty

    with opened_or_empty(given) as control:
        found = control.workers.list()
    if given.json:
        show_json(found)
    else:
        show_table(
            WORKER_COLUMNS, [_worker_row(worker) for worker in found], "no workers: start one, `holdfast worker`"
        )
        for worker in found:
            if worker.problem is not None:
                lag = f" for {span(worker.loop_lag)}" if worker.loop_lag else ""
                show_line(f"{worker.session} is unhealthy: {worker.problem}{lag}")


def _worker_row(worker: WorkerInfo) -> list[str]:
    left = f"{span(worker.lease_left)} left" if worker.lease_left > 0 else f"over for {span(-worker.lease_left)}"
    return [
        worker.session,
        worker.state,
        str(worker.runs),
        "-" if worker.concurrency is None else str(worker.concurrency),
        "all" if worker.queues is None else ",".join(worker.queues),
        left,
        ago(worker.started_at),
    ]
