"""Limits as pure functions: rates over a sliding window, admission and parking."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadArguments, ConfigError
from holdfast.policy import admission
from holdfast.policy.admission import LimitCounter, Permit, Rate, admit, check_cost, parse_rate

SECOND = 1_000_000
A, B = Permit("a"), Permit("b")


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


@pytest.mark.parametrize("text", ["", "5", "x/s", "5/y", "0/s", "5/0s", "5/s" * 5000, None, 5, "-1/s"])
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
        admitted = admit([(f"{now}-{n}", [Permit("place")]) for n in range(wanted)], {"place": counter}, now).admitted
        starts += [now] * len(admitted)
        in_window = sum(1 for start in starts if start > now - SECOND)
        assert in_window <= most
        assert len(admitted) == wanted or in_window == most, "the rate isn't used up although runs wait"


def test_a_run_needs_a_permit_from_each_of_its_limits():
    counters = {"a": LimitCounter(concurrency=2), "b": LimitCounter(concurrency=1)}
    admitted, parked = admit([("1", [A, B]), ("2", [A, B]), ("3", [A]), ("4", [A]), ("5", [])], counters, 0)
    assert admitted == ["1", "3", "5"]
    assert parked == {"2": "b", "4": "a"}
    assert (counters["a"].used, counters["b"].used) == (2, 1)


def test_an_undeclared_limit_admits_every_run():
    assert admit([("1", [Permit("gone")])], {"gone": LimitCounter()}, 0).admitted == ["1"]


@pytest.mark.parametrize("value", [-1, -0.1, math.nan, math.inf, -math.inf, True, False, "5", None, 10**9])
def test_invalid_costs_are_rejected(value):
    with pytest.raises(BadArguments, match="the cost must be a number from 0 to 999,999,999"):
        check_cost(value, "the cost")


def test_costs_are_rounded_up():
    assert [check_cost(value, "the cost") for value in (0, 3, 0.2, 2.0, 999_999_999)] == [0, 3, 1, 2, 999_999_999]


@given(
    st.sampled_from([5, 20, 30_000]),
    st.lists(st.tuples(st.integers(0, 2 * SECOND), st.lists(st.integers(0, 25), max_size=8)), max_size=60),
)
def test_no_window_exceeds_its_weighted_rate(most, asked):
    """Compare with a brute-force sum of the costs in every window."""
    counter = LimitCounter(rate=Rate(most, SECOND), weighted=True)
    now, starts = 0, []
    for pause, costs in asked:
        now += pause
        wanted = [(f"{n}", [Permit("place", cost)]) for n, cost in enumerate(costs)]
        admitted = [int(id) for id in admit(wanted, {"place": counter}, now).admitted]
        starts += [(now, costs[n]) for n in admitted]
        in_window = sum(cost for at, cost in starts if at > now - SECOND)
        assert in_window <= most
        left = [cost for n, cost in enumerate(costs) if n not in admitted]
        assert all(cost > 0 for cost in left), "what costs nothing waits"
        assert not left or in_window + left[0] > most or left[0] > most, "the rate isn't used up although a run waits"


def test_a_long_log_is_shortened_without_exceeding_the_rate(monkeypatch):
    monkeypatch.setattr(admission, "MAX_EXACT_STARTS", 1000)
    monkeypatch.setattr(admission, "MAX_LOG_ENTRIES", 200)
    counter = LimitCounter(rate=Rate(2_000, SECOND), weighted=True)
    starts = []
    for now in range(0, 3 * SECOND, 400):
        if counter.room(now):
            counter.take(now, 1)
            starts.append(now)
        assert len(counter.log) <= 200
    window = [sum(1 for start in starts if at - SECOND < start <= at) for at in range(0, 3 * SECOND, 50_000)]
    assert max(window) <= 2_000
    assert len(starts) > 3 * 1_000, "most of the room is used"


@pytest.mark.parametrize(
    ("taken_at", "change", "log"),
    [
        (10, -3, [[10, 2], [20, 5], [30, 5]]),
        (10, -5, [[20, 5], [30, 5]]),
        (15, -7, [[10, 5], [30, 3]]),  # its entry was merged with the next ones
        (10, 4, [[10, 5], [10, 4], [20, 5], [30, 5]]),
        (-SECOND, 4, [[10, 5], [20, 5], [30, 5]]),  # it has left the window
        (-SECOND, -4, [[10, 5], [20, 5], [30, 5]]),
    ],
)
def test_a_cost_is_corrected_while_it_is_in_the_window(taken_at, change, log):
    counter = LimitCounter(rate=Rate(100, SECOND), log=[[10, 5], [20, 5], [30, 5]], weighted=True)
    counter.correct(taken_at, change, 40)
    assert counter.log == log


def test_a_counter_is_checked_when_so_much_has_left_that_the_next_fits():
    counter = LimitCounter(rate=Rate(15, SECOND), log=[[10, 5], [20, 5], [30, 5]], weighted=True)
    assert [counter.opens_at(40, need) for need in (1, 5, 6, 11)] == [SECOND + at for at in (10, 10, 20, 30)]
