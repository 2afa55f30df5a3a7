"""The open runs against the code: `check`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_tasks
from holdfast.cli.options import DURATION
from holdfast.cli.output import TreeNode, note, show_json, show_line, show_tree
from holdfast.cli.root import FAILED, SharedOptions, holdfast, pass_shared

if TYPE_CHECKING:
    from holdfast.control.replay_check import CheckedRun, CheckReport

SHOWN_RUNS = 3
TELL_EVERY = 1000


@holdfast.command()
@click.option("--task", metavar="NAME", help="Only runs of this task.", shell_complete=complete_tasks)
@click.option("--limit", type=click.IntRange(min=1), help="At most so many runs, the oldest first.  [default: all]")
@click.option("--timeout", type=DURATION, default=10, show_default="10 s", help="For the replay of one run.")
@pass_shared
def check(shared: SharedOptions, task: str | None, limit: int | None, timeout: float) -> int:
    """Would the open runs of durable functions go on as before with this code?

    Before a deploy: replays each unfinished run that has begun with the app's code, up to where its record ends, and
    lists those that would behave differently, and where. No step is run, and nothing is written. Code outside steps
    does run, as in every replay; start hooks don't. The exit code is 1 when a run would behave differently.

    Differences may be meant: a step that was added on purpose is listed too.

    \b
    Examples:
      holdfast check --app shop.tasks:app
      holdfast check --task shop.tasks.checkout --limit 100
      holdfast check --json | jq -r '.different[].id'
    """
    from holdfast.cli.connect import connect_or_empty, load_app

    app = load_app(shared.app)
    with connect_or_empty(shared, app=app) as control, redirect_stdout(sys.stderr):  # author code may print
        report = control.check.run(task=task, limit=limit, timeout=timeout, progress=_show_progress)
    if shared.json:
        show_json(report)
    else:
        _show(report)
    return FAILED if report.different else 0


def _show(report: CheckReport) -> None:
    for runs in _alike(report.different).values():
        show_tree([_group(runs)])
    for runs in _alike(report.unchecked).values():
        note(f"not checked to the end: {_count(len(runs))} of {runs[0].task}: {runs[0].findings[0].text}")
    for task, count in sorted(report.unknown.items()):
        note(f"not checked: {_count(count)} of {task}, which this app doesn't have")
    if report.different:
        show_line(f"{len(report.different):,} of {_count(report.checked)} would behave differently")
    elif report.same:
        show_line(f"{_count(report.same)} would go on as before")
    elif not report.checked:
        note("no open runs of durable functions")


def _alike(runs: list[CheckedRun]) -> dict[tuple[object, ...], list[CheckedRun]]:
    """Runs that part from the code in the same way."""
    groups: dict[tuple[object, ...], list[CheckedRun]] = {}
    for run in runs:
        groups.setdefault((run.task, *((found.where, found.text) for found in run.findings)), []).append(run)
    return groups


def _group(runs: list[CheckedRun]) -> TreeNode:
    below = [TreeNode([f"{found.where}: {found.text}"], whole=True) for found in runs[0].findings]
    below += [TreeNode([str(run.id), run.state]) for run in runs[:SHOWN_RUNS]]
    if len(runs) > SHOWN_RUNS:
        below.append(TreeNode([f"… and {len(runs) - SHOWN_RUNS:,} more (--json lists all)"]))
    return TreeNode([runs[0].task, _count(len(runs))], below)


def _count(runs: int) -> str:
    return f"{runs:,} open run" if runs == 1 else f"{runs:,} open runs"


def _show_progress(done: int, all: int) -> None:  # noqa: A002
    if sys.stderr.isatty():
        click.echo(f"\r{done:,} of {all:,} …\r", nl=False, err=True)
    elif done % TELL_EVERY == 0:
        note(f"{done:,} of {all:,} …")
