"""The `stats` command: counts, throughput, failures and durations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast.cli.options import DURATION
from holdfast.cli.output import TableColumn, format_duration, format_timestamp, note, show_json, show_line, show_table
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.names import counted

if TYPE_CHECKING:
    from holdfast.control.stats import Counts, Estimate, Percentiles, Stats, StatsSeries, StatsTrend

COLUMNS = (
    TableColumn("NAME", whole=True),
    TableColumn("RUNS", right=True, whole=True),
    TableColumn("PER SECOND", right=True, drop=3),
    TableColumn("FAILED", right=True, whole=True),
    TableColumn("WAIT P50", drop=2, right=True),
    TableColumn("P95", right=True),
    TableColumn("P99", drop=4, right=True),
    TableColumn("RUN P50", drop=1, right=True),
    TableColumn("P95", right=True),
    TableColumn("P99", drop=5, right=True),
)


COMPARED_COLUMNS = (
    TableColumn("NAME", whole=True),
    TableColumn("RUNS", right=True, whole=True),
    TableColumn("BEFORE", right=True),
    TableColumn("FAILED", right=True, whole=True),
    TableColumn("BEFORE", right=True),
    TableColumn("RUN P95", right=True, whole=True),
    TableColumn("BEFORE", right=True),
    TableColumn("CHANGE", right=True, whole=True),
)


@holdfast.command()
@click.option("--last", type=DURATION, default="1h", show_default=True, help="Time window.")
@click.option("--by", type=click.Choice(["task", "queue", "all"]), default="task", show_default=True, help="Grouping.")
@click.option("--name", metavar="NAME", help="Only this task or queue.")
@click.option("--tenant", metavar="NAME", help="Only the runs of this tenant.")
@click.option("--every", type=click.Choice(["minute", "hour"]), help="One line per minute or hour.")
@click.option("--compare", is_flag=True, help="Compare with the time before, what got slower first.")
@pass_shared
def stats(
    shared: SharedOptions,
    last: float,
    by: Literal["task", "queue", "all"],
    name: str | None,
    tenant: str | None,
    every: Literal["minute", "hour"] | None,
    compare: bool,
) -> None:
    """Show throughput, failures, wait times and run times.

    Wait time is how long a run was ready before it started, the last time if it started several times; it doesn't
    include delays, waits and dependencies. Run time is from first start to finish, including retries. Percentiles are
    accurate to about 10%. The first line counts runs by state; "about" and "at least" mark estimates.

    \b
    Examples:
      holdfast stats
      holdfast stats --last 24h --by queue
      holdfast stats --by task --name shop.tasks.charge --every minute
      holdfast stats --last 24h --compare
      holdfast stats --tenant acme --last 7d --every hour
      holdfast stats --json
    """
    if compare and (every is not None or by == "all"):
        raise click.UsageError("--compare needs --by task or --by queue, and can't be combined with --every")
    if tenant is not None and (compare or name is not None):
        raise click.UsageError("--tenant can't be combined with --compare and --name")
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        if tenant is not None:
            _show_tenant(shared, tenant, control.stats.of_tenant(tenant, last=last, span=every), every, last)
            return
        if compare:
            trends = [each for each in control.stats.trends(last=last, by=by) if name in (None, each.name)]
            _show_trends(shared, sorted(trends, key=lambda each: -(each.slowdown or 0)), last)
            return
        counts = control.counts.overview()
        if every is None:
            found = control.stats.summary(last=last, by=by, name=name)
        else:
            found = control.stats.over_time(last=last, span=every, by=by, name=name)
    if shared.json:
        show_json({"counts": counts, "stats": [_as_data(each) for each in found]})
        return
    show_line(_format_counts(counts))
    _show_table(found, every, last)


def _show_table(found: list[Stats], every: str | None, last: float) -> None:
    columns = COLUMNS if every is None else (TableColumn("SINCE", whole=True), *COLUMNS)
    rows = [([format_timestamp(each.since)[:16]] if every else []) + _row(each) for each in found]
    show_table(columns, rows, f"no runs finished in the last {format_duration(last)}")


def _show_tenant(shared: SharedOptions, tenant: str, series: StatsSeries, every: str | None, last: float) -> None:
    import msgspec

    found = [msgspec.structs.replace(each, name=tenant) for each in (series.intervals if every else [series.whole])]
    if shared.json:
        show_json({"stats": [_as_data(each) for each in found], "created_since": series.created_since})
        return
    _show_table(found, every, last)
    if series.created_since is not None:
        note(f"only the newest runs are counted, those created since {format_timestamp(series.created_since)}")


def _show_trends(shared: SharedOptions, trends: list[StatsTrend], last: float) -> None:
    if shared.json:
        rows = [{"name": it.name, "now": _as_data(it.now), "before": _as_data(it.before)} for it in trends]
        show_json([row | {"slowdown": it.slowdown} for row, it in zip(rows, trends, strict=True)])
        return
    table = [
        [
            it.name, *(f"{stats.runs:,}" for stats in (it.now, it.before)),
            *(f"{stats.failure_rate:.1%}" if stats.runs else "-" for stats in (it.now, it.before)),
            *(format_duration(stats.run.p95) for stats in (it.now, it.before)),
            "-" if it.slowdown is None else f"{it.slowdown - 1:+.0%}",
        ]
        for it in trends
    ]  # fmt: skip
    show_table(COMPARED_COLUMNS, table, f"no runs finished in the last {format_duration(2 * last)}")


def _as_data(stats: Stats) -> dict[str, Any]:
    import msgspec

    rates = {"throughput": stats.throughput, "failure_rate": stats.failure_rate}
    return {**msgspec.to_builtins(stats, enc_hook=str), **rates}


def _format_counts(counts: Counts) -> str:
    total = counts.total
    text = ("" if total.exact else "about ") + counted(total.value, "run")
    parts = [_format_state(state, count) for state, count in sorted(counts.states.items()) if count.value]
    return text + (f": {', '.join(parts)}" if parts else "")


def _format_state(state: str, count: Estimate) -> str:
    prefix = "" if count.exact else "about " if state == "done" else "at least "
    return f"{prefix}{count.value:,} {state}"


def _row(stats: Stats) -> list[str]:
    failed = f"{stats.failed:,}" + (f" ({stats.failure_rate:.1%})" if stats.failed else "")
    name = "all" if stats.name is None else stats.name
    return [name, f"{stats.runs:,}", f"{stats.throughput:,.2f}", failed, *_times(stats.wait), *_times(stats.run)]


def _times(times: Percentiles) -> list[str]:
    return [format_duration(times.p50), format_duration(times.p95), format_duration(times.p99)]
