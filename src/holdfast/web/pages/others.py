"""Schedules, limits and workers, and the buttons on them."""

from __future__ import annotations

from typing import Any

from holdfast.web.pages.render import link
from holdfast.web.pages.table import Action, Page, Visit


def _schedules(visit: Visit) -> dict[str, Any]:
    return {"schedules": visit.control.schedules.list()}


def _limits(visit: Visit) -> dict[str, Any]:
    return {"limits": visit.control.limits.list(), "live": "/api/v1/live"}


def _workers(visit: Visit) -> dict[str, Any]:
    return {"workers": visit.control.workers.list(), "live": "/api/v1/live"}


def _schedule(visit: Visit) -> str:
    name, verb = visit.form.get("schedule", ""), visit.form.get("verb")
    if verb == "run":
        id = visit.control.schedules.run(name)
        return link("/schedules", did="polled-soon") if id is None else link(f"/runs/{id}", did="asked")
    change = visit.control.schedules.pause if verb == "pause" else visit.control.schedules.resume
    change([name])
    return link("/schedules", did="paused" if verb == "pause" else "resumed")


PAGES = (
    Page(path="/schedules", template="schedules.html", section="schedules", do=_schedules, whole=True),
    Page(path="/limits", template="limits.html", section="limits", do=_limits, whole=True),
    Page(path="/workers", template="workers.html", section="workers", do=_workers, whole=True),
)
ACTIONS = (Action(path="/schedules", do=_schedule, whole=True),)
