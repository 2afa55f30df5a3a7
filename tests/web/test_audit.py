"""The audit log in the dashboard and the API: what is recorded of requests, and the pages of admins."""

from __future__ import annotations


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
