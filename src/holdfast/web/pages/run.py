"""One run: all there is to know of it, and what can be done to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.errors import ConfigError, RunNotFound
from holdfast.model.run import FINAL_STATES
from holdfast.web.pages.forms import fields_of
from holdfast.web.pages.picture import picture_of
from holdfast.web.pages.render import link
from holdfast.web.pages.table import Action, Page, Visit
from holdfast.web.pages.timeline import timeline_of

SHOWN_STEPS = 200
SHOWN_ENTRIES = 200


def _show(visit: Visit) -> dict[str, Any]:
    info = visit.run()
    details = visit.control.runs.details(info.id)
    now = datetime.now(UTC)
    steps = [step for step in details.steps if step.kind != "write"]
    return {
        "run": details,
        "info": details.info,
        "reasons": [] if info.state in FINAL_STATES else visit.control.whys.why(info.id, visit.visitor.tenant).reasons,
        "timeline": timeline_of(details, now),
        "picture": None if details.graph is None else picture_of(details.graph),
        "gates": [] if details.graph is None else _open_gates(details.graph.gates),
        "steps": steps[-SHOWN_STEPS:],
        "more_steps": max(len(steps) - SHOWN_STEPS, 0),
        "history": details.history[-SHOWN_ENTRIES:],
        "more_history": max(len(details.history) - SHOWN_ENTRIES, 0),
        "live": None if info.state in FINAL_STATES else f"/api/v1/runs/{info.id}/live",
    }


def _open_gates(gates: list[Any]) -> list[tuple[Any, Any]]:
    return [(gate, fields_of(gate.schema)) for gate in gates if gate.state == "waiting"]


def _cancel(visit: Visit) -> str:
    reason = visit.form.get("reason", "").strip() or None
    changed = visit.control.runs.cancel(visit.run().id, reason, by=visit.visitor.by)
    return link(f"/runs/{visit.id}", did="cancelled" if changed else "had-ended")


def _retry(visit: Visit) -> str:
    changed = visit.control.runs.retry(visit.run().id, by=visit.visitor.by)
    return link(f"/runs/{visit.id}", did="retried" if changed else "was-unfinished")


def _fork(visit: Visit) -> str:
    from_step = visit.form.get("from_step", "").strip() or None
    args = _json(visit.form.get("args", ""), "the arguments")
    fork = visit.control.runs.fork(visit.run().id, from_step, args, by=visit.visitor.by)
    return link(f"/runs/{fork}", did="forked")


def _send(visit: Visit) -> str:
    payload = _json(visit.form.get("payload", ""), "the payload")
    visit.control.runs.send(visit.run().id, visit.form.get("topic", "").strip(), payload, by=visit.visitor.by)
    return link(f"/runs/{visit.id}", did="sent")


def _json(text: str, what: str) -> Any:
    """What was typed as JSON; nothing is null."""
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f'{what} must be JSON, like {{"ok": true}} or "text": {error}') from None


def _find(visit: Visit) -> dict[str, Any] | str:
    """What was typed into the field for ids: the run whose id begins so."""
    given = visit.query.get("id", "").strip()
    try:
        return f"/runs/{visit.visitor.find(visit.control, given)}"
    except RunNotFound as error:
        return {"given": given, "detail": str(error)}


PAGES = (
    Page(path="/find", template="find.html", section="runs", do=_find),
    Page(path="/runs/{id}", template="run.html", section="runs", do=_show),
)
ACTIONS = (
    Action(path="/runs/{id}/cancel", do=_cancel),
    Action(path="/runs/{id}/retry", do=_retry),
    Action(path="/runs/{id}/fork", do=_fork),
    Action(path="/runs/{id}/send", do=_send),
)
