"""The `gate` command: list, complete and fail the gates of a graph or a durable function, and links to them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.completion import complete_gates, complete_runs
from holdfast.cli.options import DURATION, by_option, payload
from holdfast.cli.output import (
    TableColumn,
    format_ago,
    format_time,
    note,
    show_fields,
    show_json,
    show_line,
    show_table,
)
from holdfast.cli.render_graph import format_decision, format_gate
from holdfast.cli.render_history import cut, one_line
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.errors import GraphError
from holdfast.model.gate_links import DEFAULT_EXPIRY

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.control import Control
    from holdfast.control.gates import GateDependency, GateDetails, GateInfo, OpenGate
    from holdfast.model.gate_links import GateLinkInfo

COLUMNS = (
    TableColumn("GATE", whole=True),
    TableColumn("STATE", whole=True),
    TableColumn("GRAPH", whole=True),
    TableColumn(""),
)
OPEN_COLUMNS = (
    TableColumn("GATE", whole=True),
    TableColumn("RUN", whole=True),
    TableColumn("GRAPH", drop=1),
    TableColumn("TENANT", drop=3),
    TableColumn("OPEN SINCE", whole=True),
    TableColumn("TIMES OUT", drop=4),
    TableColumn("ASKED BY LINK", drop=5),
    TableColumn("PAYLOAD", drop=2),
)
LINK_COLUMNS = (
    TableColumn("LINK", whole=True),
    TableColumn("RECIPIENT"),
    TableColumn("STATE"),
    TableColumn("EXPIRES", whole=True),
)
ACTIONS = ("complete", "fail", "link", "links", "revoke")
NOT_USABLE = "could not be used any more; nothing changed"
NO_REASON = "no reason given"
MAX_VALUE_CHARS = 2000
MAX_PAYLOAD_CHARS = 80
MAX_OPEN = 100


@holdfast.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.argument("name", required=False, shell_complete=complete_gates)
@click.argument("outcome", required=False, type=click.Choice(ACTIONS), metavar="[ACTION]")
@click.argument("value", required=False, metavar="[OUTPUT|ERROR|LINK]")
@by_option
@click.option("--expires", type=DURATION, metavar="DURATION", help="How long a link is valid.  [default: 3d]")
@click.option("--recipient", metavar="WHO", help="For whom a link is; recorded as who decided.")
@pass_shared
def gate(
    shared: SharedOptions,
    run: str | None,
    name: str | None,
    outcome: str | None,
    value: str | None,
    by: str | None,
    expires: float | None,
    recipient: str | None,
) -> None:
    """List open gates, complete or fail a gate of a graph or a durable function, or manage links to it.

    Without arguments, the gates of all runs that wait for a decision are listed, the oldest first: what is decided,
    since when the gate is open, when it times out, and who has a link to it. ACTION is complete, fail, link, links or
    revoke. OUTPUT is JSON, defaults to null and must match the gate's type; ERROR is text. The decision on a gate that
    isn't open yet takes effect when it opens. Repeating a decision changes nothing; a different one is rejected. With
    RUN alone, all gates of the run are listed, including those of nested graphs; with RUN and NAME, the gate is shown
    with the results of the nodes before it, and who decided. RUN is a run id or a unique prefix. Put -- before an
    OUTPUT that starts with a minus sign. `link` prints a URL with which a person without a token decides the gate,
    once; it needs $HOLDFAST_SECRET and $HOLDFAST_PUBLIC_URL, or an app with these settings. `links` lists the links to
    the gate with their ids; `revoke` revokes the one with the id LINK, or all of them.

    \b
    Examples:
      holdfast gate
      holdfast gate 0199a3f2-6c1e
      holdfast gate 0199a3f2-6c1e approve
      holdfast gate 0199a3f2-6c1e approve complete '{"ok": true}' --by ada
      holdfast gate 0199a3f2-6c1e approve fail "too expensive"
      holdfast gate 0199a3f2-6c1e approve link --expires 7d --recipient ada
      holdfast gate 0199a3f2-6c1e approve revoke 5f0c1d2e3a4b
    """
    from holdfast.cli.connect import connect_or_empty

    _check_options(outcome, value, by, for_link=expires is not None or recipient is not None)
    output = payload(value, "OUTPUT") if outcome == "complete" else None
    with connect_or_empty(shared) as control:
        if run is None:
            _list_open(shared, control.gates.open(limit=MAX_OPEN + 1))
            return
        id = control.runs.find(run)
        if name is None or outcome is None:
            _list(shared, control, id, name)
            return
        if outcome == "links":
            _list_links(shared, control.gate_links.list(id, name))
            return
        if outcome == "revoke":
            _revoke(shared, control, id, name, value, by)
            return
        if outcome == "link":
            lifetime = DEFAULT_EXPIRY.total_seconds() if expires is None else expires
            link = control.gate_links.create(id, name, expires=lifetime, recipient=recipient)
            if shared.json:
                show_json(link)
            else:
                show_line(link.url)
                until = format_time(link.expires_at)
                note(f"link {link.id}, valid until {until}; anyone who has it can decide the gate, once")
            return
        if outcome == "complete":
            changed = control.graphs.complete(id, name, output, by)
        else:
            changed = control.graphs.fail(id, name, NO_REASON if value is None else value, by)
        state = control.runs.info(control.graphs.node(id, name)).state
    if shared.json:
        show_json({"run": id, "gate": name, "outcome": outcome, "changed": changed, "state": state})
        return
    _show_result(name, outcome, changed=changed, state=state)


def _list_open(shared: SharedOptions, found: list[OpenGate]) -> None:
    gates = found[:MAX_OPEN]
    if shared.json:
        show_json(gates)
    else:
        show_table(OPEN_COLUMNS, [_open_row(gate) for gate in gates], "no gate is open")
    if len(found) > MAX_OPEN:
        note(f"only the oldest {MAX_OPEN} are listed")
    if gates and not shared.json:
        note("show one with: holdfast gate RUN GATE")


def _open_row(gate: OpenGate) -> list[str]:
    from holdfast.model.previews import arguments_line

    tenant, until = gate.tenant or "", "" if gate.until is None else format_ago(gate.until)
    payload = arguments_line(gate.payload, MAX_PAYLOAD_CHARS)
    return [
        gate.name,
        str(gate.graph),
        gate.task,
        tenant,
        format_ago(gate.since),
        until,
        ", ".join(gate.asked),
        payload,
    ]


def _check_options(outcome: str | None, value: str | None, by: str | None, *, for_link: bool) -> None:
    if for_link and outcome != "link":
        raise click.UsageError("--expires and --recipient are for `link`: holdfast gate RUN GATE link")
    if outcome == "link" and value is not None:
        raise click.UsageError("`link` takes no OUTPUT: the person who opens the link enters it")
    if outcome == "links" and (value is not None or by is not None):
        raise click.UsageError("`links` takes no more arguments: holdfast gate RUN GATE links")
    if outcome == "link" and by is not None:
        raise click.UsageError("`link` takes no --by: name who decides with --recipient")


def _list_links(shared: SharedOptions, links: list[GateLinkInfo]) -> None:
    if shared.json:
        show_json(links)
        return
    rows = [[each.id, each.recipient or "", _link_state(each), format_time(each.expires_at) or ""] for each in links]
    show_table(LINK_COLUMNS, rows, "no links")


def _link_state(link: GateLinkInfo) -> str:
    return f"{link.state} by {link.revoked_by}" if link.revoked_by else link.state


def _revoke(shared: SharedOptions, control: Control, id: UUID, name: str, link: str | None, by: str | None) -> None:
    revoked = control.gate_links.revoke(id, name, link, by)
    if shared.json:
        show_json({"run": id, "gate": name, "revoked": revoked})
    elif link is not None:
        show_line(f"link {link}  {'revoked' if revoked else NOT_USABLE}")
    else:
        show_line(f"{name}  {revoked} {'link' if revoked == 1 else 'links'} revoked")


def _show_result(name: str, outcome: str, *, changed: bool, state: str) -> None:
    done = "completed" if outcome == "complete" else "failed"
    if not changed:
        show_line(f"{name}  already {done}; nothing changed")
    elif state == "blocked":
        show_line(f"{name}  not open yet; will be {done} when it opens")
    else:
        show_line(f"{name}  {done}")


def _list(shared: SharedOptions, control: Control, id: UUID, name: str | None) -> None:
    found = control.graphs.gates(id)
    if name is not None:
        _show(shared, control, id, [gate for gate in found if gate.name == name], name)
        return
    if shared.json:
        show_json(found)
        return
    show_table(COLUMNS, [_row(gate) for gate in found], "no gates")
    if any(gate.state == "waiting" for gate in found):
        note("complete one with: holdfast gate GRAPH GATE complete [OUTPUT]")


def _row(gate: GateInfo) -> list[str]:
    text = format_gate(gate) if gate.state == "waiting" else ""
    if gate.early is not None:
        text = "will be completed when it opens" if gate.early == "done" else "will fail when it opens"
    return [gate.name, gate.state, str(gate.graph), ", ".join(filter(None, [text, format_decision(gate)]))]


def _show(shared: SharedOptions, control: Control, id: UUID, gates: list[GateInfo], name: str) -> None:
    if not gates:
        raise GraphError(f"run {id} has no gate {name!r}; `holdfast gate {id}` lists its gates")
    found = [control.gates.read(gate.id) for gate in gates]
    if shared.json:
        show_json(found)
        return
    for number, gate in enumerate(found):
        if number:
            show_line("")
        show_fields(_fields(gate))


def _fields(gate: GateDetails) -> Iterator[tuple[str, str | None]]:
    yield "gate", gate.name
    yield "state", f"{gate.state}, {format_gate(gate)}" if gate.state == "waiting" else gate.state
    yield "graph", f"{gate.task} {gate.graph}"
    yield "tenant", gate.tenant
    yield "payload", None if gate.payload is None else _value(gate.payload)
    yield "decided", format_decision(gate) or None
    for link in gate.links:
        yield "link", f"{link.id}, {_link_state(link)}" + (f", for {link.recipient}" if link.recipient else "")
    yield "output", _value(gate.output) if gate.state == "done" else None
    yield "error", None if gate.error is None else gate.error.message
    for node in gate.depends_on:
        yield "after", _outcome(node)
    yield "more", "the gate depends on more nodes (--json has the first 20)" if gate.more_depends_on else None
    names = [node.name for node in gate.dependents]
    yield "before", (", ".join(names) + (", …" if gate.more_dependents else "")) or None
    if gate.state == "waiting":
        from holdfast.control.graphs import complete_command

        yield "complete", complete_command(gate.graph, gate.name, typed=gate.schema is not None)
        yield "OUTPUT", None if gate.schema is None else "\n".join(_expected(gate.schema))


def _expected(schema: Mapping[str, Any]) -> list[str]:
    """Describe the output that a gate takes: its fields, each on a line, or its type."""
    whole = _resolve(schema, schema)
    fields = whole.get("properties")
    if whole.get("type") != "object" or not fields:
        return [_type_name(whole, schema)]
    required = whole.get("required", ())
    return ["a JSON object", *(f"  {_field(name, part, schema, name in required)}" for name, part in fields.items())]


def _field(name: str, part: Mapping[str, Any], schema: Mapping[str, Any], required: bool) -> str:
    default = _resolve(part, schema).get("default")
    missing = "" if required else ", optional" if default is None else f", default {json.dumps(default)}"
    return f'"{name}": {_type_name(part, schema)}{missing}'


def _type_name(part: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    plain = _resolve(part, schema)
    choices = [each for key in ("anyOf", "oneOf") for each in plain.get(key, ())]
    if choices:
        return " or ".join(_type_name(each, schema) for each in choices)
    if "enum" in plain:
        return " or ".join(json.dumps(each, ensure_ascii=False) for each in plain["enum"])
    if "const" in plain:
        return json.dumps(plain["const"], ensure_ascii=False)
    kind = plain.get("type", "any JSON")
    names = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
    return f"{names} ({plain['format']})" if "format" in plain else names


def _resolve(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow the reference of a part of a schema."""
    if "$ref" not in part:
        return part
    target = schema.get("$defs", {}).get(str(part["$ref"]).rpartition("/")[2], {})
    return {**_resolve(target, schema), **{name: value for name, value in part.items() if name != "$ref"}}


def _outcome(node: GateDependency) -> str:
    lines = [f"{node.name}, {node.state}" + (f" ({node.task})" if node.task != node.name else "")]
    if node.kind == "task":
        lines.append(f"  arguments {_value(node.args)}")
    if node.error is not None:
        lines.append(f"  error {cut(one_line(str(node.error)), MAX_VALUE_CHARS)}")
    elif node.state == "done":
        lines.append(f"  result {_value(node.result)}")
    return "\n".join(lines)


def _value(value: Any) -> str:
    return cut(json.dumps(value, ensure_ascii=False), MAX_VALUE_CHARS)
