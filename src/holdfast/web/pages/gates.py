"""Gates that wait for people, each with a form made from its type."""

from __future__ import annotations

from typing import Any

from holdfast.errors import GraphError
from holdfast.web.pages.forms import fields_of, value_of
from holdfast.web.pages.render import link
from holdfast.web.pages.table import Action, Page, Visit
from holdfast.web.problems import Refusal

MOST = 100


def _list(visit: Visit) -> dict[str, Any]:
    found = visit.control.gates.open(visit.visitor.tenant, MOST + 1)
    return {
        "gates": [(gate, fields_of(gate.schema)) for gate in found[:MOST]],
        "more": len(found) > MOST,
        "live": "/api/v1/live",
    }


def _conclude(visit: Visit) -> str:
    graph, name = visit.run().id, visit.form.get("gate", "")
    try:
        gates = visit.control.graphs.gates(graph)
    except GraphError as error:
        raise Refusal(404, str(error), "gate_not_found") from None
    gate = next((each for each in gates if each.name == name and each.graph == graph), None)
    if gate is None:
        raise Refusal(404, f"the graph has no gate {name[:100]!r}", "gate_not_found")
    if visit.form.get("outcome") == "fail":
        reason = visit.form.get("error", "").strip() or "no reason was given"
        changed = visit.control.graphs.fail(graph, name, reason, visit.visitor.by)
    else:
        output = value_of(gate.schema, visit.form)
        changed = visit.control.graphs.complete(graph, name, output, visit.visitor.by)
    back = "/gates" if visit.form.get("back") == "gates" else f"/runs/{graph}"
    return link(back, did="gate" if changed else "gate-before")


PAGES = (Page(path="/gates", template="gates.html", section="gates", do=_list),)
ACTIONS = (Action(path="/runs/{id}/gate", do=_conclude),)
