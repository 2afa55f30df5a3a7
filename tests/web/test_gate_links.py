"""Links to gates: what a person without a login and a program can do with one, and what an attacker can't."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import ConfigError, Context, Graph, Holdfast, Run, RunFinished, Secret
from holdfast.control import Control
from holdfast.errors import GraphError
from holdfast.integrations.encryption import Encryption, Key
from holdfast.model.gate_links import GATE_LINK, GateLinkToken
from holdfast.model.signed_tokens import Signer
from holdfast.store.graphs import gate_completed
from holdfast.testing import VirtualClock
from holdfast.web import dashboard
from holdfast.web.links import MAX_LINK_BODY_BYTES, NOT_USABLE
from tests.support.browser import TIMEOUT_MS, Served, audit, overflow
from tests.support.web import Answer, Visitor
from tests.web.conftest import NASTY

SECRET, OLD_SECRET = "s" * 32, "o" * 32
PUBLIC = "https://ops.example.org"
PHONE = {"width": 390, "height": 844}
on_one_database = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@dataclass
class Decision:
    """A decision that says why."""

    ok: bool
    note: str
    method: Literal["bank", "card"] = "bank"


FILLED = {
    "field:ok": "true",
    "field:note": "lost parcel",
    "field:method": '"card"',
    "signer": "Ada",
    "outcome": "complete",
}
OUTPUT = {"ok": True, "note": "lost parcel", "method": "card"}
PAYLOAD = {"customer": "Eve <eve@example.org>", "amount": 50, "items": ["rope", "anchor"]}


class Desk:
    """An app whose functions and graphs wait for decisions, and a visitor without a token."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.app = app = Holdfast(url, clock=self.clock, **{"secret": SECRET, "public_url": PUBLIC, **settings})

        @app.task(name="refund")
        async def refund(ctx: Context, amount: int, *, name: str = "refund") -> str:
            decision = await ctx.gate(name, type=Decision, payload={**PAYLOAD, "amount": amount})
            return f"{decision.ok} {decision.note} {decision.method}"

        @app.task(name="call")
        async def call(ctx: Context) -> Any:
            return await ctx.gate("answer")

        @app.task(name="twice")
        async def twice(ctx: Context) -> list[Any]:
            return [await ctx.gate("again"), await ctx.gate("again")]

        @app.task(name="note")
        def note(text: str) -> str:
            return text

        self.refund, self.call, self.twice, self.note = refund, call, twice, note
        self.control = Control(app.store, app.registry, app.links)
        self._sites: list[Any] = []
        self.visitor = Visitor(self.site(token="t" * 40))

    def site(self, **settings: Any) -> Any:
        self._sites.append(dashboard(self.app, **settings))
        return self._sites[-1]

    def close(self) -> None:
        for site in self._sites:
            site.close()
        self.app.close()

    def drain(self) -> None:
        self.app.worker().drain(timeout=60)

    def open(self, task: Any = None, *args: Any, **options: Any) -> Run[Any]:
        """Start a function and let it open its gate."""
        run: Run[Any] = (self.refund if task is None else task).options(**options).enqueue(*(args if task else (50,)))
        self.drain()
        return run

    def link(self, run: Run[Any], gate: str = "refund", **settings: Any) -> str:
        """Return the link as a path of the site."""
        return run.gate(gate).link(**settings).removeprefix(PUBLIC)

    def decide(self, path: str, form: dict[str, str] = FILLED, **headers: str) -> Answer:
        """Fill in the form and confirm it."""
        asked = self.visitor.submit(path, form, origin="null", **headers)
        assert asked.status in (200, 404, 422), asked.text
        return asked if asked.status != 200 else self.visitor.submit(path, form | {"step": "confirm"}, origin="null")

    def result(self, run: Run[Any]) -> Any:
        self.drain()
        return run.result(timeout=30)

    def is_open(self, run: Run[Any]) -> bool:
        return bool(run.gates())


@pytest.fixture
def desk(database_url: str) -> Iterator[Desk]:
    desk = Desk(database_url)
    yield desk
    desk.close()


