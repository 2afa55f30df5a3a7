"""Changing runs, one by one or all that fit a filter: `cancel`, `retry`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from holdfast.cli.bulk import bulk_options, many, refuse_filters
from holdfast.cli.completion import complete_runs
from holdfast.cli.filters import filter_options
from holdfast.cli.output import note, show_json, show_line
from holdfast.cli.root import FAILED, Given, holdfast, pass_given
from holdfast.errors import HoldfastError
from holdfast.model.names import actor_or_user
from holdfast.model.run import GRAPH_QUEUE

if TYPE_CHECKING:
    from holdfast.control import Control


@holdfast.command()
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@filter_options
@click.option("--reason", metavar="TEXT", help="Why; kept with the run.")
@bulk_options
@pass_given
def cancel(given: Given, run: tuple[str, ...], reason: str | None, **flags: Any) -> int:
    """End runs now, whether they have started or not.

    A worker that is at one is stopped at its next heartbeat. Its children end too, or its nodes, and a durable function
    with compensations runs those first. Runs that had ended before are left as they are. RUN is an id or its beginning.
    The exit code is 1 if one of them couldn't be found.

    Instead of runs, filters may be given: then all unfinished runs that fit are ended, in batches; what is done when it
    is interrupted stays done. Look first with --dry-run.

    \b
    Examples:
      holdfast cancel 0199a3f2-6c1e
      holdfast cancel --task shop.tasks.charge --since 2h --dry-run
      holdfast cancel 0199a3f2-6c1e 0199a3f4-11d0 --reason "ordered twice"
    """

    by = actor_or_user(flags.pop("by"))
    if not run:
        return many(given, "cancel", flags, lambda control, asked: control.bulk.cancel(asked, reason=reason, by=by))
    refuse_filters(flags)

    def end(control: Control, id: UUID) -> tuple[bool, str]:
        ended = control.runs.cancel(id, reason, by)
        state = control.runs.info(id).state
        if state == "undoing":
            return ended, "undoes what it did, then it is cancelled" if ended else "is undoing already"
        return ended, "cancelled" if ended else f"had ended before: {state}"

    return _each(given, run, end)


@holdfast.command()
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@filter_options
@bulk_options
@pass_given
def retry(given: Given, run: tuple[str, ...], **flags: Any) -> int:
    """Send failed or cancelled runs back to be tried anew.

    Attempts, crashes and the deadline start anew; what durable functions have on record stays, and what is done in a
    graph. Unfinished runs are left as they are; one that is done can't be retried. RUN is an id or its beginning. The
    exit code is 1 if one of them can't be retried.

    Instead of runs, filters may be given: then all failed and cancelled runs that fit are retried, in batches, each
    once; what can't be retried by itself is passed over. Look first with --dry-run.

    \b
    Examples:
      holdfast retry 0199a3f2-6c1e
      holdfast retry --task shop.tasks.charge --error "no funds" --dry-run
    """

    by = actor_or_user(flags.pop("by"))
    if not run:
        return many(given, "retry", flags, lambda control, asked: control.bulk.retry(asked, by=by))
    refuse_filters(flags)

    def again(control: Control, id: UUID) -> tuple[bool, str]:
        retried = control.runs.retry(id, by)
        info = control.runs.info(id)
        if not retried:
            return False, f"is unfinished anyway: {info.state}"
        return True, "ready again" if info.queue != GRAPH_QUEUE else "goes on; what was done in it stays done"

    return _each(given, run, again)


def _each(given: Given, runs: tuple[str, ...], act: Callable[[Control, UUID], tuple[bool, str]]) -> int:
    """Do something to each run and tell of each on a line of its own; one that fails doesn't keep the others."""
    from holdfast.cli.connect import opened_or_empty

    told: list[dict[str, Any]] = []
    with opened_or_empty(given) as control:
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
