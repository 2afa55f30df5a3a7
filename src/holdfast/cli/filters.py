"""The options by which commands choose runs, and what `control` is asked with for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.completion import complete_queues, complete_runs
from holdfast.cli.values import TIME
from holdfast.model.run import RUN_STATES

if TYPE_CHECKING:
    from holdfast.control import Control
    from holdfast.model.filters import FilterOptions

NAMES = {
    "state": "state", "task": "task", "queue": "queue", "tenant": "tenant", "tag": "tag", "error": "error",
    "since": "created_from", "until": "created_to", "finished_since": "finished_from", "finished_until": "finished_to",
    "id": "id_prefix", "parent": "parent", "family": "family",
}  # fmt: skip
"""Options, and what they are called in a filter."""

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--state", type=click.Choice(RUN_STATES), multiple=True, metavar="STATE",
        help=f"Only runs in this state, or in one of several: {', '.join(RUN_STATES)}.",
    ),
    click.option("--task", metavar="NAME", help="Only runs of this task."),
    click.option("--queue", metavar="NAME", help="Only runs of this queue.", shell_complete=complete_queues),
    click.option("--tenant", metavar="NAME", help="Only runs of this tenant."),
    click.option("--tag", metavar="NAME", help="Only runs with this tag."),
    click.option("--error", metavar="TEXT", help="Only runs with this text in their error."),
    click.option("--since", type=TIME, metavar="TIME", help="Only runs made since then, like 2h (ago) or 2026-11-16."),
    click.option("--until", type=TIME, metavar="TIME", help="Only runs made before then."),
    click.option("--finished-since", type=TIME, metavar="TIME", help="Only runs that ended since then."),
    click.option("--finished-until", type=TIME, metavar="TIME", help="Only runs that ended before then."),
    click.option("--id", metavar="PREFIX", help="Only runs whose ids begin so."),
    click.option("--parent", metavar="RUN", help="Only its children, or nodes.", shell_complete=complete_runs),
    click.option("--family", metavar="RUN", help="Only it and all below it.", shell_complete=complete_runs),
)  # fmt: skip


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options of a filter."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def filters_of(control: Control, flags: dict[str, Any]) -> FilterOptions:
    """What was given, as `control` takes it; runs are found by the beginning of their ids."""
    asked: dict[str, Any] = {name: flags[flag] for flag, name in NAMES.items() if flags.get(flag)}
    for name in ("parent", "family"):
        if name in asked:
            asked[name] = control.runs.find(asked[name])
    return asked  # type: ignore[return-value] # mypy can't see which names these are