def decided_by(desk: Desk, run: Run[Any], gate: str = "refund") -> str | None:
    return desk.control.gates.read(desk.control.graphs.node(run.id, gate)).decided_by


# People


def test_a_person_without_a_login_decides_with_a_form(desk):
    run = desk.open()
    url = run.gate("refund").link(expires=timedelta(days=3))
    assert url.startswith(f"{PUBLIC}/links/gate?token=")
    path = url.removeprefix(PUBLIC)
    page = desk.visitor.get(path)
    assert page.status == 200
    for shown in ("refund", "Eve &lt;eve@example.org&gt;", "50", "rope", "Your name", "Approve…", "Reject"):
        assert shown in page.text, shown
    asked = desk.visitor.submit(path, FILLED, origin="null")
    assert asked.status == 200
    assert "Nothing is recorded yet" in asked.text
    assert desk.is_open(run), "the first form only asks"
    done = desk.visitor.submit(path, FILLED | {"step": "confirm"}, origin="null")
    assert "Decision recorded" in done.text
    assert desk.result(run) == "True lost parcel card"
    assert decided_by(desk, run) == "Ada (link, name as entered)"


@on_one_database
def test_the_recipient_of_a_link_is_recorded_whatever_is_entered(desk):
    run = desk.open()
    path = desk.link(run, recipient="ada@example.org")
    assert "ada@example.org" in desk.visitor.get(path).text
    assert "Your name" not in desk.visitor.get(path).text
    assert desk.decide(path, FILLED | {"signer": "the boss"}).status == 200
    assert decided_by(desk, run) == "ada@example.org (link)"


def test_a_rejection_has_a_reason(desk):
    run = desk.open()
    form = {"outcome": "fail", "error": " too late ", "signer": "Ada"}
    path = desk.link(run)
    assert "too late" in desk.visitor.submit(path, form, origin="null").text
    assert desk.decide(path, form).status == 200
    desk.drain()
    assert run.info().state == "failed"
    assert "too late" in str(run.info().error)
    gate = desk.control.gates.read(desk.control.graphs.node(run.id, "refund"))
    assert (gate.decided_by, gate.error.message) == ("Ada (link, name as entered)", "too late")


@on_one_database
def test_what_is_missing_or_wrong_is_marked_and_nothing_is_recorded(desk):
    run = desk.open()
    path = desk.link(run)
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
            answer = desk.visitor.submit(path, FILLED | change | step, origin="null")
            assert answer.status == 422, (change, answer.text)
            assert message in answer.text
            assert "lost parcel" in answer.text or "field:note" in change, "what was entered stays"
    assert desk.is_open(run)
    edited = desk.visitor.submit(path, FILLED | {"step": "edit"}, origin="null")
    assert "lost parcel" in edited.text
    assert 'value="Ada"' in edited.text
    assert desk.decide(path).status == 200


def test_the_gate_of_a_graph_can_be_decided_before_it_opens(desk):
    graph = Graph("order", tenant="acme")
    first = graph.add(desk.note, "a")
    gate = graph.gate("ship", after=[first], type=Decision)
    graph.add(desk.note, gate.output["note"], name="last")
    run = desk.app.submit(graph)
    path, other = desk.link(run, "ship"), desk.link(run, "ship", recipient="bob")
    assert desk.decide(path).status == 200
    assert desk.visitor.get(other).status == desk.visitor.get(path).status == 404
    desk.drain()
    assert run.nodes()["last"].state == "done"
    assert decided_by(desk, run, "ship") == "Ada (link, name as entered)"


async def test_links_have_an_awaitable_form_and_wait_for_the_gate(database_url):
    desk = await asyncio.to_thread(Desk, database_url)

    @desk.app.task(name="mailed")
    async def mailed(ctx: Context) -> Any:
        async def mail(run: str) -> str:
            handle = await desk.app.aget_run(run)
            return await handle.gate("ok").alink(wait=30)

        both = await asyncio.gather(ctx.gate("ok"), ctx.step(mail, str(ctx.run_id), name="mail"))
        return both[1]

    run = await mailed.aenqueue()
    await asyncio.to_thread(desk.drain)
    (gate,) = await run.agates()
    assert (await gate.alink()).startswith(PUBLIC)
    await gate.acomplete(True)
    await asyncio.to_thread(desk.drain)
    url = await run.aresult(timeout=30)
    assert (await asyncio.to_thread(desk.visitor.get, url.removeprefix(PUBLIC))).status == 404
    await asyncio.to_thread(desk.close)


