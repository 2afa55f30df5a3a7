"""The `check` command: replay unfinished runs with the current code."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_tasks
from holdfast.cli.options import DURATION
from holdfast.cli.output import TreeNode, note, show_json, show_line, show_tree
from holdfast.cli.root import FAILED, SharedOptions, holdfast, pass_shared
from holdfast.model.names import counted

if TYPE_CHECKING:
    from holdfast.control.replay_check import CheckedRun, CheckReport

MAX_RUNS_SHOWN = 3
RUNS_PER_PROGRESS_LINE = 1000


@holdfast.command()
@click.option("--task", metavar="NAME", help="Only runs of this task.", shell_complete=complete_tasks)
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of runs, oldest first.  [default: all]")
@click.option("--timeout", type=DURATION, default=10, show_default="10 s", help="Timeout for the replay of one run.")
@pass_shared
def check(shared: SharedOptions, task: str | None, limit: int | None, timeout: float) -> int:
    """Check that unfinished runs of durable functions replay with the current code.

    Run it before a deploy. It replays each started, unfinished run with the app's code up to the end of its history and
    lists the runs that would behave differently. It runs no steps and writes nothing. Code outside steps does run, as
    in every replay; start hooks don't. The exit code is 1 if a run would behave differently.

    Intended differences, such as a new step, are listed too.

    \b
    Examples:
      holdfast check --app shop.tasks:app
      holdfast check --task shop.tasks.checkout --limit 100
      holdfast check --json | jq -r '.different[].id'
    """
    from holdfast.cli.connect import connect_or_empty, load_app

    app = load_app(shared.app)
    with connect_or_empty(shared, app=app) as control, redirect_stdout(sys.stderr):  # task code may print
        report = control.check.run(task=task, limit=limit, timeout=timeout, progress=_show_progress)
    if shared.json:
        show_json(report)
    else:
        _show(report)
    return FAILED if report.different else 0


def _show(report: CheckReport) -> None:
    for runs in _group_alike(report.different).values():
        show_tree([_group_node(runs)])
    for runs in _group_alike(report.unchecked).values():
        note(f"partly checked: {counted(len(runs), 'unfinished run')} of {runs[0].task}: {runs[0].findings[0].text}")
    for task, count in sorted(report.unknown.items()):
        note(f"not checked: {counted(count, 'unfinished run')} of {task}, which this app doesn't declare")
    if report.different:
        show_line(f"{len(report.different):,} of {counted(report.checked, 'unfinished run')} would behave differently")
    elif report.same:
        show_line(f"{counted(report.same, 'unfinished run')} would continue as before")
    elif not report.checked:
        note("no unfinished runs of durable functions")


def _group_alike(runs: list[CheckedRun]) -> dict[tuple[object, ...], list[CheckedRun]]:
    """Group runs with the same differences."""
    groups: dict[tuple[object, ...], list[CheckedRun]] = {}
    for run in runs:
        groups.setdefault((run.task, *((found.where, found.text) for found in run.findings)), []).append(run)
    return groups


def _group_node(runs: list[CheckedRun]) -> TreeNode:
    below = [TreeNode([f"{found.where}: {found.text}"], whole=True) for found in runs[0].findings]
    below += [TreeNode([str(run.id), run.state]) for run in runs[:MAX_RUNS_SHOWN]]
    if len(runs) > MAX_RUNS_SHOWN:
        below.append(TreeNode([f"… and {len(runs) - MAX_RUNS_SHOWN:,} more (--json lists all)"]))
    return TreeNode([runs[0].task, counted(len(runs), "unfinished run")], below)


def _show_progress(done: int, all: int) -> None:  # noqa: A002
    if sys.stderr.isatty():
        click.echo(f"\r{done:,} of {all:,} …\r", nl=False, err=True)
    elif done % RUNS_PER_PROGRESS_LINE == 0:
        note(f"{done:,} of {all:,} …")
