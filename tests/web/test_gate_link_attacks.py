"""Links to gates, attacked: forged, expired, used again, leaked, and sent by those who guess or flood."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import threading
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from httpx2 import Client
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Context, Graph, Holdfast, Secret
from holdfast.integrations.encryption import Encryption, Key
from holdfast.model.gate_links import GATE_LINK, GateLinkToken, LinkRequest
from holdfast.model.signed_tokens import SignedValue, Signer
from holdfast.store.graphs import gate_completed
from holdfast.web import dashboard, links
from holdfast.web.links import LinkThrottle
from holdfast.web.responses import RequestError
from tests.support.approvals import FILLED, OLD_SECRET, OUTPUT, PUBLIC, SECRET, Approvals, Decision, decided_by, refused
from tests.support.web import Visitor
from tests.web.conftest import NASTY

on_one_database = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_every_unusable_link_gets_the_same_response(approvals):
    run, other = approvals.open(), approvals.open()
    good = approvals.link(run)
    used, expired = approvals.link(other), approvals.link(run, expires=60)
    assert approvals.decide(used).status == 200
    approvals.clock.advance(seconds=61)
    gone = GateLinkToken(b"\x01" * 16, 0, None, "gone")
    later = approvals.clock() + 10**9
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
        "short id": f"/links/gate?token={sign(GATE_LINK, GateLinkToken(b'', 0, None, 'gone'), later)}",
        "another purpose": f"/links/gate?token={sign('stream', gone, later)}",
        "the stream": f"/links/gate?{run.stream_url().partition('?')[2]}",
    }
    answers = {}
    for number, (name, path) in enumerate(links.items()):
        visitor = Visitor(approvals.visitor.site, scope={"client": [f"10.0.0.{number}", 1]})
        for answer in (visitor.get(path), visitor.submit(path, FILLED | {"step": "confirm"}, origin="null")):
            assert refused(answer), (name, answer.text)
            answers[name] = (answer.text, sorted(answer.headers.items()))
        assert visitor.post(path, OUTPUT).json["code"] == "link_not_usable", name
    assert len({str(answer) for answer in answers.values()}) == 1, "nothing tells them apart"
    assert approvals.is_open(run)
    assert approvals.visitor.get(good).status == 200


@on_one_database
def test_a_changed_token_opens_nothing(approvals):
    """Also not one whose expiry or gate was changed with the rest left as it is."""
    run, other = approvals.open(), approvals.open()
    token = approvals.link(run, expires=60).partition("token=")[2]
    other_id = approvals.control.graphs.node(other.id, "refund").bytes
    own_id = approvals.control.graphs.node(run.id, "refund").bytes
    data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    assert own_id in data
    later = (int.from_bytes(data[5:10], "big") + 10**6).to_bytes(5, "big")
    changed = [data[:5] + later + data[10:], data.replace(own_id, other_id), data[:-32] + b"\0" * 32, data[:-32]]
    visitor = Visitor(approvals.visitor.site, scope={"client": ["10.1.1.1", 1]})
    for each in changed:
        text = base64.urlsafe_b64encode(each).rstrip(b"=").decode()
        assert refused(visitor.get(f"/links/gate?token={text}"))
        assert visitor.post(f"/links/gate?token={text}", OUTPUT).status == 404
    assert approvals.is_open(run)
    assert approvals.is_open(other)


def test_a_link_works_once_also_for_those_who_race(approvals):
    """Each on a site with connections of its own; some fill in the form, others post JSON."""
    run = approvals.open()
    paths = [approvals.link(run), approvals.link(run), approvals.link(run, recipient="bob")]
    visitors = [Visitor(approvals.site(token="t" * 40)) for _ in paths]
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
    assert approvals.result(run) == "True same bank"
    gate = approvals.control.graphs.node(run.id, "refund")
    assert [entry.kind for entry in approvals.control.runs.history(gate)].count("completed") == 1


def test_a_link_dies_with_its_gate_and_stays_dead_when_the_run_is_retried_or_forked(approvals):
    run = approvals.open()
    first = approvals.link(run)
    run.cancel()
    assert refused(approvals.visitor.get(first))
    run.retry()
    approvals.drain()
    assert approvals.is_open(run)
    assert refused(approvals.visitor.get(first)), "the gate is open again, for new links only"
    assert refused(approvals.decide(first))
    second = approvals.link(run)
    run.gate("refund").fail("no")
    approvals.drain()
    assert run.info().state == "failed"
    fork = run.fork()
    approvals.drain()
    assert approvals.is_open(fork)
    for path in (first, second):
        assert refused(approvals.visitor.get(path))
        assert refused(approvals.decide(path))
    assert approvals.decide(approvals.link(fork)).status == 200


def test_a_link_is_checked_again_under_the_lock_of_the_decision(approvals):
    """Between the check of a link and its decision, the gate may be decided, and opened again by a retry."""
    graphs = approvals.app.store.graphs
    run = approvals.open()
    request = LinkRequest.of(60, None)
    opened = graphs.add_link(str(run.id), "refund", request)
    yes = gate_completed("refund", OUTPUT, "ada")
    assert not graphs.conclude_linked_gate(opened.id, opened.opening - 1, request.id, yes)
    run.cancel()
    assert not graphs.conclude_linked_gate(opened.id, opened.opening, request.id, yes)
    run.retry()
    approvals.drain()
    other = LinkRequest.of(60, None)
    again = graphs.add_link(str(run.id), "refund", other)
    assert again.id == opened.id, "it is the same gate"
    assert not graphs.conclude_linked_gate(opened.id, opened.opening, request.id, yes)
    assert graphs.conclude_linked_gate(again.id, again.opening, other.id, yes)
    assert not graphs.conclude_linked_gate(again.id, again.opening, other.id, yes)
    assert not graphs.conclude_linked_gate(str(run.id), 0, other.id, yes), "not a gate"


def test_a_gate_that_a_function_left_behind_when_it_restarted_can_not_be_decided_by_link(approvals):
    @approvals.app.task(name="restarts")
    async def restarts(ctx: Context, number: int) -> Any:
        if number:
            return await ctx.gate("ask")
        waiting = asyncio.ensure_future(ctx.gate("ask"))
        await ctx.step(approvals.note.fn, "a", name="note")
        await ctx.wait_for("go")
        waiting.cancel()
        return await ctx.restart(1)

    run = approvals.open(restarts, 0)
    first = approvals.link(run, "ask")
    approvals.app.emit("go")
    approvals.drain()
    assert approvals.visitor.post(first, 1).status == 404
    assert approvals.visitor.post(approvals.link(run, "ask"), 2).status == 200
    assert approvals.result(run) == 2


def test_payloads_that_a_codec_binds_to_their_place_are_shown_and_outputs_are_encoded(database_url):
    approvals = Approvals(database_url, codec=Encryption([Key("1", b"k" * 32)]))
    run = approvals.open(None, tenant="acme")
    path = approvals.link(run)
    assert "Eve &lt;eve@example.org&gt;" in approvals.visitor.get(path).text
    assert approvals.visitor.post(path, {"ok": True, "note": "n"}).status == 200
    assert approvals.result(run) == "True n bank"
    approvals.close()


@dataclass
class Numbers:
    count: int
    ratio: float
    names: list[str]
    note: str = ""


@on_one_database
def test_fields_of_another_type_and_made_up_fields_are_refused_or_ignored(approvals):
    @approvals.app.task(name="numbers")
    async def numbers(ctx: Context) -> Any:
        return await ctx.gate("numbers", type=Numbers)

    run = approvals.open(numbers)
    path = approvals.link(run, "numbers", recipient="ada")
    good = {"outcome": "complete", "field:count": "3", "field:ratio": "0.5", "field:names": '["a"]'}
    for name, texts in {
        "count": ["3.5", "1e999", "true", "null", '"3"', "0x10", "３", "[3]", "9" * 5000, "NaN"],
        "ratio": ["Infinity", "NaN", "-1e999", "true", '"0.5"', "1,5"],
        "names": ["a", "{}", "[1]", '"a"', "null", '["\\ud800"]', "[" * 3000],
    }.items():
        for text in texts:
            form = good | {f"field:{name}": text, "step": "confirm"}
            answer = approvals.visitor.submit(path, form, origin="null")
            assert answer.status == 422, (name, text[:20], answer.status)
        approvals.clock.advance(seconds=1)
        approvals.visitor = Visitor(approvals.visitor.site, scope={"client": [f"10.3.{len(name)}.1", 1]})
    assert approvals.is_open(run)
    more = {"field:state": "done", "field:__class__": "x", "decided_by": "root", "by": "root", "gate": "other"}
    assert approvals.decide(path, good | more).status == 200
    assert approvals.result(run) == {"count": 3, "ratio": 0.5, "names": ["a"], "note": ""}
    assert decided_by(approvals, run, "numbers") == "ada (link)"


@on_one_database
def test_hostile_text_in_the_payload_and_the_form_is_shown_as_text(approvals):
    @approvals.app.task(name="hostile")
    async def hostile(ctx: Context) -> Any:
        return await ctx.gate(NASTY, payload={NASTY: NASTY, "token": Secret("hidden-value"), "list": [NASTY]})

    run = approvals.open(hostile)
    (gate,) = run.gates()
    path = gate.link(recipient=NASTY).removeprefix(PUBLIC)
    form = {"outcome": "complete", "field:output": f'"{chr(60)}b>"'}
    for text in (approvals.visitor.get(path).text, approvals.visitor.submit(path, form, origin="null").text):
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<b>" not in text
        assert "hidden-value" not in text
    assert approvals.decide(path, form).status == 200


@on_one_database
def test_operators_create_links_by_api_and_on_the_page_of_a_gate(approvals):
    run = approvals.open(None, tenant="acme")

    def visitor(role: Any, tenant: str | None = None) -> Visitor:
        token = approvals.control.tokens.create(role, tenant, f"{role} {tenant}").token
        return Visitor(approvals.visitor.site, token)

    api = f"/api/v1/runs/{run.id}/gates/refund/link"
    created = visitor(["approver"]).post(api, {"expires": 60, "recipient": "ada"})
    assert created.status == 201, created.text
    assert created.json["recipient"] == "ada"
    assert approvals.visitor.get(created.json["url"].removeprefix(PUBLIC)).status == 200
    approvals.clock.advance(seconds=61)
    assert refused(approvals.visitor.get(created.json["url"].removeprefix(PUBLIC)))
    assert visitor(["approver"], "acme").post(api).status == 201
    assert visitor(["approver"], "globex").post(api).status == 404
    assert visitor(["operator"]).post(api).status == 403
    assert visitor(["approver"]).post(api, {"expires": 0}).status == 422
    assert visitor(["approver"]).post(api.replace("/refund/", "/other/")).status == 404

    browser = Visitor(approvals.visitor.site)
    token = approvals.control.tokens.create(["approver"], None, "ada").token
    browser.cookie = browser.submit("/login", {"token": token}).headers["set-cookie"].partition(";")[0]
    page = f"/gates/{approvals.control.graphs.node(run.id, 'refund')}"
    csrf = re.search(r'name="csrf_token" value="([0-9a-f]+)"', browser.get(page).text)[1]
    wrong = browser.submit(f"{page}/link", {"csrf_token": csrf, "days": "0", "recipient": ""})
    assert (wrong.status, "expires must be positive" in wrong.text) == (422, True)
    shown = browser.submit(f"{page}/link", {"csrf_token": csrf, "days": "2", "recipient": "bob"})
    url = re.search(rf"{PUBLIC}/links/gate\?token=[\w-]+", shown.text)[0]
    assert approvals.decide(url.removeprefix(PUBLIC)).status == 200
    assert decided_by(approvals, run) == "bob (link)"
    late = browser.submit(f"{page}/link", {"csrf_token": csrf, "days": "2", "recipient": ""})
    assert (late.status, "gate-decided" in late.headers["location"]) == (303, True)
    assert visitor(["approver"]).post(api).json["code"] == "run_finished"


def test_a_link_to_a_graphs_gate_dies_when_the_graph_is_retried(approvals):
    graph = Graph("order")
    gate = graph.gate("ship", type=Decision)
    graph.add(approvals.note, gate.output["note"])
    run = approvals.app.submit(graph)
    path = approvals.link(run, "ship")
    run.cancel()
    run.retry()
    assert approvals.is_open(run)
    assert refused(approvals.decide(path))
    assert approvals.decide(approvals.link(run, "ship")).status == 200


def test_a_link_is_for_one_opening_of_a_gate_of_the_same_name(approvals):
    run = approvals.open(approvals.twice)
    first = approvals.link(run, "again")
    assert approvals.visitor.post(first, 1).status == 200
    approvals.drain()
    assert approvals.is_open(run)
    assert approvals.visitor.post(first, 2).status == 404
    assert approvals.visitor.post(approvals.link(run, "again"), 2).status == 200
    assert approvals.result(run) == [1, 2]


@on_one_database
def test_a_link_survives_the_worker_and_the_replacement_of_the_secret(approvals, database_url):
    run = approvals.open()
    path = approvals.link(run)
    approvals.app.worker().drain()
    app = Holdfast(approvals.app.url, clock=approvals.clock, secret=[OLD_SECRET, SECRET], public_url=PUBLIC)
    replaced = Holdfast(approvals.app.url, clock=approvals.clock, secret=OLD_SECRET, public_url=PUBLIC)
    sites = [dashboard(each, token="t" * 40) for each in (app, replaced)]
    assert Visitor(sites[0]).get(path).status == 200
    assert refused(Visitor(sites[1]).get(path))
    new = app.get_run(run.id).gate("refund").link().removeprefix(PUBLIC)
    assert refused(approvals.visitor.get(new))
    assert Visitor(sites[1]).post(new, {"ok": True, "note": "n"}).status == 200
    for site in sites:
        site.close()
    app.close()
    replaced.close()


@on_one_database
def test_reading_never_changes_anything(approvals):
    run = approvals.open()
    path = approvals.link(run)
    for _ in range(3):
        assert approvals.visitor.get(path).status == 200
        assert approvals.visitor.ask("HEAD", path).status == 200
        assert approvals.visitor.get(path + "&outcome=complete&step=confirm").status == 200
    assert approvals.is_open(run)


@on_one_database
def test_a_link_opens_no_stream(approvals):
    run = approvals.open()
    stream, query = run.stream_url().removeprefix(PUBLIC).partition("?")[0], approvals.link(run).partition("?")[2]
    assert approvals.visitor.get(f"{stream}?{query}").status in (401, 403, 404)


@on_one_database
def test_nothing_about_other_runs_is_on_the_pages(approvals):
    approvals.open(None, tenant="globex")
    run = approvals.open(None, tenant="acme")
    path = approvals.link(run)
    texts = approvals.visitor.get(path).text + approvals.visitor.submit(path, FILLED, origin="null").text
    texts += approvals.decide(path).text + approvals.visitor.get(path).text
    gate = approvals.control.graphs.node(run.id, "refund")
    for hidden in ("acme", "globex", str(run.id), str(gate), "/runs", "Overview", "<script"):
        assert hidden not in texts, hidden


@on_one_database
def test_a_link_works_beside_tokens_and_opens_nothing_else(approvals):
    path = approvals.link(approvals.open(None, tenant="acme"))
    query = path.partition("?")[2]
    for other in ("/", "/gates", "/api/v1/gates", "/api/v1/runs", "/metrics"):
        assert approvals.visitor.get(f"{other}?{query}").status == 401
    assert Visitor(approvals.visitor.site, token=query.partition("=")[2]).get("/api/v1/runs").status == 401


@on_one_database
def test_the_headers_keep_the_token_to_the_page(approvals):
    path = approvals.link(approvals.open())
    for answer in (
        approvals.visitor.get(path),
        approvals.visitor.submit(path, FILLED, origin="null"),
        approvals.visitor.get("/links/gate"),
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
def test_hosts_and_origins(approvals):
    path = approvals.link(approvals.open())
    site = approvals.site(unlocked=True)
    for host, status in (("ops.example.org", 200), ("OPS.example.org:443", 200), ("evil.example.org", 421)):
        assert Visitor(site, headers={"host": host}).get(path).status == status
    assert Visitor(site, headers={"host": "ops.example.org"}).get("/").status == 421, "unlocked: only links"
    assert Visitor(approvals.visitor.site, headers={"host": "ops.example.org"}).get("/login").status == 200
    assert approvals.visitor.submit(path, FILLED, origin="https://evil.example.org").status == 403
    assert approvals.visitor.submit(path, FILLED, origin="null", sec_fetch_site="cross-site").status == 403
    assert approvals.visitor.submit("/login", {"token": "x"}, origin="null").status == 403, "only for links"


@on_one_database
def test_many_requests_are_throttled_but_a_good_link_still_works_for_the_client(approvals, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(links, "LinkThrottle", lambda: LinkThrottle(lambda: now[0]))
    site = approvals.site(token="t" * 40)
    path, another = approvals.link(approvals.open()), approvals.link(approvals.open())

    def visit(address: str, path: str) -> int:
        return Visitor(site, scope={"client": [address, 1]}).get(path).status

    bad = "/links/gate?token=wrong"
    assert [visit("10.0.0.1", bad) for _ in range(12)] == [404] * 10 + [429] * 2
    assert Visitor(site, scope={"client": ["10.0.0.1", 1]}).post(bad).json["code"] == "too_many_requests"
    assert (visit("10.0.0.1", path), visit("10.0.0.2", bad)) == (200, 404)
    now[0] += 30
    assert [visit("10.0.0.1", bad) for _ in range(2)] == [404, 429]
    now[0] += 3600
    assert [visit(f"10.8.{n}.1", path) for n in range(62)] == [200] * 60 + [429] * 2, "one link, many addresses"
    assert visit("10.8.0.1", another) == 200, "another link isn't affected"


def test_the_requests_of_a_client_and_all_requests_are_bounded():
    throttle = LinkThrottle(lambda: 0.0)

    def admitted(client: int, gate: int) -> bool:
        try:
            throttle.admit(f"client {client}", SignedValue(GateLinkToken(gate.to_bytes(16), 0, None, "link"), 0))
        except RequestError as error:
            return error.status != 429
        return True

    assert [admitted(0, gate) for gate in range(122)] == [True] * 120 + [False] * 2
    assert [admitted(gate, gate) for gate in range(1, 483)] == [True] * 480 + [False] * 2


@on_one_database
def test_the_token_is_in_no_log(approvals, caplog):
    """Neither in Holdfast's own log nor in uvicorn's access log of an application that mounts the dashboard."""
    caplog.set_level(logging.DEBUG)
    path = approvals.link(approvals.open())
    token = path.partition("token=")[2]
    assert approvals.decide(path).status == 200
    assert refused(approvals.visitor.get(path))
    approvals.visitor.get(path.replace("/links/gate", "/nowhere"))
    outer = Starlette(routes=[Mount("/ops", app=approvals.visitor.site)])
    config = uvicorn.Config(outer, port=0, log_config=None, access_log=True, lifespan="off")
    server = uvicorn.Server(config)
    logging.getLogger("uvicorn.access").propagate = True
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with Client(base_url=f"http://127.0.0.1:{port}/ops") as client:
            new = approvals.link(approvals.open())
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
