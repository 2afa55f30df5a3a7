"""The pages of schedules, limits and workers."""

from __future__ import annotations

from typing import Any

from holdfast.web.pages.page import FormAction, PageRequest, PageSpec
from holdfast.web.pages.render import link


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
    PageSpec(path="/schedules", template="schedules.html", section="schedules", do=_schedules, all_tenants=True),
    PageSpec(path="/limits", template="limits.html", section="limits", do=_limits, all_tenants=True),
    PageSpec(path="/workers", template="workers.html", section="workers", do=_workers, all_tenants=True),
)
ACTIONS = (FormAction(path="/schedules", do=_change_schedule, all_tenants=True),)
