"""Limits as pure functions: rates over a sliding window, admission and parking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.policy.admission import LimitCounter, Rate, admit, parse_rate

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/min", Rate(100, 60 * SECOND)),
        ("5/s", Rate(5, SECOND)),
        ("3/10s", Rate(3, 10 * SECOND)),
        (" 1000 / day ", Rate(1000, 86400 * SECOND)),
        ("2/2 hours", Rate(2, 7200 * SECOND)),
    ],
)
def test_rates_are_parsed(text, rate):
    assert parse_rate(text, "rate") == rate


@pytest.mark.parametrize("text", ["", "5", "x/s", "5/y", "0/s", "5/0s", "10001/s", "5/s" * 5000, None, 5, "-1/s"])
def test_invalid_rates_are_rejected(text):
    with pytest.raises(ConfigError, match="rate"):
        parse_rate(text, "rate")


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 30)), max_size=60),
)
def test_no_window_exceeds_its_rate(most, asked):
    """Compare with a brute-force count of the starts in every window."""
    counter = LimitCounter(rate=Rate(most, SECOND))
    now, starts = 0, []
    for pause, wanted in asked:
        now += pause
        admitted = admit([(f"{now}-{n}", ["place"]) for n in range(wanted)], {"place": counter}, now).admitted
        starts += [now] * len(admitted)
        in_window = sum(1 for start in starts if start > now - SECOND)
        assert in_window <= most
        assert len(admitted) == wanted or in_window == most, "the rate isn't used up although runs wait"


def test_a_run_needs_a_permit_from_each_of_its_limits():
    counters = {"a": LimitCounter(concurrency=2), "b": LimitCounter(concurrency=1)}
    admitted, parked = admit([("1", ["a", "b"]), ("2", ["a", "b"]), ("3", ["a"]), ("4", ["a"]), ("5", [])], counters, 0)
    assert admitted == ["1", "3", "5"]
    assert parked == {"2": "b", "4": "a"}
    assert (counters["a"].used, counters["b"].used) == (2, 1)


def test_an_undeclared_limit_admits_every_run():
    assert admit([("1", ["gone"])], {"gone": LimitCounter()}, 0).admitted == ["1"]
