"""Bulk actions: preview, confirmation, progress and result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import NAMES, build_filter, by_option
from holdfast.cli.output import note, show_json, show_line
from holdfast.cli.root import SharedOptions
from holdfast.model.names import counted

if TYPE_CHECKING:
    from holdfast.control import Control
    from holdfast.control.bulk import BulkAction, BulkPreview, BulkProgress
    from holdfast.control.stats import Estimate
    from holdfast.model.filters import RunFilter

DONE = {"cancel": "cancelled", "retry": "retried", "prune": "deleted"}


def bulk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of bulk actions to a command."""
    command = click.option(
        "--yes", "-y", is_flag=True, help="Don't ask for confirmation. Named runs never need one."
    )(by_option(command))  # fmt: skip
    return click.option("--dry-run", is_flag=True, help="Only show what would change.")(command)


def refuse_filters(flags: dict[str, Any]) -> None:
    """Reject filters and --dry-run if runs are named. --yes is accepted: named runs need no confirmation."""
    shared = [name for name, value in flags.items() if value and name != "yes"]
    if shared:
        option = shared[0].replace("_", "-")
        raise click.UsageError(f"--{option} can't be combined with RUN: name runs or use filters.")


def run_bulk(
    shared: SharedOptions,
    verb: BulkAction,
    flags: dict[str, Any],
    act: Callable[[Control, RunFilter], Iterator[BulkProgress]],
) -> int:
    """Apply an action to all runs that match the filter options."""
    from holdfast.cli.connect import connect_or_empty
    from holdfast.model.filters import RunFilter

    if not any(flags.get(name) for name in NAMES):
        raise click.UsageError("Missing argument 'RUN...', or a filter such as --state or --task.")
    with connect_or_empty(shared) as control:
        filters = RunFilter.of(build_filter(control, flags))
        if flags["dry_run"] or not flags["yes"]:
            preview = control.bulk.preview(verb, filters)
            if flags["dry_run"]:
                _show_preview(shared, preview)
                return 0
            if preview.count.value:
                _ask(preview, control.database)
        progress = None
        for progress in act(control, filters):
            _show_progress(progress.changed, verb)
        assert progress is not None
    if shared.json:
        show_json({"verb": verb, "changed": progress.changed, "passed_over": progress.passed_over})
    else:
        skipped = f", {progress.passed_over:,} skipped" if progress.passed_over else ""
        show_line(f"{counted(progress.changed, 'run')} {DONE[verb]}{skipped}")
    return 0


def _show_preview(shared: SharedOptions, preview: BulkPreview) -> None:
    if shared.json:
        show_json(preview)
        return
    show_line(f"{format_estimate(preview.count)} would be {DONE[preview.verb]}")
    effects = {effect.id: effect for effect in preview.effects}
    for run in preview.sample:
        show_line(f"  {run.id}  {run.state}  {run.task}")
        if (effect := effects.get(run.id)) is not None:
            for line in (effect.summary, *(f"may repeat: {each}" for each in effect.may_repeat)):
                show_line(f"    {line}")
    if preview.count.value > len(preview.sample):
        show_line("  …")


def format_estimate(count: Estimate) -> str:
    return ("" if count.exact else "at least ") + counted(count.value, "run")


def _ask(preview: BulkPreview, where: str) -> None:
    what = format_estimate(preview.count)
    if not sys.stdin.isatty():
        raise click.UsageError(f"{what} would be {DONE[preview.verb]}: confirm with --yes, or preview with --dry-run.")
    click.confirm(f"{preview.verb.capitalize()} {what} in {where}?", abort=True, err=True)


def _show_progress(changed: int, verb: BulkAction) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{changed:,} …\r", nl=False, err=True)
    elif changed and changed % 50_000 == 0:
        note(f"{counted(changed, 'run')} {DONE[verb]} …")
