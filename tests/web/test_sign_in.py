"""Sign-in with the identity that a proxy names, and with an OpenID Connect provider."""

from __future__ import annotations

import html
import re
import time
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from holdfast.errors import ConfigError
from holdfast.model.signed_tokens import LinkSettings
from holdfast.web.oidc import OidcSettings
from holdfast.web.sign_in import Grant, Identity, SignIn
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.support.web import FORM_KEY, Visitor

HEADER = "x-forwarded-user"
PROXY = {"client": ("10.0.0.7", 5000)}
GRANTS = ["ada@example.org=admin", "group:support=viewer+approver:acme", "group:ops=operator", "bob=operator"]


def grants(*texts):
    return [Grant.parse(text) for text in texts or GRANTS]


# Grants


def test_grants_give_roles_and_a_tenant():
    how = SignIn(grants(*GRANTS, "group:all=viewer", "group:two=operator:other"), identity_header=HEADER)
    assert how.rights_of(Identity("ada@example.org"))[0] == ("admin",)
    roles, scope = how.rights_of(Identity("eve", ("support",)))
    assert (roles, scope.tenant) == (("viewer", "approver"), "acme")
    roles, scope = how.rights_of(Identity("eve", ("support", "two", "ops")))
    assert (roles, scope.tenant) == (("viewer", "approver"), "acme")  # grants of several tenants don't add up
    assert how.rights_of(Identity("eve", ("ops", "all")))[0] == ("viewer", "operator")
    assert how.rights_of(Identity("support")) is None
    assert how.rights_of(Identity("group:ops")) is None or Identity("group:ops").groups == ()
    assert SignIn(grants("*=viewer"), identity_header=HEADER).rights_of(Identity("eve"))[0] == ("viewer",)


@pytest.mark.parametrize("text", ["ada", "=viewer", "ada=root", "ada=", "group:=viewer", "ada=admin:acme"])
def test_wrong_grants_are_refused(text):
    with pytest.raises(ConfigError):
        Grant.parse(text)


def test_settings_that_would_let_anyone_in_are_refused(shop):
    with pytest.raises(ConfigError, match="needs proxies"):
        shop.site(sign_in=SignIn(grants(), identity_header=HEADER))
    with pytest.raises(ConfigError, match="grants"):
        SignIn([], identity_header=HEADER)
    with pytest.raises(ConfigError, match="identity header or"):
        SignIn(grants())
    with pytest.raises(ConfigError, match="unlocked"):
        shop.site(unlocked=True, proxies=["10.0.0.7"], sign_in=SignIn(grants(), identity_header=HEADER))
    with pytest.raises(ConfigError, match="https"):
        OidcSettings("http://login.example.org", "x")
    with pytest.raises(ConfigError, match="PUBLIC_URL"):
        shop.site(sign_in=SignIn(grants(), oidc=OidcSettings("https://login.example.org", "x")))


# Proxies


@pytest.fixture
def proxied(shop):
    how = SignIn(grants(), identity_header="X-Forwarded-User", groups_header="X-Forwarded-Groups")
    return shop.site(proxies=["10.0.0.7"], sign_in=how)


def test_only_a_trusted_proxy_names_the_user(proxied):
    behind = Visitor(proxied, scope=PROXY, headers={HEADER: "bob"})
    assert "bob" in behind.get("/").text
    assert behind.get("/api/v1/runs").status == 200
    for elsewhere in (("10.0.0.8", 5000), ("127.0.0.1", 1), ("10.0.0.70", 1), None):
        assert Visitor(proxied, scope={"client": elsewhere}, headers={HEADER: "bob"}).get("/").status == 401
    forwarded = {HEADER: "bob", "x-forwarded-for": "10.0.0.7"}
    assert Visitor(proxied, scope={"client": ("10.0.0.8", 1)}, headers=forwarded).get("/").status == 401
    for wrong in ("", " ", "b\x01b", "x" * 201):
        assert Visitor(proxied, scope=PROXY, headers={HEADER: wrong}).get("/").status == 401
    assert Visitor(proxied, scope=PROXY).get("/").status == 401
    nobody = Visitor(proxied, scope=PROXY, headers={HEADER: "eve"}).get("/")
    assert (nobody.status, "eve has no role here" in nobody.text) == (403, True)


def test_a_second_header_that_a_client_added_is_refused(proxied):
    twice = [(b"host", b"localhost:8787"), (HEADER.encode(), b"bob"), (HEADER.encode(), b"ada@example.org")]
    assert Visitor(proxied, scope={**PROXY, "headers": twice}).get("/api/v1/runs").status == 401


