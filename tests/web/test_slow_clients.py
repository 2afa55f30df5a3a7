"""Clients that send or read slowly, or open many connections, hold neither memory nor slots."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import tracemalloc

import pytest

from holdfast.web import request_limits, responses, server
from holdfast.web.clients import ClientAddresses
from tests.support.wait_until import wait_until
from tests.support.web import HOST, Visitor

FORM = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{HOST}"}


@pytest.fixture
def database_url(sqlite_url):
    """The database makes no difference here."""
    return sqlite_url


# Any server


@pytest.mark.parametrize("announced", [None, "17000", "99999999999999999999"])
def test_a_login_has_a_small_body(shop, announced):
    visitor = Visitor(shop.site())
    headers = FORM if announced is None else FORM | {"content-length": announced}
    body = b"token=" + b"x" * 17_000
    assert visitor.ask("POST", "/login", body if announced is None else b"", headers).status == 413
    assert visitor.submit("/login", {"token": "x" * 10_000}).status == 401


class SlowRequest:
    """A request whose body never comes, or whose response nobody reads."""

    def __init__(self, site, path: str, client: str, *, reads: bool = True) -> None:
        self.status = None
        self.headers = []
        self._reads = reads
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(b"host", HOST.encode()), *((k.encode(), v.encode()) for k, v in FORM.items())],
            "client": (client, 1), "server": ("127.0.0.1", 8787),
        }  # fmt: skip
        self.task = asyncio.ensure_future(site(scope, self._receive, self._send))

    async def _receive(self):
        await asyncio.Event().wait()

    async def _send(self, message):
        self.status = message.get("status", self.status)
        self.headers += message.get("headers", [])
        if not self._reads:
            await asyncio.Event().wait()

    async def stop(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, request_limits.ClientTooSlow):
            await self.task


async def test_a_body_that_takes_too_long_is_refused(shop, monkeypatch):
    monkeypatch.setattr(responses, "BODY_TIMEOUT_S", 0.01)
    slow = SlowRequest(shop.site(), "/login", "10.0.0.1")
    await slow.task
    assert slow.status == 408


async def test_a_response_that_nobody_reads_is_given_up(shop, monkeypatch):
    monkeypatch.setattr(request_limits, "SEND_TIMEOUT_S", 0.01)
    slow = SlowRequest(shop.site(), "/nothing/here", "10.0.0.1", reads=False)
    with pytest.raises(request_limits.ClientTooSlow):
        await slow.task


async def test_one_client_cannot_take_all_slots(shop, monkeypatch):
    monkeypatch.setattr(request_limits, "MAX_REQUESTS_PER_CLIENT", 2)
    monkeypatch.setattr(request_limits, "MAX_REQUESTS", 5)
    site = shop.site()
    open_requests = [SlowRequest(site, "/login", "10.0.0.1") for _ in range(2)]
    await asyncio.sleep(0)
    refused = SlowRequest(site, "/login", "10.0.0.1")
    await refused.task
    assert refused.status == 503
    assert (b"connection", b"close") in refused.headers
    open_requests += [SlowRequest(site, "/login", address) for address in ("10.0.0.2", "10.0.0.3", "10.0.0.4")]
    await asyncio.sleep(0)
    last = SlowRequest(site, "/login", "10.0.0.5")
    await last.task
    assert last.status == 503
    for each in open_requests:
        await each.stop()
    again = SlowRequest(site, "/login", "10.0.0.1")
    await asyncio.sleep(0)
    assert again.status is None
    await again.stop()


# The server of `holdfast dashboard`


@pytest.fixture
def address(shop, request):
    """Serve the site on a free port."""
    running = server.server(shop.site(), ClientAddresses(getattr(request, "param", ())))
    with socket.create_server(("127.0.0.1", 0), backlog=400) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()
        running.should_exit = True
        thread.join()


def connect(address) -> socket.socket:
    opened = socket.create_connection(address, timeout=20)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return opened


def is_dropped(opened: socket.socket) -> bool:
    """Wait until the server has closed the connection; return whether it did, whatever it sent before."""
    try:
        while opened.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


HEAD = b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
SLOW_PARTS = {
    "nothing": b"",
    "a part of the head": HEAD,
    "a second head": b"GET /static/none HTTP/1.1\r\nHost: localhost\r\n\r\nG",
    "a part of the body": HEAD + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 20\r\n\r\ntoken=",
    "a part of a body that is answered before": HEAD.replace(b"/login", b"/none") + b"Content-Length: 20\r\n\r\nx",
}


@pytest.mark.parametrize("part", SLOW_PARTS)
def test_a_client_that_sends_slowly_is_dropped(address, monkeypatch, part):
    """Also if it sends a byte now and then."""
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(server, "BODY_TIMEOUT_S", 0.3)
    with connect(address) as opened:
        opened.sendall(SLOW_PARTS[part])
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 15:
                opened.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() - began < 15
        assert is_dropped(opened)


def test_a_client_that_does_not_read_is_dropped(shop, address, monkeypatch):
    monkeypatch.setattr(server, "WRITE_TIMEOUT_S", 0.3)
    dropped = []
    monkeypatch.setattr(server.log, "client_dropped", lambda client, reason: dropped.append(reason))
    ask = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(address) as opened:
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):
                opened.sendall(ask * 10)
                if dropped:
                    break
                time.sleep(0.002)
        wait_until(lambda: dropped == ["response not read"], 15)


@pytest.mark.parametrize("address", [(), ("127.0.0.1",)], indirect=True)
def test_one_client_has_a_bounded_number_of_connections(address, monkeypatch, request):
    """A trusted proxy connects for many clients."""
    is_proxy = bool(request.node.callspec.params["address"])
    monkeypatch.setattr(server, "MAX_CONNECTIONS_PER_CLIENT", 3)
    with contextlib.ExitStack() as opened:
        first = [opened.enter_context(connect(address)) for _ in range(3)]
        for each in first:
            each.sendall(b"GET /static/none HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"404" in each.recv(4096)
        another = opened.enter_context(connect(address))
        if is_proxy:
            another.sendall(b"GET /static/none HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"404" in another.recv(4096)
        else:
            assert is_dropped(another)


def test_300_slow_logins_hold_little_memory_and_do_not_keep_others_out(address, monkeypatch):
    """Each of them has sent 200 kB of a body that doesn't end."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS_PER_CLIENT", 400)
    chunk = b"%x\r\n%s\r\n" % (50_000, b"x" * 50_000)
    tracemalloc.start()
    try:
        with contextlib.ExitStack() as opened:
            for _ in range(300):
                each = opened.enter_context(connect(address))
                with contextlib.suppress(OSError):
                    each.settimeout(0.2)
                    each.sendall(HEAD + b"Content-Type: application/x-www-form-urlencoded\r\n")
                    each.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
                    for _ in range(4):
                        each.sendall(chunk)
            with connect(address) as other:
                other.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert other.recv(4096).startswith(b"HTTP/1.1 200")
            held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 20_000_000
