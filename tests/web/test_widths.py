"""Every page with long names at three widths and in two themes: nothing is clipped, and every button can be pressed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.async_api import Browser, Page

from holdfast import Holdfast
from holdfast.web import dashboard
from holdfast.web.pages.routes import PAGES
from tests.support.browser import TIMEOUT_MS, Served, close
from tests.support.long_names import SETTINGS, LongNames

WIDTHS = (1920, 1280, 390)
THEMES = ("light", "dark")
MAY_SCROLL = ".picture, .family"
"""Regions that may be wider than their place: graphs and families, which zoom."""
CHECK = """(mayScroll) => {
  const found = [];
  const text = (it) => (it.ariaLabel || it.textContent).trim().slice(0, 60);
  const name = (it) => `${it.tagName.toLowerCase()}.${it.getAttribute("class")} "${text(it)}"`;
  const phone = innerWidth < 800;
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) found.push(`the page is ${wide} pixels too wide`);
  const shown = [...document.querySelectorAll("body *")].filter((it) =>
    it.checkVisibility() && !it.closest(".hidden, .skip, svg, input, select, textarea, thead"));
  const isCut = (it) => it.clientWidth && it.scrollWidth > it.clientWidth + 1 && !it.matches(mayScroll)
    && !(phone && it.matches(".timeline"));
  const cut = shown.filter(isCut);
  for (const it of cut.filter((it) => !cut.some((other) => other !== it && it.contains(other)))) {
    found.push(`${it.scrollWidth - it.clientWidth} pixels cut: ${name(it)}`);
  }
  for (const it of document.querySelectorAll("svg text")) {
    const [box, whole] = [it.getBoundingClientRect(), it.ownerSVGElement.getBoundingClientRect()];
    if (box.left < whole.left - 1 || box.right > whole.right + 1) found.push(`cut by its picture: ${name(it)}`);
  }
  for (const it of shown.filter((it) => it.matches("button, .button, summary"))) {
    it.scrollIntoView({block: "center", inline: "nearest"});
    const box = it.getBoundingClientRect();
    const at = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    const inside = box.left >= 0 && box.right <= document.documentElement.clientWidth;
    if (!inside || !at || !it.contains(at)) found.push(`can't be pressed: ${name(it)}`);
  }
  return found;
}"""
OPEN = """() => {
  for (const it of document.querySelectorAll("details")) { it.open = true; }
  for (const it of document.querySelectorAll("td time")) { it.textContent = "59 min 59 s ago"; }
}"""
"""Show what is folded, and times as long as they may be: fresh runs have short ones."""


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, LongNames]]:
    """The URL of a dashboard, and what it shows."""
    app = Holdfast(f"sqlite:///{tmp_path_factory.mktemp('widths') / 'holdfast.db'}", **SETTINGS)
    site = dashboard(app)
    data = LongNames(app)
    served = Served(site)
    yield served.url, data
    served.close()
    site.close()
    app.close()


async def problems(page: Page, path: str, themes: tuple[str, ...]) -> dict[tuple[str, int, str], list[str]]:
    found = {}
    answer = await page.goto(path)
    assert answer is not None
    assert answer.status == (422 if "wrong" in path else 200), path
    await page.evaluate(OPEN)
    for theme in themes:
        await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            if wrong := await page.evaluate(CHECK, MAY_SCROLL):
                found[path, width, theme] = wrong
    return found


@pytest.mark.parametrize("themes", [("light",), pytest.param(THEMES, marks=pytest.mark.slow)], ids=len)
async def test_every_page_shows_long_names_whole_at_every_width(browser: Browser, long_names, themes):
    url, data = long_names
    found = {}
    context = await browser.new_context(base_url=url)
    context.set_default_timeout(TIMEOUT_MS)
    page = await context.new_page()
    await page.route("**/api/v1/**", lambda route: route.abort())  # nothing changes
    await page.goto("/login")
    await page.fill("input[name=token]", data.token)
    await page.click("button")
    every = {spec.path: [spec.path] for spec in PAGES} | data.paths
    assert [path for path, named in every.items() if named == [path] and "{" in path] == [], "add them to `LongNames`"
    for path in [path for named in every.values() for path in named]:
        found |= await problems(page, path, themes)
    await close(context)
    assert "\n".join(f"{place}: {wrong}" for place, some in found.items() for wrong in some) == ""