def test_a_link_without_a_gate_or_settings_says_what_to_do(desk, monkeypatch):
    run = desk.open()
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
    with Holdfast(desk.app.url) as plain:
        plain._bind(desk.app.store, desk.app.url)
        run = plain.get_run(desk.open().id)
        with pytest.raises(ConfigError, match=r"\$HOLDFAST_SECRET"):
            run.gate("refund").link()


# Programs


def test_a_program_posts_the_output(desk):
    run = desk.open()
    path = desk.link(run)
    wrong = desk.visitor.post(path, {"ok": "perhaps", "note": "x"})
    assert (wrong.status, wrong.json["code"]) == (422, "wrong_output")
    assert str(run.id) not in wrong.text
    assert "ok" in wrong.json["detail"]
    answer = desk.visitor.post(path, {"ok": True, "note": "paid"})
    assert (answer.status, answer.json) == (200, {"outcome": "completed"})
    assert desk.result(run) == "True paid bank"
    assert decided_by(desk, run) == "link"
    again = desk.visitor.post(path, {"ok": True, "note": "paid"})
    assert (again.status, again.json["code"]) == (404, "link_not_usable")
    assert again.headers["content-type"] == "application/problem+json"


@on_one_database
def test_a_program_posts_any_json_to_a_gate_without_a_type_or_nothing(desk):
    for body, output in ((None, None), ({"a": [1]}, {"a": [1]}), ("text", "text")):
        run = desk.open(desk.call)
        answer = desk.visitor.post(desk.link(run, "answer"), body)
        assert answer.status == 200, answer.text
        assert desk.result(run) == output


@on_one_database
def test_a_program_rejects(desk):
    for body, reason in (({"error": "no stock"}, "no stock"), ("no stock", "no stock"), (None, "no reason given")):
        run = desk.open(desk.call)
        path = desk.link(run, "answer", recipient="warehouse") + "&outcome=fail"
        assert desk.visitor.post(path, body).json == {"outcome": "failed"}
        gate = desk.control.gates.read(desk.control.graphs.node(run.id, "answer"))
        assert (gate.error.message, gate.decided_by) == (reason, "warehouse (link)")
    path = desk.link(desk.open(desk.call), "answer")
    for body in ({"error": 7}, 7, "e" * 2001):
        assert desk.visitor.post(path + "&outcome=fail", body).status == 422
    assert desk.visitor.post(path + "&outcome=maybe", {}).json["code"] == "invalid"


@on_one_database
def test_errors_of_programs_are_typed_and_leave_the_gate_open(desk):
    run = desk.open()
    path = desk.link(run)

    def ask(body: bytes, kind: str = "application/json", **headers: str) -> tuple[int, str]:
        answer = desk.visitor.ask("POST", path, body, {"content-type": kind, **headers})
        return answer.status, answer.json["code"]

    assert ask(b"{") == (400, "no_json")
    assert ask(b"\xff") == (400, "no_json")
    assert ask(b"a=1", "text/plain") == (422, "wrong_content_type")
    assert ask(b"[" * 10_000 + b"]" * 10_000) == (400, "no_json")
    assert ask(b'"' + b"x" * MAX_LINK_BODY_BYTES + b'"') == (413, "too_large")
    assert ask(b"{}", content_length=str(10**12)) == (413, "too_large")
    assert ask(b"null") == (422, "wrong_output")
    assert desk.visitor.ask("PUT", path, b"{}").status == 405
    huge = FILLED | {"field:note": "x" * MAX_LINK_BODY_BYTES}
    assert desk.visitor.submit(path, huge, origin="null").status == 413
    many = {f"field:{n}": "" for n in range(600)}
    assert desk.visitor.submit(path, many, origin="null").status == 422
    assert desk.is_open(run)


