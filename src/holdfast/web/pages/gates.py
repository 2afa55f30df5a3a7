"""The pages of gates: the list of pending approvals, and a page per gate on which it is decided.

A decision takes two requests: the first validates the form and shows what will be recorded; the second records it. No
script is involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.control.gates import GateDetails
from holdfast.errors import BadArguments, ConfigError, GraphError, KeyConflict, RunFinished
from holdfast.model.run import FINAL_STATES
from holdfast.telemetry import log
from holdfast.web.pages.forms import form_fields, read_form
from holdfast.web.pages.page import FormAction, PageContent, PageRequest, PageSpec
from holdfast.web.pages.render import link
from holdfast.web.responses import RequestError

MAX_GATES = 100
NO_REASON = "no reason given"


def _list(request: PageRequest) -> dict[str, Any]:
    found = request.control.gates.open(request.principal.scope, MAX_GATES + 1)
    return {"gates": found[:MAX_GATES], "more": len(found) > MAX_GATES, "live": "/api/v1/live"}


def _show(request: PageRequest) -> dict[str, Any]:
    gate = _read(request)
    unfinished = gate.state not in FINAL_STATES
    live = f"/api/v1/runs/{gate.id}/live" if unfinished else None
    return _values(gate) | {"live": live, "can_link": request.control.gate_links.is_configured}


def _decide(request: PageRequest) -> str | PageContent:
    """Show the decision for confirmation, record it once it is confirmed, or go back to the form."""
    gate, form = _read(request), request.form
    if gate.state in FINAL_STATES:
        return _after(gate, "gate-decided")
    step = form.get("step")
    if step == "edit":
        return PageContent("gate.html", _values(gate, form))
    rejected = form.get("outcome") == "fail"
    reason = form.get("error", "").strip() or NO_REASON
    output = None
    if not rejected:
        submitted = read_form(gate.schema, form)
        if submitted.problems:
            return PageContent("gate.html", _values(gate, form, submitted.problems), 422)
        try:
            output = request.control.gates.checked_output(gate, submitted.value)
        except BadArguments as error:
            return PageContent("gate.html", _values(gate, form, {"": str(error)}), 422)
    if step == "confirm":
        return _record(request, gate, output=output, reason=reason if rejected else None)
    values = _values(gate, form) | {"rejected": rejected, "reason": reason, "output": output, "decision_first": True}
    return PageContent("gate_confirm.html", values)


def _link(request: PageRequest) -> str | PageContent:
    """Create a link to the gate and show it: its URL is stored nowhere."""
    gate = _read(request)
    if gate.state in FINAL_STATES or gate.early is not None:
        return _after(gate, "gate-decided")
    days, recipient = request.form.get("days", ""), request.form.get("recipient", "").strip() or None
    try:
        expires = timedelta(days=int(days) if days.isascii() and days.isdigit() and len(days) <= 3 else 0)
        created = request.control.gate_links.create(gate.graph, gate.name, expires=expires, recipient=recipient)
    except ConfigError as error:
        return PageContent("gate.html", _values(gate) | {"can_link": True, "link_problem": str(error)}, 422)
    except RunFinished:
        return _after(gate, "gate-decided")
    log.operator_action(f"link gate {gate.id}", request.principal.by)
    return PageContent("gate.html", _values(_read(request)) | {"created_link": created})


def _revoke(request: PageRequest) -> str:
    gate, chosen = _read(request), request.form.get("link", "")
    try:
        request.control.gate_links.revoke(gate.graph, gate.name, chosen or None, request.principal.by)
    except GraphError as error:
        raise RequestError(404, str(error), "link_not_found") from None
    return _after(gate, "links-revoked")


def _record(request: PageRequest, gate: GateDetails, *, output: Any, reason: str | None) -> str:
    graph, name, by = gate.graph, gate.name, request.principal.by
    try:
        if reason is None:
            changed = request.control.graphs.complete(graph, name, output, by)
        else:
            changed = request.control.graphs.fail(graph, name, reason, by)
    except (KeyConflict, RunFinished):
        return _after(gate, "gate-decided")
    return _after(gate, "gate-before" if not changed else "rejected" if reason is not None else "approved")


def _after(gate: GateDetails, did: str) -> str:
    return link(f"/gates/{gate.id}", did=did)


def _read(request: PageRequest) -> GateDetails:
    try:
        return request.control.gates.read(request.run().id)
    except GraphError as error:
        raise RequestError(404, str(error), "gate_not_found") from None


def _values(
    gate: GateDetails, form: Mapping[str, str] | None = None, problems: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the values for the template. `form`: what was entered; without it, the defaults."""
    fields = form_fields(gate.schema)
    entered = {each.name: each.default if form is None else form.get(f"field:{each.name}", "") for each in fields}
    return {
        "section": "gates",
        "gate": gate,
        "fields": fields,
        "entered": entered,
        "entered_reason": "" if form is None else form.get("error", ""),
        "problems": problems or {},
        "decision_first": bool(problems),
        "can_link": False,
        "created_link": None,
        "link_problem": "",
    }


PAGES = (
    PageSpec(path="/gates", template="gates.html", section="gates", do=_list, may_lag=True),
    PageSpec(path="/gates/{id}", template="gate.html", section="gates", do=_show),
)
ACTIONS = (
    FormAction(path="/gates/{id}", do=_decide, requires="approve"),
    FormAction(path="/gates/{id}/link", do=_link, requires="approve"),
    FormAction(path="/gates/{id}/links/revoke", do=_revoke, requires="approve"),
)
