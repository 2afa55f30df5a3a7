"""Every page in a real Chromium: phone width, no JavaScript, accessibility, hostile text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
import pytest
from playwright.async_api import Browser, Page

from holdfast import Context, Graph, Holdfast, Retry
from holdfast.control import Control
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.web import dashboard
from holdfast.web.pages.routes import PAGES
from tests.support.browser import TIMEOUT_MS, Served, audit, close, overflow
from tests.support.showcase import Showcase
from tests.web.conftest import NASTY, Shop

PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 800}


DETAILS = {
    "task": "shop.charge", "queue": "search", "tenant": "acme", "limit": "mail", "worker": "worker", "budget": "none",
}  # fmt: skip


@dataclass
class Place:
    """A dashboard, and the addresses of its pages."""

    url: str
    paths: list[str]


@pytest.fixture(scope="module", params=["none", "large"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Every page, empty and full."""
    app = Holdfast(f"sqlite:///{tmp_path_factory.mktemp('place') / 'holdfast.db'}")
    showcase = Showcase(app)
    if request.param == "large":
        showcase.large()
    site = dashboard(app, unlocked=True)
    served = Served(site)
    plain = [page.path for page in PAGES if "{" not in page.path]
    queries = {"/find": "?q=0000", "/bulk": "?verb=retry&state=failed"}
    paths = [path + queries.get(path, "") for path in plain] + [f"/runs/{run.id}" for run in showcase.runs.values()]
    paths += [f"/runs/{run.id}/family" for run in list(showcase.runs.values())[:1]]
    paths += [f"/gates/{gate.id}" for gate in Control(app.store, app.registry).gates.open(limit=1)]
    paths += [f"/schedules/{quote(each.name, safe='')}" for each in Control(app.store).schedules.list()[:3]]
    app.store.sessions.open(
        "worker", "host:1", 3600 * MICROS_PER_SECOND, '{"tasks": ["shop.charge"], "queues": ["search"]}'
    )
    paths += [f"/{kind}s/{name}" for kind, name in DETAILS.items()] + ["/enqueue?task=shop.send_email"]
    more = [
        "/runs?metadata=wrong&task=a",
        "/runs?state=failed&created_from=2020-01-01T00:00",
        "/runs?state=odd",
        "/login",
    ]
    yield Place(served.url, [*paths, *more])
    served.close()
    site.close()
    app.close()


@asynccontextmanager
async def window(browser: Browser, url: str, **settings: Any) -> AsyncIterator[Page]:
    context = await browser.new_context(base_url=url, **{"viewport": DESK, **settings})
    context.set_default_timeout(TIMEOUT_MS)
    yield await context.new_page()
    await close(context)


WIDTHS = (1920, 1280, 390)
LOOKS = [(width, theme) for width in WIDTHS for theme in ("light", "dark")]


@pytest.mark.parametrize("in_all_looks", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_every_page_passes_the_accessibility_audit_and_fits_its_window(browser, place, in_all_looks):
    """In each look, that is, width and theme; without --slow, each page in one of them, in turn."""
    findings = {}
    async with window(browser, place.url) as page:
        for number, path in enumerate(place.paths):
            for width, theme in LOOKS if in_all_looks else [LOOKS[number % len(LOOKS)]]:
                await page.emulate_media(color_scheme=theme)
                await page.set_viewport_size({"width": width, "height": 900})
                await page.goto(path)
                await page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true; })")
                await page.evaluate(LONG_TIMES)
                found = [*await audit(page), *await page.evaluate(CLIPPED)]
                if (excess := await overflow(page)) > 0:
                    found.append(f"{excess} pixels too wide")
                findings[path, width, theme] = found
    assert {where: found for where, found in findings.items() if found} == {}


LONG_TIMES = """() => {
  for (const it of document.querySelectorAll("td time")) { it.textContent = "59 min 59 s ago"; }
}"""
"""Fresh runs have short times; the layout must have room for the longest."""
CLIPPED = """() => [...document.querySelectorAll(".scroll:has(> table)")]
  .filter((it) => it.scrollWidth > it.clientWidth + 1)
  .map((it) => `clipped by ${it.scrollWidth - it.clientWidth} pixels: ${it.ariaLabel}`)"""


async def test_on_a_phone_and_without_javascript_every_page_can_be_read_and_is_not_too_wide(browser, place):
    async with window(browser, place.url, viewport=PHONE, is_mobile=True, java_script_enabled=False) as page:
        for path in place.paths:
            await page.goto(path)
            assert await overflow(page) <= 0, path
            assert await page.get_by_role("heading", level=1).is_visible(), path
            for part in await page.locator("[data-part]").all():
                assert (await part.inner_text()).strip() or await part.get_attribute("id") == "actions", path


