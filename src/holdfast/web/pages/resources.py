"""The pages of schedules and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from holdfast.control.limits import MAX_HOLDERS
from holdfast.errors import ConfigError
from holdfast.web.pages.page import FormAction, PageContent, PageRequest, PageSpec, parse_json, parse_time
from holdfast.web.pages.render import link
from holdfast.web.responses import RequestError

OVERLAPS = (
    ("allow", "create another run"),
    ("skip", "skip the slot"),
    ("buffer_one", "run once when it has ended"),
    ("cancel_running", "cancel it"),
)
CATCH_UPS = (("skip", "skip them"), ("latest", "run the latest"), ("all", "run all"))
RANGE = (("start", "the first slot"), ("end", "the last slot"))


def _schedules(request: PageRequest) -> dict[str, Any]:
    tasks = [each.name for each in request.control.tasks.list()]
    return {"schedules": request.control.schedules.list(), "tasks": tasks}


def _schedule(request: PageRequest) -> dict[str, Any]:
    name = request.path["schedule"]
    if not request.control.schedules.exists(name):
        raise RequestError(404, f"there is no schedule {name[:100]!r}", "not_found")
    return _schedule_values(request, name)


def _schedule_values(
    request: PageRequest, name: str, entered: Mapping[str, str] | None = None, problem: str = ""
) -> dict[str, Any]:
    """Return the values of a schedule's page, with what was entered in a form and what is wrong with it."""
    return {
        "details": request.control.schedules.show(name),
        "entered": dict(entered or {}),
        "problem": problem,
        "OVERLAPS": OVERLAPS,
        "CATCH_UPS": CATCH_UPS,
        "section": "schedules",
    }


def _change_schedule(request: PageRequest) -> str | PageContent:
    name, verb, by = request.form.get("schedule", ""), request.form.get("verb"), request.principal.by
    schedules = request.control.schedules
    page = f"/schedules/{quote(name, safe='')}"
    back = page if request.form.get("back") else "/schedules"
    if verb == "run":
        id = schedules.run(name, by)
        return link(back, did="polled-soon") if id is None else link(f"/runs/{id}", did="created")
    if verb == "delete":
        schedules.delete(name)
        return link("/schedules", did="schedule-deleted")
    if verb in ("backfill", "edit"):
        try:
            return link(page, did=_backfill(request, name) if verb == "backfill" else _edit(request, name))
        except ConfigError as error:
            if not schedules.exists(name):
                raise
            return PageContent("schedule.html", _schedule_values(request, name, request.form, str(error)), 422)
    change = schedules.pause if verb == "pause" else schedules.resume
    change([name], by)
    return link(back, did="paused" if verb == "pause" else "resumed")


def _backfill(request: PageRequest, name: str) -> str:
    """Create the runs of a range of slots; return the notice."""
    start, end = (parse_time(request.form.get(field, ""), label) for field, label in RANGE)
    made = request.control.schedules.backfill(name, start, end, request.principal.by)
    return "backfilled" if made else "nothing-to-backfill"


def _edit(request: PageRequest, name: str) -> str:
    """Change when a schedule creates runs, and with which arguments; return the notice."""
    settings: dict[str, Any] = _timing(request.form)
    args = _arguments(request.form)
    settings |= {field: request.form[field] for field in ("overlap", "catch_up") if request.form.get(field)}
    settings["jitter"] = _seconds(
        request.form.get("jitter", "").strip() or "0", "the delay must be a number of seconds"
    )
    changed = {} if args is None else {"args": "changed"}
    with request.control.audit.record("change schedule", name, **settings, **changed):
        request.context.app.schedules.update(name, args=args, by=request.principal.by, **settings)
    return "schedule-changed"


def _arguments(form: Mapping[str, str]) -> tuple[Any, ...] | None:
    """Return the positional arguments of a form; None if the field is empty."""
    if not form.get("args", "").strip():
        return None
    args = parse_json(form["args"], "the arguments")
    if not isinstance(args, list):
        raise ConfigError("the arguments must be a JSON array, such as [7]")
    return tuple(args)


def _timing(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the cron expression with its time zone, or the interval, of a form."""
    if form.get("cron", "").strip():
        return {"cron": form["cron"], "tz": form.get("tz", "").strip() or "UTC"}
    return {"every": _seconds(form.get("every", ""), "enter a cron expression, or an interval in seconds")}


def _create_schedule(request: PageRequest) -> str:
    form = request.form
    app = request.context.app
    timing: dict[str, Any] = {"overlap": form.get("overlap") or "allow", **_timing(form)}
    args = _arguments(form) or ()
    task = app.registry.get(form.get("task", "").strip())
    name = form.get("name", "").strip()
    with request.control.audit.record("create schedule", name, task=task.name, **timing):
        app.schedules.create(name, task.request(*args), by=request.principal.by, **timing)
    return link("/schedules", did="schedule-created")


def _seconds(text: str, problem: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(problem) from None


def _limits(request: PageRequest) -> dict[str, Any]:
    return {"limits": request.control.limits.list(), "only": None, "tasks": [], "live": "/api/v1/live"}


def _limit(request: PageRequest) -> dict[str, Any]:
    name = request.path["limit"]
    if not request.control.limits.exists(name):
        raise RequestError(404, f"there is no limit {name[:100]!r}", "not_found")
    tasks = [each.name for each in request.control.tasks.list() if name in each.limits]
    return {
        "limits": request.control.limits.list(name),
        "only": name,
        "tasks": tasks,
        "MAX_HOLDERS": MAX_HOLDERS,
        "live": "/api/v1/live",
    }


def _change_limit(request: PageRequest) -> str:
    form, limits = request.form, request.control.limits
    name = form.get("limit", "")
    back = f"/limits/{quote(name, safe='')}" if form.get("back") else "/limits"
    if form.get("verb") == "reset":
        limits.reset(name)
        return link(back, did="limit-reset")
    concurrency = form.get("concurrency", "").strip()
    if concurrency and not concurrency.isdigit():
        raise ConfigError("the concurrency must be a whole number, or empty for none")
    rate = form.get("rate", "").strip() or None
    limits.set(name, rate=rate, concurrency=int(concurrency) if concurrency else None, by=request.principal.by)
    return link(back, did="limit-set")


PAGES = (
    PageSpec(
        path="/schedules", template="schedules.html", section="schedules", do=_schedules, all_tenants=True, may_lag=True
    ),
    PageSpec(
        path="/schedules/{schedule:path}", template="schedule.html", section="schedules", do=_schedule, all_tenants=True
    ),
    PageSpec(path="/limits", template="limits.html", section="limits", do=_limits, all_tenants=True, may_lag=True),
    PageSpec(path="/limits/{limit:path}", template="limits.html", section="limits", do=_limit, all_tenants=True),
)
ACTIONS = (
    FormAction(path="/schedules", do=_change_schedule, all_tenants=True),
    FormAction(path="/limits", do=_change_limit, all_tenants=True),
    FormAction(path="/schedules/create", do=_create_schedule, all_tenants=True),
)
