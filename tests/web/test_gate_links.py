"""Links to gates: what a person without a login and a program can do with one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from holdfast import ConfigError, Context, Graph, Holdfast, RunFinished
from holdfast.errors import GraphError
from holdfast.web.links import MAX_LINK_BODY_BYTES
from tests.support.approvals import FILLED, OUTPUT, PUBLIC, Approvals, Decision, decided_by
from tests.support.browser import TIMEOUT_MS, Served, audit, close, overflow

PHONE = {"width": 390, "height": 844}
on_one_database = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


# People


def test_a_person_without_a_login_decides_with_a_form(approvals):
    run = approvals.open()
    url = run.gate("refund").link(expires=timedelta(days=3))
    assert url.startswith(f"{PUBLIC}/links/gate?token=")
    path = url.removeprefix(PUBLIC)
    page = approvals.visitor.get(path)
    assert page.status == 200
    for shown in ("refund", "Eve &lt;eve@example.org&gt;", "50", "rope", "Your name", "Approve…", "Reject"):
        assert shown in page.text, shown
    asked = approvals.visitor.submit(path, FILLED, origin="null")
    assert asked.status == 200
    assert "Nothing is recorded yet" in asked.text
    assert approvals.is_open(run), "the first form only asks"
    done = approvals.visitor.submit(path, FILLED | {"step": "confirm"}, origin="null")
    assert "Decision recorded" in done.text
    assert approvals.result(run) == "True lost parcel card"
    assert decided_by(approvals, run) == "Ada (link, name as entered)"


@on_one_database
def test_the_recipient_of_a_link_is_recorded_whatever_is_entered(approvals):
    run = approvals.open()
    path = approvals.link(run, recipient="ada@example.org")
    assert "ada@example.org" in approvals.visitor.get(path).text
    assert "Your name" not in approvals.visitor.get(path).text
    assert approvals.decide(path, FILLED | {"signer": "the boss"}).status == 200
    assert decided_by(approvals, run) == "ada@example.org (link)"


def test_a_rejection_has_a_reason(approvals):
    run = approvals.open()
    form = {"outcome": "fail", "error": " too late ", "signer": "Ada"}
    path = approvals.link(run)
    assert "too late" in approvals.visitor.submit(path, form, origin="null").text
    assert approvals.decide(path, form).status == 200
    approvals.drain()
    assert run.info().state == "failed"
    assert "too late" in str(run.info().error)
    gate = approvals.control.gates.read(approvals.control.graphs.node(run.id, "refund"))
    assert (gate.decided_by, gate.error.message) == ("Ada (link, name as entered)", "too late")


@on_one_database
def test_what_is_missing_or_wrong_is_marked_and_nothing_is_recorded(approvals):
    run = approvals.open()
    path = approvals.link(run)
    wrong = [
        ({"field:ok": ""}, "Ok is required"),
        ({"field:note": "  "}, "Note is required"),
        ({"field:ok": "1"}, "must be yes or no"),
        ({"field:method": '"cash"'}, "method"),
        ({"field:method": "{"}, "must be JSON"),
        ({"field:method": "[" * 5000}, "must be JSON"),
        ({"signer": " "}, "Your name is required"),
        ({"signer": "A\x00"}, "control character"),
        ({"signer": "A" * 151}, "at most 150"),
        ({"outcome": "fail", "error": "e" * 2001}, "at most 2,000"),
    ]
    for change, message in wrong:
        for step in ({}, {"step": "confirm"}):
            answer = approvals.visitor.submit(path, FILLED | change | step, origin="null")
            assert answer.status == 422, (change, answer.text)
            assert message in answer.text
            assert "lost parcel" in answer.text or "field:note" in change, "what was entered stays"
    assert approvals.is_open(run)
    edited = approvals.visitor.submit(path, FILLED | {"step": "edit"}, origin="null")
    assert "lost parcel" in edited.text
    assert 'value="Ada"' in edited.text
    assert approvals.decide(path).status == 200


def test_the_gate_of_a_graph_can_be_decided_before_it_opens(approvals):
    graph = Graph("order", tenant="acme")
    first = graph.add(approvals.note, "a")
    gate = graph.gate("ship", after=[first], type=Decision)
    graph.add(approvals.note, gate.output["note"], name="last")
    run = approvals.app.submit(graph)
    path, other = approvals.link(run, "ship"), approvals.link(run, "ship", recipient="bob")
    assert approvals.decide(path).status == 200
    assert approvals.visitor.get(other).status == approvals.visitor.get(path).status == 404
    approvals.drain()
    assert run.nodes()["last"].state == "done"
    assert decided_by(approvals, run, "ship") == "Ada (link, name as entered)"


async def test_links_have_an_awaitable_form_and_wait_for_the_gate(database_url):
    approvals = await asyncio.to_thread(Approvals, database_url)

    @approvals.app.task(name="mailed")
    async def mailed(ctx: Context) -> Any:
        async def mail(run: str) -> str:
            handle = await approvals.app.aget_run(run)
            return await handle.gate("ok").alink(wait=30)

        both = await asyncio.gather(ctx.gate("ok"), ctx.step(mail, str(ctx.run_id), name="mail"))
        return both[1]

    run = await mailed.aenqueue()
    await asyncio.to_thread(approvals.drain)
    (gate,) = await run.agates()
    assert (await gate.alink()).startswith(PUBLIC)
    await gate.acomplete(True)
    await asyncio.to_thread(approvals.drain)
    url = await run.aresult(timeout=30)
    assert (await asyncio.to_thread(approvals.visitor.get, url.removeprefix(PUBLIC))).status == 404
    await asyncio.to_thread(approvals.close)


def test_a_link_without_a_gate_or_settings_says_what_to_do(approvals, monkeypatch):
    run = approvals.open()
    with pytest.raises(GraphError, match=r"has opened no gate 'other'"):
        run.gate("other").link()
    for expires in (0, timedelta(days=367)):
        with pytest.raises(ConfigError, match="expires must be positive and at most 366 days"):
            run.gate("refund").link(expires=expires)
    with pytest.raises(ConfigError, match="recipient must not be empty"):
        run.gate("refund").link(recipient="")
    run.gate("refund").complete(OUTPUT)
    with pytest.raises(RunFinished, match=r"gate refund of run .* was decided"):
        run.gate("refund").link()
    for name in ("HOLDFAST_SECRET", "HOLDFAST_PUBLIC_URL"):
        monkeypatch.delenv(name, raising=False)
    with Holdfast(approvals.app.url) as plain:
        plain._bind(approvals.app.store, approvals.app.url)
        run = plain.get_run(approvals.open().id)
        with pytest.raises(ConfigError, match=r"\$HOLDFAST_SECRET"):
            run.gate("refund").link()


# Programs


def test_a_program_posts_the_output(approvals):
    run = approvals.open()
    path = approvals.link(run)
    wrong = approvals.visitor.post(path, {"ok": "perhaps", "note": "x"})
    assert (wrong.status, wrong.json["code"]) == (422, "wrong_output")
    assert str(run.id) not in wrong.text
    assert "ok" in wrong.json["detail"]
    answer = approvals.visitor.post(path, {"ok": True, "note": "paid"})
    assert (answer.status, answer.json) == (200, {"outcome": "completed"})
    assert approvals.result(run) == "True paid bank"
    assert decided_by(approvals, run) == "link"
    again = approvals.visitor.post(path, {"ok": True, "note": "paid"})
    assert (again.status, again.json["code"]) == (404, "link_not_usable")
    assert again.headers["content-type"] == "application/problem+json"


@on_one_database
def test_a_program_posts_any_json_to_a_gate_without_a_type_or_nothing(approvals):
    for body, output in ((None, None), ({"a": [1]}, {"a": [1]}), ("text", "text")):
        run = approvals.open(approvals.call)
        answer = approvals.visitor.post(approvals.link(run, "answer"), body)
        assert answer.status == 200, answer.text
        assert approvals.result(run) == output


@on_one_database
def test_a_program_rejects(approvals):
    for body, reason in (({"error": "no stock"}, "no stock"), ("no stock", "no stock"), (None, "no reason given")):
        run = approvals.open(approvals.call)
        path = approvals.link(run, "answer", recipient="warehouse") + "&outcome=fail"
        assert approvals.visitor.post(path, body).json == {"outcome": "failed"}
        gate = approvals.control.gates.read(approvals.control.graphs.node(run.id, "answer"))
        assert (gate.error.message, gate.decided_by) == (reason, "warehouse (link)")
    path = approvals.link(approvals.open(approvals.call), "answer")
    for body in ({"error": 7}, 7, "e" * 2001):
        assert approvals.visitor.post(path + "&outcome=fail", body).status == 422
    assert approvals.visitor.post(path + "&outcome=maybe", {}).json["code"] == "invalid"


@on_one_database
def test_errors_of_programs_are_typed_and_leave_the_gate_open(approvals):
    run = approvals.open()
    path = approvals.link(run)

    def ask(body: bytes, kind: str = "application/json", **headers: str) -> tuple[int, str]:
        answer = approvals.visitor.ask("POST", path, body, {"content-type": kind, **headers})
        return answer.status, answer.json["code"]

    assert ask(b"{") == (400, "no_json")
    assert ask(b"\xff") == (400, "no_json")
    assert ask(b"a=1", "text/plain") == (422, "wrong_content_type")
    assert ask(b"[" * 10_000 + b"]" * 10_000) == (400, "no_json")
    assert ask(b'"' + b"x" * MAX_LINK_BODY_BYTES + b'"') == (413, "too_large")
    assert ask(b"{}", content_length=str(10**12)) == (413, "too_large")
    assert ask(b"null") == (422, "wrong_output")
    assert approvals.visitor.ask("PUT", path, b"{}").status == 405
    huge = FILLED | {"field:note": "x" * MAX_LINK_BODY_BYTES}
    assert approvals.visitor.submit(path, huge, origin="null").status == 413
    many = {f"field:{n}": "" for n in range(600)}
    assert approvals.visitor.submit(path, many, origin="null").status == 422
    assert approvals.is_open(run)


# A browser


@on_one_database
async def test_on_a_phone_without_javascript_the_form_can_be_filled_in_and_confirmed(
    browser: Browser, database_url: str
) -> None:
    approvals = await asyncio.to_thread(Approvals, database_url)
    served = Served(approvals.visitor.site)
    run = await asyncio.to_thread(approvals.open)
    path = await asyncio.to_thread(approvals.link, run)
    context = await browser.new_context(
        base_url=served.url, viewport=PHONE, is_mobile=True, has_touch=True, java_script_enabled=False
    )
    context.set_default_timeout(TIMEOUT_MS)
    referrers: list[str] = []
    context.on("request", lambda sent: referrers.append(sent.headers.get("referer", "")))
    page = await context.new_page()
    await page.goto(path)
    assert await overflow(page) <= 0
    await page.get_by_role("button", name="Approve…").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("refund")  # the browser asks for what is missing
    await page.get_by_label("Ok").select_option(label="yes")
    await page.get_by_label("Note").fill("lost parcel")
    await page.get_by_label("Your name").fill("Ada")
    await page.get_by_role("button", name="Approve…").click()
    await expect(page.get_by_role("heading", name="Confirm approval: refund")).to_be_visible()
    assert await overflow(page) <= 0
    await page.get_by_role("button", name="Change").click()
    await expect(page.get_by_label("Note")).to_have_value("lost parcel")
    await page.get_by_role("button", name="Approve…").click()
    await page.get_by_role("button", name="Confirm approval").click()
    await expect(page.get_by_role("heading", name="Decision recorded")).to_be_visible()
    await page.goto(path)
    await expect(page.get_by_role("heading", name="This link can't be used")).to_be_visible()
    assert await overflow(page) <= 0
    assert set(referrers) == {""}
    await close(context)
    assert await asyncio.to_thread(approvals.result, run) == "True lost parcel bank"
    served.close()
    await asyncio.to_thread(approvals.close)


@on_one_database
async def test_the_pages_pass_the_accessibility_audit(browser: Browser, database_url: str) -> None:
    approvals = await asyncio.to_thread(Approvals, database_url)
    served = Served(approvals.visitor.site)
    path = await asyncio.to_thread(lambda: approvals.link(approvals.open()))
    context = await browser.new_context(base_url=served.url, viewport=PHONE)
    page = await context.new_page()
    await page.goto(path)
    assert await audit(page) == []
    await page.get_by_label("Ok").select_option(label="yes")
    await page.get_by_label("Note").fill("x")
    await page.get_by_label("Your name").fill("Ada")
    await page.get_by_role("button", name="Approve…").click()
    await page.get_by_role("heading", name="Confirm approval").wait_for()
    assert await audit(page) == []
    await page.goto("/links/gate")
    assert await audit(page) == []
    await close(context)
    served.close()
    await asyncio.to_thread(approvals.close)
