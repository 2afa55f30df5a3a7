"""Looking at runs: `runs`, `show`."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.completion import complete_nodes, complete_runs
from holdfast.cli.options import DURATION, filter_options, filters_of
from holdfast.cli.output import (
    TableColumn,
    format_ago,
    format_duration,
    format_time,
    is_interactive,
    note,
    show_fields,
    show_json,
    show_line,
    show_table,
    show_tree,
)
from holdfast.cli.render_graph import counted, graph_tree, told_gate
from holdfast.cli.render_history import LONGEST_VALUE, awaited, cut, history_tree, short
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.run import FINAL_STATES, GRAPH_QUEUE

if TYPE_CHECKING:
    from holdfast.control.graphs import GateInfo, GraphInfo
    from holdfast.control.runs import RunDetails
    from holdfast.model.run import Page, Progress, RunInfo

MOST_GATES = 10

COLUMNS = (
    TableColumn("RUN", whole=True),
    TableColumn("STATE", whole=True),
    TableColumn("TASK"),
    TableColumn("QUEUE", drop=2),
    TableColumn("TRY", right=True, drop=3),
    TableColumn("MADE"),
    TableColumn("TOOK", drop=4),
    TableColumn("ERROR", drop=1),
)


@holdfast.command()
@filter_options
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many.")
@click.option("--after", metavar="RUN", help="Go on after this run, the last one of the page before.")
@click.option(
    "--watch", type=DURATION, is_flag=False, flag_value="2", metavar="[SECONDS]",
    help="Show them again and again, until Ctrl-C.  [every 2 s]",
)  # fmt: skip
@pass_shared
def runs(shared: SharedOptions, limit: int, after: str | None, watch: float | None, **flags: Any) -> None:
    """List runs, the newest first.

    With filters those that fit all of them. Where very many others would have to be passed over, only a part of them is
    shown, and how to go on. With --json a list; with --watch too, one list a line.

    \b
    Examples:
      holdfast runs
      holdfast runs --state failed --task shop.tasks.charge
      holdfast runs --queue billing --watch 5
      holdfast runs --error "no funds" --since 2h
      holdfast runs --state running --json | jq -r '.[].id'
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        filters = filters_of(control, flags)
        cursor = None if after is None else str(control.runs.find(after))
        if watch is None:
            _show_page(shared, control.runs.page(**filters, limit=limit, after=cursor))
            return
        while True:
            page = control.runs.page(**filters, limit=limit, after=cursor)
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
    show_table(COLUMNS, [_row(run) for run in page], "no runs")
    if page.partial:
        note(f"very many were passed over, and there may be more: --after {page.after}")
    elif page.after is not None:
        note(f"there are more: --after {page.after}")


def _row(run: RunInfo[Any]) -> list[str]:
    took = (run.finished_at - run.started_at).total_seconds() if run.finished_at and run.started_at else None
    return [
        str(run.id),
        run.state,
        run.task,
        run.queue if run.queue != GRAPH_QUEUE else "-",
        str(run.attempt),
        format_ago(run.created_at),
        format_duration(took),
        "" if run.error is None else short(run.error),
    ]


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("node", nargs=-1, shell_complete=complete_nodes)
@click.option("--mermaid", is_flag=True, help="Print a graph as a Mermaid flowchart.")
@pass_shared
def show(shared: SharedOptions, run: str, node: tuple[str, ...], mermaid: bool) -> None:
    """Show all there is to know of a run, with its history.

    Of a durable function also its steps, with how long they took and what came of them, its children, and what it waits
    for; of a graph its nodes in layers, with their states, what they wait for, and its open gates. RUN is the run's id,
    or the beginning of it: at least four characters, and as many as no other run has. NODE is the name of a node of a
    graph; several names go on into graphs within it. On a terminal long results are cut; --json has everything.

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
        raise click.UsageError("give --mermaid or --json, not both.")
    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        for name in node:
            id = control.graphs.node(id, name)
        if mermaid:
            _show_flowchart(control.graphs.read(id))
            return
        details = control.runs.details(id)
    if shared.json:
        show_json(_as_data(details))
        return
    _show_details(details)


def _show_flowchart(graph: GraphInfo) -> None:
    from holdfast.cli.render_graph import MOST_EDGES, edges_of, flowchart

    click.echo(flowchart(graph))
    edges = edges_of(graph)
    if edges > MOST_EDGES:
        note(f"there are {edges:,} arrows; Mermaid draws {MOST_EDGES} unless its setting maxEdges says otherwise")


def _as_data(details: RunDetails) -> dict[str, Any]:
    """The run's own fields and the rest, side by side."""
    info = {field.name: getattr(details.info, field.name) for field in fields(details.info)}
    rest = {name: getattr(details, name) for name in details.__struct_fields__ if name != "info"}
    return info | rest


