"""Fuzz what outsiders can send or store, for as long as `$HOLDFAST_FUZZ_S` says: 10 seconds per test by default.

Each test repeats Hypothesis runs with new examples until its time is over. `test_input.py` has the short ones.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, Secret
from holdfast.control import Control
from holdfast.engine.processes.framing import END, BadFrame, encode_frame, read_frame
from holdfast.errors import HoldfastError, PayloadError
from holdfast.integrations.encryption import Encryption, Key
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import canonical, decode, digest, display_value, encode
from holdfast.model.gate_links import GATE_LINK, GateLinkToken
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.previews import PayloadView, listed_arguments
from holdfast.model.signed_tokens import Signer, TokenRefused
from holdfast.policy.schedule_timing import Timing, check_cron
from holdfast.web import dashboard
from tests.fuzz.test_input import CRON, NAMES, PAYLOADS, refusal
from tests.support.web import Visitor

pytestmark = pytest.mark.slow

BUDGET_S = float(os.environ.get("HOLDFAST_FUZZ_S", "10"))
EXAMPLES = settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
CANARY = "canary-4711"
LIMIT = 64 * 1024
HERE = PayloadContext("step", "acme", "run", "step#1")
ENCRYPTION = Encryption([Key("1", b"k" * 32)])
MAX_FRAME_BYTES = 40


class Reversed:
    """A codec."""

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    decode = encode


def fuzz(check: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> int:
    """Call a check with generated values until the time is over; return how often."""
    count = 0

    def counted(values: tuple[Any, ...]) -> None:
        nonlocal count
        count += 1
        check(*values)

    end = time.monotonic() + BUDGET_S
    while True:
        EXAMPLES(given(st.tuples(*strategies))(counted))()
        if time.monotonic() > end:
            return count


# Codec

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=30,
)
STORED = st.one_of(
    st.text(max_size=60),
    st.builds("~{}:{}".format, st.text("zcx~:", max_size=4), st.text(max_size=60)),
    st.builds(lambda way, data: f"~{way}:{base64.b64encode(data).decode()}", st.text("zca", max_size=3), st.binary()),
    st.builds(
        lambda way, size, cut: f"~{way}:{base64.b64encode(zlib.compress(b'[' * size)[:cut]).decode()}",
        st.sampled_from(["z", "zz", "zc", "cz", "za", "az"]), st.integers(0, 4 * LIMIT), st.integers(0, 400),
    ),
)  # fmt: skip


def test_no_stored_text_breaks_a_reader_or_exceeds_the_limit():
    apps = [Payloads(refuse_above=LIMIT, codec=codec) for codec in (None, Reversed(), ENCRYPTION)]

    def check(text: str) -> None:
        for payloads in apps:
            unpacked = payloads.unpack(text, HERE)
            assert len(unpacked.encode(errors="replace")) <= max(LIMIT, 1 + len(text.encode(errors="replace")))
            within = payloads.unpack_within(text, HERE, 1000)
            assert within is None or len(within.encode(errors="replace")) <= 1000 or within in (text, f"~{text}")
            for read in (decode, display_value):
                with suppress(PayloadError):
                    read(unpacked)
            PayloadView(payloads).arguments(text, HERE)
            listed_arguments(text, len(text.encode(errors="replace")), payloads, HERE)

    assert fuzz(check, STORED) > 300


def test_json_round_trips_through_every_stored_form():
    apps = [Payloads(), *(Payloads(compress_above=1024, codec=codec) for codec in (None, Reversed(), ENCRYPTION))]

    def check(value: Any, repeat: int) -> None:
        text = encode([value] * repeat)
        for payloads in apps:
            stored = payloads.pack(text, HERE, "value")
            assert payloads.unpack(stored, HERE) == text
            assert decode(payloads.unpack(stored, HERE)) == [value] * repeat
        assert digest(canonical(value)) == digest(canonical(decode(encode(value))))

    assert fuzz(check, JSON, st.sampled_from([1, 2, 50])) > 300


def test_a_secret_is_never_displayed_wherever_it_is():
    payloads = Payloads()

    def check(value: Any, more: Any, padding: int, escaped: bool) -> None:
        text = encode({"a": value, "b": [{"c": Secret({"inner": CANARY})}], "d": more, "e": "x" * padding})
        if escaped:
            text = text.replace("$secret", "\\u0024s\\u0065cret")
        shown = PayloadView(payloads).value(text)
        assert CANARY not in msgspec.json.encode(shown).decode()
        assert CANARY not in json.dumps(display_value(text))
        for cut in (10, 100, 200):
            assert CANARY not in str(listed_arguments(text[:cut], len(text.encode()), payloads))

    assert fuzz(check, JSON, JSON, st.sampled_from([0, 100, 300_000]), st.booleans()) > 300


def test_values_are_stored_faithfully_or_refused_and_errors_never_quote_a_secret():
    def check(value: Any) -> None:
        refused = refusal(lambda: encode({"outer": Secret([CANARY, value])}))
        assert CANARY not in str(refused)
        assert (refused is None) == (refusal(lambda: encode([value])) is None)

    assert fuzz(check, PAYLOADS) > 300


# Cron


def test_cron_slots_ascend_in_every_zone():
    zones = st.sampled_from([None, "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"])

    def check(text: str, zone: str | None, at: int) -> None:
        try:
            cron = check_cron(text, "schedule x")
        except HoldfastError:
            return
        timing = Timing(cron=cron, tz=zone) if zone else Timing(cron=cron)
        last = at * MICROS_PER_SECOND
        for _ in range(3):
            slot = timing.next_after(last)
            if slot is None:
                return
            assert slot > last
            last = slot

    assert fuzz(check, CRON, zones, st.integers(0, 4_000_000_000)) > 300


# Filters and tokens


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with Holdfast(f"sqlite:///{tmp_path_factory.mktemp('fuzz') / 'jobs.db'}") as app:

        @app.task(name="echo")
        async def echo(value: Any) -> Any:
            return value

        echo.options(key="order-1", tags=["a"], tenant="acme").enqueue(1)
        app.worker().drain()
        yield app


def test_a_filter_finds_runs_or_is_refused(app):
    control = Control(app.store)
    texts = st.none() | NAMES
    times = (
        st.none() | st.datetimes() | st.datetimes(timezones=st.just(UTC)) | st.just(datetime.max.replace(tzinfo=UTC))
    )

    def check(state: Any, names: list[str | None], at: Any, until: Any, prefix: str | None, limit: int) -> None:
        task, tag, tenant, error = names
        options: Any = {"task": task, "tag": tag, "tenant": tenant, "error": error, "key": tag, "id_prefix": prefix}
        found: list[Any] = []
        refused = refusal(
            lambda: found.extend(
                control.runs.page(**options, state=state, created_from=at, finished_to=until, limit=limit, after=prefix)
            )
        )
        assert refused is None or str(refused)
        assert len(found) <= max(limit, 0)

    states = st.none() | NAMES | st.lists(st.sampled_from(["done", "failed", "ready", "nope"]), max_size=3)
    names = st.lists(texts, min_size=4, max_size=4)
    assert (
        fuzz(
            check, states, names, times, times, texts | st.text("0123456789abcdef-", max_size=40), st.integers(-1, 1001)
        )
        > 300
    )


def test_query_parameters_are_answered_without_an_internal_error(app):
    site = dashboard(app, token="t" * 40)
    visitor = Visitor(site, "t" * 40)
    names = st.sampled_from(
        ["state", "task", "tag", "limit", "after", "created_from", "parent", "id_prefix", "error", "x"]
    )
    paths = st.sampled_from(["/runs", "/api/v1/runs", "/bulk", "/find", "/api/v1/events", "/events", "/api/v1/stats"])

    def check(path: str, query: list[tuple[str, str]]) -> None:
        text = urlencode([(name, value.encode(errors="replace")) for name, value in query])
        assert visitor.get(f"{path}?{text}").status < 500

    assert fuzz(check, paths, st.lists(st.tuples(names, NAMES), max_size=3)) >= 300
    site.close()


def test_only_the_exact_token_or_cookie_is_accepted(app):
    control = Control(app.store)
    token = control.tokens.create("read", None, "fuzz").token
    site = dashboard(app)
    visitor = Visitor(site)
    login = visitor.submit("/login", {"token": token})
    cookie = login.headers["set-cookie"].partition(";")[0]
    name, _, secret = cookie.partition("=")
    assert Visitor(site, token).get("/api/v1/runs").status == 200
    assert Visitor(site, cookie=cookie).get("/api/v1/runs").status == 200

    def check(given: str, at: int, letter: str, way: str) -> None:
        original = token if way.endswith("token") else secret
        changed = original[: at % len(original)] + letter + original[at % len(original) + 1 :]
        text = given if way.startswith("other") else changed
        if text == original:
            return
        if way.endswith("token"):
            header = {"authorization": "Bearer " + text.encode("latin-1", "replace").decode("latin-1")}
        else:
            header = {"cookie": f"{name}={text}".encode("latin-1", "replace").decode("latin-1")}
        status = (
            Visitor(site, headers=header, scope={"client": [f"10.0.{at % 250}.{len(text) % 250}", 1]})
            .get("/api/v1/runs")
            .status
        )
        assert status in (401, 429), (status, text)

    ways = st.sampled_from(["token", "cookie", "other token", "other cookie"])
    alphabet = st.sampled_from("abcXYZ019_-=. \x00é")
    assert fuzz(check, st.text(max_size=80), st.integers(0, 10_000), alphabet, ways) >= 300
    site.close()


def test_only_the_signed_token_opens_its_link(app):
    """Whatever is sent: one response, and never an internal error. Bytes are changed below the base64 text too."""
    signer, now = Signer(["s" * 32]), 1_800_000_000 * MICROS_PER_SECOND
    value = GateLinkToken(b"g" * 16, 3, "ada")
    token = signer.sign(GATE_LINK, value, now + 1)
    data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    site = dashboard(Holdfast(app.url, secret="s" * 32), token="t" * 40)

    def check(text: str, at: int, flipped: int, purpose: str, way: str) -> None:
        if way == "bytes":
            changed = bytearray(data)
            changed[at % len(data)] ^= flipped
            text = base64.urlsafe_b64encode(changed).rstrip(b"=").decode()
        elif way == "characters":
            text = token[: at % len(token)] + text + token[at % len(token) + 1 :]
        if text != token or purpose != GATE_LINK:
            with pytest.raises(TokenRefused):
                signer.verify(purpose, text if way != "purpose" else token, GateLinkToken, now)
        query = urlencode({"token": text.encode(errors="replace")})
        client = {"client": [f"10.{at % 250}.{flipped}.{len(text) % 250}", 1]}
        answer = Visitor(site, scope=client).post(f"/links/gate?{query}", {"ok": True})
        assert answer.status in (404, 429), (answer.status, text)

    ways = st.sampled_from(["bytes", "characters", "text", "purpose"])
    purposes = st.sampled_from(["stream", "", "gate", "gate link "])
    assert fuzz(check, st.text(max_size=80), st.integers(0, 10_000), st.integers(1, 255), purposes, ways) >= 300
    site.close()


# The pipe of task processes


def test_the_result_pipe_yields_the_expected_frame_or_a_bad_frame():
    tag = b"0123456789ab"
    data = st.binary(max_size=30) | st.binary(min_size=30, max_size=80)
    kinds = st.sampled_from([END, END, b"B", b"R", b"X"])
    tags = st.sampled_from([tag, tag, b"", b"x" * 12])
    frames = st.builds(encode_frame, kinds, data, tags)
    announced = st.builds(lambda size, rest: tag + END + size.to_bytes(4) + rest, st.integers(0, 2**32 - 1), data)

    def check(parts: list[bytes], cut: int) -> None:
        sent = b"".join(parts)[: cut or None]
        reader, writer = os.pipe()
        os.write(writer, sent)
        os.close(writer)
        found = None
        try:
            with suppress(BadFrame):
                found = read_frame(reader, END, MAX_FRAME_BYTES, tag)
        finally:
            os.close(reader)
        assert (found is not None) == _is_good(sent, tag)
        assert found is None or sent.startswith(encode_frame(END, found, tag))

    assert (
        fuzz(check, st.lists(frames | announced | st.binary(max_size=40), max_size=4), st.just(0) | st.integers(0, 200))
        > 300
    )


def _is_good(sent: bytes, tag: bytes) -> bool:
    """Return whether what was sent begins with a whole frame that the reader must accept."""
    start = len(tag) + 5
    if not sent.startswith(tag + END) or len(sent) < start:
        return False
    size = int.from_bytes(sent[start - 4 : start])
    return size <= MAX_FRAME_BYTES and len(sent) >= start + size
