"""Commands that inspect runs: `runs`, `show`, `why`."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.completion import complete_nodes, complete_runs
from holdfast.cli.options import DURATION, build_filter, filter_options
from holdfast.cli.output import (
    TableColumn,
    format_ago,
    format_duration,
    format_time,
    format_timestamp,
    is_interactive,
    note,
    show_fields,
    show_json,
    show_line,
    show_table,
    show_tree,
)
from holdfast.cli.render_graph import format_gate, format_node_counts, graph_tree
from holdfast.cli.render_history import MAX_VALUE_CHARS, awaited, cut, history_tree, retrying, short
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.filters import NEWEST_FIRST, SORTS, check_sort
from holdfast.model.names import counted
from holdfast.model.previews import MAX_DECODED_BYTES, arguments_line
from holdfast.model.run import FINAL_STATES, GRAPH_QUEUE

if TYPE_CHECKING:
    from holdfast.control.gates import GateInfo
    from holdfast.control.graphs import GraphInfo
    from holdfast.control.runs import RunDetails
    from holdfast.model.run import Page, Progress, RunInfo

MAX_GATES = 10
MAX_RETRYING = 10
MAX_ARGUMENTS_CHARS = 80
MAX_SET_ASIDE = 10
MAX_SHOWN_ASKS = 10

COLUMNS = (
    TableColumn("RUN", whole=True),
    TableColumn("STATE", whole=True),
    TableColumn("TASK"),
    TableColumn("QUEUE", drop=4),
    TableColumn("ATTEMPT", right=True, drop=5),
    TableColumn("CREATED"),
    TableColumn("DURATION", drop=6),
    TableColumn("TENANT", drop=4),
    TableColumn("KEY", drop=1),
    TableColumn("ARGUMENTS", drop=3),
    TableColumn("ERROR", drop=2),
)


@holdfast.command()
@filter_options
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of runs.")
@click.option("--sort", metavar="ORDER", default=NEWEST_FIRST, help=f"{', '.join(SORTS)}; - is descending.")
@click.option("--after", metavar="RUN", help="Continue after this run, or the position that the last page named.")
@click.option(
    "--watch", type=DURATION, is_flag=False, flag_value="2", metavar="[SECONDS]",
    help="Refresh until Ctrl-C.  [every 2 s]",
)  # fmt: skip
@pass_shared
def runs(shared: SharedOptions, limit: int, sort: str, after: str | None, watch: float | None, **flags: Any) -> None:
    """List runs, newest first.

    Filters are combined with AND. KEY is the idempotency key; TENANT is shown if a run has one. Long arguments are
    shortened and secrets masked. If very many runs don't match, only the matches found so far are shown, with the
    option to continue. --json prints a list; with --watch, one list per line.

    \b
    Examples:
      holdfast runs
      holdfast runs --state failed --task shop.tasks.charge
      holdfast runs --key order-42
      holdfast runs --top-level --state failed --sort -finished
      holdfast runs --queue billing --watch 5
      holdfast runs --error "no funds" --since 2h
      holdfast runs --state running --json | jq -r '.[].id'
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        filters = build_filter(control, flags)
        by_id = check_sort(sort).endswith("created")
        cursor = str(control.runs.find(after)) if after is not None and by_id else after
        if watch is None:
            _show_page(shared, control.runs.page(**filters, limit=limit, after=cursor, sort=sort))
            return
        while True:
            page = control.runs.page(**filters, limit=limit, after=cursor, sort=sort)
            if shared.json:
                show_json(list(page), compact=True)
            else:
                click.clear()
                _show_page(shared, page)
                if not is_interactive():
                    click.echo()
            time.sleep(watch)


def _show_page(shared: SharedOptions, page: Page) -> None:
    if shared.json:
        show_json(list(page))
        return
    hidden = set() if any(run.tenant for run in page) else {"TENANT"}
    shown = [at for at, column in enumerate(COLUMNS) if column.name not in hidden]
    rows = [run_row(run) for run in page]
    show_table([COLUMNS[at] for at in shown], [[row[at] for at in shown] for row in rows], "no runs")
    if page.partial:
        note(f"scanned only {counted(page.scanned, 'run')}; continue with --after {page.after}")
    elif page.after is not None:
        note(f"more runs: --after {page.after}")