async def test_the_focus_goes_through_a_page_in_the_order_of_reading_and_is_seen(browser, place):
    async with window(browser, place.url) as page:
        for path in place.paths:
            await page.goto(path)
            await page.evaluate("document.querySelector('[autofocus]')?.focus()")  # as the login does by itself
            wanted = await page.evaluate(f"[...document.querySelectorAll('{FOCUSABLE}')].filter({SHOWN}).length")
            _, begin = await page.evaluate(WHERE)
            order = [begin] if begin >= 0 else []
            for _ in range(MOST_PRESSES):
                if len(order) == min(wanted, MOST_STOPS):
                    break
                await page.keyboard.press("Tab")
                seen, at = await page.evaluate(WHERE)
                assert seen, f"{path}: the focus at place {at} isn't seen"
                if [at] != order[-1:]:  # a field for a time has several stops
                    order.append(at)
            assert order == list(range(len(order))), path


MOST_STOPS = 25
MOST_PRESSES = 60
FOCUSABLE = 'a[href], button, summary, input:not([type=hidden]), select, textarea, [tabindex="0"]'
SHOWN = "(it) => it.checkVisibility()"
WHERE = f"""() => {{
  const at = document.activeElement;
  const style = getComputedStyle(at);
  const box = at.querySelector?.("rect.box");
  const seen = style.outlineStyle !== "none" || (box && parseFloat(getComputedStyle(box).strokeWidth) >= 4);
  const all = [...document.querySelectorAll('{FOCUSABLE}')].filter({SHOWN});
  return [Boolean(seen), all.indexOf(at)];
}}"""


@dataclass
class Hostile:
    """A form whose every word is hostile."""

    field: Annotated[int, msgspec.Meta(title=NASTY, description=NASTY)]
    choice: Literal["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>']
    text: Annotated[str, msgspec.Meta(title=NASTY, description=NASTY, max_length=100)] = NASTY


def hostile_runs(shop: Shop) -> list[str]:
    """Runs with hostile words wherever users may write some."""
    app = shop.app
    app.limit(NASTY, concurrency=5, by="text")

    @app.task(name=NASTY, queue=NASTY, retry=Retry(max_attempts=1), limits=[NASTY])
    async def hostile(ctx: Context, text: str) -> Any:
        await ctx.step(lambda: {NASTY: text}, name=NASTY)
        await ctx.progress(1, 2, NASTY)
        if text == "wait":
            return await ctx.receive(NASTY)
        raise ValueError(text)

    app.schedule(NASTY, hostile, args=(NASTY,), cron="0 3 * * *")
    graph = Graph(NASTY, tenant=NASTY)
    first = graph.add(shop.add, 1, 2, name=NASTY)
    graph.gate(f"gate {NASTY}", after=[first], type=Hostile)
    made = hostile.options(tenant=NASTY, tags=[NASTY], unique=NASTY)
    runs = [made.enqueue(NASTY), hostile.enqueue("wait"), hostile.enqueue("wait"), app.submit(graph)]
    shop.drain()
    runs[1].cancel(NASTY)
    shop.control.runs.send(runs[2].id, f"other {NASTY}", NASTY, by=NASTY)
    nodes = runs[3].nodes()
    gate = f"/gates/{nodes[f'gate {NASTY}'].id}"
    return [gate, *(f"/runs/{run.id}" for run in [*runs, *nodes.values()])]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_hostile_words_are_nothing_but_words_in_the_page(
    browser: Browser, shop: Shop, serve: Callable[[Any], str]
):
    of_runs = await asyncio.to_thread(hostile_runs, shop)
    plain = [page.path for page in PAGES if "{" not in page.path]
    asked = [f"/runs?{name}={{}}" for name in ("task", "queue", "tenant", "tag", "error", "id_prefix", "state")]
    asked += ["/find?q={}", "/bulk?verb=retry&task={}", "/login?next={}", "/{}", "/?did={}"]
    happened: list[str] = []
    seen = 0
    async with window(browser, serve(shop.site(unlocked=True))) as page:
        page.on("dialog", lambda dialog: happened.append(f"dialog {dialog.message}"))
        page.on("pageerror", lambda error: happened.append(f"error {error}"))
        page.on("console", lambda told: happened.append(told.text) if "Content Security Policy" in told.text else None)
        for path in [*plain, *of_runs, *(each.format(QUOTED) for each in asked)]:
            await page.goto(path)
            await page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true; })")
            happened += [f"{path}: {found}" for found in await page.evaluate(FOREIGN)]
            seen += (await page.content()).count("&lt;script&gt;")
    assert happened == []
    assert seen > 50


QUOTED = "%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%27%3E%3Cimg%20src=x%20onerror=alert(1)%3E"
FOREIGN = """() => [
  ...[...document.scripts].filter((it) => !it.src.startsWith(`${location.origin}/static/`)).map(() => "a script"),
  ...[...document.images].filter((it) => !it.src.startsWith(`${location.origin}/static/`)).map(() => "an image"),
  ...[...document.querySelectorAll("*")].flatMap((it) => [...it.attributes])
    .filter((it) => it.name.startsWith("on") || /^\\s*javascript:/i.test(it.value)).map((it) => it.name),
  ...[...document.querySelectorAll("iframe, object, embed, base")].map((it) => it.tagName),
]"""
