"""Authentication and authorization of every route, page and form."""

from __future__ import annotations

import asyncio
import html
import re
from uuid import uuid4

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.errors import ConfigError
from holdfast.web.api.operation import PREFIX
from holdfast.web.pages.routes import ACTIONS, PAGES
from holdfast.web.site import OPERATIONS
from tests.support.web import HOST, Visitor

SECRET = "a word of my own, and a long one at that"
MORE = [("GET", path) for path in ("/metrics", "/api/v1/openapi.json", "/api/v1/live", "/api/v1/runs/{id}/live")]


def filled(path: str, id: object) -> str:
    """Fill the placeholders of a route."""
    return re.sub(r"\{\w+(:path)?\}", "name", path.replace("{id}", str(id)))


def routes(id: object) -> list[tuple[str, str]]:
    """All routes except login and static files."""
    api = [(each.method, filled(PREFIX + each.path, id)) for each in OPERATIONS]
    pages = [("GET", filled(each.path, id)) for each in PAGES] + [("POST", filled(each.path, id)) for each in ACTIONS]
    return api + pages + [(method, filled(path, id)) for method, path in MORE]


def ask(visitor: Visitor, method: str, path: str, **headers: str):
    if method == "GET":
        return visitor.get(path, **headers)
    return visitor.post(path, {}, **headers) if path.startswith(PREFIX) else visitor.submit(path, {}, **headers)


def test_every_route_requires_authentication_once_a_token_exists(shop):
    stranger = Visitor(shop.site(unlocked=True))
    shop.control.tokens.create("read")
    answers = {route: ask(stranger, *route).status for route in routes(uuid4())}
    assert {route: status for route, status in answers.items() if status != 401} == {}


def test_invalid_credentials_are_rejected(shop):
    visitor = shop.visitor()
    assert visitor.get("/api/v1/runs").status == 200
    wrong = visitor.token[:-1] + ("A" if visitor.token[-1] != "A" else "B")
    for token in (wrong, "", "hf_", f"hf_{'0' * 12}_{'a' * 43}", "nonsense", visitor.token[:30]):
        assert Visitor(visitor.site, token).get("/api/v1/runs").status == 401
    for cookie in ("holdfast_login=", "holdfast_login=env.", f"holdfast_login={visitor.token}"):
        assert Visitor(visitor.site, cookie=cookie).get("/").status == 401
    shop.control.tokens.revoke(shop.control.tokens.list()[0].id)
    assert visitor.get("/api/v1/runs").status == 401