def test_the_identity_has_the_rights_of_its_grant(shop, proxied):
    run = shop.add.options(tenant="acme").enqueue(1, 2)
    bob = Visitor(proxied, scope=PROXY, headers={HEADER: "bob"})
    form = FORM_KEY.search(bob.get(f"/runs/{run.id}").text)[1]
    assert bob.submit(f"/runs/{run.id}/cancel", {}).status == 403
    assert bob.submit(f"/runs/{run.id}/cancel", {"csrf_token": form}, origin="http://evil.example").status == 403
    assert bob.post(f"/api/v1/runs/{run.id}/cancel", {}).json["code"] == "no_bearer"
    assert bob.submit(f"/runs/{run.id}/cancel", {"csrf_token": form}).status == 303
    (entry,) = shop.control.audit.page(action="cancel run").entries
    assert (entry.by, entry.outcome) == ("bob", "done")
    assert bob.get("/tokens").status == 403
    support = Visitor(proxied, scope=PROXY, headers={HEADER: "eve", "x-forwarded-groups": "sales, support"})
    assert support.get(f"/runs/{run.id}").status == 200
    assert support.get(f"/runs/{shop.add.enqueue(1, 2).id}").status == 404
    other = FORM_KEY.search(support.get("/").text)
    assert other is None or other[1] != form


# OpenID Connect


@pytest.fixture(scope="module")
def shared_provider():
    provider = IdentityProvider()
    yield provider
    provider.close()


@pytest.fixture
def provider(shared_provider):
    shared_provider.changes, shared_provider.forged, shared_provider.more_endpoints = {}, None, {}
    return shared_provider


@pytest.fixture
def site(shop, provider):
    shop.app.links = LinkSettings(None, "http://localhost:8787")
    return shop.site(sign_in=SignIn(grants(), oidc=OidcSettings(provider.issuer, CLIENT_ID, CLIENT_SECRET)))


def cookies(answer):
    return answer.headers.get("set-cookie", "").partition(";")[0]


def begin(site, next_page="/runs"):
    """Begin a sign-in: the address at the provider, and the browser with the cookie of the flow."""
    answer = Visitor(site).get(f"/login/oidc?{urlencode({'next': next_page})}")
    assert answer.status == 303
    assert {"HttpOnly", "SameSite=lax", "Path=/login"} <= set(answer.headers["set-cookie"].split("; "))
    return answer.headers["location"], Visitor(site, cookie=cookies(answer))


def finish(provider, site, **claims):
    address, browser = begin(site)
    return browser.get(f"/login/oidc/callback?{urlencode(provider.approve(address, **claims))}")


def test_a_person_signs_in_and_out(shop, provider, site):
    assert 'href="/login/oidc?next=/runs"' in Visitor(site).get("/runs").text
    answer = finish(provider, site, email="bob@example.org", groups=["ops"])
    assert (answer.status, 'content="0;url=/runs"' in answer.text) == (200, True)
    login = next(part for part in answer.headers["set-cookie"].split(", ") if part.startswith("holdfast_login"))
    assert {"HttpOnly", "SameSite=strict"} <= set(login.split("; "))
    browser = Visitor(site, cookie=login.partition(";")[0])
    page = browser.get("/")
    assert (page.status, "bob@example.org" in page.text) == (200, True)
    assert browser.get("/tokens").status == 403
    assert browser.post("/api/v1/events", {"name": "x"}).json["code"] == "no_bearer"
    form = FORM_KEY.search(page.text)[1]
    assert browser.submit("/logout", {"csrf_token": form}).status == 303
    assert browser.get("/").status == 401
    recorded = [(each.by, each.action) for each in shop.control.audit.page().entries]
    assert recorded == [("bob@example.org", action) for action in ("sign out", "refused request", "sign in")]


def sign_in(provider, site, **claims):
    """Sign in and return the browser, with all cookies that it got."""
    answer = finish(provider, site, email="bob@example.org", groups=["ops"], **claims)
    set_cookies = [part for part in answer.headers["set-cookie"].split(", ") if part.startswith("holdfast_")]
    kept = [each.partition(";")[0] for each in set_cookies if "Max-Age=0" not in each]
    return Visitor(site, cookie="; ".join(kept)), set_cookies


def log_out(browser):
    return browser.submit("/logout", {"csrf_token": FORM_KEY.search(browser.get("/").text)[1]})


def test_logging_out_signs_out_at_the_provider(shop, provider, site):
    provider.more_endpoints = {"end_session_endpoint": f"{provider.issuer}/end?realm=shop"}
    browser, set_cookies = sign_in(provider, site)
    (id_token,) = (each for each in set_cookies if each.startswith("holdfast_id_token="))
    assert {"HttpOnly", "SameSite=strict", "Path=/logout"} <= set(id_token.split("; "))
    page = log_out(browser)
    address = html.unescape(re.search(r'content="0;url=([^"]*)"', page.text)[1])
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    assert (page.status, address.partition("?")[0]) == (200, f"{provider.issuer}/end")
    hint = query.pop("id_token_hint")
    assert query == {
        "realm": "shop", "client_id": CLIENT_ID, "post_logout_redirect_uri": "http://localhost:8787/login",
    }  # fmt: skip
    assert jwt.decode(hint, provider.key).claims["email"] == "bob@example.org"
    assert "holdfast_id_token=" in page.headers["set-cookie"]
    assert browser.get("/").status == 401
    assert shop.control.audit.page().entries[0].action == "sign out"


