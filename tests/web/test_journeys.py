"""Journeys of an operator in a real Chromium: find, understand, act; at three widths, in two themes, by keyboard."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from holdfast import Context, Graph, Retry
from tests.support.browser import TIMEOUT_MS, audit, close, overflow
from tests.web.conftest import Approval
from tests.web.test_browser import press_until

expect.set_options(timeout=TIMEOUT_MS)
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

LOOKS = [(width, theme) for width in (390, 1280, 1920) for theme in ("light", "dark")]
CHEAP = (1280, "light")
"""The look that is tested without --slow."""


def in_looks(cheap: bool) -> Any:
    """Parametrize a journey with its looks; all but one are slow."""
    looks = [each if cheap and each == CHEAP else pytest.param(each, marks=pytest.mark.slow) for each in LOOKS]
    return pytest.mark.parametrize("look", looks, ids=lambda look: f"{look[0]}-{look[1]}")


@pytest.fixture
async def desk(
    browser: Browser, shop: Any, serve: Callable[[Any], str], look: tuple[int, str]
) -> AsyncIterator[tuple[Page, Callable[[], Any]]]:
    """A window with a look, and the check that every page of a journey must pass."""
    width, theme = look
    context = await browser.new_context(
        base_url=serve(shop.site(unlocked=True)), viewport={"width": width, "height": 900}, color_scheme=theme
    )
    context.set_default_timeout(TIMEOUT_MS)
    page = await context.new_page()

    async def check() -> None:
        assert (page.url, await overflow(page) <= 0) == (page.url, True)
        assert (page.url, await audit(page)) == (page.url, [])

    yield page, check
    await close(context)


@in_looks(cheap=True)
async def test_an_order_is_found_its_retrying_step_is_seen_and_the_failed_run_is_retried(shop, desk):
    page, check = desk
    healed = threading.Event()

    @shop.app.task(name="ship", retry=Retry(max_attempts=1))
    async def ship(ctx: Context, order: int) -> str:
        once = ctx.options(name="call the carrier", retry=Retry(max_attempts=2, delay=0))
        return await once.step(call, order)

    def call(order: int) -> str:
        if not healed.is_set():
            raise ConnectionError(f"the carrier doesn't answer about order {order}")
        return f"order {order} is booked"

    run = await asyncio.to_thread(ship.options(key="order-42", metadata={"order": 42}).enqueue, 42)
    await asyncio.to_thread(shop.drain)
    await page.goto("/")
    await check()
    search = page.get_by_label("Find runs by ID")
    await search.fill("order-42")
    await search.press("Enter")
    await page.wait_for_url(f"**/runs/{run.id}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("ship failed")
    steps = page.get_by_role("region", name="Steps", exact=True)
    await expect(steps).to_contain_text("call the carrier")
    await expect(steps).to_contain_text("order=42")
    await expect(steps).to_contain_text("the carrier doesn't answer")
    await check()
    await page.get_by_text("Retry", exact=True).click()
    await expect(page.get_by_role("button", name="Retry run")).to_be_visible()
    await check()
    await page.get_by_role("button", name="Retry run").click()
    await expect(page.get_by_text("Run retried.")).to_be_visible()
    healed.set()
    await asyncio.to_thread(shop.drain)
    await expect(page.get_by_role("heading", level=1)).to_have_text("ship done")
    await check()


@in_looks(cheap=False)
async def test_a_step_that_is_retried_is_pending_on_the_page(shop, desk):
    page, check = desk

    @shop.app.task(name="ship")
    async def ship(ctx: Context, order: int) -> None:
        await ctx.options(name="call the carrier", retry=Retry(max_attempts=9, delay=3600)).step(call, order)

    def call(order: int) -> None:
        raise ConnectionError("no answer")

    run = await asyncio.to_thread(ship.enqueue, 42)
    async with shop.app.worker():
        await page.goto(f"/runs/{run.id}")
        await expect(page.get_by_role("region", name="Steps", exact=True)).to_contain_text(
            "Try 1 of 9 failed, next try"
        )
        await expect(page.get_by_role("region", name="Running")).to_contain_text("step call the carrier failed")
        await check()
        await asyncio.to_thread(run.cancel)


@in_looks(cheap=False)
async def test_chosen_runs_are_retried_after_a_preview(shop, desk):
    page, check = desk
    runs = [await asyncio.to_thread(shop.boom.enqueue, f"card declined {n}") for n in range(4)]
    await asyncio.to_thread(shop.drain)
    await page.goto("/runs?state=failed")
    for run in runs[:2]:
        await page.get_by_label(f"Select run {run.id}").check()
    await check()
    await page.get_by_role("button", name="Retry selected").click()
    await expect(page.get_by_role("main")).to_contain_text("2 runs")
    shown = await page.get_by_role("main").inner_text()
    assert [str(run.id) in shown for run in runs] == [True, True, False, False]
    assert {(await run.ainfo()).state for run in runs} == {"failed"}, "nothing has changed yet"
    await check()
    await page.get_by_role("button", name=re.compile("^Retry")).click()
    await expect(page.get_by_role("main")).to_contain_text("2")
    assert [(await run.ainfo()).state for run in runs] == ["ready", "ready", "failed", "failed"]
    await check()


@in_looks(cheap=False)
async def test_a_gate_is_approved_by_keyboard(shop, desk):
    page, check = desk
    graph = Graph("release")
    first = graph.add(shop.add, 1, 2, name="build")
    graph.gate("approve", after=[first], type=Approval, payload={"version": "2.4"})
    run = await asyncio.to_thread(shop.app.submit, graph)
    await asyncio.to_thread(shop.drain)
    keys = page.keyboard
    await page.goto("/gates")
    await check()
    await press_until(page, "Tab", page.get_by_role("link", name="Review and decide"))
    await keys.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("approve waiting")
    await expect(page.get_by_role("main")).to_contain_text("2.4")
    await check()
    await press_until(page, "Tab", page.get_by_label("Ok"))
    await keys.press("ArrowDown")
    await expect(page.get_by_label("Ok")).to_have_value("true")
    await press_until(page, "Tab", page.get_by_role("button", name="Approve"))
    await keys.press("Enter")
    await expect(page.get_by_role("button", name=re.compile("Approve|Confirm"))).to_be_visible()
    await check()
    await press_until(page, "Tab", page.get_by_role("button", name=re.compile("Approve|Confirm")))
    await keys.press("Enter")
    await expect(page.get_by_text("Approved.", exact=True)).to_be_visible()
    assert (await asyncio.to_thread(run.nodes))["approve"].state == "done"
    await check()
