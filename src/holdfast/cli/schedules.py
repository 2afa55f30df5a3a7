"""The `schedules` command: list, show, create, change, pause, resume, run, backfill and delete schedules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.completion import complete_queues, complete_schedules
from holdfast.cli.options import DURATION, TIME, arguments, by_option
from holdfast.cli.output import (
    TableColumn,
    format_ago,
    format_duration,
    format_time,
    format_timestamp,
    note,
    show_fields,
    show_json,
    show_line,
    show_table,
)  # fmt: skip
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.previews import arguments_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.control.schedules import ScheduleControl
    from holdfast.model.schedule import LastRun, PollInfo, ScheduleDetails, ScheduleInfo
    from holdfast.task.task import Request

ACTIONS = ("show", "create", "update", "pause", "resume", "run", "backfill", "delete", "sync")
CATCH_UPS = ("skip", "latest", "all")
OVERLAPS = ("allow", "skip", "buffer_one", "cancel_running")
TIMING = ("cron", "every", "tz", "catch_up", "overlap", "jitter", "start", "end")
REQUEST = ("task", "given_args", "queue", "priority", "tenant", "remote")
ALLOWED = {
    "create": (*TIMING, *REQUEST, "paused", "by"),
    "update": (*TIMING, *REQUEST, "by"),
    "backfill": ("start", "end", "by"),
    "pause": ("by",),
    "resume": ("by",),
    "run": ("by",),
}
"""Which options an action takes."""
EMPTY = (
    'no schedules: declare app.schedule("nightly", report, cron="0 3 * * *") and start a worker, '
    "or use `holdfast schedules create`"
)
COLUMNS = (
    TableColumn("SCHEDULE", whole=True),
    TableColumn("STATE", whole=True),
    TableColumn("TASK", drop=2),
    TableColumn("WHEN"),
    TableColumn("ZONE", drop=3),
    TableColumn("NEXT", whole=True),
    TableColumn("LAST", whole=True),
    TableColumn("LAST RUN", drop=4, whole=True),
)
RUN_COLUMNS = (
    TableColumn("SLOT", whole=True),
    TableColumn("RUN", whole=True),
    TableColumn("STATE", whole=True),
    TableColumn("BY"),
)
POLL_COLUMNS = (
    TableColumn("POLLED", whole=True),
    TableColumn("DURATION", right=True),
    TableColumn("FOUND", right=True),
    TableColumn("NEW", right=True),
    TableColumn("ERROR"),
)
MAX_ROWS = 20
MAX_ARGUMENTS_CHARS = 200


@holdfast.command()
@click.argument("action", required=False, type=click.Choice(ACTIONS), metavar="[ACTION]")
@click.argument("name", nargs=-1, shell_complete=complete_schedules)
@click.option("--task", metavar="NAME", help="create, update: the task that each slot runs.")
@click.option("--args", "given_args", metavar="JSON", help="Its arguments: a JSON object (by name) or array.")
@click.option("--cron", metavar="EXPRESSION", help="create, update: for example '0 8 * * *' or @daily.")
@click.option("--every", type=DURATION, help="Instead of --cron: an interval such as 90, 15m, 2h or 7d.")
@click.option("--tz", metavar="ZONE", help="Time zone of --cron, such as Europe/Oslo.")
@click.option("--catch-up", type=click.Choice(CATCH_UPS), help="What happens to missed slots.")
@click.option("--overlap", type=click.Choice(OVERLAPS), help="What happens while a run is unfinished.")
@click.option("--jitter", type=DURATION, help="Delay each run by up to this long.")
@click.option("--start", type=TIME, metavar="TIME", help="First slot; for backfill, the start of the range.")
@click.option("--end", type=TIME, metavar="TIME", help="Last slot; for backfill, the end of the range.")
@click.option("--queue", metavar="NAME", help="Queue of the runs.", shell_complete=complete_queues)
@click.option("--priority", type=int, help="Priority of the runs.")
@click.option("--tenant", metavar="NAME", help="Tenant of the runs.")
@click.option("--remote", is_flag=True, default=None, help="Accept any task, for code that isn't here.")
@click.option("--paused", is_flag=True, default=None, help="create: start paused.")
@by_option
@pass_shared
def schedules(shared: SharedOptions, action: str | None, name: tuple[str, ...], **options: Any) -> None:
    """List schedules and triggers, or act on them.

    STATE is on, paused, orphaned (removed from the app's code) or over (no slots left). LAST is the state of the last
    run, or the result of a trigger's last poll.

    \b
      show      show recent runs, next slots and changes
      create    create a schedule that lives in the database
      update    change a created schedule; options that aren't given stay
      pause     stop creating runs; slots that pass are not caught up
      resume    continue with the next slot
      run       create a run now and print its id; for a trigger, poll now
      backfill  create a run for each slot of a range that has none
      delete    delete a created schedule, or an orphaned one; its runs stay
      sync      store the schedules of the app's code, as a new worker does

    \b
    Examples:
      holdfast schedules
      holdfast schedules create report-7 --task shop.report --cron '0 8 * * *'
      holdfast schedules update report-7 --cron '0 9 * * *'
      holdfast schedules pause nightly
      holdfast schedules run nightly
      holdfast schedules backfill nightly --start 2026-11-01 --end 2026-11-08
      holdfast schedules sync --app shop.tasks:app
    """
    from holdfast.cli.connect import connect, connect_or_empty

    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in ALLOWED.get(action or "", ()):
            flag = "--args" if option == "given_args" else f"--{option.replace('_', '-')}"
            raise click.UsageError(
                f"{flag} doesn't apply to `{' '.join(['holdfast schedules', *filter(None, [action])])}`."
            )
    if action is None:
        with connect_or_empty(shared) as control:
            _list(shared, control.schedules.list())
        return
    if action == "sync":
        _sync(shared)
        return
    if not name:
        raise click.UsageError(f"Name the schedules, for example `holdfast schedules {action} nightly`.")
    if action in ("create", "update"):
        if len(name) > 1:
            raise click.UsageError(f"Name one schedule to {action}.")
        _define(shared, action, name[0], given)
        return
    with connect(shared) as control:
        _ACTIONS[action](shared, control.schedules, name, given)


def _define(shared: SharedOptions, action: str, name: str, given: dict[str, Any]) -> None:
    """Create a schedule or change it."""
    from holdfast.cli.connect import recorded, resolve_target

    settings = {option: given[option] for option in TIMING if option in given}
    verb = "change" if action == "update" else action
    with resolve_target(shared).open_app() as app, recorded(app, f"{verb} schedule", name, task=given.get("task")):
        request = _request(shared, given)
        if action == "create":
            if request is None:
                raise click.UsageError("Pass the task that each slot runs: --task shop.report.")
            info = app.schedules.create(
                name, request, paused=bool(given.get("paused")), by=given.get("by"), **settings
            )  # fmt: skip
        else:
            info = app.schedules.update(name, request, by=given.get("by"), **settings)
    if shared.json:
        show_json(info)
    else:
        _list(shared, [info])


def _request(shared: SharedOptions, given: dict[str, Any]) -> Request[Any] | None:
    """Build the request of the schedule's runs from --task and its options."""
    from holdfast.cli.tasks import build_request, find_task

    if "task" not in given:
        if wrong := [option for option in REQUEST if option in given]:
            flag = "--args" if wrong[0] == "given_args" else f"--{wrong[0]}"
            raise click.UsageError(f"{flag} needs --task.")
        return None
    _, task = find_task(shared, given["task"], bool(given.get("remote")))
    positional, named = arguments(given["given_args"]) if "given_args" in given else ((), {})
    known = {option: given[option] for option in ("queue", "priority", "tenant") if option in given}
    return build_request(task.options(**known) if known else task, positional, named)


def _sync(shared: SharedOptions) -> None:
    from holdfast.cli.connect import load_app, resolve_target

    app = load_app(shared.app)
    with resolve_target(shared, app).open_app() as bound:
        found = bound.schedules.declare()
    if shared.json:
        show_json(found)
        return
    changes = {"added": found.added, "changed": found.changed, "orphaned": found.orphaned, "removed": found.removed}
    for what, names in changes.items():
        for name in names:
            show_line(f"{name}  {what}")
    for name, reason in found.refused.items():
        note(f"{name} has no effect: {reason}")
    if not any(changes.values()):
        note("nothing changed")


def _list(shared: SharedOptions, found: Sequence[ScheduleInfo]) -> None:
    if shared.json:
        show_json(found)
    else:
        show_table(COLUMNS, [_row(each) for each in found], EMPTY)


def _row(each: ScheduleInfo) -> list[str]:
    run = each.last_run
    return [
        each.name,
        each.state,
        each.task or each.kind,
        each.when,
        each.tz or "-",
        "-" if each.next_at is None else format_ago(each.next_at),
        _last(run, each.last_poll),
        "-" if run is None else str(run.id),
    ]


def _last(run: LastRun | None, poll: PollInfo | None) -> str:
    if run is not None:
        return run.state or "pruned"
    if poll is not None:
        return "failed" if poll.error else f"{poll.made} new"
    return "-"


def _pause(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str], given: dict[str, Any]) -> None:
    changed = schedules.pause(names, given.get("by"))
    _show_changes(shared, names, changed, paused=True, words=("paused", "already paused"))


