"""Move all data, or those of one tenant, to another database: `move`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import note, show_json, show_line
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.names import counted

if TYPE_CHECKING:
    from holdfast.control.move import MoveProgress, MoveReport

REDRAW_INTERVAL_S = 0.2
BAR_WIDTH = 30


@holdfast.command(takes=("schema", "json", "debug"))
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@click.option("--target-schema", metavar="NAME", help="The PostgreSQL schema of the target.  [default: --schema]")
@click.option("--tenant", metavar="NAME", help="Move only this tenant, into a database that may have others.")
@click.option("--dry-run", is_flag=True, help="Only check both databases and count what would be moved.")
@click.option("--abort", is_flag=True, help="Give up a move that isn't finished; the source is used again.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")
@pass_shared
def move(
    shared: SharedOptions,
    source: str,
    target: str,
    target_schema: str | None,
    tenant: str | None,
    dry_run: bool,
    abort: bool,
    yes: bool,
) -> int:
    """Move everything from one database to another, with runs in flight.

    SOURCE and TARGET are URLs, of SQLite or PostgreSQL. The target must be empty. From the start of the move on, the
    source refuses all writes: its workers stop, and programs get StoreMoved. The target accepts writes when everything
    was copied and verified and all leases of the source have expired. If the command is interrupted or killed, repeat
    it to continue.

    With --tenant, the runs, events, keys and schedules of one tenant move, with all that belongs to them, and other
    tenants continue in both databases. The tenant is paused until it has moved; the move waits until its running runs
    have ended their attempts. Afterwards, the source refuses the tenant: programs get TenantMoved.

    \b
    Examples:
      holdfast move sqlite:///jobs.db postgresql://host/shop --dry-run
      holdfast move sqlite:///jobs.db postgresql://host/shop
      holdfast move sqlite:///jobs.db postgresql://host/shop --abort
      holdfast move postgresql://host/shop postgresql://other/shop --tenant acme
    """
    from holdfast.control.move import Move, describe
    from holdfast.control.tenant_move import TenantMove

    display = _Display()
    schema = shared.schema or "holdfast"
    moving: Move | TenantMove
    if tenant is None:
        moving = Move(source, target, schema, target_schema, display.show)
    else:
        moving = TenantMove(source, target, tenant, schema, target_schema, display.show)
    try:
        if abort:
            moving.abort()
            of = "" if tenant is None else f" for tenant {tenant}"
            show_line(f"aborted: {moving.source_url} is used again{of}")
            return 0
        plan = moving.plan()
        if dry_run or plan.state == "already moved":
            if plan.state == "already moved":
                plan = moving.run()  # it may have been killed right before its last step
            _show(shared, plan, describe(plan))
            return 0
        if not yes:
            _ask(plan, describe(plan))
        started_at = time.monotonic()
        report = moving.run()
        display.end()
        _show(shared, report, f"{describe(report)}, in {time.monotonic() - started_at:.1f} s")
    except KeyboardInterrupt:
        display.end()
        refused = "writes" if tenant is None else f"tenant {tenant}, or has paused it"
        note(
            f"interrupted: the source still refuses {refused}. Repeat the command to continue, or add --abort to use"
            " the source again"
        )
        raise
    finally:
        moving.close()
    return 0


def _ask(plan: MoveReport, what: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{what} would be moved: confirm with --yes, or preview with --dry-run.")
    effect = "stop its workers" if plan.tenant is None else "pause the tenant until then"
    click.confirm(f"Move {what} from {plan.source} to {plan.target}, and {effect}?", abort=True, err=True)


def _show(shared: SharedOptions, report: MoveReport, what: str) -> None:
    if shared.json:
        show_json(report)
        return
    verb = {"planned": "would be moved", "moved": "moved and verified", "already moved": "already moved"}[report.state]
    show_line(f"{verb}: {what}")
    show_line(f"from {report.source}")
    show_line(f"to   {report.target}")
    if report.state == "planned" and report.live_workers:
        show_line(f"{report.live_workers} live worker sessions would lose their leases: stop the workers first")
    if report.state == "planned" and report.running:
        show_line(f"{counted(report.running, 'running run')} would end first; the move waits for that")
    if report.state == "moved" and report.tenant is None:
        show_line("Give the new URL to all programs and start the workers again.")
    if report.state == "moved" and report.tenant is not None:
        show_line(f"Give the new URL to all programs of tenant {report.tenant}.")


class _Display:
    """A progress bar on a terminal; otherwise a line per stage."""

    def __init__(self) -> None:
        self._drawn_at = 0.0
        self._stage = ""
        self._is_terminal = sys.stderr.isatty()

    def show(self, progress: MoveProgress) -> None:
        is_new, self._stage = progress.stage != self._stage, progress.stage
        if not self._is_terminal:
            if is_new and progress.stage != "done":
                note(_STAGES[progress.stage])
            return
        now = time.monotonic()
        if not is_new and now - self._drawn_at < REDRAW_INTERVAL_S:
            return
        self._drawn_at = now
        click.echo(f"\r\x1b[K{_line(progress)}", nl=False, err=True)

    def end(self) -> None:
        if self._is_terminal and self._stage:
            click.echo("\r\x1b[K", nl=False, err=True)


_STAGES = {
    "fence": "fencing both databases",
    "drain": "waiting for running runs",
    "take out": "taking the rows out of the source",
    "copy": "copying",
    "verify": "verifying",
    "wait": "waiting for the leases of the source's workers",
    "put in": "putting the rows into the target",
    "done": "done",
}


def _line(progress: MoveProgress) -> str:
    if progress.stage == "wait":
        return f"{_STAGES['wait']}: {progress.seconds_left:.0f} s"
    if progress.stage == "drain":
        return f"{_STAGES['drain']}: {progress.running:,}"
    if progress.stage in ("take out", "put in"):
        return _STAGES[progress.stage]
    share = min(progress.rows / progress.total, 1.0) if progress.total else 0.0
    bar = "#" * int(share * BAR_WIDTH)
    return f"{_STAGES[progress.stage]:<9} [{bar:<{BAR_WIDTH}}] {share:4.0%} {progress.rows:,} rows {progress.table}"
