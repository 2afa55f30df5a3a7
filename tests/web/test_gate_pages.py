"""The page on which a gate is decided: what it shows, what it requires, how it confirms and who decided."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from playwright.async_api import Page, expect

from holdfast import Graph
from tests.support.browser import TIMEOUT_MS, audit, close, overflow
from tests.support.web import Answer, Visitor
from tests.web.conftest import NASTY, Shop

expect.set_options(timeout=TIMEOUT_MS)
on_one_database = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@dataclass
class Refund:
    """A decision that says why."""

    ok: bool
    reason: str
    cents: int = 0


FILLED = {"field:ok": "true", "field:reason": "lost parcel", "field:cents": "4200"}
OUTPUT = {"ok": True, "reason": "lost parcel", "cents": 4200}


class Refunds:
    """A graph that waits for a refund to be approved, and its pages."""

    def __init__(self, shop: Shop) -> None:
        graph = Graph("refund", tenant="acme")
        order = graph.add(shop.add, 40, 2, name="order")
        gate = graph.gate("approve", after=[order], type=Refund)
        graph.add(shop.add, order.output, gate.output["cents"], name="pay")
        self.shop = shop
        self.run = shop.app.submit(graph)
        shop.drain()
        self.gate: UUID = self.run.nodes()["approve"].id
        self.path = f"/gates/{self.gate}"

    def submit(self, visitor: Visitor, **form: str) -> Answer:
        return visitor.submit(self.path, {"csrf_token": visitor.csrf_token(), **form})

    @property
    def state(self) -> str:
        return str(self.shop.control.runs.info(self.gate).state)

    def decisions(self) -> list[tuple[str, Any]]:
        return [(entry.kind, entry.data.get("by")) for entry in self.shop.control.runs.history(self.gate)[1:]]


@pytest.fixture
def refunds(shop: Shop) -> Refunds:
    return Refunds(shop)


def test_what_is_decided_is_on_the_page(refunds, shop):
    page = shop.browser("read").get(refunds.path).text
    for shown in (f"/runs/{refunds.run.id}", "refund", "acme", "order", "&#34;a&#34;: 40", ">42<", "pay"):
        assert shown in page, shown
    assert "can't decide" in page.replace("&#39;", "'")
    assert 'method="post" aria' not in page


def test_an_untouched_form_records_nothing(refunds, shop):
    browser = shop.browser()
    untouched = {"field:ok": "", "field:reason": "", "field:cents": "0"}
    for form in (untouched, {}, FILLED | {"field:reason": "  "}, FILLED | {"field:ok": ""}):
        for step in ({}, {"step": "confirm"}):
            answer = refunds.submit(browser, outcome="complete", **form, **step)
            assert answer.status == 422
            assert "is required" in answer.text
    assert refunds.state == "waiting"


def test_what_was_entered_stays_when_a_field_is_wrong(refunds, shop):
    answer = refunds.submit(shop.browser(), **FILLED | {"field:cents": "many", "field:reason": NASTY})
    assert answer.status == 422
    assert "Cents must be a whole number, not &#39;many&#39;" in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text
    assert "<script>alert" not in answer.text


def test_a_decision_is_recorded_only_once_it_is_confirmed(refunds, shop):
    browser = shop.browser()
    asked = refunds.submit(browser, outcome="complete", **FILLED)
    assert (asked.status, refunds.state) == (200, "waiting")
    assert "Confirm approval" in asked.text
    assert "&#34;cents&#34;: 4200" in asked.text
    assert "operate None" in asked.text  # who will be recorded
    back = refunds.submit(browser, step="edit", **FILLED)
    assert (back.status, refunds.state) == (200, "waiting")
    assert "lost parcel" in back.text
    done = refunds.submit(browser, outcome="complete", step="confirm", **FILLED)
    assert (done.status, done.headers["location"]) == (303, f"{refunds.path}?did=approved")
    assert refunds.decisions() == [("completed", "operate None")]
    shop.drain()
    assert refunds.run.result(timeout=10) == {"order": 42, "approve": OUTPUT, "pay": 4242}


def test_a_rejection_needs_no_fields_but_a_confirmation(refunds, shop):
    browser = shop.browser()
    asked = refunds.submit(browser, outcome="fail", error="too expensive")
    assert (asked.status, refunds.state) == (200, "waiting")
    assert "Confirm rejection" in asked.text
    assert "too expensive" in asked.text
    done = refunds.submit(browser, outcome="fail", error="too expensive", step="confirm")
    assert done.headers["location"] == f"{refunds.path}?did=rejected"
    assert refunds.decisions() == [("failed", "operate None")]
    assert "too expensive" in browser.get(refunds.path).text


def test_who_decided_is_shown_on_the_pages_of_gate_and_graph(refunds, shop):
    shop.control.graphs.complete(refunds.run.id, "approve", OUTPUT, by="ada@example.org")
    browser = shop.browser("read")
    for path in (refunds.path, f"/runs/{refunds.run.id}", f"/runs/{refunds.gate}"):
        page = browser.get(path).text
        assert "Approved by <strong>ada@example.org</strong>" in page, path
    assert "lost parcel" in browser.get(refunds.path).text


def test_a_second_decision_changes_nothing_and_says_so(refunds, shop):
    browser = shop.browser()
    for output, notice in ((OUTPUT, "approved"), (OUTPUT, "gate-decided"), (OUTPUT | {"ok": False}, "gate-decided")):
        form = FILLED | {"field:ok": "true" if output["ok"] else "false"}
        answer = refunds.submit(browser, step="confirm", **form)
        assert answer.headers["location"] == f"{refunds.path}?did={notice}"
    assert "wasn&#39;t recorded" in browser.get(f"{refunds.path}?did=gate-decided").text
    assert len(refunds.decisions()) == 1


def test_a_gate_that_is_not_open_can_be_decided_early(shop):
    graph = Graph("early")
    graph.gate("approve", after=[graph.add(shop.add, 1, 2, name="first")])
    run = shop.app.submit(graph)
    path = f"/gates/{run.nodes()['approve'].id}"
    browser = shop.browser()
    assert "The gate isn't open yet" in browser.get(path).text
    form = {"csrf_token": browser.csrf_token(), "step": "confirm", "field:output": ""}
    assert browser.submit(path, form).headers["location"] == f"{path}?did=approved"
    assert "Will be approved when it opens, decided by <strong>operate None</strong>" in browser.get(path).text
    shop.drain()
    assert "Approved by <strong>operate None</strong>" in browser.get(path).text


def test_a_run_that_is_no_gate_has_no_such_page(refunds, shop):
    browser = shop.browser()
    assert browser.get(f"/gates/{refunds.run.id}").status == 404
    form = {"csrf_token": browser.csrf_token(), "step": "confirm"}
    assert browser.submit(f"/gates/{refunds.run.id}", form).status == 404


# In a real browser


async def test_an_untouched_form_is_refused_by_the_browser_and_a_filled_one_asks_for_confirmation(shop, page: Page):
    refunds = await asyncio.to_thread(Refunds, shop)
    await page.goto("/gates")
    await page.get_by_role("article", name="approve").get_by_role("link", name="Review and decide").click()
    await expect(page.get_by_label("Result of order")).to_have_text("42")
    approve = page.get_by_role("button", name="Approve…")
    await approve.click()  # The browser refuses to send the form and marks the first field.
    assert await page.evaluate("document.querySelector('form.gate').checkValidity()") is False
    await expect(page.get_by_label("Ok")).to_be_focused()
    await page.get_by_label("Ok").select_option("yes")
    await approve.click()
    await expect(page.get_by_label("Reason").first).to_be_focused()
    await page.get_by_label("Reason").first.fill("lost parcel")
    await approve.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Confirm approval: approve")
    assert (await asyncio.to_thread(lambda: refunds.state), await audit(page)) == ("waiting", [])
    await page.get_by_role("button", name="Change").click()
    await page.get_by_label("Cents").fill("4200")
    await approve.click()
    await expect(page.get_by_label("Output")).to_contain_text('"cents": 4200')
    await page.get_by_role("button", name="Confirm approval").click()
    await expect(page.get_by_role("status").filter(has_text="Approved.")).to_be_visible()
    await expect(page.get_by_role("region", name="Decision")).to_contain_text("Approved by")
    assert await asyncio.to_thread(lambda: refunds.run.nodes()["approve"].result) == OUTPUT


@on_one_database
async def test_a_gate_is_decided_on_a_phone_and_without_javascript(shop, browser, serve):
    refunds = await asyncio.to_thread(Refunds, shop)
    context = await browser.new_context(
        base_url=serve(shop.site(unlocked=True)), viewport={"width": 360, "height": 740}, java_script_enabled=False
    )
    context.set_default_timeout(TIMEOUT_MS)
    page = await context.new_page()
    await page.goto(refunds.path)
    await page.get_by_text("Reject", exact=True).click()
    await page.get_by_label("Reason").last.fill("too expensive")
    await page.get_by_role("button", name="Reject…").click()
    assert (await asyncio.to_thread(lambda: refunds.state), await overflow(page)) == ("waiting", 0)
    await page.get_by_role("button", name="Confirm rejection").click()
    await expect(page.get_by_role("region", name="Decision")).to_contain_text("too expensive")
    assert await overflow(page) == 0
    await close(context)
    assert await asyncio.to_thread(lambda: refunds.state) == "failed"


@on_one_database
async def test_the_page_follows_a_decision_that_someone_else_makes(shop, page: Page):
    refunds = await asyncio.to_thread(Refunds, shop)
    await page.goto(refunds.path)
    await page.get_by_label("Reason").first.fill("half a thought")
    await page.get_by_role("heading", level=1).click()
    await asyncio.to_thread(shop.control.graphs.complete, refunds.run.id, "approve", OUTPUT, "ada")
    await expect(page.get_by_role("region", name="Decision")).to_contain_text("Approved by ada")
    await expect(page.get_by_role("button", name="Approve…")).to_have_count(0)
