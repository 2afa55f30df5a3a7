"""Templates to answers. Everything in them is escaped; nothing in them runs a script of its own."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast.model.run import FINAL_STATES, RUN_STATES
from holdfast.web.auth import Principal
from holdfast.web.pages import formats

KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    """A file as it is sent."""

    data: bytes
    kind: str
    version: str


def _read() -> dict[str, StaticFile]:
    found = {}
    for file in (resources.files("holdfast.web") / "static").iterdir():
        kind = KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            data = file.read_bytes()
            found[file.name] = StaticFile(data, kind, hashlib.sha256(data).hexdigest()[:12])
    return found


FILES = _read()


def address(name: str) -> str:
    """Where a page finds a file."""
    return f"/static/{name}?v={FILES[name].version}"


SECTIONS = (
    ("overview", "/", "Overview"),
    ("runs", "/runs", "Runs"),
    ("gates", "/gates", "Gates"),
    ("schedules", "/schedules", "Schedules"),
    ("limits", "/limits", "Limits"),
    ("workers", "/workers", "Workers"),
)
DONE = {
    "cancelled": "The run was cancelled.",
    "had-ended": "Nothing was changed: the run had ended before.",
    "retried": "The run goes on: what it had recorded stays.",
    "was-unfinished": "Nothing was changed: the run is unfinished anyway.",
    "forked": "This is the new run.",
    "sent": "The message was sent.",
    "gate": "The gate was concluded.",
    "gate-before": "Nothing was changed: that had been said before.",
    "paused": "Paused.",
    "resumed": "It goes on.",
    "asked": "A run was made.",
    "polled-soon": "It will be polled soon.",
}
"""What was done, said on the page that follows; the address names only which of these."""

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("holdfast.web", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    ago=formats.ago, span=formats.span, exact=formats.exact, shown=formats.shown, brief=formats.brief,
    many=formats.many, path=lambda text: quote(str(text), safe=""),
)  # fmt: skip
_environment.globals.update(SECTIONS=SECTIONS, STATES=RUN_STATES, FINAL=FINAL_STATES, asset=address)


def page(request: Request, principal: Principal | None, template: str, status: int = 200, **values: Any) -> Response:
    """A page. Without a visitor it shows nothing but itself."""
    root = request.scope.get("root_path", "")
    text = _environment.get_template(template).render(
        root=root,
        principal=principal,
        did=DONE.get(request.query_params.get("did", "")),
        **{"live": None, "section": None, **values},
    )
    return HTMLResponse(text, status)


def link(path: str, **query: Any) -> str:
    """An address within the site; what isn't given is left out."""
    given = [(name, value) for name, value in query.items() if value not in (None, "", [])]
    return f"{path}?{urlencode(given, doseq=True)}" if given else path
