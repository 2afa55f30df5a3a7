"""The command `logs`: what a run has logged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.output import escape_control, note, show_json
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.names import counted
from holdfast.model.run_logs import LEVELS

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.control import Control
    from holdfast.model.run_logs import LogLine

POLL_INTERVAL_S = 0.5


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the run has finished.")
@click.option("--level", type=click.Choice(list(LEVELS), case_sensitive=False), help="Only this level and above.")
@click.option("--search", metavar="TEXT", help="Only lines with this text in the message or the logger.")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only the last N lines.")
@pass_shared
def logs(
    shared: SharedOptions, run: str, follow: bool, level: str | None, search: str | None, tail: int | None
) -> None:
    """Print what the code of a run has logged, oldest line first.

    Lines are kept if the app has the setting logs, such as Holdfast(logs="info"), or the worker has $HOLDFAST_LOGS.
    RUN is a run id or a unique prefix of at least four characters. --json prints a list; with --follow, one object per
    line.

    \b
    Examples:
      holdfast logs 0199a3f2-6c1e
      holdfast logs 0199a3f2-6c1e --follow
      holdfast logs 0199a3f2-6c1e --level warning --tail 20
      holdfast logs 0199a3f2-6c1e --search declined --json
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        if follow:
            _follow(shared, control, id, level, search, tail)
            return
        page = control.runs.logs(id, level, search, tail=tail)
    if shared.json:
        show_json(list(page))
        return
    for line in page:
        click.echo(_format(line))
    if page.dropped:
        note(f"{counted(page.dropped, 'line')} dropped: the run logged more than is kept")
    if not page and not page.dropped:
        filtered = level is not None or search is not None
        hint = "" if filtered else '; Holdfast(logs="info") keeps what runs log'
        note(f"no lines{' match' if filtered else ''}{hint}")


def _follow(
    shared: SharedOptions, control: Control, id: UUID, level: str | None, search: str | None, tail: int | None
) -> None:
    after = 0
    while True:
        # Read before the lines: all lines of a finished run are visible once its final state is.
        is_final = control.runs.summary(id).final
        page = control.runs.logs(id, level, search, after, tail=tail)
        for line in page:
            if shared.json:
                show_json(line, compact=True)
            else:
                click.echo(_format(line))
        after, tail = page[-1].seq if page else after, None
        if is_final:
            return
        time.sleep(POLL_INTERVAL_S)


def _format(line: LogLine) -> str:
    """Format a line; those after the first of a message are indented."""
    at = line.time.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    where = f"{line.logger} #{line.attempt}" + ("" if line.step is None else f" {line.step}")
    message = "\n    ".join(escape_control(part) for part in line.message.split("\n"))
    return f"{at} {escape_control(line.level):<7} {escape_control(where)}: {message}"
