"""Streams over HTTP: a real server, readers that reconnect, workers that die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from holdfast import Context, Retry, Run
from tests.support.wait_until import wait_until

TIMEOUT_S = 30
CLIENT = httpx.Client(timeout=TIMEOUT_S, trust_env=False)


class Browser:
    """Applies events like the pages in the docs: adds chunks, drops those that a reset names."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.chunks: list[dict[str, Any]] = []
        self.values: dict[str, Any] = {}
        self.end: dict[str, Any] | None = None
        self.last_id = ""
        self.seen: list[str] = []

    def apply(self, event: str, data: Any, id: str | None) -> None:
        self.seen.append(event)
        if event == "chunk":
            assert data["id"] not in [chunk["id"] for chunk in self.chunks], "repeated"
            self.chunks.append(data)
        elif event == "reset":
            self.chunks = [
                chunk
                for chunk in self.chunks
                if not (
                    data["after"] < chunk["id"] < data["before"]
                    and (data["everything"] or chunk["step"] == data["step"])
                )
            ]
        elif event == "value":
            self.values[data["name"]] = data["value"]
        elif event == "end":
            self.end = data
        if id is not None:
            self.last_id = id

    def read(self, until: Callable[[], bool] = lambda: False, **headers: str) -> int:
        """Connect and apply events until the server closes the stream, or until a condition; return the status."""
        given = {**self.headers, **({"last-event-id": self.last_id} if self.last_id else {}), **headers}
        with CLIENT.stream("GET", self.url, headers=given) as answer:
            self.content_type = answer.headers.get("content-type", "")
            if answer.status_code == 200:
                for event, data, id in sse(answer.iter_lines()):
                    self.apply(event, data, id)
                    if until():
                        break
            return answer.status_code

    @property
    def text(self) -> str:
        return "".join(chunk["data"] for chunk in self.chunks)


def sse(lines: Iterator[str]) -> Iterator[tuple[str, Any, str | None]]:
    """Parse server-sent events as browsers do."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith((":", "retry:")):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields["event"], json.loads(fields["data"]), fields.get("id")
            fields = {}


@pytest.fixture
def talk(shop):
    """A durable function that says what its messages tell it to, in a step that may fail halfway."""

    class Talk:
        fail_at: Any = ()

    talk = Talk()

    async def say(ctx: Context, words: list[str], tries: Iterator[int]) -> None:
        number = next(tries)
        for at, word in enumerate(words):
            if (number, at) in talk.fail_at:
                raise ConnectionError
            await ctx.write(word)

    @shop.app.task(name="talk")
    async def function(ctx: Context) -> str:
        await ctx.set("phase", "talking")
        while words := await ctx.receive("words"):
            tries = iter(range(1, 10))
            await ctx.write("|")

            async def step(said: list[str] = words, tries: Iterator[int] = tries) -> None:
                await say(ctx, said, tries)

            await ctx.step(step, name="say", retry=Retry(max_attempts=5, delay=0))
        await ctx.set("phase", "silent")
        return "said"

    talk.task = function
    return talk


def address(base: str, run: Run[Any], query: str = "") -> str:
    return f"{base}/api/v1/runs/{run.id}/stream{query}"


@pytest.fixture
def base(shop, serve):
    return serve(shop.site(unlocked=True))


def test_a_reader_gets_values_chunks_resets_and_the_end(shop, talk, base):
    talk.fail_at = {(1, 1)}
    run = talk.task.enqueue()
    run.send("words", ["Hel", "lo"])
    run.send("words", None)
    shop.drain()
    browser = Browser(address(base, run))
    assert browser.read() == 200
    assert browser.seen == ["value", "chunk", "chunk", "reset", "chunk", "chunk", "end"]
    assert browser.text == "|Hello"
    assert browser.values == {"phase": "silent"}
    assert browser.end == {"state": "done", "result": "said", "error": None}
    assert [chunk["try"] for chunk in browser.chunks] == [1, 2, 2]
    assert browser.chunks[0]["step"] is None
    assert browser.last_id == "4.end"
    assert browser.read() == 204, "a browser that reconnects after the end stops"


def test_a_reader_has_the_transcript_from_wherever_it_reconnects(shop, talk, base):
    talk.fail_at = {(1, 2), (2, 1)}
    run = talk.task.enqueue()
    run.send("words", ["a", "b", "c"])
    run.send("words", ["d", "e"])
    run.send("words", None)
    shop.drain()
    whole = Browser(address(base, run))
    whole.read()
    assert whole.text == "|abc|de"
    count = len(whole.seen)
    for cut in range(1, count):
        browser = Browser(address(base, run))
        browser.read(lambda browser=browser, cut=cut: len(browser.seen) == cut)
        browser.read()
        assert (browser.chunks, browser.end) == (whole.chunks, whole.end), f"cut after event {cut}"
    for after in range(whole.chunks[-1]["id"] + 1):
        browser = Browser(address(base, run, f"?after={after}"))
        browser.read()
        assert browser.chunks == [chunk for chunk in whole.chunks if chunk["id"] > after]


def test_readers_follow_a_run_live_by_notification(shop, talk, base, monkeypatch):
    """Without notifications, this would take as long as the poll interval: for ever."""
    monkeypatch.setattr("holdfast.client.streams.MAX_POLL_INTERVAL_S", 3600.0)
    monkeypatch.setattr("holdfast.client.streams.MAX_POLL_INTERVAL_LISTENING_S", 3600.0)
    run = talk.task.enqueue()
    browsers = [Browser(address(base, run)) for _ in range(5)]
    with shop.app.worker(), ThreadPoolExecutor(5) as pool:
        reading = [pool.submit(browser.read) for browser in browsers]
        for said in ("a", "b", "c"):
            run.send("words", [said])
            expected = "|a|b|c"[: "|a|b|c".index(said) + 1]
            wait_until(lambda text=expected: {each.text for each in browsers} == {text}, what=f"{said} arrives")
        run.send("words", None)
        assert [each.result(TIMEOUT_S) for each in reading] == [200] * 5
    assert all(browser.end["state"] == "done" and browser.values == {"phase": "silent"} for browser in browsers)
