"""Back up and restore SQLite databases: `backup`, `restore`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import show_json, show_line
from holdfast.cli.root import SharedOptions, holdfast, pass_shared

if TYPE_CHECKING:
    from holdfast.control.backup import BackupReport


@holdfast.command(takes=("app", "url", "json", "debug"))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@pass_shared
def backup(shared: SharedOptions, file: Path) -> None:
    """Copy a SQLite database to FILE while programs use it.

    The copy is consistent, from one moment, and checked. FILE must not exist. For PostgreSQL, use its own tools: see
    the page on backups.

    \b
    Examples:
      holdfast backup --url sqlite:///jobs.db /backups/jobs-2026-11-19.db
      holdfast backup --app shop.tasks:app /backups/jobs.db
    """
    from holdfast.cli.connect import resolve_target
    from holdfast.control.backup import backup as back_up

    report = back_up(resolve_target(shared).url, file, _progress)
    _show(shared, report, f"backed up {report.source} to {report.target}")


@holdfast.command(takes=("json", "debug"))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("url", metavar="URL")
@click.option("--paused", is_flag=True, help="Pause all queues, so that nothing runs before you resume them.")
@pass_shared
def restore(shared: SharedOptions, file: Path, url: str, paused: bool) -> None:
    """Create the SQLite database URL from a backup FILE.

    Stop all programs first and move the old files away. Runs that were unfinished at the time of the backup run again
    from what was recorded then; --paused gives you time to look at them.

    \b
    Examples:
      holdfast restore /backups/jobs-2026-11-19.db sqlite:///jobs.db --paused
    """
    from holdfast.control.backup import restore as do_restore

    report = do_restore(file, url, paused=paused, progress=_progress)
    _show(shared, report, f"restored {report.target} from {report.source}")
    if not shared.json and report.unfinished:
        show_line("Unfinished at the time of the backup, so their outcome may be lost:")
        show_line("  " + ", ".join(f"{count} {state}" for state, count in report.unfinished.items()))
        show_line(f"Look at them with `holdfast runs --url {url}`" + (", then resume the queues." if paused else "."))


def _show(shared: SharedOptions, report: BackupReport, what: str) -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    show_json(report) if shared.json else show_line(f"{what} ({report.bytes:,} bytes)")


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and total:
        click.echo(f"\r\x1b[K{done / total:4.0%}", nl=False, err=True)
