"""Themes, tables as cards, local times, and forms that are sent once."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from holdfast.web.pages.table_cells import label_cells
from tests.support.browser import TIMEOUT_MS, audit, close

expect.set_options(timeout=TIMEOUT_MS)
on_one_database = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_cells_name_their_columns_and_empty_ones_are_marked():
    table = """<table><thead><tr><th scope="col">Run &amp; key</th><th scope="col" class="number">Error</th>
    <th scope="col"><span class="hidden">Actions</span></th></tr></thead>
    <tbody><tr><td class="name"><a>a</a></td><td>–</td><td>x</td></tr></tbody></table><p>a</p>"""
    labeled = label_cells(table)
    assert '<td class="name" data-label="Run &amp; key"><a>a</a></td>' in labeled
    assert '<td data-label="Error" data-none>–</td><td data-label="">x</td>' in labeled
    assert re.sub(r' data-label="[^"]*"| data-none', "", labeled) == table


def test_the_page_has_the_theme_of_the_cookie(open_visitor):
    def root_of(cookie: str | None) -> str:
        page = open_visitor.get("/", **({} if cookie is None else {"cookie": f"holdfast_theme={cookie}"})).text
        return next(line for line in page.splitlines() if line.startswith("<html"))

    assert root_of(None) == root_of("odd") == '<html lang="en">'
    assert root_of("dark") == '<html lang="en" data-theme="dark">'


BACKGROUND = "getComputedStyle(document.querySelector('.side')).backgroundColor"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(28, 34, 38)"


@on_one_database
async def test_the_theme_follows_the_system_until_one_is_chosen(page: Page):
    await page.emulate_media(color_scheme="dark")
    await page.goto("/runs")
    assert await page.evaluate(BACKGROUND) == DARK
    await page.get_by_role("button", name="Light", exact=True).click()
    assert await page.evaluate(BACKGROUND) == LIGHT
    await page.goto("/gates")
    assert await page.evaluate(BACKGROUND) == LIGHT
    await expect(page.get_by_role("button", name="Light", exact=True)).to_have_attribute("aria-pressed", "true")
    await page.get_by_role("button", name="System", exact=True).click()
    await page.reload()
    assert await page.evaluate(BACKGROUND) == DARK


@on_one_database
async def test_on_a_phone_rows_are_cards_and_sections_are_in_a_menu(shop: Any, page: Page):
    await asyncio.to_thread(shop.boom.enqueue, "no")
    await asyncio.to_thread(shop.drain)
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.goto("/runs")
    cell = page.locator('td[data-label="State"]')
    assert await cell.evaluate("it => getComputedStyle(it, '::before').content") == '"State"'
    assert await page.locator("tbody tr").evaluate("it => getComputedStyle(it).display") == "flex"
    name = page.locator("tbody tr:last-child td.name")
    assert await name.evaluate("it => getComputedStyle(it).paddingLeft") == "0px", "it is the heading of the card"
    two_lines = "it => { it.dataset.label = 'Finished, in the last hour'; return it.offsetHeight }"
    assert await cell.evaluate("it => it.offsetHeight") < await cell.evaluate(two_lines), "labels don't overlap"
    link = page.get_by_role("link", name="Schedules")
    await expect(link).to_be_hidden()
    await page.get_by_role("button", name="Menu").click()
    await link.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")


@on_one_database
async def test_hovering_a_time_shows_it_in_the_zone_of_the_browser(shop: Any, browser: Any, serve: Any):
    run = await asyncio.to_thread(shop.add.enqueue, 1, 2)
    created = (await asyncio.to_thread(run.info)).created_at
    context = await browser.new_context(base_url=serve(shop.site(unlocked=True)), timezone_id="Asia/Kolkata")
    page = await context.new_page()
    await page.goto("/runs")
    title = str(await page.locator("td time").first.get_attribute("title"))
    await close(context)
    local, utc = title.split("\n")
    assert local.endswith("Asia/Calcutta (UTC+05:30)")
    assert utc == f"{created:%Y-%m-%d %H:%M:%S}.{created.microsecond // 1000:03} UTC"
    assert local[17:23] == utc[17:23]


@on_one_database
async def test_a_form_is_sent_once(shop: Any, page: Page):
    run = await asyncio.to_thread(shop.add.enqueue, 1, 2)
    await page.goto(f"/runs/{run.id}")
    posts: list[str] = []
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    await page.evaluate("""() => {
      const form = document.querySelector('form[action$="/pause"]');
      form.requestSubmit(form.querySelector("button"));
      form.requestSubmit(form.querySelector("button"));
    }""")
    await expect(page.get_by_text("Paused.", exact=True)).to_be_visible()
    assert len(posts) == 1


@on_one_database
async def test_the_palette_opens_pages_actions_and_the_search_by_keyboard(shop: Any, page: Page):
    run = await asyncio.to_thread(shop.listen.options(key="order-42").enqueue)
    await page.goto("/")
    await page.keyboard.press("/")
    palette = page.get_by_role("dialog", name="Commands")
    await expect(palette.get_by_role("option").first).to_be_visible()
    await page.keyboard.type("sched")
    await expect(palette.get_by_role("option")).to_have_text(["Go to Schedules", "Find sched"])
    assert await audit(page) == []
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")

    await page.keyboard.press("Control+k")
    await page.keyboard.type("enqueue add")
    await expect(palette.get_by_role("option").first).to_have_text("Enqueue add")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Enqueue add")

    await page.goto(f"/runs/{run.id}")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("send mess")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("Enter")
    await expect(palette).to_be_hidden()
    await expect(page.get_by_label("Topic")).to_be_visible()

    await page.get_by_label("Topic").press("/")
    await expect(palette).to_be_hidden()
    await page.keyboard.press("Control+k")
    await page.keyboard.type("order-42")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile("order-42|runs/"))
