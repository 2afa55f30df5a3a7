"""Take the screenshots of the dashboard for the docs: `.venv/bin/python tools/take_screenshots.py [CHROMIUM]`.

Creates runs of an invented shop in a temporary database, two days of them with virtual clocks, and writes
docs/pictures/*.png.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec
from playwright.sync_api import Page, sync_playwright

from holdfast import Context, Graph, Holdfast, Retry, Run
from holdfast.control import Control
from holdfast.model.clock import Clock, database_clock
from holdfast.testing import VirtualClock

ROOT = Path(__file__).parent.parent
PORT = 8793
SETTINGS = {
    "HOLDFAST_SECRET": "only for screenshots and never in production",
    "HOLDFAST_PUBLIC_URL": f"http://127.0.0.1:{PORT}",
}
HOURS = 23
SLOWDOWN = 6
"""How many times as long payments take since yesterday."""
MINUTES = 58
BATCHES_PER_MINUTE = 6
R = TypeVar("R")


class Approval(msgspec.Struct):
    """What a person decides about a new index."""

    approved: bool
    note: str = ""


def reserve(order: int) -> int:
    return order


def pack(item: str) -> str:
    time.sleep(0.3)
    return item


def make_app(url: str, clock: Clock = database_clock, slowdown: int = 1) -> Holdfast:
    """Declare the tasks; with a virtual clock, jobs take some of its time."""
    app = Holdfast(url, name="shop", clock=clock)

    def work(result: R) -> R:
        if isinstance(clock, VirtualClock):
            clock.advance(timedelta(milliseconds=random.randint(5, 80)))
        return result

    @app.task(name="shop.charge", retry=Retry(max_attempts=1))
    def charge(order: int, amount: float) -> float:
        if order % 40 == 2:
            raise ConnectionError(f"the bank declined the payment for order {order}")
        for _ in range(slowdown):
            work(order)
        return amount

    @app.task(name="shop.place_order")
    async def place_order(ctx: Context, order: int) -> None:
        await ctx.step(reserve, order)
        for item in ("rope", "anchor", "lamp"):
            await ctx.step(pack, item)
        await ctx.receive("paid")

    for name in ("mail.send", "search.index", "search.check"):
        app.task(name=name, queue=name.partition(".")[0])(work)
    return app


def fill_a_day(url: str, start: datetime, slowdown: int) -> None:
    """Run jobs as if a day passed: some in each hour, which are aggregated as a worker would."""
    clock = VirtualClock(start)
    app = make_app(url, clock, slowdown)
    for hour in range(HOURS):
        for name, count in (("shop.charge", 12), ("mail.send", 20), ("search.index", 8)):
            arguments = [(7, 9.5) if name == "shop.charge" else (number,) for number in range(count)]
            app.registry.get(name).enqueue_many(arguments)
        app.worker(concurrency=1).drain()
        for minutes in (20, 40, 60):
            clock.set(start + timedelta(hours=hour, minutes=minutes))
            while app.store.stats.aggregate():
                pass
    app.close()


def fill_an_hour(url: str) -> None:
    """Run jobs as if an hour passed."""
    clock = VirtualClock(datetime.now(UTC) - timedelta(minutes=MINUTES + 1))
    start, app = clock.now, make_app(url, clock, SLOWDOWN)
    for number in range(MINUTES * BATCHES_PER_MINUTE):
        calls = {"shop.charge": (number, 9.5), "mail.send": ("ada@example.org",), "search.index": (number,)}
        for name, arguments in calls.items():
            app.registry.get(name).enqueue_many([arguments] * random.randint(1, 3))
        app.worker(concurrency=1).drain()
        clock.set(start + timedelta(seconds=60 / BATCHES_PER_MINUTE * (number + 1)))
    app.close()


def submit_graph(app: Holdfast) -> Run[object]:
    graph = Graph("new index")
    index, check = app.registry.get("search.index"), app.registry.get("search.check")
    plan = graph.add(index, 0, name="plan")
    parts = [graph.add(index, part, after=[plan], name=f"part-{part}") for part in range(1, 13)]
    checked = graph.add(check, [part.output for part in parts], name="check")
    payload = {"index": "products", "documents": 48_112, "reason": "The new analyzer understands plurals."}
    gate = graph.gate("approve", type=Approval, payload=payload, after=[checked])
    graph.add(index, 0, after=[gate], name="switch over")
    return app.submit(graph)


def decide(app: Holdfast) -> UUID:
    """Let a person approve a release; return the id of the gate."""
    graph = submit_graph(app)
    control = Control(app.store)
    while control.graphs.gates(graph.id)[0].state != "waiting":
        time.sleep(0.1)
    control.graphs.complete(graph.id, "approve", {"approved": True, "note": "Checked with support."}, by="grace")
    return control.graphs.node(graph.id, "approve")


def take(page: Page, name: str, path: str, width: int, height: int, *, dark: bool) -> None:
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"http://127.0.0.1:{PORT}{path}")
    page.wait_for_timeout(500)
    page.screenshot(path=ROOT / "docs" / "pictures" / f"{name}.png")


def main(chromium: str) -> None:
    os.environ |= SETTINGS
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shop.db"
        now = datetime.now(UTC)
        fill_a_day(url, now - timedelta(hours=48), 1)
        fill_a_day(url, now - timedelta(hours=24), SLOWDOWN)
        fill_an_hour(url)
        app = make_app(url)
        token = Control(app.store).tokens.create("operate", None, "ada").token
        order = app.registry.get("shop.place_order").options(key="order-42", metadata={"order": 42}).enqueue(42)
        failed = app.registry.get("shop.charge").enqueue(42, 9.5)
        graph = submit_graph(app)
        command = [str(Path(sys.executable).with_name("holdfast")), "dashboard", "--url", url, "--port", str(PORT)]
        with app.worker():
            approved = decide(app)
        served = subprocess.Popen(command, env=os.environ | {"HOLDFAST_TOKEN": "0" * 32})
        try:
            with app.worker(), sync_playwright() as playwright:
                time.sleep(10)  # the worker aggregates the statistics of the hour
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                page = browser.new_page()
                page.goto(f"http://127.0.0.1:{PORT}/login")
                page.fill("input[name=token]", token)
                page.click("button")
                [gate] = [each for each in Control(app.store).graphs.gates(graph.id) if each.state == "waiting"]
                take(page, "overview", "/", 1280, 800, dark=False)
                take(page, "task", "/tasks/shop.charge", 1280, 800, dark=False)
                take(page, "slower", "/tasks?last=day&sort=slower", 1280, 640, dark=False)
                take(page, "retry", "/bulk?verb=retry&error=declined&state=failed", 1280, 480, dark=False)
                take(page, "phone", "/runs?state=failed#list", 390, 780, dark=True)
                take(page, "run", f"/runs/{order.id}", 1280, 760, dark=False)
                take(page, "failed", f"/runs/{failed.id}", 1280, 640, dark=True)
                take(page, "graph", f"/runs/{graph.id}", 1600, 760, dark=True)
                take(page, "approval", f"/gates/{gate.id}", 1280, 760, dark=False)
                take(page, "approved", f"/gates/{approved}", 1280, 560, dark=False)
                links = Control(app.store, links=app.links).gate_links
                url = links.create(graph.id, "approve", recipient="ada@example.org").url
                take(page, "link", url.removeprefix(SETTINGS["HOLDFAST_PUBLIC_URL"]), 390, 780, dark=False)
                browser.close()
        finally:
            served.terminate()
            served.wait()
        app.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "/usr/bin/chromium")
