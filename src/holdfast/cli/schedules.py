"""The `schedules` command: list, show, pause, resume and run schedules and triggers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_schedules
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.control.schedules import LastRun, PollInfo, ScheduleControl, ScheduleDetails, ScheduleInfo

ACTIONS = ("show", "pause", "resume", "run")
EMPTY = 'no schedules: declare app.schedule("nightly", report, cron="0 3 * * *") and start a worker'
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


@holdfast.command()
@click.argument("action", required=False, type=click.Choice(ACTIONS))
@click.argument("name", nargs=-1, shell_complete=complete_schedules)
@pass_shared
def schedules(shared: SharedOptions, action: str | None, name: tuple[str, ...]) -> None:
    """List schedules and triggers, or act on them.

    STATE is on, paused, orphaned (removed from the app's code) or over (no slots left). LAST is the state of the last
    run, or the result of a trigger's last poll.

    \b
      show    show recent runs and next slots
      pause   stop creating runs; slots that pass are not caught up
      resume  continue with the next slot
      run     create a run now and print its id; for a trigger, poll now

    \b
    Examples:
      holdfast schedules
      holdfast schedules pause nightly
      holdfast schedules run nightly
    """
    from holdfast.cli.connect import connect, connect_or_empty

    if action is None:
        with connect_or_empty(shared) as control:
            _list(shared, control.schedules.list())
        return
    if not name:
        raise click.UsageError(f"Name the schedules, for example `holdfast schedules {action} nightly`.")
    with connect(shared) as control:
        {"show": _show, "pause": _pause, "resume": _resume, "run": _run}[action](shared, control.schedules, name)


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


def _pause(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str]) -> None:
    changed = schedules.pause(names)
    _show_changes(shared, names, changed, paused=True, words=("paused", "already paused"))


def _resume(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str]) -> None:
    changed = schedules.resume(names)
    _show_changes(shared, names, changed, paused=False, words=("resumed", "was not paused"))


def _show_changes(
    shared: SharedOptions, names: Sequence[str], changed: set[str], *, paused: bool, words: tuple[str, str]
) -> None:
    if shared.json:
        show_json([{"schedule": name, "paused": paused, "changed": name in changed} for name in names])
        return
    for name in names:
        show_line(f"{name}  {words[0] if name in changed else words[1]}")


def _run(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str]) -> None:
    made = [(name, schedules.run(name)) for name in names]
    if shared.json:
        show_json([{"schedule": name, "run": id} for name, id in made])
        return
    for name, id in made:
        if id is None:
            note(f"trigger {name} will be polled soon by a worker that has its code")
        else:
            show_line(str(id))


def _show(shared: SharedOptions, schedules: ScheduleControl, names: Sequence[str]) -> None:
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
            ("app", each.app),
            ("task", each.task),
            ("when", f"{each.when}{zone}"),
            ("rules", rules),
            ("jitter", format_duration(each.jitter) if each.jitter else None),
            ("next", "\n".join(_local_time(slot, each.tz) for slot in details.coming) or format_time(each.next_at)),
            ("skipped", format_time(each.passed_at)),
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
                "operator" if run.asked else "clock",
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