def run_row(run: RunInfo[Any]) -> list[str]:
    """Return the cells of a run, in the order of `COLUMNS`."""
    took = (run.finished_at - run.started_at).total_seconds() if run.finished_at and run.started_at else None
    return [
        str(run.id),
        run.state,
        run.task,
        run.queue if run.queue != GRAPH_QUEUE else "-",
        str(run.attempt),
        format_ago(run.created_at),
        format_duration(took),
        run.tenant or "",
        run.key or "",
        arguments_line(run.args, MAX_ARGUMENTS_CHARS),
        "" if run.error is None else short(run.error),
    ]


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("node", nargs=-1, shell_complete=complete_nodes)
@click.option("--mermaid", is_flag=True, help="Print a graph as a Mermaid flowchart.")
@pass_shared
def show(shared: SharedOptions, run: str, node: tuple[str, ...], mermaid: bool) -> None:
    """Show all details of a run, with its history.

    For a durable function, this includes its steps with durations and results, failed tries of steps with their
    arguments, its children and its pending waits; for a graph, its nodes in layers with their states and dependencies,
    and its open gates. RUN is a run id or a unique prefix of at least four characters. NODE is the name of a node; more
    names descend into nested graphs. Long values are truncated on a terminal. --json prints whole values, up to 8 MB in
    total, and the last 1,000 steps and history entries; others are counted.

    \b
    Examples:
      holdfast show 0199a3f2-6c1e-7b3a-9d61-2f4f0c7f5a10
      holdfast show 0199a3f2-6c1e
      holdfast show 0199a3f2-6c1e extract
      holdfast show 0199a3f2-6c1e --mermaid > graph.mmd
      holdfast show 0199a3f2-6c1e --json
    """
    from holdfast.cli.connect import connect_or_empty

    if mermaid and shared.json:
        raise click.UsageError("use --mermaid or --json, not both.")
    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        for name in node:
            id = control.graphs.node(id, name)
        if mermaid:
            _show_flowchart(control.graphs.read(id))
            return
        details = control.runs.details(id)
        above = control.runs.ancestors(id)
        if details.graph is not None and details.graph.more_nodes and not shared.json:
            details = msgspec.structs.replace(details, graph=control.graphs.read(id))
    if shared.json:
        show_json(_as_data(details) | {"ancestors": above})
        return
    _show_details(details, above[-1].name if above else None)


def _show_flowchart(graph: GraphInfo) -> None:
    from holdfast.cli.render_graph import MAX_MERMAID_EDGES, count_edges, flowchart

    click.echo(flowchart(graph))
    edges = count_edges(graph)
    if edges > MAX_MERMAID_EDGES:
        note(f"the graph has {edges:,} edges; Mermaid draws {MAX_MERMAID_EDGES} unless maxEdges is raised")


def _as_data(details: RunDetails) -> dict[str, Any]:
    """Flatten the details and their RunInfo into one object."""
    info = {field.name: getattr(details.info, field.name) for field in fields(details.info)}
    rest = {name: getattr(details, name) for name in details.__struct_fields__ if name != "info"}
    return info | rest


