"""The pages of gates, schedules, limits and workers."""

from __future__ import annotations

from typing import Any

from holdfast.errors import GraphError
from holdfast.web.pages.forms import form_fields, form_value
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec
from holdfast.web.pages.render import link
from holdfast.web.responses import RequestError

MAX_GATES = 100


def _gates(request: PageRequest) -> dict[str, Any]:
    found = request.control.gates.open(request.principal.tenant, MAX_GATES + 1)
    return {
        "gates": [(gate, form_fields(gate.schema)) for gate in found[:MAX_GATES]],
        "more": len(found) > MAX_GATES,
        "live": "/api/v1/live",
    }


def _decide_gate(request: PageRequest) -> str:
    graph, name = request.run().id, request.form.get("gate", "")
    try:
        gates = request.control.graphs.gates(graph)
    except GraphError as error:
        raise RequestError(404, str(error), "gate_not_found") from None
    gate = next((each for each in gates if each.name == name and each.graph == graph), None)
    if gate is None:
        raise RequestError(404, f"the graph has no gate {name[:100]!r}", "gate_not_found")
    rejected = request.form.get("outcome") == "fail"
    if rejected:
        reason = request.form.get("error", "").strip() or "no reason given"
        changed = request.control.graphs.fail(graph, name, reason, request.principal.by)
    else:
        output = form_value(gate.schema, request.form)
        changed = request.control.graphs.complete(graph, name, output, request.principal.by)
    back = "/gates" if request.form.get("back") == "gates" else f"/runs/{graph}"
    return link(back, did="gate-before" if not changed else "rejected" if rejected else "approved")


def _schedules(request: PageRequest) -> dict[str, Any]:
    return {"schedules": request.control.schedules.list()}


def _change_schedule(request: PageRequest) -> str:
    name, verb = request.form.get("schedule", ""), request.form.get("verb")
    if verb == "run":
        id = request.control.schedules.run(name)
        return link("/schedules", did="polled-soon") if id is None else link(f"/runs/{id}", did="created")
    change = request.control.schedules.pause if verb == "pause" else request.control.schedules.resume
    change([name])
    return link("/schedules", did="paused" if verb == "pause" else "resumed")


def _limits(request: PageRequest) -> dict[str, Any]:
    return {"limits": request.control.limits.list(), "live": "/api/v1/live"}


def _workers(request: PageRequest) -> dict[str, Any]:
    return {"workers": request.control.workers.list(), "live": "/api/v1/live"}


PAGES = (
    PageSpec(path="/gates", template="gates.html", section="gates", do=_gates),
    PageSpec(path="/schedules", template="schedules.html", section="schedules", do=_schedules, all_tenants=True),
    PageSpec(path="/limits", template="limits.html", section="limits", do=_limits, all_tenants=True),
    PageSpec(path="/workers", template="workers.html", section="workers", do=_workers, all_tenants=True),
)
ACTIONS = (
    FormAction(path="/runs/{id}/gate", do=_decide_gate),
    FormAction(path="/schedules", do=_change_schedule, all_tenants=True),
)
