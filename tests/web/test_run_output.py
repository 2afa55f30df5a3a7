"""What a run writes, on its page."""

from __future__ import annotations

import pytest

from holdfast import Context, Retry
from tests.web.conftest import NASTY
from tests.web.test_pages import Reader


@pytest.fixture
def tell(shop):
    """A function whose step fails halfway once, and which continues on an event."""
    calls = []

    @shop.app.task(name="tell")
    async def tell(ctx: Context) -> None:
        async def story() -> None:
            calls.append(1)
            await ctx.write("Once upon ")
            if len(calls) == 1:
                raise ConnectionError
            await ctx.write("a time ")

        await ctx.write({"title": NASTY})
        await ctx.step(story, name="story", retry=Retry(max_attempts=2, delay=0))
        await ctx.wait_for("go on")
        await ctx.write("there was an end.")

    return tell


def test_the_page_has_what_counts_without_javascript(open_visitor, shop, tell):
    run = tell.enqueue()
    shop.drain()
    page = Reader(open_visitor.get(f"/runs/{run.id}").text).text
    assert "Once upon a time" in page.replace("\n", " ")
    assert page.count("Once upon") == 1
    assert NASTY.partition('"')[0] in page


def test_a_run_that_has_written_nothing_shows_no_output(open_visitor, shop, fill):
    run = fill()["done"]
    assert 'id="output"' not in open_visitor.get(f"/runs/{run.id}").text


def test_the_page_of_a_long_stream_has_its_end(open_visitor, shop, monkeypatch):
    monkeypatch.setattr("holdfast.web.pages.runs.MAX_CHUNKS", 3)
    monkeypatch.setattr("holdfast.web.pages.formats.MAX_CHUNK_CHARS", 20)

    @shop.app.task(name="count")
    async def count(ctx: Context) -> None:
        for n in range(5):
            await ctx.write(f"[{n}]")
        await ctx.write("x" * 100)

    run = count.enqueue()
    shop.drain()
    page = Reader(open_visitor.get(f"/runs/{run.id}").text).text
    assert "The first 3 chunks are omitted" in page
    assert "[3] [4] " + "x" * 20 + "…" in page
    assert "[2]" not in page


async def test_the_page_adds_what_the_run_writes_and_drops_what_it_repeats(page, shop, tell):
    run = await tell.aenqueue()
    await page.goto(f"/runs/{run.id}")
    output = page.locator("#output")
    assert not await output.is_visible()
    async with shop.app.worker():
        await page.locator("#output pre", has_text="a time").wait_for()
        assert (await output.inner_text()).count("Once upon") == 1
        await shop.app.aemit("go on")
        await page.locator("#output pre", has_text="an end.").wait_for()
        await run.aresult(timeout=30)
    assert (await output.inner_text()).count("Once upon") == 1