def _show_details(details: RunDetails, parent: str | None) -> None:
    info = details.info
    show_fields(
        [
            ("run", str(info.id)),
            ("state", info.state),
            ("held", _held(details)),
            ("paused", format_time(details.paused_at)),
            ("will end", None if details.ending is None else f"{details.ending}, when its compensations have run"),
            ("waiting for", _waits(details)),
            ("set aside", _set_aside(details)),
            ("values", _values(details)),
            ("spent", ", ".join(f"{amount:,f} {name}" for name, amount in details.spent.items()) or None),
            ("asks", _asks(details)),
            ("retrying", _retrying(details)),
            ("progress", _progress(info.progress)),
            ("task" if details.kind == "task" else details.kind, info.task if details.kind != "gate" else details.node),
            ("nodes", None if details.graph is None else format_node_counts(details.graph.counts)),
            ("queue", info.queue if details.kind == "task" else None),
            ("schedule", details.schedule),
            ("slot", format_time(info.scheduled_for)),
            ("trace", details.trace),
            ("node", None if details.node is None else f"{details.node} of graph {details.node_of}"),
            ("parent", None if info.parent is None else f"{info.parent} ({parent})" if parent else str(info.parent)),
            ("key", info.key),
            ("priority", str(info.priority) if info.priority else None),
            ("tenant", info.tenant),
            ("tags", ", ".join(info.tags) or None),
            ("metadata", _json(info.metadata) if info.metadata else None),
            ("corrupt", ", ".join(info.corrupt) or None),
            ("unique", details.unique),
            ("debounce", details.debounce),
            ("arguments", _arguments(details) if details.kind == "task" else None),
            ("options", _json(details.options) if details.options and details.kind == "task" else None),
            ("attempt", str(info.attempt) if details.kind == "task" else None),
            ("restarts", str(details.restarts) if details.restarts else None),
            ("crashes", str(info.crashes) if info.crashes else None),
            ("worker", info.worker),
            ("created", format_time(info.created_at)),
            ("due", format_time(details.due_at)),
            ("start by", None if info.started_at or info.final else format_time(details.start_by)),
            ("started", format_time(info.started_at)),
            ("deadline", None if info.final else format_time(details.deadline)),
            ("finished", format_time(info.finished_at)),
            ("expires", format_time(details.expires_at)),
            ("result", _result(details) if info.state == "done" else None),
            (
                "error",
                None
                if info.error is None
                else str(info.error)
                if info.error.code == "error"
                else f"{info.error} ({info.error.code})",
            ),
            ("error data", _json(info.error.data) if info.error and info.error.data is not None else None),
            ("traceback", info.error.traceback.rstrip() if info.error and info.error.traceback else None),
        ]
    )
    if details.graph is not None:
        click.echo("\nnodes")
        show_tree(graph_tree(details.graph))
    click.echo("\nhistory")
    show_tree(history_tree(details))
    if details.more_history or details.more_steps:
        earlier = f"{counted(details.more_history, 'earlier entry', 'earlier entries')} and "
        note(f"{earlier}{counted(details.more_steps, 'earlier step')} aren't shown")
    if details.graph is not None and is_interactive():
        note(f"details of a node: holdfast show {info.id} NODE")


def _arguments(details: RunDetails) -> str:
    text = _json(details.args)
    return (
        text
        if details.info.state != "blocked" or not details.needs
        else f"{text} (outputs of dependencies are pending)"
    )


def _result(details: RunDetails) -> str:
    """Format the result; that of a graph is truncated, because it may combine very many nodes."""
    text = _json(details.info.result)
    return text if details.graph is None else cut(text, MAX_VALUE_CHARS)


def _json(value: Any) -> str:
    """Format a value as JSON on one line."""
    data = msgspec.json.encode(value, enc_hook=str)  # A part of the value may be JSON that wasn't decoded.
    return data.decode() if len(data) > MAX_DECODED_BYTES else json.dumps(msgspec.json.decode(data), ensure_ascii=False)


def _held(details: RunDetails) -> str | None:
    if details.full_limit is not None:
        return f"limit {details.full_limit} is full"
    reasons = {
        "quiescing": "a worker hasn't released it yet",
        "queued": "waiting for the run that has its unique name",
        "isolated": "isolated: its worker processes died",
        "paused": "paused",
    }
    if (details.held or "").startswith("tenant:"):
        return f"tenant {details.info.tenant} is paused"
    reasons["corrupt"] = "quarantined: its row was corrupt"
    return None if details.held is None else reasons.get(details.held, details.held)


