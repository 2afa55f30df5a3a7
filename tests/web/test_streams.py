"""Streams over HTTP: a real server, readers that reconnect, workers that die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import pytest

from holdfast import ConfigError, Context, Retry, Run
from holdfast.control.streams import StreamControl
from holdfast.model.signed_tokens import LinkSettings
from holdfast.web.api.streams import StreamEndpoint
from tests.support.wait_until import wait_until

TIMEOUT_S = 12
"""Less than between two heartbeats: a stream that stalls fails its test."""
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


# Who may read


def test_a_viewer_of_another_tenant_sees_no_stream(shop, talk, serve):
    run = talk.task.options(tenant="acme").enqueue()
    base = serve(shop.site())
    tokens = {
        tenant: shop.control.tokens.create("viewer", tenant, f"of {tenant}").token for tenant in ("acme", "other")
    }
    assert Browser(address(base, run)).read() == 401
    assert Browser(address(base, run), tokens["other"]).read() == 404
    run.cancel()
    browser = Browser(address(base, run), tokens["acme"])
    assert browser.read() == 200
    assert browser.end["state"] == "cancelled"


def test_the_end_tells_a_reader_with_a_role_the_error(shop, serve):
    run = shop.boom.enqueue("secret reason")
    shop.drain()
    browser = Browser(address(serve(shop.site(unlocked=True)), run))
    browser.read()
    assert browser.seen == ["end"]
    assert browser.end["state"] == "failed"
    assert browser.end["error"]["message"] == "secret reason"


SECRET = "s" * 32


@pytest.fixture
def signed(shop, talk, serve, monkeypatch):
    """A finished run and the base of its dashboard, which is in no way open."""
    shop.app.links = shop.app._client.links = LinkSettings(SECRET, "http://placeholder")
    base = serve(shop.site())
    shop.app.links = shop.app._client.links = LinkSettings(SECRET, base)
    run = talk.task.enqueue()
    run.send("words", ["Hello"])
    run.send("words", None)
    shop.drain()
    return run


def test_a_signed_url_is_for_one_run_and_tells_no_result(shop, talk, signed):
    url = signed.stream_url()
    browser = Browser(url)
    assert browser.read() == 200
    assert (browser.text, browser.end) == ("|Hello", {"state": "done"})
    other = talk.task.enqueue()
    assert Browser(url.replace(str(signed.id), str(other.id))).read() == 403
    assert Browser(url[:-1] + ("A" if url[-1] != "A" else "B")).read() == 403
    assert Browser(url.replace("/stream", "/live")).read() == 401, "it opens nothing else"
    assert Browser(url.replace("/stream", "")).read() == 401


def test_a_signed_url_works_from_pages_of_other_origins(signed):
    answer = CLIENT.get(signed.stream_url(), headers={"origin": "https://shop.example"})
    assert answer.headers["access-control-allow-origin"] == "*"


def test_an_expired_url_is_refused_and_ends_open_streams(shop, talk, signed, monkeypatch):
    monkeypatch.setattr("holdfast.web.api.streams.CREDENTIALS_INTERVAL_S", 0.05)
    running = talk.task.enqueue()
    url = running.stream_url(expires=0.8)
    browser = Browser(url)
    assert browser.read() == 200
    assert browser.end is None
    assert Browser(url).read() == 403


def test_stream_url_needs_a_secret_and_a_public_url(shop, talk):
    run = talk.task.enqueue()
    with pytest.raises(ConfigError, match="HOLDFAST_SECRET"):
        run.stream_url()
    shop.app._client.links = LinkSettings(SECRET)
    with pytest.raises(ConfigError, match="HOLDFAST_PUBLIC_URL"):
        run.stream_url()
    with pytest.raises(ConfigError, match="expires"):
        run.stream_url(expires=-1)


def test_a_revoked_token_ends_its_streams(shop, talk, serve, monkeypatch):
    monkeypatch.setattr("holdfast.web.api.streams.CREDENTIALS_INTERVAL_S", 0.05)
    token = shop.control.tokens.create("viewer", None, "reader")
    run = talk.task.enqueue()
    browser = Browser(address(serve(shop.site()), run), token.token)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(browser.read)
        shop.app.worker(concurrency=1).drain()
        wait_until(lambda: browser.seen == ["value"])
        shop.control.tokens.revoke(token.info.id)
        assert reading.result(TIMEOUT_S) == 200
    assert browser.end is None
    assert browser.read() == 401


# Requests


def test_ndjson_has_the_same_events(shop, talk, base):
    talk.fail_at = {(1, 1)}
    run = talk.task.enqueue()
    run.send("words", ["Hel", "lo"])
    run.send("words", None)
    shop.drain()
    whole = Browser(address(base, run))
    whole.read()
    answer = CLIENT.get(address(base, run), headers={"accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    again = Browser("")
    for line in answer.text.splitlines():
        data = json.loads(line)
        again.apply(data.pop("event"), data, None)
    assert (again.seen, again.chunks, again.end) == (whole.seen, whole.chunks, whole.end)


@pytest.mark.parametrize("after", ["x", "-1", "1e3", "99999999999", "²", "1.end.end"])
def test_a_wrong_offset_is_refused(shop, talk, base, after):
    run = talk.task.enqueue()
    answer = CLIENT.get(address(base, run), params={"after": after})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


def test_an_unknown_run_has_no_stream(base):
    assert CLIENT.get(f"{base}/api/v1/runs/{uuid4()}/stream").status_code == 404
    assert CLIENT.get(f"{base}/api/v1/runs/nonsense/stream").status_code in (404, 422)


def test_a_reader_that_is_ahead_of_a_restored_database_starts_over(shop, talk, base):
    run = talk.task.enqueue()
    run.send("words", ["a"])
    run.send("words", None)
    shop.drain()
    browser = Browser(address(base, run))
    browser.last_id, browser.chunks = "70", [{"id": 70, "step": None, "data": "of the lost future"}]
    browser.read()
    assert browser.text == "|a"


def test_streams_are_bounded_in_total_by_token_and_by_client(shop, talk, base, monkeypatch):
    monkeypatch.setattr("holdfast.web.api.streams.MAX_STREAMS_PER_CLIENT", 2)
    run = talk.task.enqueue()
    browsers = [Browser(address(base, run)) for _ in range(2)]
    with shop.app.worker(), ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(browser.read) for browser in browsers]
        wait_until(lambda: all(browser.seen for browser in browsers))
        answer = CLIENT.get(address(base, run))
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "too_many", "30")
        run.send("words", None)
        assert [each.result(TIMEOUT_S) for each in reading] == [200, 200]
    assert Browser(address(base, run)).read() == 200, "the slots are free again"


def test_a_head_request_ends(base, shop, talk):
    run = talk.task.enqueue()
    assert CLIENT.head(address(base, run)).status_code == 200


# Memory and load


def test_a_reader_behind_the_buffer_reads_from_the_database(shop, base, monkeypatch):
    """As slow readers do, and those that come late."""
    monkeypatch.setattr("holdfast.web.api.streams.MAX_BUFFERED_EVENTS", 3)
    monkeypatch.setattr("holdfast.control.streams.MAX_PAGE_BYTES", 10)

    @shop.app.task(name="count")
    async def count(ctx: Context) -> None:
        for n in range(40):
            await ctx.write(n)

    run = count.enqueue()
    browsers = [Browser(address(base, run)) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        reading = [pool.submit(browser.read) for browser in browsers]
        shop.drain()
        assert [each.result(TIMEOUT_S) for each in reading] == [200] * 3
    for browser in browsers:
        assert [chunk["data"] for chunk in browser.chunks] == list(range(40))


def test_all_readers_of_a_run_share_its_reads(shop, talk, base, monkeypatch):
    reads = []
    read = StreamControl.news
    monkeypatch.setattr(StreamControl, "news", lambda *given: reads.append(given) or read(*given))
    monkeypatch.setattr("holdfast.client.streams.MAX_POLL_INTERVAL_S", 3600.0)
    monkeypatch.setattr("holdfast.client.streams.MAX_POLL_INTERVAL_LISTENING_S", 3600.0)
    run = talk.task.enqueue()
    browsers = [Browser(address(base, run)) for _ in range(12)]
    with shop.app.worker(), ThreadPoolExecutor(12) as pool:
        reading = [pool.submit(browser.read) for browser in browsers]
        wait_until(lambda: all(browser.values for browser in browsers))
        for n in range(5):
            run.send("words", [str(n)])
            wait_until(lambda n=n: all(browser.text.endswith(str(n)) for browser in browsers))
        run.send("words", None)
        assert [each.result(TIMEOUT_S) for each in reading] == [200] * 12
    assert len({given[1] for given in reads}) == 1
    assert len(reads) < 60, "not once for each reader and chunk"


def test_a_reader_that_leaves_is_forgotten(shop, talk, serve, monkeypatch):
    endpoints = []
    create = StreamEndpoint.__init__
    monkeypatch.setattr(
        StreamEndpoint, "__init__", lambda self, *given: (endpoints.append(self), create(self, *given))[1]
    )
    base = serve(shop.site(unlocked=True))
    run = talk.task.enqueue()
    run.send("words", ["a"])
    shop.drain()
    browser = Browser(address(base, run))
    browser.read(lambda: len(browser.seen) == 3)
    (endpoint,) = endpoints
    wait_until(lambda: not endpoint._feeds and not endpoint.slots._open, what="nothing is left of the reader")
    wait_until(lambda: not shop.app._client.streams.followers._followers)
