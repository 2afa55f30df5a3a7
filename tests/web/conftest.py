"""An app with runs of every kind, and clients of its dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from holdfast import Context, Graph, Holdfast, Retry
from holdfast.control import Control
from holdfast.web import dashboard
from holdfast.web.api import live
from tests.support.approvals import Approvals
from tests.support.browser import TIMEOUT_MS, Served, chromium, close
from tests.support.web import HOST, Visitor

NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@dataclass
class Approval:
    """What a gate asks for."""

    ok: bool
    amount: int = 0
    note: str = ""


class Shop:
    """An app with its tasks and clients."""

    def __init__(self, url: str) -> None:
        self.app = app = Holdfast(url)

        @app.task(name="add")
        def add(a: int, b: int) -> int:
            return a + b

        @app.task(name="boom", retry=Retry(max_attempts=1))
        def boom(text: str) -> None:
            raise ValueError(text)

        @app.task(name="listen")
        async def listen(ctx: Context) -> Any:
            first = await ctx.step(add.fn, 1, 2, name="first")
            return [first, await ctx.receive("topic")]

        @app.task(name="wait")
        async def wait(ctx: Context, event: str) -> Any:
            return await ctx.wait_for(event)

        self.add, self.boom, self.listen, self.wait = add, boom, listen, wait
        self.control = Control(app.store, app.registry)
        self._sites: list[Any] = []

    def graph(self, **more: Any) -> Any:
        return self.app.submit(self.make_graph(**more))

    def make_graph(self, **more: Any) -> Graph:
        graph = Graph("etl", **more)
        first = graph.add(self.add, 1, 2, name="extract")
        gate = graph.gate("approve", after=[first], type=Approval)
        graph.add(self.add, first.output, 1, after=[gate], name="load")
        return graph

    def drain(self) -> None:
        self.app.worker(concurrency=4).drain()

    def site(self, **settings: Any) -> Any:
        """Build the site; its connections are closed after the test."""
        self._sites.append(dashboard(self.app, **settings))
        return self._sites[-1]

    def close(self) -> None:
        for site in self._sites:
            site.close()
        self.app.close()

    def visitor(self, may: Any = "operate", tenant: str | None = None) -> Visitor:
        """A client with its own token."""
        return Visitor(self.site(), self.control.tokens.create(may, tenant, f"{may} {tenant}").token)

    def browser(self, may: Any = "operate", tenant: str | None = None) -> Visitor:
        """A client that has logged in."""
        visitor = Visitor(self.site())
        token = self.control.tokens.create(may, tenant, f"{may} {tenant}").token
        answer = visitor.submit("/login", {"token": token})
        assert answer.status == 303, answer.text
        visitor.cookie = answer.headers["set-cookie"].partition(";")[0]
        return visitor


@pytest.fixture
def shop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    shop = Shop(database_url)
    yield shop
    shop.close()


@pytest.fixture
def approvals(database_url: str) -> Iterator[Approvals]:
    approvals = Approvals(database_url)
    yield approvals
    approvals.close()


@pytest.fixture
def open_visitor(shop: Shop) -> Visitor:
    """A local client of an open dashboard."""
    return Visitor(shop.site(unlocked=True))


@pytest.fixture
def fill(shop: Shop) -> Callable[[], dict[str, Any]]:
    """Create runs of every kind, by name."""

    def fill() -> dict[str, Any]:
        runs = {
            "done": shop.add.options(tags=["t"], tenant="acme").enqueue(1, 2),
            "failed": shop.boom.options(tenant="acme").enqueue(NASTY),
            "waiting": shop.listen.options(tenant="acme").enqueue(),
            "other": shop.add.options(tenant="other").enqueue(3, 4),
            "graph": shop.graph(tenant="acme"),
        }
        shop.drain()
        return runs

    return fill


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all tests of a process."""
    async with chromium() as browser:
        yield browser


@pytest.fixture
async def page(browser: Browser, shop: Shop, serve: Callable[[Any], str]) -> AsyncIterator[Page]:
    """A new window at the shop's dashboard, which must not complain."""
    context = await browser.new_context(
        base_url=serve(shop.site(unlocked=True)), viewport={"width": 1280, "height": 800}
    )
    context.set_default_timeout(TIMEOUT_MS)
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
    yield page
    await close(context)
    assert complaints == []


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], str]]:
    """Serve a site during the test, with a short poll interval."""
    monkeypatch.setattr(live, "POLL_INTERVAL_S", 0.1)
    served: list[Served] = []

    def serve(site: Any) -> str:
        served.append(Served(site))
        return served[-1].url

    yield serve
    for each in served:
        each.close()


__all__ = ["HOST", "NASTY", "Shop"]
