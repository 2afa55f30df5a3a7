"""Graphs from outside: `gate`. How `show` draws them is in `drawing.py` and `mermaid.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_gates, complete_runs
from holdfast.cli.options import by_option, payload
from holdfast.cli.output import TableColumn, note, show_json, show_line, show_table
from holdfast.cli.render_graph import told_gate
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.errors import GraphError

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.control import Control
    from holdfast.control.graphs import GateInfo

COLUMNS = (
    TableColumn("GATE", whole=True),
    TableColumn("STATE", whole=True),
    TableColumn("GRAPH", whole=True),
    TableColumn(""),
)
NO_REASON = "no reason was given"


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("name", required=False, shell_complete=complete_gates)
@click.argument("outcome", required=False, type=click.Choice(["complete", "fail"]), metavar="[complete|fail]")
@click.argument("value", required=False, metavar="[OUTPUT|ERROR]")
@by_option
@pass_shared
def gate(
    shared: SharedOptions, run: str, name: str | None, outcome: str | None, value: str | None, by: str | None
) -> None:
    """Complete a gate of a graph, or let it fail; or list the gates.

    OUTPUT is JSON, null if it is left out, and must fit the gate's type; ERROR is text. A gate that isn't open yet
    keeps it until it is. The same again changes nothing and says so; another outcome is refused. With RUN alone all
    gates are listed, those of graphs within it too, with their graphs' ids. RUN is an id or its beginning. Put -- in
    front of an OUTPUT that begins with a minus.

    \b
    Examples:
      holdfast gate 0199a3f2-6c1e
      holdfast gate 0199a3f2-6c1e approve complete '{"ok": true}' --by ada
      holdfast gate 0199a3f2-6c1e approve fail "too dear"
    """
    from holdfast.cli.connect import connect_or_empty

    output = payload(value, "OUTPUT") if outcome == "complete" else None
    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        if name is None or outcome is None:
            _list(shared, control, id, name)
            return
        if outcome == "complete":
            changed = control.graphs.complete(id, name, output, by)
        else:
            changed = control.graphs.fail(id, name, NO_REASON if value is None else value, by)
        state = control.runs.info(control.graphs.node(id, name)).state
    if shared.json:
        show_json({"run": id, "gate": name, "outcome": outcome, "changed": changed, "state": state})
        return
    _tell(name, outcome, changed=changed, state=state)


def _tell(name: str, outcome: str, *, changed: bool, state: str) -> None:
    done = "completed" if outcome == "complete" else "failed"
    if not changed:
        show_line(f"{name}  had been {done} so before: nothing was changed")
    elif state == "blocked":
        show_line(f"{name}  isn't open yet: it will be {done} when it is")
    else:
        show_line(f"{name}  {done}")


def _list(shared: SharedOptions, control: Control, id: UUID, name: str | None) -> None:
    found = control.graphs.gates(id)
    if name is not None:
        found = [gate for gate in found if gate.name == name]
        if not found:
            raise GraphError(f"graph run {id} has no gate {name!r}; `holdfast gate {id}` lists those that it has")
    if shared.json:
        show_json(found)
        return
    show_table(COLUMNS, [_row(gate) for gate in found], "no gates")
    if any(gate.state == "waiting" for gate in found):
        note("holdfast gate GRAPH GATE complete [OUTPUT] completes one")


def _row(gate: GateInfo) -> list[str]:
    told = told_gate(gate) if gate.state == "waiting" else ""
    if gate.early is not None:
        told = "will be complete when it opens" if gate.early == "done" else "will fail when it opens"
    return [gate.name, gate.state, str(gate.graph), told]
