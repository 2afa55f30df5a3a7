"""Operator workflows in a real Chromium, with mouse or keyboard."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import Page, expect

from holdfast import Graph, Retry
from tests.support.browser import TIMEOUT_MS
from tests.unit.test_clock import DURATIONS
from tests.web.conftest import Approval

expect.set_options(timeout=TIMEOUT_MS)
on_one_database = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


async def off_loop(what: Callable[..., Any], *args: Any) -> Any:
    """Do what blocks, as `enqueue` and `drain` do, in a thread."""
    return await asyncio.to_thread(what, *args)


async def mark(page: Page) -> None:
    """Mark the page; a reload removes the mark."""
    await page.evaluate("window.never_reloaded = true")


async def assert_never_reloaded(page: Page) -> None:
    assert await page.evaluate("window.never_reloaded === true")


async def test_operator_finds_retries_and_follows_failed_run(shop, page):
    healed = threading.Event()

    @shop.app.task(name="charge", retry=Retry(max_attempts=1))
    def charge(order: int) -> str:
        if not healed.is_set():
            raise ConnectionError("the bank is closed")
        return f"order {order} is paid"

    await page.goto("/")
    await expect(page.get_by_text("No failed runs.")).to_be_visible()
    await mark(page)
    await off_loop(charge.enqueue, 42)
    await off_loop(shop.drain)
    await expect(page.get_by_role("region", name="Failures by error")).to_contain_text("the bank is closed")
    await assert_never_reloaded(page)

    await page.get_by_role("link", name="ConnectionError", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("charge failed")
    await expect(page.get_by_role("region", name="ConnectionError")).to_contain_text("the bank is closed")
    await page.get_by_text("Traceback", exact=True).click()
    await expect(page.get_by_text("raise ConnectionError")).to_be_visible()

    healed.set()
    await page.get_by_text("Retry", exact=True).click()
    await expect(page.get_by_text("everything that the function did before it ended")).to_be_visible()
    await page.get_by_role("button", name="Retry run").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("charge ready")
    await mark(page)
    await off_loop(shop.drain)
    await expect(page.get_by_role("heading", level=1)).to_have_text("charge done")
    await expect(page.get_by_label("Result")).to_have_text('"order 42 is paid"')
    await expect(page.get_by_role("button", name="Retry run")).to_have_count(0)
    await expect(page).to_have_title("charge, done · Holdfast")
    await assert_never_reloaded(page)


@on_one_database
async def test_typed_text_survives_a_page_update(shop, page):
    run = await off_loop(shop.graph)
    await page.goto(f"/runs/{run.id}")
    await page.locator("summary", has_text="Cancel").click()
    await page.get_by_label("Reason").fill("77")
    await page.locator("summary", has_text="Cancel").focus()
    await off_loop(shop.drain)
    await expect(page.get_by_role("link", name="Review and decide")).to_be_visible()
    await expect(page.get_by_label("Reason")).to_have_value("77")
    await expect(page.get_by_label("Reason")).to_be_visible()
    await expect(page.locator("summary", has_text="Cancel")).to_be_focused()


@on_one_database
async def test_the_page_formats_durations_like_the_server(shop, page):
    await page.goto("/runs")
    script = "async all => { const {duration} = await import('/static/times.js'); return all.map(duration) }"
    assert await page.evaluate(script, list(DURATIONS)) == list(DURATIONS.values())


@on_one_database
async def test_focus_stays_among_identical_elements(shop, page):
    for _ in range(2):
        await off_loop(shop.graph)
    await off_loop(shop.drain)
    await page.goto("/gates")
    gates = page.get_by_role("article", name="approve")
    await gates.nth(1).get_by_role("link", name="Review and decide").focus()
    await off_loop(shop.graph)
    await off_loop(shop.drain)
    await expect(gates).to_have_count(3)
    await expect(gates.nth(1).get_by_role("link", name="Review and decide")).to_be_focused()


async def test_a_running_graph_is_followed_live_to_a_node(shop, page):
    go_on = threading.Event()

    @shop.app.task(name="slow")
    def slow() -> int:
        assert go_on.wait(60)
        return 5

    graph = Graph("followed")
    first = graph.add(shop.add, 1, 2, name="first")
    middle = graph.add(slow, after=[first], name="middle")
    graph.gate("approve", after=[middle], type=Approval)
    run = await off_loop(shop.app.submit, graph)
    await page.goto(f"/runs/{run.id}")
    picture = page.get_by_role("group", name="Nodes of the graph")
    await expect(picture.get_by_role("link", name="first (add): ready")).to_be_visible()
    await mark(page)
    async with shop.app.worker(concurrency=2):
        await expect(picture.get_by_role("link", name="middle (slow): running")).to_be_visible()
        await expect(picture.get_by_role("link", name="first (add): done")).to_be_visible()
        go_on.set()
        await expect(picture.get_by_role("link", name=re.compile("^approve .*: waiting$"))).to_be_visible()
        await expect(page.get_by_role("link", name="Review and decide")).to_be_visible()
    await assert_never_reloaded(page)
    await picture.get_by_role("link", name="middle (slow): done").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("middle done")
    await expect(page.get_by_label("Result")).to_have_text("5")


@on_one_database
async def test_a_failed_node_in_a_stack_is_opened_and_leads_back_to_its_graph(shop, page):
    graph = Graph("fan")
    first = graph.add(shop.add, 1, 2, name="first")
    for n in range(50):
        if n == 30:
            graph.add(shop.boom, "broken", name="part 30", after=[first])
        else:
            graph.add(shop.add, n, n, name=f"part {n}", after=[first])
    run = await off_loop(shop.app.submit, graph)
    await off_loop(shop.drain)
    await page.goto(f"/runs/{run.id}")
    nodes = page.get_by_role("region", name="Nodes")
    await page.get_by_role("link", name=re.compile("^49 nodes of task add")).click()
    await expect(page.get_by_text("Only nodes of task add.")).to_be_visible()
    await expect(nodes.get_by_role("row")).to_have_count(21)
    await page.get_by_role("link", name="Next").click()
    await expect(page.get_by_text("21 to 40 of 49")).to_be_visible()
    await page.get_by_role("link", name="Show all nodes").click()
    await page.get_by_role("link", name="failed 1").click()
    await nodes.get_by_role("link", name=re.compile("^part 30")).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("part 30 failed")
    await page.locator(".crumbs").get_by_role("link", name="fan").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("fan failed")


async def test_each_filter_is_used_and_stands_in_the_address(shop, page, fill):
    runs = await off_loop(fill)
    failed, done, graph = (str(runs[name].id) for name in ("failed", "done", "graph"))
    cases = [
        ("State", "state", "failed", failed), ("Task", "task", "boom", failed), ("Queue", "queue", "default", failed),
        ("Tenant", "tenant", "other", str(runs["other"].id)), ("Tag", "tag", "t", done),
        ("Error contains", "error", "onerror", failed), ("ID starts with", "id_prefix", failed, failed),
        ("Children of run", "parent", graph, "extract"), ("Run and descendants", "family", graph, "extract"),
        ("Created from (UTC)", "created_from", "2020-01-01T00:00", failed),
        ("Created before (UTC)", "created_to", "2020-01-01T00:00", None),
        ("Finished from (UTC)", "finished_from", "2020-01-01T00:00", done),
        ("Finished before (UTC)", "finished_to", "2020-01-01T00:00", None),
    ]  # fmt: skip
    extract = str((await off_loop(runs["graph"].nodes))["extract"].id)
    for label, name, value, found in cases:
        await page.goto("/runs")
        field = page.get_by_role("main").get_by_label(label, exact=True)
        if not await field.is_visible():
            await page.get_by_text("More filters").click()
        await (field.select_option(value) if name == "state" else field.fill(value))
        await page.get_by_role("button", name="Filter").click()
        await page.wait_for_url(lambda url, name=name: f"{name}=" in url)
        await expect(field).to_have_value(value)
        if found is None:
            await expect(page.get_by_text("No matching runs.")).to_be_visible()
        else:
            shown = extract if found == "extract" else found
            await expect(page.locator(f'#list a[href="/runs/{shown}"]')).to_be_visible()
    await page.get_by_role("link", name="Show all runs").click()
    await page.wait_for_url("**/runs")


@on_one_database
async def test_a_run_is_found_and_cancelled_with_the_keyboard_alone(shop, page, fill):
    runs = await off_loop(fill)
    keys = page.keyboard
    await page.goto("/")
    await keys.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await keys.press("Enter")
    await expect(page.get_by_role("main")).to_be_focused()

    await press_until(page, "Shift+Tab", page.get_by_label("Find runs by ID"))
    await keys.type(str(runs["waiting"].id))
    await keys.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("listen waiting")
    await press_until(page, "Tab", page.locator("summary", has_text="Cancel"))
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await keys.press("Enter")
    await press_until(page, "Tab", page.get_by_label("Reason"))
    await keys.type("enough of it")
    await press_until(page, "Tab", page.get_by_role("button", name="Cancel run"))
    await keys.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("listen cancelled")
    await expect(page.get_by_role("region", name="History")).to_contain_text("enough of it")


async def press_until(page: Page, key: str, wanted: Any, most: int = 60) -> None:
    """Press a key until an element has the focus; the page may be updated meanwhile."""
    for _ in range(most):
        await page.keyboard.press(key)
        if await wanted.evaluate("(it) => it === document.activeElement"):
            return
    raise AssertionError(f"{most} times {key} don't lead to {wanted}")
