"""The database as a whole: `migrate`, `prune`."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast.cli.bulk import run_bulk
from holdfast.cli.options import DURATION, ago_of, filter_options
from holdfast.cli.output import note, show_json, show_line
from holdfast.cli.root import FAILED, SharedOptions, holdfast, pass_shared


@holdfast.command()
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 when the tables are behind the code.")
@pass_shared
def migrate(shared: SharedOptions, check: bool) -> int:
    """Make the tables, or bring them up to date.

    Apps do this by themselves on first use, unless they were made with migrate=False.

    \b
    Examples:
      holdfast migrate --url postgresql://host/shop
      holdfast migrate --check
    """
    from holdfast.cli.connect import connect

    with connect(shared, make=not check) as control:
        applied = [] if check else control.upkeep.migrate()
        tables = control.upkeep.tables()
        where = control.database
    if shared.json:
        told = {"version": tables.version, "newest": tables.newest, "pending": tables.pending}
        show_json(told if check else told | {"applied": applied})
    elif tables.pending:
        show_line(f"{where}: version {tables.version} of {tables.newest}, to be applied: {', '.join(tables.pending)}")
    else:
        for name in applied:
            show_line(f"applied {name}")
        show_line(f"{where}: up to date, version {tables.version}")
    return FAILED if tables.pending else 0


@holdfast.command()
@click.option(
    "--older-than", type=DURATION, help="All that ended so long ago, like 12h or 7d, however long to be kept."
)
@filter_options
@click.option("--dry-run", is_flag=True, help="Only say how many.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@pass_shared
def prune(shared: SharedOptions, older_than: float | None, dry_run: bool, yes: bool, **flags: Any) -> int:
    """Delete finished runs and their history.

    Those whose time to be kept is over, as workers do by themselves; or, with --older-than, all that ended so long ago.
    With filters, of all finished runs those that fit, however long to be kept. Unfinished runs are never deleted, and
    children only with their family. Keys are kept: the same key still makes no second run.

    \b
    Examples:
      holdfast prune --dry-run
      holdfast prune --older-than 7d
      holdfast prune --older-than 0 --yes
      holdfast prune --task shop.tasks.ping --state done --dry-run
    """
    if any(flags.values()):
        flags |= {"dry_run": dry_run, "yes": yes}
        if older_than is not None:
            flags["finished_until"] = min(flags["finished_until"] or ago_of(older_than), ago_of(older_than))
        return run_bulk(shared, "prune", flags, lambda control, asked: control.bulk.prune(asked))
    from holdfast.cli.connect import connect

    with connect(shared) as control:
        count = 0 if yes and not dry_run else control.upkeep.count_old(older_than)
        if dry_run:
            show_json({"would_prune": count}) if shared.json else show_line(f"{count} runs would be deleted")
            return 0
        if count and not yes:
            _ask(count, control.database)
        pruned = control.upkeep.prune(older_than, _show_progress) if count or yes else 0
    if shared.json:
        show_json({"pruned": pruned})
    else:
        show_line(f"{pruned} runs deleted")
    return 0


def _ask(count: int, where: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"This would delete {count} runs: say --yes, or look first with --dry-run.")
    click.confirm(f"Delete {count} finished runs from {where}?", abort=True, err=True)


def _show_progress(pruned: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{pruned} …\r", nl=False, err=True)
    elif pruned and pruned % 50_000 == 0:
        note(f"{pruned} …")


@holdfast.command()
@pass_shared
def doctor(shared: SharedOptions) -> int:
    """Look at the database and say what isn't well with it.

    For each finding what it means and what to do. Looks at the schema, the workers, runs that are stuck, tasks that no
    worker knows; on PostgreSQL also at clocks, settings, connections, listeners, old snapshots and dead rows, on SQLite
    at the file; with the app also at the settings of its tasks. Changes nothing. The exit code is 1 when something is
    wrong; notes alone are 0.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --app shop.tasks:app
      holdfast doctor --url postgresql://host/shop --json
    """
    from holdfast.cli.connect import connect

    with connect(shared) as control:
        examination = control.doctor.examine()
        where = control.database
    if shared.json:
        show_json({"well": examination.well, "looked_at": examination.looked_at, "findings": examination.findings})
        return 0 if examination.well else FAILED
    for finding in examination.findings:
        show_line(f"{finding.level}: {finding.what}")
        show_line(f"  means: {finding.means}")
        show_line(f"  do:    {finding.do}")
        click.echo()
    looked = ", ".join(examination.looked_at)
    wrong = sum(finding.level == "wrong" for finding in examination.findings)
    verdict = "all is well" if not examination.findings else f"{wrong} wrong, {len(examination.findings)} findings"
    show_line(f"{where}: {verdict} (looked at: {looked})")
    return 0 if examination.well else FAILED
