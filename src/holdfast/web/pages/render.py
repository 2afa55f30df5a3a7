"""Render templates, and load the static files they use. Templates escape all values; no page has inline scripts."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast.control.history_text import describe_entry, entry_label
from holdfast.model.budget import format_amount
from holdfast.model.run import FINAL_STATES, GRAPH_QUEUE, RUN_STATES
from holdfast.web.auth import Principal
from holdfast.web.pages import formats
from holdfast.web.pages.table_cells import label_cells

MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Section(NamedTuple):
    """A section of the site. It needs a permission, or a scope without a limit."""

    key: str
    path: str
    name: str
    needs: str


NAVIGATION = (
    (
        "Runs",
        (
            Section("overview", "/", "Overview", "read"),
            Section("runs", "/runs", "Runs", "read"),
            Section("gates", "/gates", "Approvals", "read"),
        ),
    ),
    (
        "Definitions",
        (
            Section("tasks", "/tasks", "Tasks", "all_tenants"),
            Section("queues", "/queues", "Queues", "all_tenants"),
            Section("schedules", "/schedules", "Schedules", "all_tenants"),
            Section("tenants", "/tenants", "Tenants", "all_tenants"),
        ),
    ),
    (
        "Messages",
        (
            Section("events", "/events", "Events", "all_tasks"),
            Section("topics", "/topics", "Topics", "all_tasks"),
        ),
    ),
    (
        "Flow control",
        (
            Section("limits", "/limits", "Limits", "all_tenants"),
            Section("budgets", "/budgets", "Budgets", "all_tenants"),
        ),
    ),
    (
        "System",
        (
            Section("workers", "/workers", "Workers", "all_tenants"),
            Section("tokens", "/tokens", "Tokens", "administer"),
            Section("audit", "/audit", "Audit log", "audit"),
        ),
    ),
)
"""The sections of the site, in groups."""
THEMES = ("light", "dark")
THEME_COOKIE = "holdfast_theme"
"""Set by the switch in the page; without it, the page follows the system's preference."""
NOTICES = {
    "cancelled": "Run cancelled.",
    "had-ended": "Nothing changed: the run had already finished.",
    "retried": "Run retried.",
    "was-unfinished": "Nothing changed: the run hasn't finished.",
    "updated": "Run changed.",
    "nothing-given": "Nothing changed: all fields were empty.",
    "forked": "Fork created. This is the new run.",
    "sent": "Message sent.",
    "approved": "Approved.",
    "rejected": "Rejected.",
    "gate-before": "Nothing changed: this decision had been recorded before.",
    "links-revoked": "The link, or all links, can't be used any more.",
    "gate-decided": "Your decision wasn't recorded: the approval had already been decided or closed.",
    "emitted": "Event emitted.",
    "emitted-before": "Nothing changed: the event had already been emitted.",
    "emitted-elsewhere": "Event emitted. Runs of other tenants, or without one, still wait for an event of this name.",
    "published": "Message published.",
    "published-to-nobody": "Message published. No task subscribes to it, and no function waits for it.",
    "cleared": "Event cleared. It can be emitted again.",
    "not-emitted": "Nothing changed: the event hasn't been emitted.",
    "token-revoked": "Token revoked. Its logins have ended.",
    "token-was-revoked": "Nothing changed: the token had already been revoked.",
    "paused": "Paused.",
    "resumed": "Resumed.",
    "created": "Run created.",
    "existed": "No run was created: this is the run that has this key or unique name.",
    "replaced": "No run was created: this one hasn't started, and has the new arguments.",
    "polled-soon": "The trigger will be polled soon.",
    "schedule-created": "The schedule was created.",
    "limit-set": "The limit was set.",
    "budget-set": "The budget was set.",
    "budget-reset": "The budget was reset.",
    "limit-reset": "The limit was reset to what the code declares.",
    "schedule-deleted": "The schedule was deleted.",
    "schedule-changed": "The schedule was changed.",
    "backfilled": "Runs were created for the slots of the range.",
    "nothing-to-backfill": "Nothing changed: every slot of the range has a run.",
}
"""Notices after an action. The address carries only the key, so that a link can't put words on a page."""


class StaticFile(NamedTuple):
    """A static file. Its address contains its version, so that browsers may cache it forever."""

    data: bytes
    media_type: str
    version: str


def _load_static_files() -> dict[str, StaticFile]:
    found = {}
    for file in (resources.files("holdfast.web") / "static").iterdir():
        media_type = MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            data = file.read_bytes()
            found[file.name] = StaticFile(data, media_type, hashlib.sha256(data).hexdigest()[:12])
    return found


STATIC_FILES = _load_static_files()


def _navigation(principal: Principal) -> list[tuple[str, list[Section]]]:
    """Return the groups of sections that a principal may open."""
    groups = [(group, [each for each in sections if principal.may_open(each.needs)]) for group, sections in NAVIGATION]
    return [(group, sections) for group, sections in groups if sections]


_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("holdfast.web", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    duration=formats.duration, amount=format_amount, utc=formats.utc, json_text=formats.json_text,
    short_json=formats.short_json, number=formats.number, path=lambda text: quote(str(text), safe=""),
    run_ids=formats.run_ids, entry_label=entry_label, entry_details=describe_entry, when=formats.when,
    state=formats.state, arguments=formats.arguments, label_cells=label_cells,
    size=formats.size, queue=lambda name: "–" if name == GRAPH_QUEUE else name,
)  # fmt: skip
_environment.globals.update(
    navigation=_navigation, STATES=RUN_STATES, FINAL=FINAL_STATES,
    asset=lambda name: f"/static/{name}?v={STATIC_FILES[name].version}",
)  # fmt: skip


def render(request: Request, principal: Principal | None, template: str, status: int = 200, **values: Any) -> Response:
    theme = request.cookies.get(THEME_COOKIE)
    text = _environment.get_template(template).render(
        root=request.scope.get("root_path", ""),
        principal=principal,
        theme=theme if theme in THEMES else None,
        notice=NOTICES.get(request.query_params.get("did", "")),
        **{
            "oidc": _has_oidc(request),
            "live": None,
            "section": None,
            "lag_s": None,
            **values,
        },
    )
    return HTMLResponse(text, status)


def _has_oidc(request: Request) -> bool:
    """Return whether the site offers to sign in with an identity provider."""
    site = request.scope.get("app")
    return site is not None and bool(getattr(site.state, "oidc", False))


def link(path: str, **query: Any) -> str:
    """Build an address within the site, without the empty parameters."""
    given = [(name, value) for name, value in query.items() if value not in (None, "", [])]
    return f"{path}?{urlencode(given, doseq=True)}" if given else path