# Attackers


def refused(answer: Answer) -> bool:
    """Return whether this is the one response to every link that can't be used."""
    return answer.status == 404 and NOT_USABLE.replace("'", "&#39;") in answer.text


def test_every_unusable_link_gets_the_same_response(desk):
    run, other = desk.open(), desk.open()
    good = desk.link(run)
    used, expired = desk.link(other), desk.link(run, expires=60)
    assert desk.decide(used).status == 200
    desk.clock.advance(seconds=61)
    gone = GateLinkToken(b"\x01" * 16, 0, None)
    later = desk.clock() + 10**9
    sign = Signer([SECRET]).sign
    links = {
        "used": used,
        "expired": expired,
        "forged": good[:-3] + ("AAA" if not good.endswith("AAA") else "BBB"),
        "cut": good[:-10],
        "twice": good + "&" + good.partition("?")[2],
        "none": "/links/gate",
        "another secret": f"/links/gate?token={Signer([OLD_SECRET]).sign(GATE_LINK, gone, later)}",
        "unknown gate": f"/links/gate?token={sign(GATE_LINK, gone, later)}",
        "short id": f"/links/gate?token={sign(GATE_LINK, GateLinkToken(b'', 0, None), later)}",
        "another purpose": f"/links/gate?token={sign('stream', gone, later)}",
    }
    answers = {}
    for number, (name, path) in enumerate(links.items()):
        visitor = Visitor(desk.visitor.site, scope={"client": [f"10.0.0.{number}", 1]})
        for answer in (visitor.get(path), visitor.submit(path, FILLED | {"step": "confirm"}, origin="null")):
            assert refused(answer), (name, answer.text)
            answers[name] = (answer.text, sorted(answer.headers.items()))
        assert visitor.post(path, OUTPUT).json["code"] == "link_not_usable", name
    assert len({str(answer) for answer in answers.values()}) == 1, "nothing tells them apart"
    assert desk.is_open(run)
    assert desk.visitor.get(good).status == 200


@on_one_database
def test_a_changed_token_opens_nothing(desk):
    """Also not one whose expiry or gate was changed with the rest left as it is."""
    import base64

    run, other = desk.open(), desk.open()
    token = desk.link(run, expires=60).partition("token=")[2]
    other_id = desk.control.graphs.node(other.id, "refund").bytes
    own_id = desk.control.graphs.node(run.id, "refund").bytes
    data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    assert own_id in data
    later = (int.from_bytes(data[5:10], "big") + 10**6).to_bytes(5, "big")
    changed = [data[:5] + later + data[10:], data.replace(own_id, other_id), data[:-32] + b"\0" * 32, data[:-32]]
    visitor = Visitor(desk.visitor.site, scope={"client": ["10.1.1.1", 1]})
    for each in changed:
        text = base64.urlsafe_b64encode(each).rstrip(b"=").decode()
        assert refused(visitor.get(f"/links/gate?token={text}"))
        assert visitor.post(f"/links/gate?token={text}", OUTPUT).status == 404
    assert desk.is_open(run)
    assert desk.is_open(other)


