"""A tenant's token reads and changes only that tenant's runs."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest

from holdfast.web.pages.routes import ACTIONS
from tests.support.web import Visitor
from tests.web.test_security import filled, routes

TABLES = (
    "runs", "history", "queues", "lanes", "keys", "checkpoints", "waits", "events", "messages", "limits", "schedules",
    "tallies", "tokens", "logins", "workers",
)  # fmt: skip


@pytest.fixture
def runs(fill):
    return fill()


@pytest.fixture
def foreign(runs):
    return runs["other"]


def test_foreign_run_looks_like_a_missing_run(shop, foreign):
    visitor = shop.visitor("operate", "acme")
    never = uuid4()
    about_a_run = [path for method, path in routes(never) if method == "GET" and str(never) in path]
    assert len(about_a_run) >= 7
    for path in about_a_run:
        theirs = visitor.get(path.replace(str(never), str(foreign.id)))
        none = visitor.get(path)
        assert (theirs.status, theirs.text.replace(str(foreign.id), str(never))) == (404, none.text), path


def test_forms_about_a_foreign_run_change_nothing(shop, runs, foreign):
    browser = shop.browser("operate", "acme")
    key = browser.csrf_token()
    forms = [action for action in ACTIONS if "{id}" in action.path]
    assert len(forms) >= 5
    before = shop.control.runs.details(foreign.id)
    for action in forms:
        form = {"csrf_token": key, "topic": "t", "error": "e"}
        assert (action.path, browser.submit(filled(action.path, foreign.id), form).status) == (action.path, 404)
    assert shop.control.runs.details(foreign.id) == before


def test_tenant_form_cannot_change_global_resources(shop, runs):
    browser = shop.browser("operate", "acme")
    key = browser.csrf_token()
    whole = [action.path for action in ACTIONS if action.all_tenants]
    assert len(whole) >= 1
    for path in whole:
        form = {"csrf_token": key, "queue": "default", "verb": "pause", "schedule": "s"}
        assert (path, browser.submit(path, form).status) == (path, 403)


@pytest.mark.parametrize("given", [{}, {"queue": "default"}, {"task": "later"}])
def test_bulk_actions_stay_within_the_tenant(shop, given):
    later = shop.app.remote("later")
    own, other = (later.options(tenant=tenant, delay=3600).enqueue() for tenant in ("acme", "other"))
    visitor = shop.visitor("operate", "acme")
    preview = visitor.post("/api/v1/bulk/preview", {"verb": "cancel", "filter": given}).json
    assert [run["id"] for run in preview["sample"]] == [str(own.id)]
    assert preview["count"]["value"] == 1
    foreign = {"family": str(other.id), "id_prefix": str(other.id)}
    for name, value in foreign.items():
        answer = visitor.post("/api/v1/bulk/cancel", {"filter": {name: value}})
        assert (name, answer.json["progress"]["changed"]) == (name, 0)
    assert visitor.post("/api/v1/bulk/cancel", {"filter": given}).json["progress"]["changed"] == 1
    assert visitor.post("/api/v1/bulk/retry", {"filter": given}).json["progress"]["changed"] == 1
    assert (own.info().state, other.info().state) == ("ready", "scheduled")
    assert "cancelled" not in [entry.kind for entry in other.history()]


def test_bulk_page_is_limited_to_the_tenant(shop, runs):
    other = shop.add.options(tenant="other", delay=3600).enqueue(1, 2)
    browser = shop.browser("operate", "acme")
    assert str(other.id) not in browser.get("/bulk?verb=cancel&tenant=other").text
    form = {"csrf_token": browser.csrf_token(), "query": "verb=cancel&tenant=other"}
    assert browser.submit("/bulk", form).status == 303
    assert other.info().state == "scheduled"
    assert runs["waiting"].info().state == "cancelled"


@pytest.mark.parametrize("name", ["parent", "family", "id"])
def test_the_beginning_of_an_id_finds_no_foreign_run_and_names_none(shop, name):
    runs = [shop.add.options(tenant="other").enqueue(n, n) for n in range(3)]
    whole, begin = str(runs[0].id), str(runs[0].id)[:6]
    visitor = shop.visitor("read", "acme")
    for given in (whole, begin):
        for path in ("/find",) if name == "id" else ("/runs", "/bulk"):
            text = visitor.get(f"{path}?verb=cancel&{'q' if path == '/find' else name}={given}").text
            assert ("No runs found" if path == "/find" else "has no run") in text
            found = set(re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", text))
            assert found <= {given}


def test_gates_of_others_are_neither_listed_nor_opened(shop):
    theirs = shop.graph(tenant="other")
    shop.add.options(tenant="acme").enqueue(1, 2)
    shop.drain()
    visitor, browser = shop.visitor("operate", "acme"), shop.browser("operate", "acme")
    assert visitor.get("/api/v1/gates").json == {"gates": []}
    assert str(theirs.id) not in browser.get("/gates").text
    assert str(theirs.id) not in browser.get("/").text
    at = f"/api/v1/runs/{theirs.id}/gates/approve"
    assert visitor.post(f"{at}/complete", {"output": {"ok": True}}).status == 404
    assert visitor.post(f"{at}/fail", {"error": "no"}).status == 404
    assert visitor.get(at).status == 404
    page = f"/gates/{theirs.nodes()['approve'].id}"
    form = {"csrf_token": browser.csrf_token(), "outcome": "fail", "error": "no", "step": "confirm"}
    assert (browser.get(page).status, browser.submit(page, form).status) == (404, 404)
    assert {gate.state for gate in shop.control.graphs.gates(theirs.id)} == {"waiting"}


def test_events_of_others_are_neither_listed_nor_cleared(shop):
    shop.wait.options(tenant="other").enqueue("theirs awaited")
    shop.wait.options(tenant="acme").enqueue("own awaited")
    shop.drain()
    shop.control.events.emit("theirs", "secret", "other")
    shop.control.events.emit("of nobody", "secret")
    shop.control.events.emit("own", "mine", "acme")
    visitor, browser = shop.visitor("operate", "acme"), shop.browser("operate", "acme")
    found = visitor.get("/api/v1/events").json
    assert [[each["name"] for each in found[kind]] for kind in ("awaited", "emitted")] == [["own awaited"], ["own"]]
    page = browser.get("/events").text
    assert ("own awaited" in page, "theirs" in page, "secret" in page) == (True, False, False)
    assert visitor.get("/api/v1/events?tenant=other").status == 403
    assert visitor.post("/api/v1/events/clear", {"name": "theirs", "tenant": "other"}).status == 403
    assert visitor.post("/api/v1/events/clear", {"name": "of nobody"}).json == {"changed": False}
    told = visitor.post("/api/v1/events", {"name": "theirs awaited"}).json
    assert told == {"changed": True, "awaited_elsewhere": []}
    form = {"csrf_token": browser.csrf_token(), "name": "theirs", "tenant": "other"}
    assert browser.submit("/events/clear", form).headers["location"] == "/events?did=not-emitted"
    assert len(shop.control.events.list().emitted) == 4


def test_event_of_one_tenant_does_not_reach_others(shop):
    visitor = shop.visitor("operate", "acme")
    assert visitor.post("/api/v1/events", {"name": "e"}).status == 200
    assert visitor.post("/api/v1/events", {"name": "e", "tenant": "acme"}).status == 200
    kept = shop.app.store.database.connection("client").run(
        lambda connection: connection.execute(_statement(shop, "select tenant, name from {schema}events"), {})
    )
    assert {tuple(row) for row in kept} == {("acme", "e")}


def test_a_key_or_a_unique_name_of_another_tenant_is_free(shop):
    first = shop.visitor("operate", "other").post("/api/v1/runs", {"task": "add", "args": [1, 2], "key": "k"}).json
    second = shop.visitor("operate", "acme").post("/api/v1/runs", {"task": "add", "args": [5, 6], "key": "k"})
    assert second.status == 201
    assert second.json["id"] != first["id"]


def test_reading_changes_nothing(shop, runs, open_visitor):
    """No GET writes anything."""
    before = content(shop)
    for run in runs.values():
        for method, path in routes(run.id):
            if method == "GET" and not path.endswith("/live"):
                open_visitor.get(path)
    open_visitor.get("/bulk?verb=cancel")
    assert content(shop) == before


def content(shop):
    """Everything visible."""
    line = shop.app.store.database.connection("client")
    found = {}
    for table in TABLES:
        statement = _statement(shop, "select * from {schema}" + table)
        found[table] = sorted(map(repr, line.run(lambda connection, s=statement: connection.execute(s, {}))))
    return found


def _statement(shop, text):
    from holdfast.database.statements import StatementSource, render

    return render(StatementSource("test", None, "", text), shop.app.store.database.dialect)


def test_the_overview_of_one_tenant_has_no_counts_of_all(shop, runs):
    assert 'action="/queues"' not in shop.visitor("operate", "acme").get("/").text
    assert 'action="/queues"' in shop.visitor("operate").get("/").text


def test_wrong_token_is_rejected_on_an_open_dashboard(shop):
    site = shop.site(unlocked=True)
    assert Visitor(site).get("/api/v1/runs").status == 200
    assert Visitor(site, "wrong").get("/api/v1/runs").status == 401
