"""Retry settings, delays, and the decision after a failed attempt."""

import copy
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, ErrorInfo, Fatal, NotSerializable, RetryAfter, StepFailed, TooLarge
from holdfast.model.retry import Retry
from holdfast.policy.retry_decision import (
    RetryDecision,
    decide_after_failure,
    decide_after_timeout,
    delay_before_retry,
    payload_error_code,
)

SECOND = 1_000_000


def middle() -> float:
    return 0.5


class Broken(ConnectionError):
    pass


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_attempts": 1.5},
        {"delay": -1},
        {"delay": "1"},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"jitter": 1.1},
        {"jitter": -0.1},
        {"max_delay": timedelta(seconds=-1)},
        {"on": "ValueError"},
        {"on": (ValueError, 3)},
        {"never_on": KeyboardInterrupt},
    ],
)
def test_invalid_retry_settings_are_rejected_by_name(wrong):
    with pytest.raises(ConfigError, match=f"Retry: {next(iter(wrong))}"):
        Retry(**wrong)


def test_retry_is_immutable():
    retry = Retry()
    with pytest.raises(AttributeError, match="is immutable"):
        retry.max_attempts = 5
    assert retry.max_attempts == 10


def test_equal_retries_are_equal_and_have_the_same_hash():
    assert Retry(delay=timedelta(seconds=2), on=(ValueError, OSError)) == Retry(delay=2.0, on=(OSError, ValueError))
    assert hash(Retry(on=ValueError)) == hash(Retry(on=(ValueError,)))
    assert Retry() != Retry(jitter=0)
    assert Retry() != "Retry()"


retries = st.builds(
    Retry,
    max_attempts=st.integers(1, 10**9),
    delay=st.floats(0, 1e6),
    factor=st.floats(1, 1e6),
    max_delay=st.floats(0, 1e9),
    jitter=st.floats(0, 1),
    on=st.sampled_from([None, (), OSError, (Broken, ValueError)]),
    never_on=st.sampled_from([None, OSError, (Broken, ValueError)]),
)


@given(retries)
def test_a_retry_survives_storage_copy_and_pickle(retry):
    assert Retry.from_json(retry.to_json()) == retry
    assert pickle.loads(pickle.dumps(retry)) == retry  # noqa: S301
    assert copy.deepcopy(retry) == retry


def test_a_retry_stored_by_another_release_is_restored():
    assert Retry.from_json({"max_attempts": 7, "colour": "red"}) == Retry(max_attempts=7)


def test_exceptions_match_by_class_and_base_class():
    assert Retry().retryable(ValueError())
    assert Retry(on=OSError).retryable(Broken())
    assert not Retry(on=OSError).retryable(ValueError())
    assert not Retry(on=()).retryable(ValueError())
    assert not Retry(never_on=ConnectionError).retryable(Broken())
    assert not Retry(on=OSError, never_on=Broken).retryable(Broken())
    assert Retry.from_json(Retry(on=Broken).to_json()).retryable(Broken())


def test_repr_shows_the_settings():
    assert repr(Retry(on=ValueError)) == (
        "Retry(max_attempts=10, delay=2, factor=2, max_delay=600, jitter=1, on=('builtins.ValueError',))"
    )


def test_delays_grow_by_factor_up_to_max_delay():
    retry = Retry(delay=1, factor=3, max_delay=20, jitter=0)
    assert [delay_before_retry(retry, n, middle) for n in range(4)] == [SECOND, 3 * SECOND, 9 * SECOND, 20 * SECOND]


@given(retries, st.integers(0, 10**12), st.floats(0, 1, exclude_max=True))
def test_delays_stay_between_zero_and_max_delay(retry, failures, chance):
    assert 0 <= delay_before_retry(retry, failures, lambda: chance) <= retry.max_delay_micros


