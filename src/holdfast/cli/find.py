"""The command `find`: one search for ids, keys, tags, metadata, tasks, arguments and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import DURATION, build_filter, narrowing_options
from holdfast.cli.output import TableColumn, format_time, note, show_json, show_line, show_table
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.cli.runs import COLUMNS, run_row
from holdfast.model.names import counted

if TYPE_CHECKING:
    from holdfast.model.search_results import SearchResults

SHOWN = ("RUN", "STATE", "TASK", "CREATED", "TENANT", "KEY", "ARGUMENTS", "ERROR")


@holdfast.command()
@click.argument("text")
@narrowing_options
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of runs.")
@click.option("--for", "seconds", type=DURATION, default=10, show_default=True, help="How long to search.")
@click.option("--after", metavar="RUN", help="Continue the search of arguments and errors after this run.")
@pass_shared
def find(shared: SharedOptions, text: str, limit: int, seconds: float, after: str | None, **flags: Any) -> None:
    """Find runs by anything that you know of them.

    TEXT is the beginning of a run id, an idempotency key, a tag, a metadata value (42 or order=42), a part of the name
    of a task, or a text in an argument, a key, a tag or an error. The first ones are looked up in all runs. Arguments
    and errors are searched from the newest run on, until --for is over or --limit runs are found; the last line says
    how far. Encrypted, compressed and very long arguments, and secrets, are never searched.

    \b
    Examples:
      holdfast find order-42
      holdfast find order=42
      holdfast find 0199a3f2
      holdfast find "card declined" --since 1h --state failed
      holdfast find ada@example.org --for 60 --json | jq -r '.runs[].run.id'
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        cursor = None if after is None else str(control.runs.find(after))
        filters = build_filter(control, flags)
        found = control.search.search(text, limit=limit, after=cursor, seconds=seconds, **filters)
    if shared.json:
        show_json(found)
        return
    _show(found)


def _show(found: SearchResults) -> None:
    for task in found.tasks:
        show_line(f"task {task}: holdfast runs --task {task}")
    columns = [TableColumn("MATCHED", whole=True), *(column for column in COLUMNS if column.name in SHOWN)]
    kept = [at for at, column in enumerate(COLUMNS) if column.name in SHOWN]
    rows = []
    for each in found.runs:
        cells = run_row(each.run)
        rows.append([", ".join(each.matched), *(cells[at] for at in kept)])
    show_table(columns, rows, "no runs" if found.tasks else "nothing found")
    for name in found.more:
        note(f"more runs match by {name}: holdfast runs --{name}")
    _show_scope(found)


def _show_scope(found: SearchResults) -> None:
    """Say how much was searched."""
    note("searched all runs for ids, keys, tags, metadata and tasks")
    if found.since is None:
        note(f"searched the arguments and errors of all {counted(found.scanned, 'run')}")
    else:
        runs, since = counted(found.scanned, "run"), format_time(found.since)
        note(f"searched the arguments and errors of {runs}, created since {since}: --after {found.after} continues")
    if found.hidden:
        runs = counted(found.hidden, "of these runs has", "of these runs have")
        note(f"{runs} encrypted, compressed or long arguments, which aren't searched")
