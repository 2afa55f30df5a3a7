"""Templates to answers. Everything in them is escaped; nothing in them runs a script of its own."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast.model.run import FINAL_STATES, RUN_STATES
from holdfast.web.pages import words
from holdfast.web.pages.files import address
from holdfast.web.visitors import Visitor

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
    ago=words.ago, span=words.span, exact=words.exact, shown=words.shown, brief=words.brief,
    many=words.many, path=lambda text: quote(str(text), safe=""),
)  # fmt: skip
_environment.globals.update(SECTIONS=SECTIONS, STATES=RUN_STATES, FINAL=FINAL_STATES, asset=address)


def page(request: Request, visitor: Visitor | None, template: str, status: int = 200, **values: Any) -> Response:
    """A page. Without a visitor it shows nothing but itself."""
    root = request.scope.get("root_path", "")
    text = _environment.get_template(template).render(
        root=root,
        visitor=visitor,
        did=DONE.get(request.query_params.get("did", "")),
        **{"live": None, "section": None, **values},
    )
    return HTMLResponse(text, status)


def link(path: str, **query: Any) -> str:
    """An address within the site; what isn't given is left out."""
    given = [(name, value) for name, value in query.items() if value not in (None, "", [])]
    return f"{path}?{urlencode(given, doseq=True)}" if given else path
