"""Logins of browsers: how they begin and end, failed sign-ins, and event streams."""

from __future__ import annotations

import asyncio
import logging

import pytest

from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.web.api import live
from holdfast.web.clients import ClientAddresses
from holdfast.web.throttle import MAX_CLIENTS, MAX_FAILURES, RECOVERY_S, SignInThrottle
from tests.support.web import HOST, Visitor

SECRET = "a word of my own, and a long one at that"


def form_key(browser: Visitor) -> str:
    return browser.get("/").text.partition('name="csrf_token" value="')[2].partition('"')[0]


def test_logging_out_ends_the_login(shop):
    """A copy of the cookie is worthless from then on."""
    browser, other = shop.browser("viewer"), shop.browser("viewer")
    copy = Visitor(browser.site, cookie=browser.cookie)
    assert copy.get("/").status == 200
    assert browser.submit("/logout", {"csrf_token": form_key(browser)}).status == 303
    assert copy.get("/").status == 401
    assert copy.get("/api/v1/runs").status == 401
    assert other.get("/").status == 200


def test_revocation_ends_all_logins_of_a_token(shop):
    token = shop.control.tokens.create("viewer")
    site = shop.site()
    browsers = [log_in(site, token.token) for _ in range(2)]
    assert [each.get("/").status for each in browsers] == [200, 200]
    shop.control.tokens.revoke(token.info.id)
    assert [each.get("/").status for each in browsers] == [401, 401]


def log_in(site, token: str, **headers: str) -> Visitor:
    answer = Visitor(site).submit("/login", {"token": token}, **headers)
    assert answer.status == 303, answer.text
    return Visitor(site, cookie=answer.headers["set-cookie"].partition(";")[0])


def test_each_login_has_a_new_secret_and_ends_the_one_before(shop):
    token = shop.control.tokens.create("viewer").token
    site = shop.site()
    first = log_in(site, token)
    second = log_in(site, token, cookie=first.cookie)
    assert first.cookie != second.cookie
    assert (first.get("/").status, second.get("/").status) == (401, 200)
    planted = log_in(site, token, cookie="holdfast_login=chosen-by-an-attacker")
    assert planted.cookie != "holdfast_login=chosen-by-an-attacker"


def test_login_of_the_token_of_the_process_ends_when_that_changes(shop, monkeypatch):
    browser = log_in(shop.site(token=SECRET), SECRET)
    assert browser.get("/").status == 200
    for other in ({"token": SECRET + "!"}, {}):
        assert Visitor(shop.site(**other), cookie=browser.cookie).get("/").status == 401


@pytest.mark.parametrize("given", ["short", "x" * 31, " "])
def test_token_of_the_process_has_a_minimum_length(shop, given):
    with pytest.raises(ConfigError, match="at least 32 characters"):
        shop.site(token=given)


def test_page_that_refreshes_itself_does_not_keep_a_login_in_use(shop, monkeypatch):
    browser = shop.browser("viewer")
    asked = []

    def find(self, secret, *, in_use):
        asked.append(in_use)

    monkeypatch.setattr("holdfast.control.tokens.LoginControl.find", find)
    browser.get("/", sec_fetch_dest="document")
    browser.get("/")
    browser.get("/", sec_fetch_dest="empty")
    browser.get("/api/v1/live", sec_fetch_dest="empty")
    assert asked == [True, True, False, False]


def test_database_that_can_only_be_read_still_accepts_credentials(shop, monkeypatch):
    visitor = shop.visitor("viewer")
    browser = shop.browser("viewer")

    def refuse(self, id):
        raise StoreUnavailable("read-only")

    monkeypatch.setattr("holdfast.store.access.TokenStore.touch", refuse)
    monkeypatch.setattr("holdfast.store.access.LoginStore.touch", refuse)
    assert visitor.get("/api/v1/runs").status == 200
    assert browser.get("/runs").status == 200


# Failed sign-ins


