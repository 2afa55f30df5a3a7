"""The `check` command: replay unfinished runs with the current code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_tasks
from holdfast.cli.options import DURATION
from holdfast.cli.output import TreeNode, note, show_json, show_line, show_tree
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.names import counted

if TYPE_CHECKING:
    from holdfast.control.replay_check import CheckedRun, CheckReport, Severity

MAX_RUNS_SHOWN = 3
RUNS_PER_PROGRESS_LINE = 1000
EXIT_CODES: dict[Severity | None, int] = {None: 0, "harmless": 0, "unchecked": 3, "repeats": 4, "blocked": 5}
_SEVERITY_TEXT: dict[Severity, str] = {
    "blocked": "can't continue",
    "repeats": "repeats an effect",
    "unchecked": "can't be checked",
    "harmless": "harmless",
}
"""The most severe first."""


@holdfast.command()
@click.option("--task", metavar="NAME", help="Only runs of this task.", shell_complete=complete_tasks)
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of runs, oldest first.  [default: all]")
@click.option("--timeout", type=DURATION, default=10, show_default="10 s", help="Timeout for the replay of one run.")
@click.option(
    "--ignore", metavar="TASK", multiple=True, help="A task of another app, such as `billing.*`. May be repeated."
)
@pass_shared
def check(shared: SharedOptions, task: str | None, limit: int | None, timeout: float, ignore: tuple[str, ...]) -> int:
    """Check that unfinished runs of durable functions replay with the current code.

    Run it before a deploy. It replays each started, unfinished run with the app's code up to the end of its history and
    lists the runs that would behave differently. It also finds unfinished runs of tasks that no app declares, such as a
    task that was renamed without an alias. It runs no steps and writes nothing. Code outside steps does run, as in
    every replay; start hooks don't.

    \b
    The exit code is that of the most severe difference:
      0  none, or only harmless ones, such as a new or removed step
      3  a run can't be checked completely
      4  a run would repeat an effect: a step was renamed or has other arguments
      5  a run can't continue: its task, wait or compensation is missing, or the
         code fails

    \b
    Examples:
      holdfast check --app shop.tasks:app
      holdfast check --task shop.tasks.checkout --limit 100
      holdfast check --json | jq -r '.different[].id'
    """
    from holdfast.cli.connect import connect_or_empty, load_app

    app = load_app(shared.app)
    with connect_or_empty(shared, app=app) as control, redirect_stdout(sys.stderr):  # task code may print
        report = control.check.run(task=task, limit=limit, timeout=timeout, ignore=ignore, progress=_show_progress)
    if shared.json:
        show_json(report)
    else:
        _show(report, app.registry.names())
    return EXIT_CODES[report.severity]


def _show(report: CheckReport, declared: Iterable[str]) -> None:
    for task, count in report.unknown.items():
        show_tree([_unknown_node(task, count, declared)])
    severities = list(_SEVERITY_TEXT)
    for runs in sorted(_group_alike([*report.different, *report.unchecked]), key=lambda it: _rank(it[0], severities)):
        show_tree([_group_node(runs)])
    for task, count in report.elsewhere.items():
        note(f"not checked: {counted(count, 'unfinished run')} of {task}, a task of another app")
    _show_summary(report)


def _show_summary(report: CheckReport) -> None:
    of = Counter(run.severity for run in (*report.different, *report.unchecked))
    of["blocked"] += (lost := sum(report.unknown.values()))
    total = report.checked + lost
    if not total:
        note("no unfinished runs of durable functions")
    elif not of.total():
        show_line(f"{counted(report.same, 'unfinished run')} would continue as before")
    else:
        counts = [f"{of[severity]:,} {text}" for severity, text in _SUMMARY_TEXT.items() if of[severity]]
        counts += [f"{report.same:,} would continue as before"] if report.same else []
        show_line(f"{counted(total, 'unfinished run')}: {', '.join(counts)}")


_SUMMARY_TEXT: dict[Severity, str] = {
    "blocked": "can't continue",
    "repeats": "would repeat an effect",
    "unchecked": "can't be checked",
    "harmless": "would differ harmlessly",
}


def _rank(run: CheckedRun, severities: list[Severity]) -> int:
    return severities.index(run.severity)


def _unknown_node(task: str, count: int, declared: Iterable[str]) -> TreeNode:
    import difflib

    close = difflib.get_close_matches(task, declared, n=1, cutoff=0.6)
    where = f"its new name is {close[0]}, declare that" if close else "it was renamed, declare the new task"
    text = f'no app declares this task: if {where} with aliases=["{task}"]; if it belongs to another app, --ignore it'
    below = [TreeNode([text], whole=True)]
    return TreeNode([task, counted(count, "unfinished run"), _SEVERITY_TEXT["blocked"]], below)


def _group_alike(runs: list[CheckedRun]) -> list[list[CheckedRun]]:
    """Group runs with the same differences."""
    groups: dict[tuple[object, ...], list[CheckedRun]] = {}
    for run in runs:
        groups.setdefault((run.task, *((found.where, found.text) for found in run.findings)), []).append(run)
    return list(groups.values())


def _group_node(runs: list[CheckedRun]) -> TreeNode:
    first = runs[0]
    below = [TreeNode([f"{found.where}: {found.text}"], whole=True) for found in first.findings]
    below += [TreeNode([str(run.id), run.state]) for run in runs[:MAX_RUNS_SHOWN]]
    if len(runs) > MAX_RUNS_SHOWN:
        below.append(TreeNode([f"… and {len(runs) - MAX_RUNS_SHOWN:,} more (--json lists all)"]))
    return TreeNode([first.task, counted(len(runs), "unfinished run"), _SEVERITY_TEXT[first.severity]], below)


def _show_progress(done: int, all: int) -> None:  # noqa: A002
    if sys.stderr.isatty():
        click.echo(f"\r{done:,} of {all:,} …\r", nl=False, err=True)
    elif done % RUNS_PER_PROGRESS_LINE == 0:
        note(f"{done:,} of {all:,} …")
