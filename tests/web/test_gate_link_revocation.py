"""Links to gates: listed with their state, revoked one by one or all at once, and by whom that is allowed."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from holdfast import Graph, RunFinished
from holdfast.errors import BlockingCall, ConfigError, GraphError
from holdfast.model.gate_links import GATE_LINK, MAX_LINKS, GateLinkToken
from holdfast.model.signed_tokens import Signer
from holdfast.store.graphs import gate_completed
from tests.support.approvals import FILLED, OUTPUT, PUBLIC, SECRET, Decision, decided_by, refused
from tests.support.web import Visitor

on_one_database = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def states(gate: Any) -> list[tuple[str | None, str]]:
    return [(link.recipient, link.state) for link in gate.links()]


def test_a_revoked_link_is_refused_while_others_work(approvals):
    run = approvals.open()
    gate = run.gate("refund")
    assert gate.links() == []
    first, second = (approvals.link(run, recipient=name) for name in ("ada", "bob"))
    assert states(gate) == [("ada", "usable"), ("bob", "usable")]
    ada, bob = gate.links()
    assert ada.expires_at - ada.created_at == timedelta(days=3)
    assert gate.revoke_link(ada.id, by="eve") is True
    assert gate.revoke_link(ada.id, by="mallory") is False, "it is revoked already"
    assert refused(approvals.visitor.get(first))
    assert refused(approvals.visitor.submit(first, FILLED | {"step": "confirm"}, origin="null"))
    assert approvals.visitor.post(first, OUTPUT).status == 404
    assert (gate.links()[0].state, gate.links()[0].revoked_by) == ("revoked", "eve")
    assert approvals.decide(second).status == 200
    assert states(gate) == [("ada", "revoked"), ("bob", "used")]
    assert gate.links()[1].used_at is not None
    assert gate.revoke_link(bob.id) is False
    assert decided_by(approvals, run) == "bob (link)"


def test_all_links_are_revoked_at_once_and_links_that_the_gate_does_not_know_never_work(approvals):
    run = approvals.open()
    gate = run.gate("refund")
    paths = [approvals.link(run), approvals.link(run)]
    node = approvals.control.graphs.node(run.id, "refund")
    opening = approvals.app.store.graphs.linked_gate(str(node)).opening
    unknown = GateLinkToken(UUID(str(node)).bytes, opening, None, "forgotten")
    later = approvals.clock() + 10**12
    assert refused(approvals.visitor.get(f"/links/gate?token={Signer([SECRET]).sign(GATE_LINK, unknown, later)}"))
    assert [approvals.visitor.get(path).status for path in paths] == [200, 200]
    assert gate.revoke_links(by="eve") == 2
    assert gate.revoke_links() == 0
    assert all(refused(approvals.visitor.get(path)) for path in paths)
    assert [(link.state, link.revoked_by) for link in gate.links()] == [("revoked", "eve")] * 2
    assert approvals.decide(approvals.link(run)).status == 200


def test_the_links_of_a_gate_that_is_not_open_yet(approvals):
    graph = Graph("order")
    first = graph.add(approvals.note, "a")
    gate = graph.gate("ship", after=[first], type=Decision)
    graph.add(approvals.note, gate.output["note"], name="last")
    run = approvals.app.submit(graph)
    paths = [approvals.link(run, "ship", recipient=name) for name in ("ada", "bob")]
    assert run.gate("ship").revoke_link(run.gate("ship").links()[0].id) is True
    assert refused(approvals.visitor.get(paths[0]))
    assert approvals.decide(paths[1]).status == 200
    assert states(run.gate("ship")) == [("ada", "revoked"), ("bob", "used")]
    approvals.drain()
    assert run.nodes()["last"].state == "done"
    assert states(run.gate("ship")) == [("ada", "revoked"), ("bob", "used")]


def test_links_expire_and_end_with_the_gate_and_forks_have_none(approvals):
    graph = Graph("order")
    gate = graph.gate("ship", type=Decision)
    graph.add(approvals.note, gate.output["note"])
    run = approvals.app.submit(graph)
    approvals.link(run, "ship", recipient="short", expires=60)
    approvals.link(run, "ship", recipient="long")
    approvals.clock.advance(seconds=61)
    assert states(run.gate("ship")) == [("short", "expired"), ("long", "usable")]
    run.cancel()
    assert states(run.gate("ship")) == [("short", "expired"), ("long", "ended")]
    with pytest.raises(RunFinished):
        run.gate("ship").link()
    run.retry()
    assert states(run.gate("ship")) == [("short", "expired"), ("long", "ended")], "a retry is another opening"
    run.cancel()
    assert run.fork().gate("ship").links() == []


def test_a_revocation_is_checked_again_under_the_lock_of_the_decision(approvals):
    run = approvals.open()
    gate = run.gate("refund")
    path = approvals.link(run)
    links, graphs = approvals.control.gate_links, approvals.app.store.graphs
    link = links.check(path.partition("token=")[2])
    assert links.read(link).name == "refund"
    gate.revoke_link(gate.links()[0].id)
    yes, (_, opening, _, id) = gate_completed("refund", OUTPUT, "eve"), msgspec.structs.astuple(link.value)
    assert not graphs.conclude_linked_gate(str(UUID(bytes=link.value.gate)), opening, id, yes)
    assert approvals.is_open(run)


def test_wrong_ids_and_too_many_links_are_refused_with_a_reason(approvals):
    run = approvals.open()
    gate = run.gate("refund")
    with pytest.raises(GraphError, match=r"gate refund of run .* has no link 'nobody'"):
        gate.revoke_link("nobody")
    with pytest.raises(GraphError, match="has opened no gate 'other'"):
        run.gate("other").links()
    for _ in range(MAX_LINKS):
        gate.link(expires=60)
    with pytest.raises(ConfigError, match=f"has {MAX_LINKS} links that can be used: revoke some"):
        gate.link()
    gate.revoke_link(gate.links()[0].id)
    gate.link(recipient="new")
    assert len(gate.links()) == MAX_LINKS
    approvals.clock.advance(seconds=61)
    gate.link(recipient="newer")
    assert states(gate) == [("new", "usable"), ("newer", "usable")], "links that can't be used make room"


@on_one_database
async def test_the_awaitable_forms(approvals):
    run = await asyncio.to_thread(approvals.open)
    gate = run.gate("refund")
    for _ in range(3):
        await gate.alink()
    first, *_ = await gate.alinks()
    assert await gate.arevoke_link(first.id, by="eve") is True
    assert await gate.arevoke_links() == 2
    assert {link.state for link in await gate.alinks()} == {"revoked"}
    for blocking in (gate.links, gate.revoke_links, lambda: gate.revoke_link(first.id)):
        with pytest.raises(BlockingCall, match="event loop"):
            blocking()


def test_who_may_list_and_revoke_by_the_api(approvals):
    run = approvals.open(None, tenant="acme")
    path = approvals.link(run, recipient="ada")

    def visitor(role: Any, tenant: str | None = None) -> Visitor:
        token = approvals.control.tokens.create(role, tenant, f"{role} {tenant}").token
        return Visitor(approvals.visitor.site, token)

    api = f"/api/v1/runs/{run.id}/gates/refund"
    shown = visitor(["viewer"], "acme").get(api).json["links"]
    assert [(link["recipient"], link["state"]) for link in shown] == [("ada", "usable")]
    assert "token=" not in json.dumps(shown)
    assert visitor(["viewer"], "globex").get(api).status == 404
    body = {"link": shown[0]["id"]}
    for role, tenant, status in ((["viewer"], "acme", 403), (["operator"], "acme", 403), (["approver"], "globex", 404)):
        assert visitor(role, tenant).post(f"{api}/revoke_links", body).status == status
    assert approvals.visitor.get(path).status == 200, "none of them revoked it"
    assert visitor(["approver"], "acme").post(f"{api}/revoke_links", {"link": "other"}).json["code"] == "link_not_found"
    assert visitor(["approver"], "acme").post(f"{api}/revoke_links", body).json == {"revoked": 1}
    assert visitor(["approver"], "acme").post(f"{api}/revoke_links", body).json == {"revoked": 0}
    assert refused(approvals.visitor.get(path))
    approvals.link(run)
    assert visitor(["approver"]).post(f"{api}/revoke_links", {}).json == {"revoked": 1}
    actions = [entry for entry in approvals.control.audit.page(action="revoke link").entries if entry.outcome == "done"]
    assert actions[0].by.startswith("['approver']")


@on_one_database
def test_the_page_of_a_gate_lists_and_revokes_links(approvals):
    run = approvals.open()
    path, other = approvals.link(run, recipient="Eve <e@x>"), approvals.link(run, recipient="bob")

    def browser(role: str) -> Visitor:
        visitor = Visitor(approvals.visitor.site)
        token = approvals.control.tokens.create([role], None, f"a {role}").token
        visitor.cookie = visitor.submit("/login", {"token": token}).headers["set-cookie"].partition(";")[0]
        return visitor

    page = f"/gates/{approvals.control.graphs.node(run.id, 'refund')}"
    reader, approver = browser("viewer"), browser("approver")
    assert "Eve &lt;e@x&gt;" in reader.get(page).text
    assert "/links/revoke" not in reader.get(page).text
    text = approver.get(page).text
    csrf = re.search(r'name="csrf_token" value="([0-9a-f]+)"', text)[1]
    id = run.gate("refund").links()[0].id
    assert approver.submit(f"{page}/links/revoke", {"csrf_token": csrf, "link": "nothing"}).status == 404
    done = approver.submit(f"{page}/links/revoke", {"csrf_token": csrf, "link": id})
    assert (done.status, "links-revoked" in done.headers["location"]) == (303, True)
    assert refused(approvals.visitor.get(path))
    assert approvals.visitor.get(other).status == 200
    assert "revoked by a approver" in approver.get(page).text
    assert approver.submit(f"{page}/links/revoke", {"csrf_token": csrf}).status == 303
    assert refused(approvals.visitor.get(other))


def test_the_command_line_lists_and_revokes(approvals, monkeypatch):
    from click.testing import CliRunner

    from holdfast.cli.commands import holdfast

    run = approvals.open()
    path, other = approvals.link(run, recipient="ada"), approvals.link(run)
    monkeypatch.setenv("HOLDFAST_SECRET", SECRET)
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", PUBLIC)

    def shell(*args: str) -> Any:
        return CliRunner().invoke(holdfast, ["gate", str(run.id), "refund", *args, "--url", approvals.app.url])

    listed = shell("links")
    assert listed.exit_code == 0, listed.output
    id = run.gate("refund").links()[0].id
    assert id in listed.output
    assert "ada" in listed.output
    assert "usable" in shell().output
    revoked = shell("revoke", id, "--by", "eve")
    assert f"link {id}  revoked" in revoked.output
    assert "could not be used any more" in shell("revoke", id).output
    assert "revoked by eve" in shell("links").output
    assert refused(approvals.visitor.get(path))
    assert "1 link revoked" in shell("revoke").output
    assert refused(approvals.visitor.get(other))
    assert shell("links", "x").exit_code == 2
