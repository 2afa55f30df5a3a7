"""Output of commands: tables, fields and trees for people, JSON for programs.

On a terminal, rich renders it in color unless $NO_COLOR is set; otherwise it is plain, untruncated text for `grep` and
`awk`. Control characters in user text are escaped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias

import click

from holdfast.cli.root import SharedOptions
from holdfast.model import clock

STYLES = {
    "ready": "cyan",
    "running": "blue",
    "scheduled": "magenta",
    "waiting": "bright_blue",
    "blocked": "bright_black",
    "undoing": "yellow",
    "skipped": "bright_black",
    "done": "green",
    "failed": "red",
    "cancelled": "yellow",
    "paused": "yellow",
    "orphaned": "yellow",
    "dead": "red",
    "working": "blue",
    "idle": "green",
}
GAP = 2
MAX_INDENTED_BYTES = 1024 * 1024
"""Longer JSON documents aren't indented: indentation may be a hundred times as long."""
CHUNK_CHARS = 64 * 1024
"""How much text is escaped at once."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
MIN_WIDTH = 12
"""A truncated column keeps this many characters."""


class TableColumn(NamedTuple):
    """A column. On a narrow terminal it is truncated unless it is `whole`; columns with the largest `drop` are removed
    first."""

    name: str
    whole: bool = False
    right: bool = False
    drop: int = 0


Rows: TypeAlias = Sequence[Sequence[str]]


class TreeNode(NamedTuple):
    """A line of a tree, in cells, with its children. A `whole` line is wrapped instead of truncated."""

    cells: Sequence[str]
    below: Sequence[TreeNode] = ()
    whole: bool = False


def escape_control(text: object, *, lines: bool = False) -> str:
    """Escape control characters, so that text can't control the terminal; `lines` keeps line breaks and tabs."""
    given, kept = str(text), "\n\t" if lines else ""
    if given.isprintable():
        return given
    parts = (given[at : at + CHUNK_CHARS] for at in range(0, len(given), CHUNK_CHARS))
    return "".join(
        part if part.isprintable() else "".join(c if _is_printable(c) or c in kept else ascii(c)[1:-1] for c in part)
        for part in parts
    )


def _is_printable(c: str) -> bool:
    return c.isprintable() or unicodedata.category(c) == "Zs"


def is_interactive() -> bool:
    """Return whether the output goes to a terminal."""
    return sys.stdout.isatty()


def show_json(value: Any, *, compact: bool = False) -> None:
    """Print one JSON document in ASCII, which every locale can print; a very large one without indentation."""
    import msgspec

    data = msgspec.json.encode(value, enc_hook=str)
    if not compact and len(data) <= MAX_INDENTED_BYTES:
        data = msgspec.json.format(data, indent=2)
    elif compact:
        data = msgspec.json.format(data, indent=0)
    text = data.decode()
    for at in range(0, len(text), CHUNK_CHARS):
        click.echo(_NOT_ASCII.sub(_json_escape, text[at : at + CHUNK_CHARS]), nl=False)
    click.echo()


def _json_escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def show_table(columns: Sequence[TableColumn], rows: Rows, empty: str) -> None:
    """Print a table. Cells that hold a state are colored."""
    safe = [[escape_control(cell) for cell in row] for row in rows]
    if not safe:
        note(empty)
    elif is_interactive():
        _rich_table(columns, safe)
    else:
        _plain_table(columns, safe)


def _plain_table(columns: Sequence[TableColumn], rows: Rows) -> None:
    widths = _natural(columns, rows)
    for line in ([column.name for column in columns], *rows):
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _rich_table(columns: Sequence[TableColumn], rows: Rows) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    room = shutil.get_terminal_size((120, 24)).columns
    widths = fit(columns, rows, room)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at, width in widths.items():
        justify: Literal["left", "right"] = "right" if columns[at].right else "left"
        table.add_column(columns[at].name, no_wrap=True, overflow="ellipsis", width=width, justify=justify)
    for row in rows:
        table.add_row(*(Text(row[at], style=STYLES.get(row[at], "")) for at in widths))
    Console(highlight=False, width=max(room, sum(widths.values()) + GAP * len(widths))).print(table)


