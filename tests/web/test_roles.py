"""What each role may do on every route, and what a token that is limited to tasks or queues sees and changes."""

from __future__ import annotations

from uuid import uuid4

import pytest

from holdfast.model.access import PERMISSIONS, ROLES
from holdfast.web.api.operation import PREFIX
from holdfast.web.pages.routes import ACTIONS, PAGES
from holdfast.web.site import OPERATIONS
from tests.support.web import Visitor
from tests.web.test_security import MORE, filled

APPROVE = {
    "complete_gate", "fail_gate", "link_gate", "revoke_links", "/gates/{id}", "/gates/{id}/link",
    "/gates/{id}/links/revoke",
}  # fmt: skip
ADMINISTER = {"list_tokens", "create_token", "revoke_token", "/tokens", "/tokens/revoke"}
AUDIT = {"list_audit", "/audit"}
ALL_TASKS = {
    "list_events", "emit", "clear_event", "/events", "/events/clear", "list_topics", "show_topic", "publish", "/topics",
}  # fmt: skip


def needed(name: str, method: str) -> str:
    """The permission that a route must require."""
    if name in ADMINISTER:
        return "administer"
    if name in AUDIT:
        return "audit"
    if name in APPROVE and method == "POST":
        return "approve"
    return "read" if method == "GET" else "operate"


def declared():
    """Every route: name, method, path and what it declares."""
    yield from ((each.name, each.method, PREFIX + each.path, each.permission, each) for each in OPERATIONS)
    yield from ((each.path, "GET", each.path, each.requires, each) for each in PAGES)
    yield from ((each.path, "POST", each.path, each.requires, each) for each in ACTIONS)


def test_every_route_requires_the_permission_that_it_must():
    for name, method, _, permission, each in declared():
        assert (name, method, permission) == (name, method, needed(name, method))
        assert (name, each.all_tasks) == (name, name in ALL_TASKS)
        if permission == "administer":
            assert each.all_tenants


@pytest.mark.parametrize("role", ROLES)
def test_role_opens_exactly_the_routes_of_its_permissions(shop, fill, role):
    id = fill()["waiting"].id
    visitor, browser = shop.visitor(role), shop.browser(role)
    form = {"csrf_token": csrf_token(browser)}
    for name, method, path, permission, _ in declared():
        at = filled(path, uuid4() if method == "POST" else id)
        if method == "GET":
            answer = visitor.get(at)
        elif path.startswith(PREFIX):
            answer = visitor.post(at, {})
        else:
            answer = browser.submit(at, form)
        assert (name, method, answer.status != 403) == (name, method, permission in PERMISSIONS[role]), answer.text
    for method, path in MORE:
        assert method == "GET"
        if not path.endswith("live"):
            assert visitor.get(filled(path, id)).status == 200


def csrf_token(browser: Visitor) -> str:
    """A viewer's pages have a form, too: the one for logging out."""
    return browser.get("/").text.partition('name="csrf_token" value="')[2].partition('"')[0]


def test_operator_does_not_approve_and_approver_does_not_operate(shop):
    graph = shop.graph()
    shop.drain()
    at = f"/api/v1/runs/{graph.id}"
    decision = {"output": {"ok": True}}
    operator, approver = shop.visitor("operator"), shop.visitor("approver")
    assert operator.post(f"{at}/gates/approve/complete", decision).json["code"] == "role"
    assert operator.post(f"{at}/gates/approve/fail", {"error": "no"}).status == 403
    assert approver.post(f"{at}/cancel", {}).json["detail"].startswith("this needs the role operator")
    assert approver.post(f"{at}/gates/approve/complete", decision).json == {"changed": True}
    both = shop.visitor(["operator", "approver"])
    assert both.post(f"{at}/gates/approve/complete", decision).json == {"changed": False}
    assert both.post(f"{at}/cancel", {}).status == 200


