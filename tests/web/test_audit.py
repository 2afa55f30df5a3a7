"""The audit log in the dashboard and the API: what is recorded of requests, and who may read it."""

from __future__ import annotations

import pytest

from holdfast.model.access import EVERYTHING
from holdfast.testing import VirtualClock
from holdfast.web import refusals
from holdfast.web.auth import Principal
from holdfast.web.refusals import RefusalRecorder
from holdfast.web.responses import RequestError
from tests.support.web import Visitor


def entries(shop, **filters):
    return shop.control.audit.page(**filters).entries


def test_actions_of_every_interface_are_recorded_with_their_client(shop):
    run = shop.add.enqueue(1, 2)
    browser, visitor = shop.browser("operate"), shop.visitor("operate")
    form = {"csrf_token": browser.csrf_token()}
    assert browser.submit("/queues", {**form, "queue": "default", "verb": "pause"}).status == 303
    assert browser.submit(f"/runs/{run.id}/cancel", {**form, "reason": "twice"}).status == 303
    assert visitor.post(f"/api/v1/runs/{run.id}/cancel", {}).json == {"changed": False}
    assert visitor.post("/api/v1/limits/nothing/reset").status == 404
    found = [
        (each.by, each.via, each.client, each.action, each.subject, each.outcome)
        for each in entries(shop)
        if each.via != "python"
    ]
    who = "operate None"
    assert found == [
        (who, "api", "127.0.0.1", "cancel run", str(run.id), "unchanged"),
        (who, "dashboard", "127.0.0.1", "cancel run", str(run.id), "done"),
        (who, "dashboard", "127.0.0.1", "pause queue", "default", "done"),
        (who, "dashboard", "127.0.0.1", "sign in", None, "done"),
    ]
    assert browser.submit("/logout", form).status == 303
    assert entries(shop)[0].action == "sign out"


def test_schedules_that_are_created_and_changed_are_recorded(shop):
    visitor = shop.visitor("operate")
    made = visitor.post("/api/v1/schedules", {"name": "nightly", "task": "add", "args": [1, 2], "cron": "@daily"})
    assert made.status == 201, made.text
    assert visitor.post("/api/v1/schedules/nightly/update", {"cron": "@hourly"}).status == 200
    assert visitor.post("/api/v1/schedules/nightly/delete").status == 200
    found = [(each.action, each.subject, each.detail) for each in entries(shop, subject="nightly")]
    assert found == [
        ("delete schedule", "nightly", {}),
        ("change schedule", "nightly", {"cron": "@hourly"}),
        ("create schedule", "nightly", {"task": "add", "cron": "@daily"}),
    ]


def test_the_approver_is_in_the_history_and_in_the_log(shop):
    graph = shop.graph()
    shop.drain()
    decided = shop.visitor("approver").post(f"/api/v1/runs/{graph.id}/gates/approve/complete", {"output": {"ok": True}})
    assert decided.json == {"changed": True}
    (entry,) = entries(shop, action="complete gate")
    assert (entry.by, entry.subject, entry.detail) == ("approver None", str(graph.id), {"gate": "approve"})
    gate = shop.control.graphs.gates(graph.id)[0]
    assert gate.decided_by == "approver None"
    assert any(each.data.get("by") == "approver None" for each in shop.control.runs.history(gate.id))


def test_admins_read_the_log(shop):
    run = shop.add.enqueue(1, 2)
    shop.visitor("operate").post(f"/api/v1/runs/{run.id}/cancel", {"reason": "<b>twice</b>"})
    page = shop.browser("admin").get("/audit").text
    assert f'href="/runs/{run.id}"' in page
    assert "&lt;b&gt;twice&lt;/b&gt;" in page
    admin = shop.visitor("admin")
    listed = admin.get("/api/v1/audit?action=cancel%20run").json
    assert [each["by"] for each in listed["entries"]] == ["operate None"]
    assert "No entries match" in shop.browser("admin").get("/audit?by=nobody").text
    wrong = shop.browser("admin").get("/audit?since=soon")
    assert (wrong.status, "Nothing was searched" in wrong.text) == (422, True)
    assert admin.get("/api/v1/audit?outcome=gone").status == 422
    assert shop.visitor("operate").get("/api/v1/audit").status == 403
    assert 'href="/audit"' not in shop.browser("operate").get("/").text