def _resume(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str], given: dict[str, Any]) -> None:
    changed = schedules.resume(names, given.get("by"))
    _show_changes(shared, names, changed, paused=False, words=("resumed", "was not paused"))


def _backfill(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str], given: dict[str, Any]) -> None:
    if "start" not in given or "end" not in given:
        raise click.UsageError("Give the range: --start 2026-11-01 --end 2026-11-08.")
    made = [(name, schedules.backfill(name, given["start"], given["end"], given.get("by"))) for name in names]
    if shared.json:
        show_json([{"schedule": name, "runs": ids} for name, ids in made])
        return
    for name, ids in made:
        for id in ids:
            show_line(str(id))
        if not ids:
            note(f"{name}: no slot of the range is without a run")


def _delete(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str], _given: dict[str, Any]) -> None:
    for name in names:
        schedules.delete(name)
    if shared.json:
        show_json([{"schedule": name, "deleted": True} for name in names])
        return
    for name in names:
        show_line(f"{name}  deleted")


def _show_changes(
    shared: SharedOptions, names: Sequence[str], changed: set[str], *, paused: bool, words: tuple[str, str]
) -> None:
    if shared.json:
        show_json([{"schedule": name, "paused": paused, "changed": name in changed} for name in names])
        return
    for name in names:
        show_line(f"{name}  {words[0] if name in changed else words[1]}")


