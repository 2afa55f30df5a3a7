"""Looking at runs and changing them: `runs`, `show`, `cancel`, `retry`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from holdfast.cli.completion import complete_queues, complete_runs
from holdfast.cli.output import (
    Column,
    ago,
    clock_time,
    for_people,
    note,
    show_fields,
    show_json,
    show_line,
    show_table,
    show_tree,
    span,
)
from holdfast.cli.root import FAILED, Given, holdfast, pass_given
from holdfast.cli.story import awaited, short, story
from holdfast.cli.values import DURATION
from holdfast.errors import HoldfastError
from holdfast.model.run import STATES

if TYPE_CHECKING:
    from holdfast.control import Control
    from holdfast.control.runs import RunDetails
    from holdfast.model.run import Page, Progress, RunInfo

COLUMNS = (
    Column("RUN", whole=True),
    Column("STATE", whole=True),
    Column("TASK"),
    Column("QUEUE", drop=2),
    Column("TRY", right=True, drop=3),
    Column("MADE"),
    Column("TOOK", drop=4),
    Column("ERROR", drop=1),
)


@holdfast.command()
@click.option(
    "--state", type=click.Choice(STATES), metavar="STATE", help=f"Only runs in this state: {', '.join(STATES)}."
)
@click.option("--task", metavar="NAME", help="Only runs of this task.")
@click.option("--queue", metavar="NAME", help="Only runs of this queue.", shell_complete=complete_queues)
@click.option("--tenant", metavar="NAME", help="Only runs of this tenant.")
@click.option("--tag", metavar="NAME", help="Only runs with this tag.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many.")
@click.option("--after", metavar="RUN", help="Go on after this run, the last one of the page before.")
@click.option(
    "--watch", type=DURATION, is_flag=False, flag_value="2", metavar="[SECONDS]",
    help="Show them again and again, until Ctrl-C.  [every 2 s]",
)  # fmt: skip
@pass_given
def runs(given: Given, watch: float | None, **filters: Any) -> None:
    """List runs, the newest first.

    With --json a list; with --watch too, one list a line.

    \b
    Examples:
      holdfast runs
      holdfast runs --state failed --task shop.tasks.charge
      holdfast runs --queue billing --watch 5
      holdfast runs --state running --json | jq -r '.[].id'
    """
    from holdfast.cli.connect import reading

    with reading(given) as control:
        if filters["after"] is not None:
            filters["after"] = str(control.runs.find(filters["after"]))
        if watch is None:
            _show_page(given, control.runs.page(**filters))
            return
        while True:
            page = control.runs.page(**filters)
            if given.json:
                show_json(list(page), compact=True)
            else:
                click.clear()
                _show_page(given, page)
                if not for_people():
                    click.echo()
            time.sleep(watch)


def _show_page(given: Given, page: Page) -> None:
    if given.json:
        show_json(list(page))
        return
    show_table(COLUMNS, [_row(run) for run in page], "no runs")
    if page.after is not None:
        note(f"there are more: --after {page.after}")


def _row(run: RunInfo[Any]) -> list[str]:
    took = (run.finished_at - run.started_at).total_seconds() if run.finished_at and run.started_at else None
    return [
        str(run.id),
        run.state,
        run.task,
        run.queue,
        str(run.attempt),
        ago(run.created_at),
        span(took),
        "" if run.error is None else short(run.error),
    ]


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@pass_given
def show(given: Given, run: str) -> None:
    """Show all there is to know of a run, with its history.

    Of a durable function also its steps, with how long they took and what came of them, its children, and what it waits
    for. RUN is the run's id, or the beginning of it: at least four characters, and as many as no other run has. On a
    terminal long results are cut; --json has everything.

    \b
    Examples:
      holdfast show 0199a3f2-6c1e-7b3a-9d61-2f4f0c7f5a10
      holdfast show 0199a3f2-6c1e
      holdfast show 0199a3f2-6c1e --json
    """
    from holdfast.cli.connect import reading

    with reading(given) as control:
        details = control.runs.details(control.runs.find(run))
    if given.json:
        show_json(_as_data(details))
        return
    _show_details(details)


def _as_data(details: RunDetails) -> dict[str, Any]:
    """The run's own fields and the rest, side by side."""
    info = {field.name: getattr(details.info, field.name) for field in fields(details.info)}
    rest = {field.name: getattr(details, field.name) for field in fields(details) if field.name != "info"}
    return info | rest


