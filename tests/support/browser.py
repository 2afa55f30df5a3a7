"""Chromium, and a local server of the dashboard."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.async_api import Browser, BrowserContext, Error, Page, async_playwright

from tests.support.wait_until import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--force-color-profile=srgb",
)  # fmt: skip
AXE = Path(__file__).parents[2] / ".cache" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
STANDARDS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
AUDIT = f"""() => axe.run(document, {{runOnly: {list(STANDARDS)}, resultTypes: ["violations"]}}).then((found) =>
  found.violations.flatMap((rule) => rule.nodes.map((it) => `${{rule.id}}: ${{it.html.slice(0, 160)}}`)))"""
TIMEOUT_MS = 30_000
CLOSE_TIMEOUT_S = 20


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Chromium, or skip the test if it isn't installed."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium libatomic1")
    async with async_playwright() as playwright:
        try:
            browser = await playwright.chromium.launch(executable_path=found, args=FLAGS)
        except Error as error:
            pytest.skip(f"{found} doesn't start: {error.message.splitlines()[0]}")
        yield browser
        await close(browser)


async def close(opened: Browser | BrowserContext) -> None:
    """Close windows or the browser. Chromium rarely never answers; what remains then ends with Playwright's driver."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(opened.close(), CLOSE_TIMEOUT_S)


class Served:
    """Serves a site on a free port, in a thread."""

    def __init__(self, site: Any) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(site, log_config=None, access_log=False, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, what="the dashboard answers")

    def close(self) -> None:
        """Stop at once, without waiting for clients that listen for changes."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._socket.close()


async def audit(page: Page) -> list[str]:
    """Return what axe-core finds in a page: violations of WCAG 2.2 AA and of good practice."""
    if not AXE.exists():
        pytest.skip("needs axe-core: ./dev test installs it if there is npm")
    if not await page.evaluate("typeof axe === 'object'"):
        await page.evaluate(AXE.read_text())
    return list(await page.evaluate(AUDIT))


async def overflow(page: Page) -> int:
    """Return by how many pixels a page is wider than its window.

    `window.innerWidth` isn't the width of the window: on a phone, it grows with the page.
    """
    assert page.viewport_size is not None
    return int(await page.evaluate("document.documentElement.scrollWidth")) - page.viewport_size["width"]
