"""The pages of schedules, limits and workers."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec, parse_json
from holdfast.web.pages.render import link


def _schedules(request: PageRequest) -> dict[str, Any]:
    return {"schedules": request.control.schedules.list()}


def _change_schedule(request: PageRequest) -> str:
    name, verb, by = request.form.get("schedule", ""), request.form.get("verb"), request.principal.by
    schedules = request.control.schedules
    if verb == "run":
        id = schedules.run(name, by)
        return link("/schedules", did="polled-soon") if id is None else link(f"/runs/{id}", did="created")
    if verb == "delete":
        schedules.delete(name)
        return link("/schedules", did="schedule-deleted")
    change = schedules.pause if verb == "pause" else schedules.resume
    change([name], by)
    return link("/schedules", did="paused" if verb == "pause" else "resumed")


def _create_schedule(request: PageRequest) -> str:
    form = request.form
    app = request.context.app
    timing: dict[str, Any] = {"overlap": form.get("overlap") or "allow"}
    if form.get("cron", "").strip():
        timing |= {"cron": form["cron"], "tz": form.get("tz", "").strip() or "UTC"}
    else:
        timing["every"] = _seconds(form.get("every", ""))
    args = parse_json(form.get("args", ""), "the arguments") or []
    if not isinstance(args, list):
        raise ConfigError("the arguments must be a JSON array, such as [7]")
    task = app.registry.get(form.get("task", "").strip())
    app.schedules.create(form.get("name", "").strip(), task.request(*args), by=request.principal.by, **timing)
    return link("/schedules", did="schedule-created")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError("enter a cron expression, or an interval in seconds") from None


def _limits(request: PageRequest) -> dict[str, Any]:
    return {"limits": request.control.limits.list(), "live": "/api/v1/live"}


def _change_limit(request: PageRequest) -> str:
    form, limits = request.form, request.control.limits
    name = form.get("limit", "")
    if form.get("verb") == "reset":
        limits.reset(name)
        return link("/limits", did="limit-reset")
    concurrency = form.get("concurrency", "").strip()
    if concurrency and not concurrency.isdigit():
        raise ConfigError("the concurrency must be a whole number, or empty for none")
    rate = form.get("rate", "").strip() or None
    limits.set(name, rate=rate, concurrency=int(concurrency) if concurrency else None, by=request.principal.by)
    return link("/limits", did="limit-set")


def _workers(request: PageRequest) -> dict[str, Any]:
    found = request.control.workers.list()
    return {"workers": found, "any_labels": any(worker.labels for worker in found), "live": "/api/v1/live"}


PAGES = (
    PageSpec(path="/schedules", template="schedules.html", section="schedules", do=_schedules, all_tenants=True),
    PageSpec(path="/limits", template="limits.html", section="limits", do=_limits, all_tenants=True),
    PageSpec(path="/workers", template="workers.html", section="workers", do=_workers, all_tenants=True),
)
ACTIONS = (
    FormAction(path="/schedules", do=_change_schedule, all_tenants=True),
    FormAction(path="/limits", do=_change_limit, all_tenants=True),
    FormAction(path="/schedules/create", do=_create_schedule, all_tenants=True),
)