def test_operator_cannot_decide_a_gate_by_cancelling_it(shop):
    graph = shop.graph()
    shop.drain()
    gate = shop.control.graphs.gates(graph.id)[0].id
    operator = shop.visitor("operator")
    refused = operator.post(f"/api/v1/runs/{gate}/cancel", {})
    assert (refused.status, refused.json["code"]) == (403, "role")
    assert "needs the role approver" in refused.json["detail"]
    assert "Cancel run" not in operator.get(f"/runs/{gate}").text
    everything = {"filter": {"queue": "$graph", "state": ["waiting"], "task": "gate"}}
    assert operator.post("/api/v1/bulk/cancel", everything).json["progress"]["changed"] == 0
    assert shop.control.runs.info(gate).state == "waiting"
    assert shop.visitor(["operator", "approver"]).post(f"/api/v1/runs/{gate}/cancel", {}).json == {"changed": True}


def test_operator_cancels_a_graph_with_its_gates(shop):
    graph = shop.graph()
    shop.drain()
    assert shop.visitor("operator").post(f"/api/v1/runs/{graph.id}/cancel", {}).json == {"changed": True}


def test_admin_manages_tokens(shop):
    admin = shop.visitor("admin")
    made = admin.post("/api/v1/tokens", {"roles": ["viewer"], "tenant": "acme", "expires": 60}).json
    assert Visitor(admin.site, made["token"]).get("/api/v1/runs").status == 200
    listed = admin.get("/api/v1/tokens")
    assert made["info"]["id"] in [each["id"] for each in listed.json["tokens"]]
    assert made["token"] not in listed.text
    page = shop.browser("admin").get("/tokens").text
    assert made["info"]["id"] in page
    assert "tenant acme" in page
    assert admin.post(f"/api/v1/tokens/{made['info']['id']}/revoke").json == {"changed": True}
    assert Visitor(admin.site, made["token"]).get("/api/v1/runs").status == 401
    assert admin.post("/api/v1/tokens/nobody/revoke").status == 404
    assert admin.post("/api/v1/tokens", {"roles": ["root"]}).status == 422
    assert admin.post("/api/v1/tokens", {"roles": ["admin"], "tenant": "acme"}).status == 422


def test_admin_revokes_a_token_in_the_browser(shop):
    browser, other = shop.browser("admin"), shop.control.tokens.create("viewer")
    form = {"csrf_token": csrf_token(browser), "token": other.info.id}
    assert browser.submit("/tokens/revoke", form).headers["location"] == "/tokens?did=token-revoked"
    assert not shop.control.tokens.is_valid(other.info.id)
    assert browser.submit("/tokens/revoke", form).headers["location"] == "/tokens?did=token-was-revoked"
    assert browser.submit("/tokens/revoke", form | {"token": "x"}).status == 404


# Tasks and queues


@pytest.fixture
def crowd(shop):
    """Runs of several tasks in several queues."""
    runs = {
        "mail": shop.app.remote("mail.send").options(queue="mail", tenant="acme").enqueue(),
        "bulk": shop.app.remote("mail.bulk").options(queue="low", tenant="other").enqueue(),
        "add": shop.add.enqueue(1, 2),
        "graph": shop.graph(tenant="acme"),
    }
    return {name: str(run.id) for name, run in runs.items()}


SCOPES = [
    ({"tasks": ["mail.*"]}, {"mail", "bulk"}),
    ({"tasks": ["mail.send"]}, {"mail"}),
    ({"queues": ["low"]}, {"bulk"}),
    ({"queues": ["default"], "tasks": ["mail.*"]}, set()),
    ({"tenant": "acme", "tasks": ["mail.*", "add"]}, {"mail"}),
    ({"tasks": ["etl"]}, {"graph"}),
    ({"queues": ["mail*"]}, {"mail"}),
    ({"tasks": ["*"]}, {"mail", "bulk", "add", "graph"}),
]


