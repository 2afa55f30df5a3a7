"""Maintenance commands: `migrate`, `roles`, `prune`, `doctor`."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast.cli.bulk import run_bulk
from holdfast.cli.options import DURATION, filter_options, seconds_ago
from holdfast.cli.output import note, show_json, show_line
from holdfast.cli.root import FAILED, SharedOptions, holdfast, pass_shared
from holdfast.model.names import counted


@holdfast.command()
@click.option("--check", is_flag=True, help="Only check; exit code 1 if migrations are pending.")
@pass_shared
def migrate(shared: SharedOptions, check: bool) -> int:
    """Create the tables, or migrate them to the current version.

    Apps do this on first use, unless they are created with migrate=False.

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
        status = {"version": tables.version, "newest": tables.newest, "pending": tables.pending}
        show_json(status if check else status | {"applied": applied})
    elif tables.pending:
        show_line(f"{where}: version {tables.version} of {tables.newest}, pending: {', '.join(tables.pending)}")
    else:
        for name in applied:
            show_line(f"applied {name}")
        show_line(f"{where}: up to date, version {tables.version}")
    return FAILED if tables.pending else 0


@holdfast.command()
@click.option("--prefix", help="The beginning of the roles' names.  [default: the schema]")
@click.option("--tenant", "tenants", multiple=True, help="Also a role for this tenant's runs only. Repeatable.")
@pass_shared
def roles(shared: SharedOptions, prefix: str | None, tenants: tuple[str, ...]) -> None:
    """Print SQL that creates PostgreSQL roles for migrating, working, operating, enqueueing and reading.

    Each role gets the privileges that it needs and no others. Grant them to the users of your processes. Execute the
    script after each `holdfast migrate`. With --tenant, row-level security restricts a role to the runs of one tenant.
    Connects to no database.

    \b
    Examples:
      holdfast roles | psql postgresql://host/shop
      holdfast roles --tenant acme --tenant globex | psql postgresql://host/shop
    """
    from holdfast.cli.connect import schema_on_postgres
    from holdfast.control.maintenance import database_roles

    made = database_roles(schema_on_postgres(shared), prefix, tenants)
    if shared.json:
        show_json(made)
    else:
        click.echo(made.sql, nl=False)


@holdfast.command()
@click.option("--older-than", type=DURATION, help="Delete all that finished before this age, such as 12h or 7d.")
@filter_options
@click.option("--dry-run", is_flag=True, help="Only show how many.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")
@pass_shared
def prune(shared: SharedOptions, older_than: float | None, dry_run: bool, yes: bool, **flags: Any) -> int:
    """Delete finished runs and their history.

    By default, runs whose retention has expired; workers delete them too. With --older-than, all runs that finished
    before that age. With filters, all matching finished runs. Unfinished runs are never deleted, children only with
    their parent. Idempotency keys are kept: a used key still creates no second run.

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
            flags["finished_until"] = min(flags["finished_until"] or seconds_ago(older_than), seconds_ago(older_than))
        return run_bulk(shared, "prune", flags, lambda control, filters: control.bulk.prune(filters))
    from holdfast.cli.connect import connect

    with connect(shared) as control:
        count = 0 if yes and not dry_run else control.upkeep.count_old(older_than)
        if dry_run:
            show_json({"would_prune": count}) if shared.json else show_line(f"{counted(count, 'run')} would be deleted")
            return 0
        if count and not yes:
            _ask(count, control.database)
        pruned = control.upkeep.prune(older_than, _show_progress) if count or yes else 0
    if shared.json:
        show_json({"pruned": pruned})
    else:
        show_line(f"{counted(pruned, 'run')} deleted")
    return 0


def _ask(count: int, where: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{counted(count, 'run')} would be deleted: confirm with --yes, or preview with --dry-run."
        )
    click.confirm(f"Delete {counted(count, 'finished run')} from {where}?", abort=True, err=True)


def _show_progress(pruned: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{pruned} …\r", nl=False, err=True)
    elif pruned and pruned % 50_000 == 0:
        note(f"{pruned} …")


@holdfast.command()
@click.option(
    "--long-wait",
    type=DURATION,
    metavar="DURATION",
    help="Report waits without a timeout that last longer.  [default: $HOLDFAST_LONG_WAIT, else 1d]",
)
@pass_shared
def doctor(shared: SharedOptions, long_wait: float | None) -> int:
    """Diagnose the database.

    Each finding says what it means and what to do. Checks the schema, workers, stuck runs, waits without a timeout that
    last long, and tasks that no worker has; on PostgreSQL also clocks, settings, connections, listeners, old snapshots
    and dead rows, on SQLite the file; with an app also its task settings. Changes nothing. The exit code is 1 if
    something is wrong, 0 for notes alone.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --app shop.tasks:app
      holdfast doctor --url postgresql://host/shop --json
    """
    from holdfast.cli.connect import connect

    with connect(shared) as control:
        report = control.doctor.examine(long_wait)
        where = control.database
    if shared.json:
        show_json({"well": report.well, "looked_at": report.looked_at, "findings": report.findings})
        return 0 if report.well else FAILED
    for finding in report.findings:
        show_line(f"{finding.level}: {finding.what}")
        show_line(f"  means: {finding.means}")
        show_line(f"  do:    {finding.do}")
        click.echo()
    checked = ", ".join(report.looked_at)
    wrong = sum(finding.level == "wrong" for finding in report.findings)
    total = len(report.findings)
    verdict = f"{counted(total, 'finding')}, {wrong} wrong" if total else "no findings"
    show_line(f"{where}: {verdict} (checked: {checked})")
    return 0 if report.well else FAILED
