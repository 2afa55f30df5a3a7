"""What makes runs by the clock and by polling: `schedules`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_schedules
from holdfast.cli.output import (
    Column,
    ago,
    clock_time,
    note,
    show_fields,
    show_json,
    show_line,
    show_table,
    span,
    timestamp,
)  # fmt: skip
from holdfast.cli.root import Given, holdfast, pass_given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.control.schedules import LastRun, PollInfo, ScheduleDetails, ScheduleInfo, Schedules

ACTIONS = ("show", "pause", "resume", "run")
EMPTY = 'no schedules: write app.schedule("nightly", report, cron="0 3 * * *") in the app\'s code, and start a worker'
COLUMNS = (
    Column("SCHEDULE", whole=True),
    Column("STATE", whole=True),
    Column("TASK", drop=2),
    Column("WHEN"),
    Column("ZONE", drop=3),
    Column("NEXT", whole=True),
    Column("LAST", whole=True),
    Column("LAST RUN", drop=4, whole=True),
)
RUN_COLUMNS = (Column("SLOT", whole=True), Column("RUN", whole=True), Column("STATE", whole=True), Column("BY"))
POLL_COLUMNS = (
    Column("POLLED", whole=True),
    Column("TOOK", right=True),
    Column("FOUND", right=True),
    Column("NEW", right=True),
    Column("ERROR"),
)
SHOWN = 20


@holdfast.command()
@click.argument("action", required=False, type=click.Choice(ACTIONS))
@click.argument("name", nargs=-1, shell_complete=complete_schedules)
@pass_given
def schedules(given: Given, action: str | None, name: tuple[str, ...]) -> None:
    """List schedules and triggers, or steer them.

    STATE is on, paused, orphaned (not in its app's code any more) or over (no slot is left). LAST is the state of the
    last run, or what the last poll of a trigger found.

    \b
      show    what it made lately, and when its next slots are
      pause   make nothing; slots that pass meanwhile are not made up for
      resume  go on with the next slot
      run     make a run now, beside the slots, and print its id; poll a trigger

    \b
    Examples:
      holdfast schedules
      holdfast schedules pause nightly
      holdfast schedules run nightly
    """
    from holdfast.cli.connect import opened, opened_or_empty

    if action is None:
        with opened_or_empty(given) as control:
            _list(given, control.schedules.list())
        return
    if not name:
        raise click.UsageError(f"Name the schedules, like `holdfast schedules {action} nightly`.")
    with opened(given) as control:
        {"show": _show, "pause": _pause, "resume": _resume, "run": _run}[action](given, control.schedules, name)


def _list(given: Given, found: Sequence[ScheduleInfo]) -> None:
    if given.json:
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
        "-" if each.next_at is None else ago(each.next_at),
        _last(run, each.last_poll),
        "-" if run is None else str(run.id),
    ]


def _last(run: LastRun | None, poll: PollInfo | None) -> str:
    if run is not None:
        return run.state or "pruned"
    if poll is not None:
        return "failed" if poll.error else f"{poll.made} new"
    return "-"


def _pause(given: Given, schedules: Schedules, names: Sequence[str]) -> None:
    changed = schedules.pause(names)
    _tell(given, names, changed, paused=True, words=("paused", "was paused before"))


def _resume(given: Given, schedules: Schedules, names: Sequence[str]) -> None:
    changed = schedules.resume(names)
    _tell(given, names, changed, paused=False, words=("on again", "was not paused"))


def _tell(given: Given, names: Sequence[str], changed: set[str], *, paused: bool, words: tuple[str, str]) -> None:
    if given.json:
        show_json([{"schedule": name, "paused": paused, "changed": name in changed} for name in names])
        return
    for name in names:
        show_line(f"{name}  {words[0] if name in changed else words[1]}")


def _run(given: Given, schedules: Schedules, names: Sequence[str]) -> None:
    made = [(name, schedules.run(name)) for name in names]
    if given.json:
        show_json([{"schedule": name, "run": id} for name, id in made])
        return
    for name, id in made:
        if id is None:
            note(f"trigger {name} is polled soon, if a worker is alive that has its code")
        else:
            show_line(str(id))


def _show(given: Given, schedules: Schedules, names: Sequence[str]) -> None:
    found = [schedules.show(name) for name in names]
    if given.json:
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
            ("jitter", span(each.jitter) if each.jitter else None),
            ("next", "\n".join(_there(slot, each.tz) for slot in details.coming) or clock_time(each.next_at)),
            ("passed over", clock_time(each.passed_at)),
        ]
    )
    if each.kind == "trigger":
        show_table(POLL_COLUMNS, [_poll_row(poll) for poll in details.polls[:SHOWN]], "not polled yet")
    else:
        rows = [
            [f"{timestamp(run.slot)} UTC", str(run.id), run.state or "pruned", "operator" if run.asked else "clock"]
            for run in details.runs[:SHOWN]
        ]
        show_table(RUN_COLUMNS, rows, "no run was made yet")


def _poll_row(poll: PollInfo) -> list[str]:
    error = "-" if poll.error is None else str(poll.error)
    return [f"{timestamp(poll.at)} UTC", span(poll.took), str(poll.found), str(poll.made), error]


def _there(slot: datetime, tz: str | None) -> str:
    """A slot as clocks in its zone show it, and how long until it is."""
    from holdfast.policy.schedule_timing import load_zone

    return f"{slot.astimezone(load_zone(tz or 'UTC')):%a %Y-%m-%d %H:%M:%S %Z} ({ago(slot)})"
