"""Whether the database is well: `doctor`."""

from __future__ import annotations

import click

from holdfast.cli.output import show_json, show_line
from holdfast.cli.root import FAILED, Given, holdfast, pass_given


@holdfast.command()
@pass_given
def doctor(given: Given) -> int:
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
    from holdfast.cli.connect import opened

    with opened(given) as control:
        examination = control.doctor.examine()
        where = control.database
    if given.json:
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