@pytest.mark.parametrize(("scope", "visible"), SCOPES)
def test_limited_token_sees_only_runs_in_its_scope(shop, crowd, scope, visible):
    token = shop.control.tokens.create("operate", **scope).token
    visitor = Visitor(shop.site(), token)
    listed = {run["id"] for run in visitor.get("/api/v1/runs").json["runs"]}
    assert listed & set(crowd.values()) == {crowd[name] for name in visible}
    preview = visitor.post("/api/v1/bulk/preview", {"verb": "cancel", "filter": {}}).json
    assert {run["id"] for run in preview["sample"]} <= listed
    never = uuid4()
    for name, id in crowd.items():
        pages = [visitor.get(path).text for path in ("/", "/runs", "/bulk?verb=cancel", "/gates")]
        assert any(id in page for page in pages) == (name in visible)
        for _, method, path, permission, each in declared():
            if "{id}" not in path or permission == "administer":
                continue
            if name in visible:
                if method == "GET" and not any(part in path for part in ("gate", "graph", "{key}")):
                    assert (path, visitor.get(filled(path, id)).status) == (path, 200)
            elif method == "GET":
                answer, none = visitor.get(filled(path, id)), visitor.get(filled(path, never))
                assert (path, answer.status) == (path, 404)
                assert answer.text.replace(id, str(never)) == none.text
            elif path.startswith(PREFIX):
                bodies = {"messages": {"topic": "t"}, "fail": {"error": "e"}}
                assert (path, visitor.post(filled(path, id), bodies.get(path.rpartition("/")[2], {})).status) == (
                    path,
                    404,
                )
            assert not each.all_tenants


def test_limited_token_changes_only_runs_in_its_scope(shop, crowd):
    token = shop.control.tokens.create("operate", tasks=["mail.send"], queues=["mail"]).token
    visitor = Visitor(shop.site(), token)
    assert visitor.post("/api/v1/bulk/cancel", {"filter": {}}).json["progress"]["changed"] == 1
    assert visitor.post("/api/v1/bulk/cancel", {"filter": {"task": "add"}}).json["progress"]["changed"] == 0
    assert visitor.post("/api/v1/bulk/cancel", {"filter": {"family": crowd["bulk"]}}).json["progress"]["changed"] == 0
    states = {name: shop.app.get_run(id).info().state for name, id in crowd.items()}
    assert states == {"mail": "cancelled", "bulk": "ready", "add": "ready", "graph": "running"}


def test_limited_token_finds_no_run_out_of_scope(shop, crowd):
    shop.add.options(key="order-1").enqueue(1, 2)
    visitor = Visitor(shop.site(), shop.control.tokens.create("viewer", tasks=["mail.*"]).token)
    for given in ("order-1", crowd["add"], crowd["add"][:13]):
        answer = visitor.get(f"/find?q={given}")
        assert (given, answer.status) == (given, 200)
        assert f'href="/runs/{crowd["add"]}"' not in answer.text
        assert "order-1</span>" not in answer.text
    assert visitor.get(f"/find?q={crowd['mail']}").status == 303


def test_limited_token_has_no_access_to_what_concerns_others(shop, crowd):
    for scope in ({"tasks": ["mail.*"]}, {"queues": ["mail"]}):
        visitor = Visitor(shop.site(), shop.control.tokens.create(["operator", "approver"], **scope).token)
        for name, method, path, permission, each in declared():
            if not (each.all_tenants or each.all_tasks) or permission == "administer":
                continue
            at = filled(path, uuid4())
            answer = visitor.get(at) if method == "GET" else visitor.post(at, {"name": "e"})
            assert (name, answer.status) == (name, 403)
        assert visitor.get("/metrics").status == 403
        nav = visitor.get("/").text
        assert 'href="/workers"' not in nav
        assert 'href="/events"' not in nav