def _waits(details: RunDetails) -> str | None:
    lines = [awaited(wait) for wait in details.waits]
    gates = [] if details.graph is None else [gate for gate in details.graph.gates if gate.state == "waiting"]
    for gate in gates[:MAX_GATES]:
        lines += [f"gate {gate.name}, {format_gate(gate)}:", f"  {_complete_command(gate)}"]
    if len(gates) > MAX_GATES:
        lines.append(f"… and {len(gates) - MAX_GATES:,} more gates (holdfast gate {details.info.id})")
    if details.gate is not None and details.gate.state == "waiting":
        lines += [f"approval, {format_gate(details.gate)}:", f"  {_complete_command(details.gate)}"]
    if details.info.state == "blocked":
        lines += [f"node {name} ({state})" for name, state in details.needs.items() if state not in FINAL_STATES]
    return "\n".join(lines) or None


def _set_aside(details: RunDetails) -> str | None:
    """List messages that didn't fit, and how to send them again."""
    lines = []
    for message in details.set_aside[:MAX_SET_ASIDE]:
        lines.append(f"message {message.n} on topic {message.topic}: {cut(_json(message.payload), MAX_VALUE_CHARS)}")
        lines += [f"  {message.error}"] if message.error else []
    if len(details.set_aside) > MAX_SET_ASIDE:
        lines.append(f"… and {len(details.set_aside) - MAX_SET_ASIDE:,} more (--json lists all)")
    if lines and not details.info.final:
        lines.append(f"send again: holdfast resend {details.info.id} {details.set_aside[0].n} [PAYLOAD]")
    return "\n".join(lines) or None


def _values(details: RunDetails) -> str | None:
    return "\n".join(f"{each.name}: {cut(_json(each.value), MAX_VALUE_CHARS)}" for each in details.values) or None


def _asks(details: RunDetails) -> str | None:
    """List asks that aren't answered."""
    lines = [
        f"{each.name}, {'received, ' if each.received else ''}sent {format_ago(each.sent_at)}"
        for each in details.asks[:MAX_SHOWN_ASKS]
    ]
    if len(details.asks) > MAX_SHOWN_ASKS:
        lines.append("… and more (--json lists the first 100)")
    return "\n".join(lines) or None


def _retrying(details: RunDetails) -> str | None:
    steps = [step for step in details.unfinished_steps if step.state == "retrying"]
    lines = [f"step {retrying(step)}" for step in steps[:MAX_RETRYING]]
    if len(steps) > MAX_RETRYING:
        lines.append(f"… and {len(steps) - MAX_RETRYING:,} more steps")
    return "\n".join(lines) or None


def _progress(progress: Progress | None) -> str | None:
    if progress is None:
        return None
    text = f"{progress.done:g}"
    if progress.total is not None:
        text += f" of {progress.total:g}"
        text += f" ({100 * progress.done / progress.total:.0f}%)" if progress.total else ""
    return text if progress.note is None else f"{text}  {progress.note}"


def _complete_command(gate: GateInfo) -> str:
    from holdfast.control.graphs import complete_command

    return complete_command(gate.graph, gate.name, typed=gate.schema is not None)


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("node", nargs=-1, shell_complete=complete_nodes)
@pass_shared
def why(shared: SharedOptions, run: str, node: tuple[str, ...]) -> None:
    """Explain why a run isn't running.

    Reasons include a full limit and its holders, a paused queue, missing or busy workers, pending waits and the due
    time. RUN is a run id or a unique prefix; NODE is the name of a node, as in `holdfast show`.

    \b
    Examples:
      holdfast why 0199a3f2-6c1e
      holdfast why 0199a3f2-6c1e load
      holdfast why 0199a3f2-6c1e --json | jq -r '.reasons[].code'
    """
    from holdfast.cli.connect import connect_or_empty
    from holdfast.control.explainer import WAITS

    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        for name in node:
            id = control.graphs.node(id, name)
        found = control.whys.why(id)
    if shared.json:
        show_json({"id": found.run.id, "state": found.run.state, "reasons": found.reasons})
        return
    show_line(f"{found.run.id}  {found.run.state}  {found.run.task}")
    for reason in found.reasons:
        since = reason.data.get("since") if reason.code in WAITS else None
        told = f" (since {format_timestamp(since)[:-4]}, {format_ago(since)})" if since else ""
        show_line(f"  {reason.text}{told}")
        if reason.command is not None:
            show_line(f"    {reason.command}")
