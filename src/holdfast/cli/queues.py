"""Commands for queues, workers and limits: `queues`, `pause`, `resume`, `workers`, `limits`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.completion import complete_queues, complete_runs, complete_tasks
from holdfast.cli.options import DURATION, by_option
from holdfast.cli.output import TableColumn, format_ago, format_duration, note, show_json, show_line, show_table
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.names import actor_or_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.control.limits import CounterInfo, LimitInfo, PermitHolder
    from holdfast.control.queues import QueueInfo
    from holdfast.control.workers import LostWorkerInfo, WorkerInfo

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
NO_BOUND = "none"
LABELS_INDEX = 5
"""The position of the column LABELS, which is shown if a worker has any."""
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
    runs became ready. Very many runs aren't counted: a number with a + is a lower bound.

    \b
    Examples:
      holdfast queues
      holdfast queues --json | jq '.[] | select(.paused) | .name'
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        found = control.queues.list()
        pauses = control.pauses.list()
    if shared.json:
        show_json(found)
        return
    show_table(QUEUE_COLUMNS, [_queue_row(queue) for queue in found], "no queues: nothing has been enqueued")
    for each in pauses:
        by = f" by {each.paused_by}" if each.paused_by else ""
        note(f"{each.kind} {each.name} is paused{by} ({format_ago(each.paused_at)})")


def _queue_row(queue: QueueInfo) -> list[str]:
    states = (("ready",), ("running",), ("waiting", "blocked"), ("scheduled",))
    counts = [
        f"{sum(queue.runs.get(state, 0) for state in some)}{'+' if set(some) & set(queue.at_least) else ''}"
        for some in states
    ]
    return [queue.name, "paused" if queue.paused else "active", *counts, format_duration(queue.oldest_ready)]


def _pause_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        by_option,
        click.option("--run", metavar="RUN", multiple=True, help="A run.", shell_complete=complete_runs),
        click.option("--tenant", metavar="NAME", multiple=True, help="A tenant."),
        click.option("--task", metavar="NAME", multiple=True, help="A task.", shell_complete=complete_tasks),
        click.argument("queue", nargs=-1, shell_complete=complete_queues),
    ):
        command = option(command)
    return command


@holdfast.command()
@_pause_options
@pass_shared
def pause(
    shared: SharedOptions,
    queue: tuple[str, ...],
    task: tuple[str, ...],
    tenant: tuple[str, ...],
    run: tuple[str, ...],
    by: str | None,
) -> None:
    """Pause queues, tasks, tenants or runs: workers stop claiming their runs.

    Running jobs continue, and a paused durable function stops after its current step. Ready runs stay ready, and new
    runs may be enqueued. A queue, task or tenant may be paused before its first run.

    \b
    Examples:
      holdfast pause billing mail
      holdfast pause --task shop.charge
      holdfast pause --tenant acme --by ada
      holdfast pause --run 0199a3f2
    """
    from holdfast.cli.connect import connect

    _check_named(queue, task, tenant, run)
    with connect(shared) as control:
        known, known_tasks = control.queues.names(), control.queues.task_names()
        changes = [("queue", name, name in control.queues.pause([name])) for name in queue]
        changes += [("task", name, bool(control.pauses.pause("task", [name], by))) for name in task]
        changes += [("tenant", name, bool(control.pauses.pause("tenant", [name], by))) for name in tenant]
        changes += [("run", name, control.runs.pause(control.runs.find(name), actor_or_user(by))) for name in run]
    _show_changes(shared, changes, paused=True)
    for name in () if shared.json else queue:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            note(f"queue {name} has never had a run; is the name correct? Known queues: {listed}")
    for name in () if shared.json else task:
        if name not in known_tasks:
            note(f"task {name} has never had a run; is the name correct? `holdfast tasks` lists the tasks of the app")


@holdfast.command()
@_pause_options
@pass_shared
def resume(
    shared: SharedOptions,
    queue: tuple[str, ...],
    task: tuple[str, ...],
    tenant: tuple[str, ...],
    run: tuple[str, ...],
    by: str | None,
) -> None:
    """Resume paused queues, tasks, tenants or runs.

    \b
    Examples:
      holdfast resume billing
      holdfast resume --tenant acme
    """
    from holdfast.cli.connect import connect

    _check_named(queue, task, tenant, run)
    with connect(shared) as control:
        changes = [("queue", name, bool(control.queues.resume([name]))) for name in queue]
        changes += [("task", name, bool(control.pauses.resume("task", [name]))) for name in task]
        changes += [("tenant", name, bool(control.pauses.resume("tenant", [name]))) for name in tenant]
        changes += [("run", name, control.runs.resume(control.runs.find(name), actor_or_user(by))) for name in run]
    _show_changes(shared, changes, paused=False)


def _check_named(*names: tuple[str, ...]) -> None:
    if not any(names):
        raise click.UsageError("Missing argument '[QUEUE]...': name queues, or pass --task, --tenant or --run.")


def _show_changes(shared: SharedOptions, changes: Sequence[tuple[str, str, bool]], *, paused: bool) -> None:
    if shared.json:
        show_json([{kind: name, "paused": paused, "changed": changed} for kind, name, changed in changes])
        return
    done, unchanged = ("paused", "already paused") if paused else ("resumed", "was not paused")
    for _, name, changed in changes:
        show_line(f"{name}  {done if changed else unchanged}")


@holdfast.command()
@click.option("--lost", is_flag=True, help="List workers that were lost, and the runs that were recovered from them.")
@click.option("--since", type=DURATION, metavar="DURATION", help="With --lost: how far back.  [default: 24h]")
@pass_shared
def workers(shared: SharedOptions, lost: bool, since: float | None) -> None:
    """List worker processes with their claimed runs and health.

    A worker is unhealthy while a task blocks its event loop, or when more than a quarter of its threads are lost to
    code that ignored its timeout or cancellation; a line below the table says why. A dead worker is listed until other
    workers have recovered its runs. --lost lists workers whose lease expired, with what became of their runs.

    \b
    Examples:
      holdfast workers
      holdfast workers --lost --since 7d
      holdfast workers --json
    """
    from holdfast.cli.connect import connect_or_empty

    if since is not None and not lost:
        raise click.UsageError("--since needs --lost.")
    if lost:
        with connect_or_empty(shared) as control:
            _show_lost(shared, control.workers.lost(*() if since is None else (since,)))
        return
    with connect_or_empty(shared) as control:
        found = control.workers.list()
    if shared.json:
        show_json(found)
    else:
        columns, rows = list(WORKER_COLUMNS), [_worker_row(worker) for worker in found]
        if any(worker.labels for worker in found):
            columns.insert(LABELS_INDEX, TableColumn("LABELS", drop=2))
            for worker, row in zip(found, rows, strict=True):
                row.insert(LABELS_INDEX, ",".join(f"{name}={value}" for name, value in worker.labels.items()) or "-")
        show_table(columns, rows, "no workers: start one with `holdfast worker`")
        for worker in found:
            if worker.problem is not None:
                lag = f" for {format_duration(worker.loop_lag)}" if worker.loop_lag else ""
                show_line(f"{worker.session} is unhealthy: {worker.problem}{lag}")


def _show_lost(shared: SharedOptions, lost: Sequence[LostWorkerInfo]) -> None:
    if shared.json:
        show_json(lost)
        return
    if not lost:
        show_line("no worker was lost")
    for worker in lost:
        why = ", the database did not answer" if worker.excused else ""
        counts = f"{worker.requeued:,} requeued, {worker.failed:,} failed{why}"
        show_line(f"{worker.session}  lost {format_ago(worker.at)}: {counts}")
        for run in worker.runs:
            show_line(f"  {run.id}  {run.outcome}, {run.state or 'pruned'}  {run.task or ''}".rstrip())
        if (more := worker.requeued + worker.failed - len(worker.runs)) > 0:
            show_line(f"  … and {more:,} more")


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
        ",".join(worker.shown_queues()),
        left,
        format_ago(worker.started_at),
    ]


@holdfast.command()
@click.argument("words", nargs=-1, metavar="[NAME | set NAME | reset NAME]")
@click.option("--rate", metavar="RATE", help="set: starts per period, or their cost, such as 100/min; or none.")
@click.option("--concurrency", metavar="NUMBER", help="set: how many may execute at the same time; or none.")
@by_option
@pass_shared
def limits(
    shared: SharedOptions, words: tuple[str, ...], rate: str | None, concurrency: str | None, by: str | None
) -> None:
    """List limits with their usage and what waits for them, or change what a limit allows.

    One line per limit, or per key of a keyed limit, busiest first; with NAME, only that limit, and the runs and steps
    that hold its permits. STARTED is the cost of the starts within the period, if the limit has costs. WAITING counts
    runs and steps. A change takes effect within a second; what you don't give stays as it is.

    \b
      set    change the rate, the concurrency or both, on all workers
      reset  return to what the code declares

    \b
    Examples:
      holdfast limits
      holdfast limits openai --json
      holdfast limits set openai --rate 200/min --concurrency 10
      holdfast limits set openai --rate none
      holdfast limits reset openai
    """
    from holdfast.cli.connect import connect, connect_or_empty

    action, name = _limit_action(words)
    if action != "set" and (rate is not None or concurrency is not None):
        raise click.UsageError("--rate and --concurrency apply to `holdfast limits set NAME`.")
    if action == "set" and rate is None and concurrency is None:
        raise click.UsageError("Pass what to set: --rate, --concurrency or both.")
    if action is None:
        with connect_or_empty(shared) as control:
            found = control.limits.list(name)
    else:
        with connect(shared) as control:
            assert name is not None
            if action == "reset":
                changed = control.limits.reset(name)
            else:
                changed = control.limits.set(
                    name, rate=_new_bound(rate), concurrency=_new_concurrency(concurrency), by=by
                )
            found = [changed]
    if shared.json:
        show_json(found if action is None else found[0])
        return
    rows = [row for limit in found for row in _limit_rows(limit)]
    show_table(LIMIT_COLUMNS, rows, 'no limits: declare app.limit("name", concurrency=…) and start a worker')
    for limit in found:
        for holder in limit.holders or ():
            show_line(_format_holder(holder))
        if limit.set_at is not None:
            declared = _bounds(limit) or "no bound"
            note(
                f"limit {limit.name} was set by {limit.set_by} ({format_ago(limit.set_at)}); "
                f"the code declares {declared}"
            )


def _limit_action(words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return the action and the name of the limit."""
    if len(words) < 2 and words not in (("set",), ("reset",)):
        return None, words[0] if words else None
    if len(words) != 2 or words[0] not in ("set", "reset"):
        raise click.UsageError(
            "Use `holdfast limits [NAME]`, `holdfast limits set NAME` or `holdfast limits reset NAME`."
        )
    return words[0], words[1]


