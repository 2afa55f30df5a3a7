"""The pages of each task, queue, worker, tenant, limit and budget, and what the overview says is wrong."""

from __future__ import annotations

import json

from holdfast.model.clock import MICROS_PER_SECOND
from tests.web.test_pages import Reader, submit


def text(visitor, path: str) -> str:
    answer = visitor.get(path)
    assert answer.status == 200, answer.text
    return Reader(answer.text).text


def test_a_task_has_a_page_with_its_errors_grouped_and_can_be_paused(shop):
    for order in (41, 42):
        shop.boom.enqueue(f"order {order}: declined")
    shop.boom.enqueue("closed")
    shop.drain()
    shop.boom.options(queue="other").enqueue("later")
    browser = shop.browser()
    page = text(browser, "/tasks/boom")
    assert "ValueError order #: declined 2 boom" in page
    assert "ValueError closed 1 boom" in page
    assert "1 ready" in page
    assert "Queue default , other" in page
    assert "3 total, 100.0% failed" in page
    assert submit(browser, "/pauses", kind="task", name="boom", verb="pause", back="page") == (
        303, "/tasks/boom?did=paused",
    )  # fmt: skip
    assert "Paused by operate None" in text(browser, "/tasks/boom")
    assert "boom paused" in text(browser, "/tasks")
    assert (
        submit(browser, "/pauses", kind="task", name="boom", verb="resume", back="page")[1] == "/tasks/boom?did=resumed"
    )
    assert browser.get("/tasks/nobody").status == 404
    assert "add 0 0 0" in text(browser, "/tasks?last=week&sort=slower"), "declared, but never run"


def test_a_queue_has_a_page_and_can_be_paused(shop):
    shop.add.options(queue="mail/eu").enqueue(1, 2)
    browser = shop.browser()
    page = text(browser, "/queues/mail/eu")
    assert "1 ready" in page
    assert "No running worker serves this queue" in page
    assert "The oldest ready run has waited for" in page
    assert submit(browser, "/queues", queue="mail/eu", verb="pause", back="page") == (
        303, "/queues/mail%2Feu?did=paused",
    )  # fmt: skip
    assert "mail/eu paused" in text(browser, "/queues")
    assert submit(browser, "/queues", queue="mail/eu", verb="resume", back="list") == (303, "/queues?did=resumed")
    assert browser.get("/queues/none").status == 404


def test_a_tenant_has_a_page_and_can_be_paused(shop, fill):
    fill()
    browser = shop.browser()
    assert "acme active" in text(browser, "/tenants")
    page = text(browser, "/tenants/acme")
    assert "ValueError" in page
    assert "Finished per minute 3 total, 33.3% failed" in page
    assert "Finished per hour 3 total, 33.3% failed" in text(browser, "/tenants/acme?last=week")
    stats = browser.get("/api/v1/stats?tenant=acme").json["stats"]
    assert [(each["runs"], each["failed"]) for each in stats] == [(3, 1)]
    assert len(browser.get("/api/v1/stats?tenant=acme&span=hour&last=86400").json["stats"]) == 24
    assert browser.get("/api/v1/stats?tenant=acme&by=task").status == 422
    assert submit(browser, "/pauses", kind="tenant", name="acme", verb="pause", back="page") == (
        303, "/tenants/acme?did=paused",
    )  # fmt: skip
    assert "acme paused All" in text(browser, "/tenants")
    assert [each.name for each in shop.control.tenants.list(1)] == ["acme"]


def test_a_worker_has_a_page_with_its_health_and_its_runs(shop):
    sessions = shop.app.store.sessions
    status = {"memory": 50 * 2**20, "lost_threads": 2, "loop_lag": 3.5, "problem": "event loop blocked by boom"}
    info = {"concurrency": 4, "thread_slots": 8, "queues": ["default"], "tasks": ["add"], "version": "0.1.0"}
    sessions.open("s1", "host:1", 3600 * MICROS_PER_SECOND, json.dumps(info), json.dumps(status))
    page = text(shop.visitor(), "/workers/s1")
    for said in ("blocked for 3.5 s", "2 of 8", "50 MiB", "0.1.0", "0 of 4 in use", "It executes no run."):
        assert said in page
    assert "Worker host:1 is stuck" in text(shop.visitor(), "/")
    assert shop.visitor().get("/workers/unknown").status == 404


def test_a_real_worker_reports_its_memory_version_and_runs(shop):
    worker = shop.app.worker(concurrency=1)
    components = worker._components
    reported = json.loads(components._status())
    assert reported["memory"] > 1e6
    session = components._new_session()
    assert json.loads(session.info)["version"] == "0.1.0"


def test_limits_and_budgets_have_pages(shop):
    shop.app.limit("mail", concurrency=5)
    shop.app.budget("usd", limit=3, per="tenant")
    send = shop.app.task(name="send", limits=["mail"])(lambda: None)
    send.enqueue()
    shop.drain()
    browser = shop.browser()
    assert "Tasks that observe it send" in text(browser, "/limits/mail")
    assert "3 per tenant" in text(browser, "/budgets/usd")
    assert submit(browser, "/limits", limit="mail", concurrency="7", back="1") == (303, "/limits/mail?did=limit-set")
    assert submit(browser, "/budgets", budget="usd", limit="9", back="1") == (303, "/budgets/usd?did=budget-set")
    page = text(browser, "/limits/mail")
    assert "7 concurrent" in page
    assert "No run holds a permit." in page
    send.enqueue()
    shop.app.store.sessions.open("host:1:abc", "host:1", 60_000_000, "{}")
    (claim,) = shop.app.store.claims.claim_limited("host:1:abc", list(shop.app.store.lanes.refresh()), 8)
    assert f"send {claim.id} host:1:abc now" in text(browser, "/limits/mail")
    limit = browser.get("/api/v1/limits/mail").json
    assert [(each["run"], each["worker"]) for each in limit["holders"]] == [(claim.id, "host:1:abc")]
    assert browser.get("/api/v1/limits/none").status == 404
    assert [browser.get(f"/{each}/none").status for each in ("limits", "budgets")] == [404, 404]


def test_the_overview_says_first_what_is_wrong(shop):
    browser = shop.browser()
    assert "Nothing is wrong" in text(browser, "/")
    shop.add.options(queue="lonely").enqueue(1, 2)
    page = browser.get("/").text
    assert "1 problem" in page
    assert "1 run ready, but no worker is running." in Reader(page).text
    assert 'href="/workers">Workers</a>' in page
    assert "problem" not in text(shop.visitor("read", "acme"), "/")