def test_client_that_fails_too_often_has_to_wait(shop, caplog):
    site = shop.site(token=SECRET)
    valid = shop.control.tokens.create("viewer").token
    guesser = Visitor(site, scope={"client": ("192.0.2.7", 1)})
    with caplog.at_level(logging.WARNING, "holdfast"):
        statuses = [guesser.submit("/login", {"token": f"guess {n}"}).status for n in range(MAX_FAILURES + 3)]
    assert statuses == [401] * MAX_FAILURES + [429] * 3
    told = [record.getMessage() for record in caplog.records]
    assert told.count("sign-in failed client=192.0.2.7 path=/login") == MAX_FAILURES
    assert told[-1] == "too many failed sign-ins, refusing more client=192.0.2.7"
    assert "guess" not in str(told)
    answer = Visitor(site, SECRET, scope=guesser.scope).get("/api/v1/runs")
    assert (answer.status, answer.json["code"]) == (429, "too_many_sign_ins")  # even the right one
    assert 0 < int(answer.headers["retry-after"]) <= RECOVERY_S + 1
    wrong = valid[:-1] + ("A" if valid[-1] != "A" else "B")
    assert Visitor(site, wrong, scope=guesser.scope).get("/api/v1/runs").status == 429
    assert Visitor(site, valid, scope=guesser.scope).get("/api/v1/runs").status == 200  # which nobody can guess
    assert Visitor(site, SECRET, scope={"client": ("192.0.2.8", 1)}).get("/api/v1/runs").status == 200


def test_valid_logins_are_not_throttled(shop):
    site = shop.site()
    token = shop.control.tokens.create("viewer").token
    browser = log_in(site, token)
    for n in range(MAX_FAILURES + 1):
        Visitor(site, f"guess {n}").get("/api/v1/runs")
    assert Visitor(site, "guess").get("/api/v1/runs").status == 429
    assert browser.get("/").status == 200
    assert log_in(site, token).get("/").status == 200


def test_failures_are_forgotten_one_by_one():
    now = [0.0]
    throttle = SignInThrottle(lambda: now[0])
    assert [throttle.record("a") for _ in range(MAX_FAILURES)] == [False] * (MAX_FAILURES - 1) + [True]
    assert throttle.pause_s("a") == RECOVERY_S
    assert throttle.pause_s("b") == 0
    now[0] = RECOVERY_S
    assert throttle.pause_s("a") == 0
    assert throttle.record("a")
    assert throttle.pause_s("a") == RECOVERY_S
    now[0] += RECOVERY_S * MAX_FAILURES
    assert not throttle.record("a")


def test_throttle_remembers_a_bounded_number_of_clients():
    throttle = SignInThrottle(lambda: 0.0)
    for n in range(MAX_CLIENTS + 100):
        throttle.record(str(n))
    assert len(throttle._counts) == MAX_CLIENTS
    assert "0" not in throttle._counts