def fit(columns: Sequence[TableColumn], rows: Rows, room: int) -> dict[int, int]:
    """Choose the visible columns and their widths. `whole` columns are never truncated."""
    natural = _natural(columns, rows)
    least = [width if column.whole else min(width, MIN_WIDTH) for column, width in zip(columns, natural, strict=True)]
    kept = list(range(len(columns)))
    while sum(least[at] + GAP for at in kept) - GAP > room and any(columns[at].drop for at in kept):
        kept.remove(max(kept, key=lambda at: columns[at].drop))
    left = room - sum(least[at] + GAP for at in kept) + GAP
    widths = {}
    for at in kept:
        more = max(min(natural[at] - least[at], left), 0)
        widths[at] = least[at] + more
        left -= more
    return widths


def _natural(columns: Sequence[TableColumn], rows: Rows) -> list[int]:
    """Return the widths of untruncated columns."""
    return [max(len(column.name), *(len(row[at]) for row in rows)) for at, column in enumerate(columns)]


def show_fields(fields: Iterable[tuple[str, str | None]]) -> None:
    """Print names and values line by line, without empty ones; continuation lines are indented."""
    kept = [(name, escape_control(value, lines=True)) for name, value in fields if value is not None]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        first, *more = value.split("\n")
        click.echo(f"{name.ljust(width)}  {_colored(first)}")
        for line in more:
            click.echo(f"{'':{width}}  {line}")


def show_tree(branches: Sequence[TreeNode]) -> None:
    """Print a tree. Cells that hold a state are colored. Only a terminal truncates lines and shows guides."""
    if is_interactive():
        _rich_tree(branches)
    else:
        _plain_tree(branches, 1)


def _plain_tree(branches: Sequence[TreeNode], depth: int) -> None:
    for branch in branches:
        click.echo("  " * depth + "  ".join(escape_control(cell) for cell in branch.cells).rstrip())
        _plain_tree(branch.below, depth + 1)


def _rich_tree(branches: Sequence[TreeNode]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text
    from rich.tree import Tree

    def grow(tree: Tree, some: Sequence[TreeNode]) -> None:
        for branch in some:
            line = Text(no_wrap=not branch.whole, overflow="fold" if branch.whole else "ellipsis")
            for at, cell in enumerate(map(escape_control, branch.cells)):
                line.append("  " if at else "")
                line.append(cell, STYLES.get(cell.strip(), ""))
            line.rstrip()
            grow(tree.add(line), branch.below)

    tree = Tree("", hide_root=True, guide_style="bright_black")
    grow(tree, branches)
    room = shutil.get_terminal_size((120, 24)).columns
    console = Console(highlight=False, width=room)
    with console.capture() as drawn:
        console.print(Padding(tree, (0, 0, 0, 2)))
    for line in drawn.get().splitlines():  # rich pads lines to the full width
        click.echo(line.rstrip(), color=True)


def _colored(text: str) -> str:
    style = STYLES.get(text)
    return click.style(text, fg=style) if style and not os.environ.get("NO_COLOR") else text


def show_line(text: str) -> None:
    click.echo(escape_control(text))


def note(text: str) -> None:
    """Print a remark to stderr."""
    context = click.get_current_context(silent=True)
    shared = None if context is None else context.find_object(SharedOptions)
    if shared is None or not shared.quiet:
        click.echo(escape_control(text), err=True)


# Times


def format_ago(time: datetime | None) -> str:
    """Format a time relative to now."""
    return "-" if time is None else clock.format_ago(time)


def format_duration(seconds: float | None) -> str:
    """Format a duration in one unit or two."""
    return "-" if seconds is None else clock.format_duration(seconds)


def format_time(time: datetime | None) -> str | None:
    """Format a time in UTC to the millisecond, with its age."""
    if time is None:
        return None
    return f"{format_timestamp(time)} UTC ({format_ago(time)})"


def format_timestamp(time: datetime) -> str:
    """Format a time in UTC to the millisecond."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d}"