def test_a_link_works_once_also_for_those_who_race(desk):
    """Each on a site with connections of its own; some fill in the form, others post JSON."""
    run = desk.open()
    paths = [desk.link(run), desk.link(run), desk.link(run, recipient="bob")]
    visitors = [Visitor(desk.site(token="t" * 40)) for _ in paths]
    for visitor, path in zip(visitors, paths, strict=True):
        assert visitor.get(path).status == 200
    codes: list[int] = []
    start = threading.Barrier(6)

    def post(number: int) -> None:
        visitor, path = visitors[number % 3], paths[number % 3]
        start.wait()
        if number < 3:
            codes.append(visitor.post(path, {"ok": True, "note": "same", "method": "bank"}).status)
        else:
            form = {"field:ok": "true", "field:note": "same", "signer": "Ada", "outcome": "complete", "step": "confirm"}
            codes.append(visitor.submit(path, form, origin="null").status)

    threads = [threading.Thread(target=post, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200, 404, 404, 404, 404, 404]
    assert desk.result(run) == "True same bank"
    gate = desk.control.graphs.node(run.id, "refund")
    assert [entry.kind for entry in desk.control.runs.history(gate)].count("completed") == 1


def test_a_link_dies_with_its_gate_and_stays_dead_when_the_run_is_retried_or_forked(desk):
    run = desk.open()
    first = desk.link(run)
    run.cancel()
    assert refused(desk.visitor.get(first))
    run.retry()
    desk.drain()
    assert desk.is_open(run)
    assert refused(desk.visitor.get(first)), "the gate is open again, for new links only"
    assert refused(desk.decide(first))
    second = desk.link(run)
    run.gate("refund").fail("no")
    desk.drain()
    assert run.info().state == "failed"
    fork = run.fork()
    desk.drain()
    assert desk.is_open(fork)
    for path in (first, second):
        assert refused(desk.visitor.get(path))
        assert refused(desk.decide(path))
    assert desk.decide(desk.link(fork)).status == 200


def test_a_link_is_checked_again_under_the_lock_of_the_decision(desk):
    """Between the check of a link and its decision, the gate may be decided, and opened again by a retry."""
    graphs = desk.app.store.graphs
    run = desk.open()
    opened = graphs.gate_to_link(str(run.id), "refund")
    yes = gate_completed("refund", OUTPUT, "ada")
    assert not graphs.conclude_linked_gate(opened.id, opened.opening - 1, yes)
    run.cancel()
    assert not graphs.conclude_linked_gate(opened.id, opened.opening, yes)
    run.retry()
    desk.drain()
    again = graphs.gate_to_link(str(run.id), "refund")
    assert again.id == opened.id, "it is the same gate"
    assert not graphs.conclude_linked_gate(opened.id, opened.opening, yes)
    assert graphs.conclude_linked_gate(again.id, again.opening, yes)
    assert not graphs.conclude_linked_gate(again.id, again.opening, yes)
    assert not graphs.conclude_linked_gate(str(run.id), 0, yes), "not a gate"


def test_a_gate_that_a_function_left_behind_when_it_restarted_can_not_be_decided_by_link(desk):
    @desk.app.task(name="restarts")
    async def restarts(ctx: Context, number: int) -> Any:
        if number:
            return await ctx.gate("ask")
        waiting = asyncio.ensure_future(ctx.gate("ask"))
        await ctx.step(desk.note.fn, "a", name="note")
        await ctx.wait_for("go")
        waiting.cancel()
        return await ctx.restart(1)

    run = desk.open(restarts, 0)
    first = desk.link(run, "ask")
    desk.app.emit("go")
    desk.drain()
    assert desk.visitor.post(first, 1).status == 404
    assert desk.visitor.post(desk.link(run, "ask"), 2).status == 200
    assert desk.result(run) == 2


def test_payloads_that_a_codec_binds_to_their_place_are_shown_and_outputs_are_encoded(database_url):
    desk = Desk(database_url, codec=Encryption([Key("1", b"k" * 32)]))
    run = desk.open(None, tenant="acme")
    path = desk.link(run)
    assert "Eve &lt;eve@example.org&gt;" in desk.visitor.get(path).text
    assert desk.visitor.post(path, {"ok": True, "note": "n"}).status == 200
    assert desk.result(run) == "True n bank"
    desk.close()


@dataclass
class Numbers:
    count: int
    ratio: float
    names: list[str]
    note: str = ""


@on_one_database
def test_fields_of_another_type_and_made_up_fields_are_refused_or_ignored(desk):
    @desk.app.task(name="numbers")
    async def numbers(ctx: Context) -> Any:
        return await ctx.gate("numbers", type=Numbers)

    run = desk.open(numbers)
    path = desk.link(run, "numbers", recipient="ada")
    good = {"outcome": "complete", "field:count": "3", "field:ratio": "0.5", "field:names": '["a"]'}
    for name, texts in {
        "count": ["3.5", "1e999", "true", "null", '"3"', "0x10", "３", "[3]", "9" * 5000, "NaN"],
        "ratio": ["Infinity", "NaN", "-1e999", "true", '"0.5"', "1,5"],
        "names": ["a", "{}", "[1]", '"a"', "null", '["\\ud800"]', "[" * 3000],
    }.items():
        for text in texts:
            form = good | {f"field:{name}": text, "step": "confirm"}
            answer = desk.visitor.submit(path, form, origin="null")
            assert answer.status == 422, (name, text[:20], answer.status)
        desk.clock.advance(seconds=1)
        desk.visitor = Visitor(desk.visitor.site, scope={"client": [f"10.3.{len(name)}.1", 1]})
    assert desk.is_open(run)
    more = {"field:state": "done", "field:__class__": "x", "decided_by": "root", "by": "root", "gate": "other"}
    assert desk.decide(path, good | more).status == 200
    assert desk.result(run) == {"count": 3, "ratio": 0.5, "names": ["a"], "note": ""}
    assert decided_by(desk, run, "numbers") == "ada (link)"


@on_one_database
def test_hostile_text_in_the_payload_and_the_form_is_shown_as_text(desk):
    @desk.app.task(name="hostile")
    async def hostile(ctx: Context) -> Any:
        return await ctx.gate(NASTY, payload={NASTY: NASTY, "token": Secret("hidden-value"), "list": [NASTY]})

    run = desk.open(hostile)
    (gate,) = run.gates()
    path = gate.link(recipient=NASTY).removeprefix(PUBLIC)
    form = {"outcome": "complete", "field:output": f'"{chr(60)}b>"'}
    for text in (desk.visitor.get(path).text, desk.visitor.submit(path, form, origin="null").text):
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<b>" not in text
        assert "hidden-value" not in text
    assert desk.decide(path, form).status == 200


@on_one_database
def test_operators_create_links_by_api_and_on_the_page_of_a_gate(desk):
    run = desk.open(None, tenant="acme")

    def visitor(role: Any, tenant: str | None = None) -> Visitor:
        token = desk.control.tokens.create(role, tenant, f"{role} {tenant}").token
        return Visitor(desk.visitor.site, token)

    api = f"/api/v1/runs/{run.id}/gates/refund/link"
    created = visitor(["approver"]).post(api, {"expires": 60, "recipient": "ada"})
    assert created.status == 201, created.text
    assert created.json["recipient"] == "ada"
    assert desk.visitor.get(created.json["url"].removeprefix(PUBLIC)).status == 200
    desk.clock.advance(seconds=61)
    assert refused(desk.visitor.get(created.json["url"].removeprefix(PUBLIC)))
    assert visitor(["approver"], "acme").post(api).status == 201
    assert visitor(["approver"], "globex").post(api).status == 404
    assert visitor(["operator"]).post(api).status == 403
    assert visitor(["approver"]).post(api, {"expires": 0}).status == 422
    assert visitor(["approver"]).post(api.replace("/refund/", "/other/")).status == 404

    browser = Visitor(desk.visitor.site)
    token = desk.control.tokens.create(["approver"], None, "ada").token
    browser.cookie = browser.submit("/login", {"token": token}).headers["set-cookie"].partition(";")[0]
    page = f"/gates/{desk.control.graphs.node(run.id, 'refund')}"
    csrf = re.search(r'name="csrf_token" value="([0-9a-f]+)"', browser.get(page).text)[1]
    wrong = browser.submit(f"{page}/link", {"csrf_token": csrf, "days": "0", "recipient": ""})
    assert (wrong.status, "expires must be positive" in wrong.text) == (422, True)
    shown = browser.submit(f"{page}/link", {"csrf_token": csrf, "days": "2", "recipient": "bob"})
    url = re.search(rf"{PUBLIC}/links/gate\?token=[\w-]+", shown.text)[0]
    assert desk.decide(url.removeprefix(PUBLIC)).status == 200
    assert decided_by(desk, run) == "bob (link)"
    late = browser.submit(f"{page}/link", {"csrf_token": csrf, "days": "2", "recipient": ""})
    assert (late.status, "gate-decided" in late.headers["location"]) == (303, True)
    assert visitor(["approver"]).post(api).json["code"] == "run_finished"


def test_a_link_to_a_graphs_gate_dies_when_the_graph_is_retried(desk):
    graph = Graph("order")
    gate = graph.gate("ship", type=Decision)
    graph.add(desk.note, gate.output["note"])
    run = desk.app.submit(graph)
    path = desk.link(run, "ship")
    run.cancel()
    run.retry()
    assert desk.is_open(run)
    assert refused(desk.decide(path))
    assert desk.decide(desk.link(run, "ship")).status == 200


def test_a_link_is_for_one_opening_of_a_gate_of_the_same_name(desk):
    run = desk.open(desk.twice)
    first = desk.link(run, "again")
    assert desk.visitor.post(first, 1).status == 200
    desk.drain()
    assert desk.is_open(run)
    assert desk.visitor.post(first, 2).status == 404
    assert desk.visitor.post(desk.link(run, "again"), 2).status == 200
    assert desk.result(run) == [1, 2]


@on_one_database
def test_a_link_survives_the_worker_and_the_replacement_of_the_secret(desk, database_url):
    run = desk.open()
    path = desk.link(run)
    desk.app.worker().drain()
    app = Holdfast(desk.app.url, clock=desk.clock, secret=[OLD_SECRET, SECRET], public_url=PUBLIC)
    replaced = Holdfast(desk.app.url, clock=desk.clock, secret=OLD_SECRET, public_url=PUBLIC)
    sites = [dashboard(each, token="t" * 40) for each in (app, replaced)]
    assert Visitor(sites[0]).get(path).status == 200
    assert refused(Visitor(sites[1]).get(path))
    new = app.get_run(run.id).gate("refund").link().removeprefix(PUBLIC)
    assert refused(desk.visitor.get(new))
    assert Visitor(sites[1]).post(new, {"ok": True, "note": "n"}).status == 200
    for site in sites:
        site.close()
    app.close()
    replaced.close()


@on_one_database
def test_reading_never_changes_anything(desk):
    run = desk.open()
    path = desk.link(run)
    for _ in range(3):
        assert desk.visitor.get(path).status == 200
        assert desk.visitor.ask("HEAD", path).status == 200
        assert desk.visitor.get(path + "&outcome=complete&step=confirm").status == 200
    assert desk.is_open(run)


@on_one_database
def test_nothing_about_other_runs_is_on_the_pages(desk):
    desk.open(None, tenant="globex")
    run = desk.open(None, tenant="acme")
    path = desk.link(run)
    texts = desk.visitor.get(path).text + desk.visitor.submit(path, FILLED, origin="null").text
    texts += desk.decide(path).text + desk.visitor.get(path).text
    gate = desk.control.graphs.node(run.id, "refund")
    for hidden in ("acme", "globex", str(run.id), str(gate), "/runs", "Overview", "<script"):
        assert hidden not in texts, hidden


@on_one_database
def test_a_link_works_beside_tokens_and_opens_nothing_else(desk):
    path = desk.link(desk.open(None, tenant="acme"))
    query = path.partition("?")[2]
    for other in ("/", "/gates", "/api/v1/gates", "/api/v1/runs", "/metrics"):
        assert desk.visitor.get(f"{other}?{query}").status == 401
    assert Visitor(desk.visitor.site, token=query.partition("=")[2]).get("/api/v1/runs").status == 401


@on_one_database
def test_the_headers_keep_the_token_to_the_page(desk):
    path = desk.link(desk.open())
    for answer in (
        desk.visitor.get(path),
        desk.visitor.submit(path, FILLED, origin="null"),
        desk.visitor.get("/links/gate"),
    ):
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "noindex" in answer.headers["x-robots-tag"]
        assert path.partition("token=")[2] not in answer.text.replace("<form", ""), "not even in the page itself"


@on_one_database
def test_hosts_and_origins(desk):
    path = desk.link(desk.open())
    site = desk.site(unlocked=True)
    for host, status in (("ops.example.org", 200), ("OPS.example.org:443", 200), ("evil.example.org", 421)):
        assert Visitor(site, headers={"host": host}).get(path).status == status
    assert Visitor(site, headers={"host": "ops.example.org"}).get("/").status == 421, "unlocked: only links"
    assert Visitor(desk.visitor.site, headers={"host": "ops.example.org"}).get("/login").status == 200
    assert desk.visitor.submit(path, FILLED, origin="https://evil.example.org").status == 403
    assert desk.visitor.submit(path, FILLED, origin="null", sec_fetch_site="cross-site").status == 403
    assert desk.visitor.submit("/login", {"token": "x"}, origin="null").status == 403, "only for links"


@on_one_database
def test_many_requests_are_throttled_but_a_good_link_still_works_for_the_client(desk):
    path = desk.link(desk.open())
    codes = [desk.visitor.get(f"/links/gate?token=wrong{n}").status for n in range(13)]
    assert codes[:10] == [404] * 10
    assert codes[10:] == [429] * 3
    assert desk.visitor.get("/links/gate").headers["retry-after"]
    assert desk.visitor.get(path).status == 200
    other = Visitor(desk.visitor.site, scope={"client": ["10.9.9.9", 1]})
    assert other.get("/links/gate").status == 404
    codes = [Visitor(desk.visitor.site, scope={"client": [f"10.8.{n}.1", 1]}).get(path).status for n in range(62)]
    assert codes.count(429) > 0, "one link from many addresses"
    assert Visitor(desk.visitor.site).get(desk.link(desk.open())).status == 200, "another link isn't affected"


@on_one_database
def test_the_token_is_in_no_log(desk, caplog):
    """Neither in Holdfast's own log nor in uvicorn's access log of an application that mounts the dashboard."""
    import uvicorn

    caplog.set_level(logging.DEBUG)
    path = desk.link(desk.open())
    token = path.partition("token=")[2]
    assert desk.decide(path).status == 200
    assert refused(desk.visitor.get(path))
    desk.visitor.get(path.replace("/links/gate", "/nowhere"))
    outer = Starlette(routes=[Mount("/ops", app=desk.visitor.site)])
    config = uvicorn.Config(outer, port=0, log_config=None, access_log=True, lifespan="off")
    server = uvicorn.Server(config)
    logging.getLogger("uvicorn.access").propagate = True
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        from httpx2 import Client

        with Client(base_url=f"http://127.0.0.1:{port}/ops") as client:
            new = desk.link(desk.open())
            assert client.get(new).status_code == 200
            assert client.get(new.replace("links/gate", "nowhere") + "&a=1").status_code == 404
            assert client.post(new, json={"ok": True, "note": "n"}).json() == {"outcome": "completed"}
    finally:
        server.should_exit = True
        thread.join()
    text = "\n".join(each.getMessage() for each in caplog.records if not each.name.startswith("http"))
    assert "/ops/links/gate?token=*** HTTP/1.1" in text
    assert "token=***&a=1" in text
    assert token not in text
    assert new.partition("token=")[2] not in text
    assert "link refused" in text


# A browser


@on_one_database
async def test_on_a_phone_without_javascript_the_form_can_be_filled_in_and_confirmed(
    browser: Browser, database_url: str
) -> None:
    desk = await asyncio.to_thread(Desk, database_url)
    served = Served(desk.visitor.site)
    run = await asyncio.to_thread(desk.open)
    path = await asyncio.to_thread(desk.link, run)
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
    await context.close()
    assert await asyncio.to_thread(desk.result, run) == "True lost parcel bank"
    served.close()
    await asyncio.to_thread(desk.close)


@on_one_database
async def test_the_pages_pass_the_accessibility_audit(browser: Browser, database_url: str) -> None:
    desk = await asyncio.to_thread(Desk, database_url)
    served = Served(desk.visitor.site)
    path = await asyncio.to_thread(lambda: desk.link(desk.open()))
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
    await context.close()
    served.close()
    await asyncio.to_thread(desk.close)