@given(st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_jitter_spreads_delays_around_the_middle(jitter, chance):
    delay = delay_before_retry(Retry(delay=10, jitter=jitter), 0, lambda: chance)
    assert 10 * (1 - jitter) - 1e-5 <= delay / SECOND <= 10 * (1 + jitter) + 1e-5


def test_jitter_also_spreads_delays_at_max_delay():
    retry = Retry(delay=300, max_delay=300, jitter=0.25)
    delays = {delay_before_retry(retry, 5, lambda n=n: n / 100) for n in range(100)}
    assert len(delays) == 100
    assert max(delays) < 300 * SECOND


def test_zero_delay_stays_zero():
    assert delay_before_retry(Retry(delay=0, factor=10), 10**9, middle) == 0


def test_failures_are_retried_until_max_attempts():
    retry = Retry(max_attempts=3, delay=1, jitter=0)
    outcomes = [decide_after_failure(retry, failures, ValueError(), middle) for failures in range(4)]
    assert outcomes == [
        RetryDecision("error", SECOND),
        RetryDecision("error", 2 * SECOND),
        RetryDecision("error"),
        RetryDecision("error"),
    ]


def test_a_fatal_failure_is_not_retried():
    assert decide_after_failure(Retry(max_attempts=9), 0, Fatal("no"), middle) == RetryDecision("fatal")
    assert decide_after_failure(Retry(max_attempts=1), 0, Fatal("no"), middle) == RetryDecision("fatal")


def test_an_excluded_exception_fails_the_run():
    assert decide_after_failure(Retry(on=OSError), 0, ValueError(), middle) == RetryDecision("error")
    assert decide_after_failure(Retry(never_on=OSError), 0, Broken(), middle) == RetryDecision("error")


def test_retry_after_sets_the_delay_regardless_of_filters():
    assert decide_after_failure(Retry(on=OSError), 0, RetryAfter(60), middle) == RetryDecision("error", 60 * SECOND)
    assert decide_after_failure(Retry(), 1, RetryAfter(timedelta(days=1)), middle) == RetryDecision(
        "error", 86400 * SECOND
    )
    assert decide_after_failure(Retry(), 9, RetryAfter(60), middle) == RetryDecision("error")


def test_a_failed_step_that_raised_retry_after_sets_the_delay():
    failed = StepFailed("charge", ErrorInfo("error", "RetryAfter", "busy"), timedelta(seconds=60))
    assert decide_after_failure(Retry(on=OSError), 0, failed, middle) == RetryDecision("error", 60 * SECOND)
    assert decide_after_failure(Retry(), 9, failed, middle) == RetryDecision("error")


def test_the_longest_retry_after_of_a_group_applies():
    def after(*those):
        return decide_after_failure(Retry(never_on=KeyError), 0, ExceptionGroup("several", those), middle)

    assert after(RetryAfter(60), ValueError(), RetryAfter(90)) == RetryDecision("error", 90 * SECOND)
    assert after(ExceptionGroup("within", [RetryAfter(60)])) == RetryDecision("error", 60 * SECOND)
    assert after(RetryAfter(60), KeyError()) == RetryDecision("error")
    assert after(RetryAfter(60), Fatal()) == RetryDecision("fatal")


@pytest.mark.parametrize("delay", [-1, "soon", float("nan"), float("inf"), None])
def test_an_invalid_retry_after_uses_the_tasks_policy(delay):
    assert decide_after_failure(Retry(), 0, RetryAfter(delay), middle) == RetryDecision("error", 2 * SECOND)


def test_timeouts_are_retried_regardless_of_on():
    assert decide_after_timeout(Retry(on=OSError), 0, middle) == RetryDecision("timeout", 2 * SECOND)
    assert decide_after_timeout(Retry(), 9, middle) == RetryDecision("timeout")
    assert decide_after_timeout(Retry(never_on=TimeoutError), 0, middle) == RetryDecision("timeout")


def test_payload_error_codes():
    assert payload_error_code(TooLarge()) == "too_large"
    assert payload_error_code(NotSerializable()) == "not_serializable"


def test_by_default_ten_attempts_take_about_fifteen_minutes_with_full_jitter():
    def total(random: float) -> float:
        return sum(delay_before_retry(Retry(), failures, lambda: random) for failures in range(9)) / (60 * SECOND)

    assert decide_after_failure(Retry(), 8, ValueError(), middle).retry_in is not None
    assert decide_after_failure(Retry(), 9, ValueError(), middle).retry_in is None
    assert (total(0.0), round(total(0.5), 1), round(total(1.0), 1)) == (0.0, 13.5, 27.0)


def test_the_identity_of_a_retry_does_not_depend_on_the_defaults_of_the_release():
    """Children and keyed requests are identified by their options: those of 0.1 must be found again."""
    defaults = {"max_attempts": 3, "delay": SECOND, "factor": 2.0, "max_delay": 300 * SECOND, "jitter": 0.25}
    others = {"on": None, "never_on": []}
    assert Retry().identity() == {**defaults, **others}
    assert Retry(2, on=OSError).identity() == {**defaults, **others, "max_attempts": 2, "on": ["builtins.OSError"]}
    explicit = Retry(max_attempts=10, delay=2, factor=2, max_delay=600, jitter=1)
    assert explicit.identity() == explicit.to_json() == Retry().to_json()
    assert explicit == Retry()
    for copied in (copy.copy(Retry(2)), copy.deepcopy(Retry(2))):
        assert copied.identity() == Retry(2).identity()
    assert Retry.from_json(Retry(2).to_json()).identity() == Retry(2).to_json()