def _run(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str], given: dict[str, Any]) -> None:
    made = [(name, schedules.run(name, given.get("by"))) for name in names]
    if shared.json:
        show_json([{"schedule": name, "run": id} for name, id in made])
        return
    for name, id in made:
        if id is None:
            note(f"trigger {name} will be polled soon by a worker that has its code")
        else:
            show_line(str(id))


def _show(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str], _given: dict[str, Any]) -> None:
    found = [schedules.show(name) for name in names]
    if shared.json:
        show_json(found)
        return
    for at, details in enumerate(found):
        if at:
            show_line("")
        _details(details)


def _details(details: ScheduleDetails) -> None:
    each = details.schedule
    rules = f"catch_up {each.catch_up}, overlap {each.overlap}" if each.catch_up else None
    zone = f" ({each.tz})" if each.tz else ""
    show_fields(
        [
            (each.kind, each.name),
            ("state", each.state),
            ("app", each.app or "- (created at run time)"),
            ("task", each.task),
            ("arguments", arguments_line(details.args, MAX_ARGUMENTS_CHARS) or None),
            ("when", f"{each.when}{zone}"),
            ("rules", rules),
            ("jitter", format_duration(each.jitter) if each.jitter else None),
            ("next", "\n".join(_local_time(slot, each.tz) for slot in details.coming) or format_time(each.next_at)),
            ("buffered", format_time(each.buffered)),
            ("skipped", format_time(each.passed_at)),
            ("orphaned", format_time(each.orphaned_at)),
            ("changes", "\n".join(f"{format_timestamp(it.at)} UTC  {it.did} by {it.by}" for it in details.changes)),
        ]
    )
    if each.kind == "trigger":
        show_table(POLL_COLUMNS, [_poll_row(poll) for poll in details.polls[:MAX_ROWS]], "not polled yet")
    else:
        rows = [
            [
                f"{format_timestamp(run.slot)} UTC",
                str(run.id),
                run.state or "pruned",
                "operator" if run.asked else "schedule",
            ]
            for run in details.runs[:MAX_ROWS]
        ]
        show_table(RUN_COLUMNS, rows, "no runs yet")


def _poll_row(poll: PollInfo) -> list[str]:
    error = "-" if poll.error is None else str(poll.error)
    return [f"{format_timestamp(poll.at)} UTC", format_duration(poll.took), str(poll.found), str(poll.made), error]


def _local_time(slot: datetime, tz: str | None) -> str:
    """Format a slot in its time zone, relative to now."""
    from holdfast.policy.schedule_timing import load_zone

    return f"{slot.astimezone(load_zone(tz or 'UTC')):%a %Y-%m-%d %H:%M:%S %Z} ({format_ago(slot)})"


_ACTIONS: dict[str, Callable[[SharedOptions, ScheduleControl, Sequence[str], dict[str, Any]], None]] = {
    "show": _show,
    "pause": _pause,
    "resume": _resume,
    "run": _run,
    "backfill": _backfill,
    "delete": _delete,
}
