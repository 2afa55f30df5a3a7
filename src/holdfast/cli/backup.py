"""Back up and restore databases: `backup`, `restore`, `lost`."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import TIME
from holdfast.cli.output import TableColumn, format_time, show_json, show_line, show_table
from holdfast.cli.root import FAILED, SharedOptions, holdfast, pass_shared

if TYPE_CHECKING:
    from holdfast.control.backup import BackupReport
    from holdfast.control.lost_outcomes import LostOutcome


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


LOST_COLUMNS = (
    TableColumn("RUN", whole=True),
    TableColumn("TASK"),
    TableColumn("LOST", whole=True),
    TableColumn("BEFORE", whole=True),
    TableColumn("NOW", whole=True),
    TableColumn("FINISHED", drop=1),
    TableColumn("KEY", drop=2),
    TableColumn("TENANT", drop=3),
)


@holdfast.command()
@click.argument("former", metavar="FORMER")
@click.option(
    "--since", type=TIME, required=True, metavar="TIME", help="The time of the backup: 2h (ago) or 2026-11-16."
)
@pass_shared
def lost(shared: SharedOptions, former: str, since: datetime) -> int:
    """List runs whose outcome a restore has lost.

    Compares the restored database with the one that it replaces, whose URL is FORMER. It is only read. `missing`: the
    run was created after the backup. `finished`: it had finished, and would run again. `further`: it had executed more,
    and would repeat that.

    Exits with 0 if there are none, with 1 if there are some.

    \b
    Examples:
      holdfast lost sqlite:////old/jobs.db --url sqlite:///jobs.db --since 2h
      holdfast lost postgresql://old/shop --since 2026-11-19T08:00 --json
    """
    from holdfast.cli.connect import connect, resolve_target
    from holdfast.control.lost_outcomes import lost_outcomes
    from holdfast.control.open import open_control

    schema = resolve_target(shared).schema
    with connect(shared) as restored, open_control(former, schema) as control:
        found = list(lost_outcomes(control, restored, since))
    if shared.json:
        show_json(found)
    else:
        show_table(LOST_COLUMNS, [_lost_row(each) for each in found], "no run has lost its outcome")
    return FAILED if found else 0


def _lost_row(each: LostOutcome) -> list[str]:
    return [
        str(each.id), each.task, each.what, each.state_before, each.state_now or "-",
        format_time(each.finished_at) or "-", each.key or "-", each.tenant or "-",
    ]  # fmt: skip


def _show(shared: SharedOptions, report: BackupReport, what: str) -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    show_json(report) if shared.json else show_line(f"{what} ({report.bytes:,} bytes)")


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and total:
        click.echo(f"\r\x1b[K{done / total:4.0%}", nl=False, err=True)
