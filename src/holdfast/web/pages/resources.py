"""Gates that wait for people, each with a form made from its type."""

from __future__ import annotations

from typing import Any

from holdfast.errors import GraphError
from holdfast.web.pages.forms import fields_of, value_of
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec
from holdfast.web.pages.render import link
from holdfast.web.responses import RequestError

MOST = 100


def _list(visit: PageRequest) -> dict[str, Any]:
    found = visit.control.gates.open(visit.principal.tenant, MOST + 1)
    return {
        "gates": [(gate, fields_of(gate.schema)) for gate in found[:MOST]],
        "more": len(found) > MOST,
        "live": "/api/v1/live",
    }


def _conclude(visit: PageRequest) -> str:
    graph, name = visit.run().id, visit.form.get("gate", "")
    try:
        gates = visit.control.graphs.gates(graph)
    except GraphError as error:
        raise RequestError(404, str(error), "gate_not_found") from None
    gate = next((each for each in gates if each.name == name and each.graph == graph), None)
    if gate is None:
        raise RequestError(404, f"the graph has no gate {name[:100]!r}", "gate_not_found")
    if visit.form.get("outcome") == "fail":
        reason = visit.form.get("error", "").strip() or "no reason was given"
        changed = visit.control.graphs.fail(graph, name, reason, visit.principal.by)
    else:
        output = value_of(gate.schema, visit.form)
        changed = visit.control.graphs.complete(graph, name, output, visit.principal.by)
    back = "/gates" if visit.form.get("back") == "gates" else f"/runs/{graph}"
    return link(back, did="gate" if changed else "gate-before")


def _schedules(visit: PageRequest) -> dict[str, Any]:
    return {"schedules": visit.control.schedules.list()}


def _limits(visit: PageRequest) -> dict[str, Any]:
    return {"limits": visit.control.limits.list(), "live": "/api/v1/live"}


def _workers(visit: PageRequest) -> dict[str, Any]:
    return {"workers": visit.control.workers.list(), "live": "/api/v1/live"}


def _schedule(visit: PageRequest) -> str:
    name, verb = visit.form.get("schedule", ""), visit.form.get("verb")
    if verb == "run":
        id = visit.control.schedules.run(name)
        return link("/schedules", did="polled-soon") if id is None else link(f"/runs/{id}", did="asked")
    change = visit.control.schedules.pause if verb == "pause" else visit.control.schedules.resume
    change([name])
    return link("/schedules", did="paused" if verb == "pause" else "resumed")


PAGES = (
    PageSpec(path="/gates", template="gates.html", section="gates", do=_list),
    PageSpec(path="/schedules", template="schedules.html", section="schedules", do=_schedules, all_tenants=True),
    PageSpec(path="/limits", template="limits.html", section="limits", do=_limits, all_tenants=True),
    PageSpec(path="/workers", template="workers.html", section="workers", do=_workers, all_tenants=True),
)
ACTIONS = (
    FormAction(path="/runs/{id}/gate", do=_conclude),
    FormAction(path="/schedules", do=_schedule, all_tenants=True),
)
