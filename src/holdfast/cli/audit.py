"""The command that reads the audit log: `audit`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import TIME
from holdfast.cli.output import TableColumn, format_time, note, show_json, show_table
from holdfast.cli.root import SharedOptions, holdfast, pass_shared

if TYPE_CHECKING:
    from holdfast.model.audit import AuditEntry

COLUMNS = (
    TableColumn("TIME", whole=True),
    TableColumn("BY"),
    TableColumn("ACTION", whole=True),
    TableColumn("SUBJECT"),
    TableColumn("OUTCOME", whole=True),
    TableColumn("VIA", whole=True, drop=2),
    TableColumn("CLIENT", drop=3),
    TableColumn("DETAILS", drop=1),
)


@holdfast.command()
@click.option("--by", metavar="WHO", help="Only actions of this operator.")
@click.option("--action", metavar="NAME", help="Only this action, such as 'cancel run'.")
@click.option("--subject", metavar="NAME", help="Only about this run id, queue, schedule, limit, …")
@click.option(
    "--outcome", type=click.Choice(["done", "unchanged", "refused", "failed"]), help="Only with this outcome."
)
@click.option("--since", type=TIME, metavar="TIME", help="Only since then: 2h (ago) or 2026-11-16.")
@click.option("--until", type=TIME, metavar="TIME", help="Only before then.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of entries.")
@click.option("--after", metavar="ID", help="Continue after this entry, the last one of the previous page.")
@pass_shared
def audit(
    shared: SharedOptions,
    by: str | None,
    action: str | None,
    subject: str | None,
    outcome: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    after: str | None,
) -> None:
    """List what operators did, newest first.

    Actions are recorded whether they came from the dashboard, the API or this command line: who, when, what, and the
    outcome. Filters are combined with AND. `unchanged` means that it already was so; `refused`, that nothing was
    changed; `failed`, that it may have changed something; `unknown`, that the process ended before it could record the
    outcome.

    \b
    Examples:
      holdfast audit --since 1d
      holdfast audit --subject 0199a3f2-6c1e-7b3a-9d61-2f4f0c7f5a10
      holdfast audit --by ada --action 'pause queue' --json
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        page = control.audit.page(
            by=by, action=action, subject=subject, outcome=outcome, since=since, until=until, limit=limit, after=after
        )
    if shared.json:
        show_json(page)
        return
    show_table(COLUMNS, [_row(entry) for entry in page.entries], "no entries")
    if page.partial:
        note(f"scanned only part of the log; continue with --after {page.after}")
    elif page.after is not None:
        note(f"more entries: --after {page.after}")


def _row(entry: AuditEntry) -> list[str]:
    from holdfast.control.audit import describe_detail

    return [
        format_time(entry.at) or "", entry.by, entry.action, entry.subject or "-", entry.outcome or "unknown",
        entry.via, entry.client or "-", describe_detail(entry) or "-",
    ]  # fmt: skip
