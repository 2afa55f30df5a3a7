"""Pages and forms report invalid input and reveal nothing."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.web.pages.routes import ACTIONS, PAGES
from holdfast.web.pages.run_list import TEXT_FILTERS
from tests.web.test_security import filled

NONSENSE = (
    "", " ", "\0", "\x1b[31m", "\ud800", "é" * 300, "x" * 5_000, "%", "'; drop table runs; --", "{{ 7 * 7 }}", "../..",
    "0", "-1", "99999999999999999999", "1e400", "NaN", "null", "[]", '{"a": ', "0001-01-01", "9999-12-31T23:59:59",
    "2026-11-16T08:00:00+25:00", "ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000",
)  # fmt: skip
FIELDS = (
    "reason", "from_step", "args", "topic", "payload", "field:ok", "field:amount", "step", "outcome",
    "error", "query", "after", "changed", "queue",
    "verb", "schedule", "field:ok", "field:amount",
)  # fmt: skip
NAMES = {
    "/runs": (*TEXT_FILTERS, "state", "after"),
    "/bulk": ("verb", "after", "changed", "run", "within"),
    "/find": ("q", "after"),
}


def sent(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"))


def test_page_reports_invalid_parameters(shop, open_visitor, fill):
    id = fill()["waiting"].id
    for page in PAGES:
        path = filled(page.path, id)
        for name in NAMES.get(page.path, ()):
            more = "&verb=cancel" if page.path == "/bulk" and name != "verb" else ""
            for nonsense in NONSENSE:
                answer = open_visitor.get(f"{path}?{name}={sent(nonsense)}{more}")
                assert answer.status < 500, (path, name, nonsense)
                assert "Traceback" not in answer.text


def test_invalid_form_input_is_reported(shop, fill):
    runs = fill()
    browser = shop.browser()
    key = browser.csrf_token()
    gate = runs["graph"].nodes()["approve"].id
    for nonsense in NONSENSE:
        if nonsense == "\ud800":
            continue  # which no form can have
        form = dict.fromkeys(FIELDS, nonsense) | {"csrf_token": key}
        for action in ACTIONS:
            for given in (form, form | {"step": "confirm", "query": f"verb=cancel&after={nonsense}"}):
                id = gate if action.path.startswith("/gates") else runs["waiting"].id
                answer = browser.submit(filled(action.path, id), given)
                assert answer.status < 500, (action.path, nonsense)
                assert "Traceback" not in answer.text
