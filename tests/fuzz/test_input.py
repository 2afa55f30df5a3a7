"""Any input to the library round-trips or is rejected with a Holdfast error.

API bodies are fuzzed in `tests/web`, stored rows in `test_stored_rows.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, Run
from holdfast.database import open_database
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.policy.schedule_timing import Timing, check_cron, check_zone

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FEW = settings(QUICK, max_examples=60)
HUGE = st.builds(lambda: 10**6000)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
STRANGE = st.binary(max_size=9) | st.dates() | st.decimals() | st.complex_numbers() | st.uuids() | st.builds(object)
KEYS = st.text(max_size=9) | st.integers() | st.none() | st.tuples(st.integers())


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4) | st.sets(st.integers(), max_size=3)


PAYLOADS = st.recursive(PLAIN | STRANGE | HUGE | st.just("\ud800"), nested, max_leaves=12)
NASTY = ["'; drop table runs; --", '"', "\\", "\x00", "%s", "{schema}", "$1", ":now", "a" * 10_000, "\ud800", "..", " "]
NAMES = st.text(max_size=20) | st.sampled_from(NASTY)
FIELD = st.sampled_from(["*", "*/7", "1-5", "3,9", "0", "L", "59", "60", "-1", "MON#2", "5L", "1-0", "JAN-MAR", "*/0"])
CRON = (
    st.lists(FIELD, min_size=5, max_size=6).map(" ".join)
    | st.text("0123456789*,-/ LW#?@MONJANfri\t\n", max_size=30)
    | st.text(max_size=20)
)
SCHEMES = ["sqlite://", "sqlite:///", "postgresql://", "postgres://", "mysql://", "", "sqlite:", "postgresql:///"]
ENDS = ["", "/", "@", ":", "@h:99999/x", "?host=/x", "?sslmode=%", "\x00", "?options=-c"]
URLS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(SCHEMES),
    st.text(max_size=12),
    st.sampled_from(ENDS),
    st.text("abc/%?&=:@[]#0", max_size=10),
)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with Holdfast(f"sqlite:///{tmp_path_factory.mktemp('fuzz') / 'jobs.db'}") as app:

        @app.task(name="echo")
        async def echo(value: Any) -> Any:
            return value

        with app.worker(lease=30):
            yield app


@pytest.fixture
def postgres_app(postgres_url):
    with Holdfast(postgres_url) as app:
        yield app


def refusal(call: Callable[[], Any]) -> HoldfastError | None:
    """Return the Holdfast error that a call raises; any other propagates."""
    try:
        call()
    except HoldfastError as refused:
        return refused
    return None


def plain(value: Any) -> bool:
    """Return whether JSON represents the value exactly, so that it must round-trip."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(map(plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(key) for key in value) and all(map(plain, value.values()))
    if isinstance(value, str):
        return not any("\ud800" <= letter <= "\udfff" for letter in value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 10**4000)


@QUICK
@given(PAYLOADS)
def test_a_payload_round_trips_or_is_rejected(app, value):
    runs: list[Run[Any]] = []
    refused = refusal(lambda: runs.append(app.registry.get("echo").enqueue(value)))
    if refused is not None:
        assert "value" in str(refused)
        assert not plain(value)
        return
    came = runs[0].result(timeout=60)
    if plain(value):
        assert came == value


@QUICK
@given(PAYLOADS, NAMES)
def test_event_and_message_payloads_round_trip_or_are_rejected(app, value, name):
    run = app.registry.get("echo").options(delay=3600).enqueue(1)
    for give in (lambda: app.emit(name, value), lambda: run.send(name, value)):
        refused = refusal(give)
        assert refused is None or str(refused)
    assert run.cancel()


def check_names(app, task, queue, tenant, key, tag):
    """Accepted names are found again; rejected ones leave nothing behind."""
    before = len(app.runs(limit=1000))
    made: list[Run[Any]] = []

    def enqueue():
        made.append(app.remote(task).options(queue=queue, tenant=tenant, key=key, unique=key, tags=[tag]).enqueue())

    if refusal(enqueue) is not None:
        assert len(app.runs(limit=1000)) == before
        return
    info = made[0].info()
    if len(app.runs(limit=1000)) == before:  # the key belongs to the run of an earlier example
        assert (info.task, info.tenant) == (task, tenant)
        return
    assert (info.task, info.queue, info.tenant, list(info.tags)) == (task, queue, tenant, [tag])
    enqueue()
    assert made[0] == made[1]
    assert made[0].cancel()


@FEW
@given(NAMES, NAMES, NAMES, NAMES, NAMES)
def test_names_round_trip_or_are_rejected_on_sqlite(app, task, queue, tenant, key, tag):
    check_names(app, task, queue, tenant, key, tag)


@FEW
@given(NAMES, NAMES, NAMES, NAMES, NAMES)
def test_names_round_trip_or_are_rejected_on_postgres(postgres_app, task, queue, tenant, key, tag):
    check_names(postgres_app, task, queue, tenant, key, tag)


@QUICK
@given(CRON)
def test_a_cron_expression_has_slots_or_is_rejected(text):
    refused = refusal(lambda: check_cron(text, "schedule x"))
    assert refused is None or (isinstance(refused, ConfigError) and "schedule x" in str(refused))
    if refused is None:
        slot = Timing(cron=check_cron(text, "schedule x")).next_after(1_800_000_000 * MICROS_PER_SECOND)
        assert slot is None or slot > 1_800_000_000 * MICROS_PER_SECOND


@QUICK
@given(NAMES)
def test_a_time_zone_is_known_or_rejected(zone):
    refused = refusal(lambda: check_zone(zone, "schedule x"))
    assert refused is None or (isinstance(refused, ConfigError) and "schedule x" in str(refused))


@QUICK
@given(URLS, st.text(max_size=10))
def test_a_url_is_valid_or_rejected_without_side_effects(tmp_path, monkeypatch, url, schema):
    monkeypatch.chdir(tmp_path)
    refused = refusal(lambda: open_database(url, schema).close())
    assert refused is None or str(refused)
    assert list(tmp_path.iterdir()) == []
