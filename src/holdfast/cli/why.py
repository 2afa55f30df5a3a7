"""Why runs don't run: `why`, and `limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_nodes, complete_runs
from holdfast.cli.output import Column, show_json, show_line, show_table, span
from holdfast.cli.root import Given, holdfast, pass_given

if TYPE_CHECKING:
    from holdfast.control.limits import CounterInfo, LimitInfo

LIMIT_COLUMNS = (
    Column("LIMIT", whole=True),
    Column("KEY"),
    Column("USED", right=True, whole=True),
    Column("OF", right=True, whole=True),
    Column("STARTED", right=True, drop=1),
    Column("RATE", drop=2),
    Column("PARKED", right=True, whole=True),
)


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("node", nargs=-1, shell_complete=complete_nodes)
@pass_given
def why(given: Given, run: str, node: tuple[str, ...]) -> None:
    """Say why a run isn't running, or who runs it.

    A full limit and who holds it, a paused queue, no worker that is alive or knows the task, what it waits for, when it
    is due. RUN is an id or its beginning; NODE the name of a node of a graph, as with `holdfast show`.

    \b
    Examples:
      holdfast why 0199a3f2-6c1e
      holdfast why 0199a3f2-6c1e load
      holdfast why 0199a3f2-6c1e --json | jq -r '.reasons[].code'
    """
    from holdfast.cli.connect import opened_or_empty

    with opened_or_empty(given) as control:
        id = control.runs.find(run)
        for name in node:
            id = control.graphs.node(id, name)
        found = control.whys.why(id)
    if given.json:
        show_json({"id": found.run.id, "state": found.run.state, "reasons": found.reasons})
        return
    show_line(f"{found.run.id}  {found.run.state}  {found.run.task}")
    for reason in found.reasons:
        show_line(f"  {reason.text}")


@holdfast.command()
@click.argument("name", required=False)
@pass_given
def limits(given: Given, name: str | None) -> None:
    """List limits: what they allow, what is in use, and how many runs wait for them.

    One line for each limit, and for each key of one that counts by key, the busiest first; with NAME only of that one.

    \b
    Examples:
      holdfast limits
      holdfast limits openai --json
    """
    from holdfast.cli.connect import opened_or_empty

    with opened_or_empty(given) as control:
        found = control.limits.list(name)
    if given.json:
        show_json(found)
        return
    rows = [row for limit in found for row in _rows(limit)]
    show_table(LIMIT_COLUMNS, rows, 'no limits: declare one with app.limit("name", concurrency=…)')


def _rows(limit: LimitInfo) -> list[list[str]]:
    if not limit.counters:
        return [[limit.name, "", "0", _cap(limit.concurrency), "0", _rate(limit), "0"]]
    return [_row(limit, counter) for counter in limit.counters]


def _row(limit: LimitInfo, counter: CounterInfo) -> list[str]:
    key = "" if counter.key is None else str(counter.key)
    parked = f"{counter.parked:,}" + ("+" if counter.parked >= 1000 else "")
    return [
        limit.name, key, str(counter.used), _cap(limit.concurrency), str(counter.started), _rate(limit), parked,
    ]  # fmt: skip


def _cap(concurrency: int | None) -> str:
    return "any" if concurrency is None else str(concurrency)


def _rate(limit: LimitInfo) -> str:
    return "" if limit.rate is None else f"{limit.rate} in {span(limit.period)}"