def _show_details(details: RunDetails) -> None:
    info = details.info
    show_fields(
        [
            ("run", str(info.id)),
            ("state", info.state),
            ("held", _held(details)),
            ("will end", None if details.ending is None else f"{details.ending}, when its undos have run"),
            ("waits for", _waits(details)),
            ("progress", _progress(info.progress)),
            ("task" if details.kind == "task" else details.kind, info.task if details.kind != "gate" else details.node),
            ("nodes", None if details.graph is None else counted(details.graph.counts)),
            ("queue", info.queue if details.kind == "task" else None),
            ("schedule", details.schedule),
            ("slot", format_time(info.scheduled_for)),
            ("trace", details.trace),
            ("node", None if details.node is None else f"{details.node}, of graph {details.node_of}"),
            ("parent", None if info.parent is None else str(info.parent)),
            ("priority", str(info.priority) if info.priority else None),
            ("tenant", info.tenant),
            ("tags", ", ".join(info.tags) or None),
            ("unique", details.unique),
            ("arguments", _arguments(details) if details.kind == "task" else None),
            ("options", _json(details.options) if details.options and details.kind == "task" else None),
            ("attempt", str(info.attempt) if details.kind == "task" else None),
            ("restarts", str(details.restarts) if details.restarts else None),
            ("crashes", str(info.crashes) if info.crashes else None),
            ("worker", info.worker),
            ("made", format_time(info.created_at)),
            ("due", format_time(details.due_at)),
            ("started", format_time(info.started_at)),
            ("deadline", None if info.final else format_time(details.deadline)),
            ("finished", format_time(info.finished_at)),
            ("kept until", format_time(details.expires_at)),
            ("result", _result(details) if info.state == "done" else None),
            ("error", None if info.error is None else f"{info.error} (code {info.error.code})"),
            ("traceback", info.error.traceback.rstrip() if info.error and info.error.traceback else None),
        ]
    )
    if details.graph is not None:
        click.echo("\nnodes")
        show_tree(graph_tree(details.graph))
    click.echo("\nhistory")
    show_tree(history_tree(details))
    if details.graph is not None and is_interactive():
        note(f"more of one node: holdfast show {info.id} NODE")


def _arguments(details: RunDetails) -> str:
    text = _json(details.args)
    return text if details.info.state != "blocked" or not details.needs else f"{text} (outputs are still to come)"


def _result(details: RunDetails) -> str:
    """Whole; that of a graph may be that of very many nodes, and is cut."""
    text = _json(details.info.result)
    return text if details.graph is None else cut(text, LONGEST_VALUE)


def _json(value: Any) -> str:
    """A kept JSON value on one line, with its own letters."""
    return json.dumps(value, ensure_ascii=False)


def _held(details: RunDetails) -> str | None:
    if details.full_limit is not None:
        return f"limit {details.full_limit} is full"
    reasons = {"quiescing": "a worker hasn't released it yet", "isolated": "isolated: its worker processes died"}
    return None if details.held is None else reasons.get(details.held, details.held)


def _waits(details: RunDetails) -> str | None:
    lines = [awaited(wait) for wait in details.waits]
    gates = [] if details.graph is None else [gate for gate in details.graph.gates if gate.state == "waiting"]
    for gate in gates[:MOST_GATES]:
        lines += [f"gate {gate.name}, {told_gate(gate)}:", f"  {_how_to_conclude(gate)}"]
    if len(gates) > MOST_GATES:
        lines.append(f"… and {len(gates) - MOST_GATES:,} more gates (holdfast gate {details.info.id})")
    if details.gate is not None and details.gate.state == "waiting":
        lines += [f"somebody to complete it, {told_gate(details.gate)}:", f"  {_how_to_conclude(details.gate)}"]
    if details.info.state == "blocked":
        lines += [
            f"node {name}, which is {state}" for name, state in details.needs.items() if state not in FINAL_STATES
        ]
    return "\n".join(lines) or None


def _progress(progress: Progress | None) -> str | None:
    if progress is None:
        return None
    told = f"{progress.done:g}"
    if progress.total is not None:
        told += f" of {progress.total:g}"
        told += f" ({100 * progress.done / progress.total:.0f}%)" if progress.total else ""
    return told if progress.note is None else f"{told}  {progress.note}"


def _how_to_conclude(gate: GateInfo) -> str:
    from holdfast.control.graphs import how_to_conclude

    return how_to_conclude(gate.graph, gate.name, typed=gate.schema is not None)


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("node", nargs=-1, shell_complete=complete_nodes)
@pass_shared
def why(shared: SharedOptions, run: str, node: tuple[str, ...]) -> None:
    """Say why a run isn't running, or who runs it.

    A full limit and who holds it, a paused queue, no worker that is alive or knows the task, what it waits for, when it
    is due. RUN is an id or its beginning; NODE the name of a node of a graph, as with `holdfast show`.

    \b
    Examples:
      holdfast why 0199a3f2-6c1e
      holdfast why 0199a3f2-6c1e load
      holdfast why 0199a3f2-6c1e --json | jq -r '.reasons[].code'
    """
    from holdfast.cli.connect import connect_or_empty

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
        show_line(f"  {reason.text}")