def _new_bound(text: str | None) -> Any:
    from msgspec import UNSET

    return UNSET if text is None else None if text == NO_BOUND else text


def _new_concurrency(text: str | None) -> Any:
    bound = _new_bound(text)
    if not isinstance(bound, str):
        return bound
    if not bound.isdigit():
        raise click.BadParameter(
            f"{bound!r} is neither a number from 1 on nor `{NO_BOUND}`.", param_hint="'--concurrency'"
        )
    return int(bound)


def _bounds(limit: LimitInfo) -> str:
    concurrency = None if limit.declared_concurrency is None else f"concurrency {limit.declared_concurrency}"
    rate = limit.declared_rate
    per = None if rate is None else f"{rate} per {format_duration(limit.declared_period)}"
    return ", ".join(filter(None, (concurrency, per)))


def _limit_rows(limit: LimitInfo) -> list[list[str]]:
    if not limit.counters:
        return [[limit.name, "", "0", _cap(limit.concurrency), "0", _rate(limit), "0"]]
    return [_limit_row(limit, counter) for counter in limit.counters]


def _limit_row(limit: LimitInfo, counter: CounterInfo) -> list[str]:
    key = "" if counter.key is None else str(counter.key)
    waiting = counter.parked + counter.waiting_steps
    parked = f"{waiting:,}" + ("+" if max(counter.parked, counter.waiting_steps) >= 1000 else "")
    return [
        limit.name, key, str(counter.used), _cap(limit.concurrency), str(counter.started), _rate(limit), parked,
    ]  # fmt: skip


def _format_holder(holder: PermitHolder) -> str:
    what = f"{holder.task}, step {holder.step}" if holder.step else holder.task
    key = "" if holder.key is None else f" for {holder.key}"
    return f"held{key} by {holder.run}  {what}, on {holder.worker}, taken {format_ago(holder.since)}"


def _cap(concurrency: int | None) -> str:
    return "-" if concurrency is None else str(concurrency)


def _rate(limit: LimitInfo) -> str:
    return "" if limit.rate is None else f"{limit.rate} per {format_duration(limit.period)}"