def test_an_id_token_too_large_for_a_cookie_is_not_kept(provider, site):
    provider.more_endpoints = {"end_session_endpoint": f"{provider.issuer}/end"}
    browser, _ = sign_in(provider, site, picture="x" * 4000)
    page = log_out(browser)
    assert (page.status, "/end?" in page.text, "id_token_hint" in page.text) == (200, True, False)


def test_without_a_usable_end_session_endpoint_only_the_login_here_ends(shop, provider, site):
    for more in ({}, {"end_session_endpoint": "http://evil.example/end"}):
        provider.more_endpoints = more
        fresh = shop.site(sign_in=SignIn(grants(), oidc=OidcSettings(provider.issuer, CLIENT_ID, CLIENT_SECRET)))
        browser, _ = sign_in(provider, fresh)
        answer = log_out(browser)
        assert (answer.status, answer.headers["location"]) == (303, "/login")
        assert browser.get("/").status == 401


def test_a_login_with_a_token_ends_here_alone(shop, provider, site):
    provider.more_endpoints = {"end_session_endpoint": f"{provider.issuer}/end"}
    browser = Visitor(site)
    answer = browser.submit("/login", {"token": shop.control.tokens.create("viewer").token})
    browser.cookie = cookies(answer)
    assert log_out(browser).headers["location"] == "/login"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": "another"}, "another client"),
        ({"aud": [CLIENT_ID, "another"]}, "several clients"),
        ({"iss": "https://evil.example"}, "another provider"),
        ({"nonce": "x"}, "another sign-in"),
        ({"nonce": None}, "another sign-in"),
        ({"exp": int(time.time()) - 600}, "expired"),
        ({"exp": None}, "expired"),
        ({"iat": int(time.time()) + 86_400}, "future"),
        ({"email_verified": False}, "verified"),
        ({"email_verified": None}, "verified"),
        ({"email": None}, "no claim"),
        ({"email": "eve@example.org"}, "no role"),
    ],
)
def test_wrong_claims_are_refused(provider, site, changes, why):
    provider.changes = changes
    answer = finish(provider, site, email="ada@example.org")
    assert (answer.status, why in answer.text, "holdfast_login=" in answer.headers.get("set-cookie", "")) == (
        403, True, False,
    )  # fmt: skip


def test_forged_signatures_are_refused(provider, site):
    other = RSAKey.generate_key(2048, {"kid": "one"})
    shared = OctKey.import_key(CLIENT_SECRET)
    none = "eyJhbGciOiJub25lIn0."
    forgeries = (
        lambda claims: jwt.encode({"alg": "RS256", "kid": "one"}, claims, other),
        lambda claims: jwt.encode({"alg": "HS256"}, claims, shared),
        lambda claims: none + jwt.encode({"alg": "HS256"}, claims, shared).split(".")[1] + ".",
        lambda _: "rubbish",
    )
    for forged in forgeries:
        provider.forged = forged
        answer = finish(provider, site, email="ada@example.org")
        assert (answer.status, "signature" in answer.text) == (403, True)


def test_a_callback_belongs_to_the_browser_and_the_sign_in_that_began_it(provider, site):
    address, browser = begin(site)
    query = provider.approve(address, email="ada@example.org")
    path = f"/login/oidc/callback?{urlencode(query)}"
    assert Visitor(site).get(path).status == 403
    _, other = begin(site)
    assert other.get(path).status == 403
    tampered = Visitor(site, cookie=browser.cookie[:-1] + ("0" if browser.cookie[-1] != "0" else "1"))
    assert tampered.get(path).status == 403
    assert browser.get(f"/login/oidc/callback?{urlencode({**query, 'state': ''})}").status == 403
    refused = browser.get(f"/login/oidc/callback?{urlencode({'state': query['state'], 'error': 'access_denied'})}")
    assert (refused.status, "access_denied" in refused.text) == (403, True)
    assert browser.get(path).status == 200
    assert browser.get(path).status == 403  # the provider accepts a code once


def test_other_sites_are_not_redirected_to(provider, site):
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example"):
        address, browser = begin(site, elsewhere)
        answer = browser.get(f"/login/oidc/callback?{urlencode(provider.approve(address, email='ada@example.org'))}")
        assert ("evil" in answer.text, 'content="0;url=/"' in answer.text) == (False, True)


def test_a_login_ends_with_the_grant(shop, provider, site):
    answer = finish(provider, site, email="bob@example.org", groups=["ops"])
    login = next(part for part in answer.headers["set-cookie"].split(", ") if part.startswith("holdfast_login"))
    without = SignIn(grants("ada@example.org=admin"), oidc=OidcSettings(provider.issuer, CLIENT_ID, CLIENT_SECRET))
    assert Visitor(shop.site(sign_in=without), cookie=login.partition(";")[0]).get("/").status == 403
    assert Visitor(shop.site(), cookie=login.partition(";")[0]).get("/").status == 401


def test_a_provider_that_does_not_answer_is_reported(shop):
    shop.app.links = LinkSettings(None, "http://localhost:8787")
    gone = SignIn(grants(), oidc=OidcSettings("http://127.0.0.1:9", CLIENT_ID))
    answer = Visitor(shop.site(sign_in=gone)).get("/login/oidc")
    assert (answer.status, "identity provider" in answer.text) == (503, True)