def test_an_operator_of_a_tenant_reads_the_entries_of_the_tenant(shop):
    own, theirs = (shop.add.options(tenant=tenant).enqueue(1, 2) for tenant in ("acme", "other"))
    shop.visitor("operate").post(f"/api/v1/runs/{own.id}/cancel", {})
    shop.visitor("operate").post(f"/api/v1/runs/{theirs.id}/cancel", {})
    shop.visitor("operate", "acme").post(f"/api/v1/runs/{own.id}/retry", {})
    shop.visitor("operate", "other").post(f"/api/v1/runs/{theirs.id}/retry", {})
    shop.visitor("operate").post("/api/v1/bulk/cancel", {"filter": {"tenant": "acme"}})
    shop.visitor("operate").post("/api/v1/queues/default/pause")
    listed = shop.visitor("operate", "acme").get("/api/v1/audit").json["entries"]
    listed = [(each["by"], each["action"], each["tenant"], each["client"]) for each in listed]
    assert [each for each in listed if each[1] != "create token"] == [
        ("operate None", "cancel runs", "acme", None), ("operate acme", "retry run", "acme", None),
        ("operate None", "cancel run", "acme", None),
    ]  # fmt: skip
    browser = shop.browser("operate", "acme")
    page = browser.get("/audit")
    assert (page.status, str(own.id) in page.text, str(theirs.id) in page.text) == (200, True, False)
    assert 'href="/audit"' in browser.get("/").text
    assert str(theirs.id) in shop.browser("admin").get("/audit").text


@pytest.mark.parametrize(
    "given", [{"may": "viewer", "tenant": "acme"}, {"may": "approver", "tenant": "acme"}, {"may": "operator"}]
)
def test_the_log_needs_an_operator_of_a_tenant_or_an_admin(shop, given):
    visitor = shop.visitor(**given)
    assert (visitor.get("/audit").status, visitor.get("/api/v1/audit").status) == (403, 403)


def test_a_tenant_limited_to_tasks_does_not_read_the_log(shop):
    token = shop.control.tokens.create("operate", "acme", tasks=["add"]).token
    assert Visitor(shop.site(), token).get("/api/v1/audit").status == 403


def test_requests_that_a_role_refuses_are_recorded(shop):
    run = shop.add.options(tenant="acme").enqueue(1, 2)
    visitor, browser = shop.visitor("viewer", "acme"), shop.browser("viewer")
    assert visitor.post(f"/api/v1/runs/{run.id}/cancel", {}).status == 403
    assert browser.submit("/queues", {"csrf_token": browser.csrf_token(), "queue": "default"}).status == 403
    assert visitor.get("/metrics").status == 403
    assert visitor.get(f"/api/v1/runs/{shop.add.enqueue(1, 2).id}").status == 404  # it learns nothing: not a refusal
    assert Visitor(shop.site(), "hf_wrong").get("/api/v1/runs").status == 401
    found = entries(shop, action="refused request")
    assert [(each.by, each.via, each.subject, each.outcome, each.tenant) for each in found] == [
        ("viewer acme", "api", "GET /metrics", "refused", "acme"),
        ("viewer None", "dashboard", "POST /queues", "refused", None),
        ("viewer acme", "api", f"POST /api/v1/runs/{run.id}/cancel", "refused", "acme"),
    ]
    assert found[1].detail == {"error": "this needs the role operator; the role of this token is viewer"}


def test_refused_requests_do_not_flood_the_log(shop):
    clock = VirtualClock()
    recorder = RefusalRecorder(shop.control.audit, lambda: clock.now.timestamp())
    error = RequestError(403, "no", "role")

    def refuse(credential, times):
        principal = Principal(credential, ("viewer",), EVERYTHING, "bearer", "", (credential, ""))
        for _ in range(times):
            recorder.record(principal, "api", "POST /x", None, error)

    refuse("eve", 1000)
    refuse("ada", 1)
    assert [len(entries(shop, by=by, limit=1000)) for by in ("eve", "ada")] == [refusals.BURST, 1]
    clock.advance(refusals.RECOVERY_S + 1)
    refuse("eve", 5)
    assert entries(shop, by="eve", limit=1)[0].detail["unrecorded"] == 1000 - refusals.BURST
    for number in range(50):
        refuse(f"token {number}", 100)
    recorded = len(entries(shop, action="refused request", limit=1000))
    assert recorded <= refusals.TOTAL_BURST + refusals.BURST