@pytest.mark.parametrize(
    ("proxies", "peer", "forwarded", "client"),
    [
        ([], "192.0.2.1", "198.51.100.1", "192.0.2.1"),
        (["192.0.2.1"], "192.0.2.1", "198.51.100.1", "198.51.100.1"),
        (["192.0.2.1"], "192.0.2.2", "198.51.100.1", "192.0.2.2"),
        (["192.0.2.1"], "192.0.2.1", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        (["192.0.2.0/24"], "192.0.2.1", "1.1.1.1, 198.51.100.1, 192.0.2.9", "198.51.100.1"),
        (["192.0.2.1"], "192.0.2.1", "198.51.100.1, nonsense", "192.0.2.1"),
        (["192.0.2.1"], "192.0.2.1", "", "192.0.2.1"),
        (["192.0.2.1"], "::ffff:192.0.2.1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ([], "2001:db8::7", "", "2001:db8::/64"),
        (["192.0.2.1"], "192.0.2.1", ", ".join(["1.1.1.1"] * 500), "1.1.1.1"),
        ([], "not an address", "", "unknown"),
    ],
)
def test_only_named_proxies_are_believed(proxies, peer, forwarded, client):
    scope = {"client": (peer, 1), "headers": [(b"x-forwarded-for", forwarded.encode())]}
    assert ClientAddresses(proxies).of(scope) == client


def test_proxy_must_be_an_address(shop):
    with pytest.raises(ConfigError, match="not an address of a proxy"):
        shop.site(proxies=["proxy.example.org"])


# Event streams


class OpenStream:
    """An event stream that stays open until the server ends it or the test closes it."""

    def __init__(self, visitor: Visitor, path: str = "/api/v1/live") -> None:
        self.status = 0
        self.began = asyncio.Event()
        self._closed = asyncio.Event()
        credentials = {"authorization": f"Bearer {visitor.token}"} if visitor.token else {}
        headers = {"host": HOST, **credentials, **({"cookie": visitor.cookie} if visitor.cookie else {})}
        scope = {
            "type": "http", "method": "GET", "path": path, "query_string": b"", "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8787), **visitor.scope,
        }  # fmt: skip
        self.task = asyncio.create_task(visitor.site(scope, self._receive, self._send))

    async def _receive(self):
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.status = message.get("status", self.status)
        self.began.set()

    async def open(self) -> int:
        await asyncio.wait_for(self.began.wait(), 30)
        return self.status

    async def ended(self) -> None:
        await asyncio.wait_for(self.task, 30)

    async def close(self) -> None:
        self._closed.set()
        await self.ended()


@pytest.mark.parametrize("how", ["logout", "revocation", "revoked bearer"])
async def test_open_stream_ends_with_its_credentials(shop, how, monkeypatch):
    monkeypatch.setattr(live, "POLL_INTERVAL_S", 0.01)
    token = await asyncio.to_thread(shop.control.tokens.create, "viewer")
    site = shop.site()
    other = OpenStream(Visitor(site, (await asyncio.to_thread(shop.control.tokens.create, "viewer")).token))
    if how == "revoked bearer":
        visitor = Visitor(site, token.token)
    else:
        visitor = await asyncio.to_thread(log_in, site, token.token)
    stream = OpenStream(visitor)
    assert (await stream.open(), await other.open()) == (200, 200)
    assert not stream.task.done()
    if how == "logout":
        key = await asyncio.to_thread(form_key, visitor)
        await asyncio.to_thread(visitor.submit, "/logout", {"csrf_token": key})
    else:
        await asyncio.to_thread(shop.control.tokens.revoke, token.info.id)
    await stream.ended()
    assert not other.task.done()
    await other.close()


async def test_one_client_cannot_take_all_stream_slots(shop, monkeypatch):
    monkeypatch.setattr(live, "MAX_LISTENERS", 8)
    monkeypatch.setattr(live, "MAX_LISTENERS_PER_TOKEN", 5)
    monkeypatch.setattr(live, "MAX_LISTENERS_PER_CLIENT", 3)
    greedy, other = [await asyncio.to_thread(shop.control.tokens.create, "viewer") for _ in "12"]
    site = shop.site()

    async def opened(token: str, client: str) -> OpenStream:
        stream = OpenStream(Visitor(site, token, scope={"client": (client, 1)}))
        await stream.open()
        return stream

    first = [await opened(greedy.token, "192.0.2.1") for _ in range(5)]
    assert [each.status for each in first] == [200] * 3 + [503] * 2
    second = [await opened(greedy.token, "192.0.2.2") for _ in range(3)]
    assert [each.status for each in second] == [200] * 2 + [503]
    third = [await opened(other.token, "192.0.2.1") for _ in range(4)]
    assert [each.status for each in third] == [200] * 3 + [503]
    for each in (*first, *second, *third):
        await each.close()
    again = await opened(greedy.token, "192.0.2.1")
    assert again.status == 200
    await again.close()