def test_the_token_of_the_process_has_all_rights(shop, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TOKEN", SECRET)
    site = shop.site(unlocked=True)
    assert Visitor(site).get("/").status == 401
    assert Visitor(site, "another word of the same length, or so").get("/").status == 401
    assert Visitor(site, SECRET).post("/api/v1/events", {"name": "e"}).json["changed"] is True


def test_with_a_token_for_reading_nothing_can_be_changed(shop, fill):
    runs = fill()
    visitor = shop.visitor("read")
    changing = [route for route in routes(runs["waiting"].id) if route[0] == "POST"]
    assert {ask(visitor, *route).status for route in changing} == {403}
    assert "Cancel" not in visitor.get(f"/runs/{runs['waiting'].id}").text


def test_runs_of_other_tenants_are_not_there(shop, fill):
    runs = fill()
    visitor = shop.visitor("operate", "acme")
    foreign, own = runs["other"].id, runs["waiting"].id
    about_a_run = [route for route in routes(foreign) if str(foreign) in route[1]]
    bodies = {"messages": {"topic": "t"}, "fail": {"error": "e"}}
    for method, path in about_a_run:
        if method == "POST" and path.startswith(PREFIX):
            answer = visitor.post(path, bodies.get(path.rpartition("/")[2], {}))
            assert (path, answer.status) == (path, 404)
        elif method == "GET":
            assert (path, visitor.get(path).status) == (path, 404)
    assert visitor.get(f"/api/v1/runs/{own}").status == 200
    listed = {run["tenant"] for run in visitor.get("/api/v1/runs").json["runs"]}
    assert listed == {"acme"}
    assert visitor.get("/api/v1/runs?tenant=other").json["runs"] == []
    assert str(foreign) not in visitor.get("/runs?tenant=other").text
    assert str(foreign) not in visitor.get("/").text


def test_tenant_token_cannot_access_global_resources(shop):
    visitor = shop.visitor("operate", "acme")
    whole = [(each.method, filled(PREFIX + each.path, uuid4())) for each in OPERATIONS if each.all_tenants]
    whole += [("GET", each.path) for each in PAGES if each.all_tenants] + [("GET", "/metrics")]
    assert {ask(visitor, *route).status for route in whole} == {403}


def test_new_runs_belong_to_the_tenant(shop):
    visitor = shop.visitor("operate", "acme")
    made = visitor.post("/api/v1/runs", {"task": "add", "args": [1, 2]})
    assert visitor.get(f"/api/v1/runs/{made.json['id']}").json["info"]["tenant"] == "acme"
    assert visitor.post("/api/v1/runs", {"task": "add", "args": [1, 2], "tenant": "other"}).status == 403
    assert visitor.post("/api/v1/events", {"name": "e", "tenant": "other"}).status == 403


PROXY_HEADERS = (
    "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "forwarded", "via", "x-real-ip", "cf-ray", "cdn-loop",
    "x-cluster-client-ip", "fastly-client-ip", "fly-client-ip", "x-original-forwarded-for", "x-envoy-external-address",
    "x-azure-clientip", "x-amzn-trace-id", "tailscale-user-login", "x-appengine-user-ip", "front-end-https",
)  # fmt: skip


def test_open_dashboard_is_open_only_to_direct_local_requests(shop):
    """Not through a proxy, a mount or another address, whatever the settings of the server."""
    site = shop.site(unlocked=True)
    assert Visitor(site).get("/").status == 200
    for name in PROXY_HEADERS:
        assert (name, Visitor(site).get("/", **{name: "127.0.0.1"}).status) == (name, 401)
        assert Visitor(site).post("/api/v1/events", {"name": "e"}, **{name: "x"}).status == 401
    assert Visitor(site, root="/ops").get("/").status == 401
    assert Visitor(site, scope={"http_version": "1.0"}).get("/").status == 401  # nginx without further settings
    for ends in ({"client": ("192.0.2.1", 1)}, {"server": ("192.0.2.1", 80)}, {"client": None}, {"server": None}):
        assert (ends, Visitor(site, scope=ends).get("/").status) == (ends, 401)


@pytest.mark.parametrize("path", ["/ops", ""])
def test_mounted_dashboard_is_locked(shop, path):
    outer = Starlette(routes=[Mount(path, shop.site(unlocked=True))])
    assert Visitor(outer).get(f"{path}/runs").status == 401
    token = shop.control.tokens.create("read").token
    assert Visitor(outer, token).get(f"{path}/runs").status == 200


def test_unlocked_dashboard_has_no_other_hosts(shop):
    with pytest.raises(ConfigError, match="unlocked=True is for local use only"):
        shop.site(unlocked=True, hosts=["ops.example.org"])


def test_dashboard_stays_locked_after_the_last_token_is_revoked(shop):
    visitor = Visitor(shop.site(unlocked=True))
    assert visitor.get("/").status == 200
    token = shop.control.tokens.create("read")
    assert visitor.get("/").status == 401
    shop.control.tokens.revoke(token.info.id)
    assert visitor.get("/").status == 401
    assert Visitor(shop.site(unlocked=True)).get("/").status == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8787", "localhost.evil.example", "", "192.0.2.1", "[::1", "localhost.",
        "localhost.:80", "evil@localhost", "user:word@localhost", "localhost/", "localhost#", "localhost?",
        "localhost:", "localhost:x", " localhost", "localhost\\", "127.0.0.1.", "127.1", "[::1%eth0]", "loc\u0430lhost",
    ],
)  # fmt: skip
def test_a_foreign_host_is_refused(open_visitor, host):
    assert open_visitor.get("/", host=host).status == 421
    assert open_visitor.get("/api/v1/runs", host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8787", "[::1]:8787"])
def test_loopback_host_is_accepted(open_visitor, host):
    assert open_visitor.get("/api/v1/runs", host=host).status == 200


def test_allowed_hosts_are_accepted(shop):
    visitor = shop.visitor()
    named = Visitor(shop.site(hosts=["ops.example.org"]), visitor.token)
    assert named.get("/", host="ops.example.org").status == 200
    assert named.get("/", host="192.0.2.1").status == 200
    assert named.get("/", host="other.example.org").status == 421


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost", f"ftp://{HOST}", "http://[::1"])
def test_cross_origin_request_changes_nothing(open_visitor, origin):
    for route in [route for route in routes(uuid4()) if route[0] == "POST"]:
        assert ask(open_visitor, *route, origin=origin).status == 403
    assert open_visitor.submit("/login", {"token": "x"}, origin=origin).status == 403


def test_cross_site_request_changes_nothing(open_visitor):
    answer = open_visitor.post("/api/v1/events", {"name": "e"}, sec_fetch_site="cross-site")
    assert (answer.status, answer.json["code"]) == (403, "cross_site")


def test_form_needs_origin_and_csrf_token(shop, fill):
    id = fill()["waiting"].id
    browser, stranger = shop.browser(), shop.browser()
    forms = ({}, {"csrf_token": ""}, {"csrf_token": "0" * 64}, {"csrf_token": stranger.csrf_token()})
    for form in forms:
        assert browser.submit(f"/runs/{id}/cancel", form).status == 403
    bare = {"content-type": "application/x-www-form-urlencoded"}
    assert browser.ask("POST", f"/runs/{id}/cancel", f"csrf_token={browser.csrf_token()}".encode(), bare).status == 403
    assert shop.app.get_run(id).info().state == "waiting"
    assert browser.submit(f"/runs/{id}/cancel", {"csrf_token": browser.csrf_token()}).status == 303
    assert shop.app.get_run(id).info().state == "cancelled"


def test_the_api_takes_changes_with_a_bearer_token_only(shop):
    browser = shop.browser()
    answer = browser.post("/api/v1/events", {"name": "e"}, origin=f"http://{HOST}")
    assert (answer.status, answer.json["code"]) == (403, "no_bearer")
    assert browser.get("/api/v1/runs").status == 200


def test_the_api_takes_json_only_so_that_no_form_of_another_site_fits(open_visitor):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = open_visitor.ask("POST", "/api/v1/events", b'{"name": "e"}', {"content-type": kind})
        assert answer.status == 422


def test_a_login_gives_a_cookie_that_only_this_site_can_use(shop):
    visitor = Visitor(shop.site())
    token = shop.control.tokens.create("read").token
    answer = visitor.submit("/login", {"token": token, "next": "/runs"})
    assert (answer.status, answer.headers["location"]) == (303, "/runs")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/;" in cookie
    assert "Secure" not in cookie
    assert token not in cookie
    assert visitor.submit("/login", {"token": "wrong"}).status == 401


def test_login_returns_to_the_requested_page(shop):
    visitor = Visitor(shop.site())
    token = shop.control.tokens.create("read").token
    page = visitor.get("/runs?state=failed&task=x").text
    (following,) = re.findall(r'name="next" value="([^"]*)"', page)
    answer = visitor.submit("/login", {"token": token, "next": html.unescape(following)})
    assert answer.headers["location"] == "/runs?state=failed&task=x"


def test_tls_login_sets_a_secure_cookie(shop):
    """Also behind a TLS proxy."""
    token = shop.control.tokens.create("read").token
    answer = Visitor(shop.site()).submit("/login", {"token": token}, origin=f"https://{HOST}")
    assert "Secure" in answer.headers["set-cookie"]


def test_token_in_the_url_is_ignored(shop):
    visitor = shop.visitor()
    stranger = Visitor(visitor.site)
    for name in ("token", "access_token", "authorization", "holdfast_login"):
        assert stranger.get(f"/api/v1/runs?{name}={visitor.token}").status == 401
        assert stranger.get(f"/?{name}={visitor.token}").status == 401


def test_two_host_headers_are_rejected(open_visitor):
    class Twice(dict):
        def items(self):
            return [*super().items(), ("Host", "evil.example")]

    from tests.support import web

    answer = asyncio.run(web._ask(open_visitor.site, "GET", "/", b"", Twice(host=HOST), ""))
    assert answer.status == 421


@pytest.mark.parametrize("following", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\nb"])
def test_login_redirects_only_within_the_site(shop, following):
    token = shop.control.tokens.create("read").token
    answer = Visitor(shop.site()).submit("/login", {"token": token, "next": following})
    assert answer.headers["location"] == "/"


def test_logging_out_takes_the_cookie_away(shop, fill):
    fill()
    browser = shop.browser()
    assert "set-cookie" not in browser.submit("/logout", {"csrf_token": "0" * 64}).headers
    answer = browser.submit("/logout", {"csrf_token": browser.csrf_token()})
    assert 'holdfast_login=""' in answer.headers["set-cookie"]


def test_every_response_has_security_headers(open_visitor):
    for path in ("/", "/runs", "/login", "/api/v1/runs", "/nowhere", "/static/style.css", "/metrics"):
        headers = open_visitor.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == ("no-store" if "static" not in path else "public, max-age=31536000")


def test_pages_have_no_script_or_style_of_their_own(shop, open_visitor, fill):
    runs = fill()
    for path in ("/", "/runs", "/gates", f"/runs/{runs['graph'].id}", f"/runs/{runs['failed'].id}", "/login"):
        text = open_visitor.get(path).text
        assert not re.search(r"<script(?! type=\"module\" src=)|<style| style=| on\w+=\"", text), path


def test_secrets_are_not_shown(shop, monkeypatch, fill):
    monkeypatch.setenv("HOLDFAST_TOKEN", SECRET)
    fill()
    visitor = Visitor(shop.site(), SECRET)
    kept = shop.app.store.tokens.list_all()
    for method, path in routes(visitor.any_run()):
        if method == "GET" and not path.endswith("/live"):
            text = visitor.get(path).text
            assert SECRET not in text
            assert not any(row.hash in text for row in kept)


def test_unexpected_error_reveals_nothing(shop, open_visitor, monkeypatch):
    def broken(self: object) -> None:
        raise RuntimeError("secret words")

    monkeypatch.setattr("holdfast.control.workers.WorkerControl.list", broken)
    for path in ("/api/v1/workers", "/"):
        answer = open_visitor.get(path)
        assert answer.status == 500
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text


def test_unavailable_database_is_reported_without_details(shop, open_visitor, monkeypatch, caplog):
    from holdfast.errors import StoreUnavailable

    def away(self: object) -> None:
        raise StoreUnavailable("cannot connect to postgresql://user@host")

    monkeypatch.setattr("holdfast.control.queues.QueueControl.list", away)
    answer = open_visitor.get("/api/v1/queues")
    assert (answer.status, answer.json["code"]) == (503, "store_unavailable")
    assert "host" not in answer.json["detail"].replace("hostname", "")
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage() == (
        'request failed request="GET /api/v1/queues" error="cannot connect to postgresql://user@host"'
    )