def test_parts_of_a_visible_run_are_visible(shop):
    """The nodes and gates of a graph, although their own tasks are others."""
    graph = shop.graph()
    shop.drain()
    visitor = Visitor(shop.site(), shop.control.tokens.create("approver", tasks=["etl"]).token)
    nodes = shop.control.graphs.read(graph.id).nodes
    assert len(nodes) == 3
    for node in nodes:
        assert visitor.get(f"/api/v1/runs/{node.id}").status == 200
    (gate,) = visitor.get("/api/v1/gates").json["gates"]
    assert visitor.get(f"/gates/{gate['id']}").status == 200
    done = visitor.post(f"/api/v1/runs/{graph.id}/gates/approve/complete", {"output": {"ok": True}})
    assert done.json == {"changed": True}
    stranger = Visitor(shop.site(), shop.control.tokens.create("approver", tasks=["add"]).token)
    assert stranger.get("/api/v1/gates").json == {"gates": []}
    assert stranger.get(f"/gates/{gate['id']}").status == 404


def test_parts_of_a_visible_run_are_not_forked_out_of_scope(shop):
    """A fork is a new run, with arguments that the client chooses."""
    graph = shop.graph(tenant="acme")
    shop.drain()
    node = next(each for each in shop.control.graphs.read(graph.id).nodes if each.name == "extract")
    for scope, status in (({"tasks": ["etl"]}, 403), ({"queues": ["$graph"]}, 403), ({"tasks": ["etl", "add"]}, 201)):
        token = shop.control.tokens.create("operator", tenant="acme", **scope).token
        visitor, browser = Visitor(shop.site(), token), Visitor(shop.site())
        assert visitor.post(f"/api/v1/runs/{node.id}/fork", {"args": [9, 9]}).status == status
        cookie = browser.submit("/login", {"token": token}).headers["set-cookie"]
        browser.cookie = cookie.partition(";")[0]
        page = browser.get(f"/runs/{node.id}")
        assert (page.status, f"{node.id}/fork" in page.text) == (200, status == 201)
        form = {"csrf_token": csrf_token(browser), "args": "[9, 9]"}
        assert browser.submit(f"/runs/{node.id}/fork", form).status == (303 if status == 201 else 403)
    assert len(shop.app.runs(task="add")) == 4


def enqueue(shop, token: str, **body: object) -> tuple[int, str | None]:
    answer = Visitor(shop.site(), token).post("/api/v1/runs", {"task": "add", "args": [1, 2], **body})
    return answer.status, answer.json.get("code")


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_operator_enqueues_what_the_app_declares(shop, tenant):
    token = shop.control.tokens.create("operator", tenant).token
    shop.app.queue("declared")
    assert enqueue(shop, token) == (201, None)
    assert enqueue(shop, token, queue="declared") == (201, None)
    assert enqueue(shop, token, priority=-5) == (201, None)
    assert enqueue(shop, token, task="far.away", remote=True) == (403, "remote_task")
    assert enqueue(shop, token, task="add", remote=True) == (403, "remote_task")
    assert enqueue(shop, token, queue="invented") == (403, "new_queue")
    assert enqueue(shop, token, priority=1) == (403, "priority")
    assert not any(queue in ("invented", "far.away") for queue, _ in shop.app.store.lanes.refresh().values())


def test_scope_bounds_what_is_enqueued_and_permits_new_names(shop):
    token = shop.control.tokens.create(
        "operator", "acme", tasks=["add", "mail.*"], queues=["low", "default"], max_priority=3
    ).token
    assert enqueue(shop, token) == (201, None)
    assert enqueue(shop, token, task="mail.send", remote=True, queue="low", priority=3) == (201, None)
    assert enqueue(shop, token, priority=4) == (403, "priority")
    assert enqueue(shop, token, queue="high") == (403, "scope")
    assert enqueue(shop, token, task="boom") == (403, "scope")
    assert enqueue(shop, token, task="far.away", remote=True) == (403, "scope")
    narrow = shop.control.tokens.create("operator", queues=["low"]).token
    assert enqueue(shop, narrow) == (403, "scope")  # its own queue is another one
    assert enqueue(shop, narrow, queue="low") == (201, None)
    assert enqueue(shop, narrow, queue="low", task="far.away", remote=True) == (403, "remote_task")


def test_admin_enqueues_anything(shop):
    token = shop.control.tokens.create("admin").token
    assert enqueue(shop, token, task="far.away", remote=True, queue="new", priority=1000) == (201, None)