def _show_details(details: RunDetails) -> None:
    info = details.info
    show_fields(
        [
            ("run", str(info.id)),
            ("state", info.state),
            ("held", _held(details)),
            ("will end", None if details.ending is None else f"{details.ending}, when its undos have run"),
            ("waits for", _waits(details)),
            ("progress", _progress(info.progress)),
            ("task", info.task),
            ("queue", info.queue),
            ("parent", None if info.parent is None else str(info.parent)),
            ("priority", str(info.priority) if info.priority else None),
            ("tenant", info.tenant),
            ("tags", ", ".join(info.tags) or None),
            ("unique", details.unique),
            ("arguments", _json(details.args)),
            ("options", _json(details.options) if details.options else None),
            ("attempt", str(info.attempt)),
            ("restarts", str(details.restarts) if details.restarts else None),
            ("crashes", str(info.crashes) if info.crashes else None),
            ("worker", info.worker),
            ("made", clock_time(info.created_at)),
            ("due", clock_time(details.due_at)),
            ("started", clock_time(info.started_at)),
            ("deadline", None if info.final else clock_time(details.deadline)),
            ("finished", clock_time(info.finished_at)),
            ("kept until", clock_time(details.expires_at)),
            ("result", _json(info.result) if info.state == "done" else None),
            ("error", None if info.error is None else f"{info.error} (code {info.error.code})"),
            ("traceback", info.error.traceback.rstrip() if info.error and info.error.traceback else None),
        ]
    )
    click.echo("\nhistory")
    show_tree(story(details))


def _json(value: Any) -> str:
    """A kept JSON value on one line, with its own letters."""
    return json.dumps(value, ensure_ascii=False)


def _held(details: RunDetails) -> str | None:
    if details.full_limit is not None:
        return f"limit {details.full_limit} is full"
    return "a worker hasn't let go of it yet" if details.held == "quiescing" else details.held


def _waits(details: RunDetails) -> str | None:
    return "\n".join(awaited(wait) for wait in details.waits) or None


def _progress(progress: Progress | None) -> str | None:
    if progress is None:
        return None
    told = f"{progress.done:g}"
    if progress.total is not None:
        told += f" of {progress.total:g}"
        told += f" ({100 * progress.done / progress.total:.0f}%)" if progress.total else ""
    return told if progress.note is None else f"{told}  {progress.note}"


@holdfast.command()
@click.argument("run", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--reason", metavar="TEXT", help="Why; kept with the run.")
@pass_given
def cancel(given: Given, run: tuple[str, ...], reason: str | None) -> int:
    """End runs now, whether they have started or not.

    A worker that is at one is stopped at its next heartbeat. Its children end too, and a durable function with
    compensations runs those first. Runs that had ended before are left as they are. RUN is an id or its beginning. The
    exit code is 1 if one of them couldn't be found.

    \b
    Examples:
      holdfast cancel 0199a3f2-6c1e
      holdfast cancel 0199a3f2-6c1e 0199a3f4-11d0 --reason "ordered twice"
    """

    def end(control: Control, id: UUID) -> tuple[bool, str]:
        ended = control.runs.cancel(id, reason)
        state = control.runs.info(id).state
        if state == "undoing":
            return ended, "undoes what it did, then it is cancelled" if ended else "is undoing already"
        return ended, "cancelled" if ended else f"had ended before: {state}"

    return _each(given, run, end)


@holdfast.command()
@click.argument("run", nargs=-1, required=True, shell_complete=complete_runs)
@pass_given
def retry(given: Given, run: tuple[str, ...]) -> int:
    """Send failed or cancelled runs back to be tried anew.

    Attempts, crashes and the deadline start anew; what durable functions have on record stays. Unfinished runs are left
    as they are; one that is done can't be retried. RUN is an id or its beginning. The exit code is 1 if one of them
    can't be retried.

    \b
    Examples:
      holdfast retry 0199a3f2-6c1e
      holdfast runs --state failed --json | jq -r '.[].id' | xargs holdfast retry
    """

    def again(control: Control, id: UUID) -> tuple[bool, str]:
        retried = control.runs.retry(id)
        return retried, "ready again" if retried else f"is unfinished anyway: {control.runs.info(id).state}"

    return _each(given, run, again)


def _each(given: Given, runs: tuple[str, ...], act: Callable[[Control, UUID], tuple[bool, str]]) -> int:
    """Do something to each run and tell of each on a line of its own; one that fails doesn't keep the others."""
    from holdfast.cli.connect import reading

    told: list[dict[str, Any]] = []
    with reading(given) as control:
        for run in runs:
            try:
                id = control.runs.find(run)
                changed, what = act(control, id)
                told.append({"run": str(id), "changed": changed, "outcome": what, "error": None})
            except HoldfastError as error:
                told.append({"run": run, "changed": False, "outcome": None, "error": str(error)})
            if not given.json:
                _tell(told[-1])
    if given.json:
        show_json(told)
    return FAILED if any(line["error"] for line in told) else 0


def _tell(line: dict[str, Any]) -> None:
    if line["error"]:
        note(f"{line['run']}  {line['error']}")
    else:
        show_line(f"{line['run']}  {line['outcome']}")
