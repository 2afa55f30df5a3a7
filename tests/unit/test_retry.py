"""Retry, the delays it gives, and what follows a failed try."""

import copy
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Fatal, NotSerializable, RetryAfter, TooLarge
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
def test_a_setting_that_cannot_work_is_refused_by_its_name(wrong):
    with pytest.raises(ConfigError, match=f"Retry: {next(iter(wrong))}"):
        Retry(**wrong)


def test_a_retry_cannot_be_changed():
    retry = Retry()
    with pytest.raises(AttributeError, match="is immutable"):
        retry.max_attempts = 5
    assert retry.max_attempts == 3


def test_equal_settings_are_equal_and_hash_alike():
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
def test_a_retry_comes_back_from_its_stored_form_and_from_copies(retry):
    assert Retry.from_json(retry.to_json()) == retry
    assert pickle.loads(pickle.dumps(retry)) == retry  # noqa: S301
    assert copy.deepcopy(retry) == retry


def test_a_stored_form_of_another_release_is_read():
    assert Retry.from_json({"max_attempts": 7, "colour": "red"}) == Retry(max_attempts=7)


def test_exceptions_are_matched_by_their_classes_and_those_above():
    assert Retry().retryable(ValueError())
    assert Retry(on=OSError).retryable(Broken())
    assert not Retry(on=OSError).retryable(ValueError())
    assert not Retry(on=()).retryable(ValueError())
    assert not Retry(never_on=ConnectionError).retryable(Broken())
    assert not Retry(on=OSError, never_on=Broken).retryable(Broken())
    assert Retry.from_json(Retry(on=Broken).to_json()).retryable(Broken())


def test_the_repr_shows_what_was_set():
    assert repr(Retry(on=ValueError)) == (
        "Retry(max_attempts=3, delay=1, factor=2, max_delay=300, jitter=0.25, on=('builtins.ValueError',))"
    )


def test_delays_grow_by_the_factor_up_to_the_longest():
    retry = Retry(delay=1, factor=3, max_delay=20, jitter=0)
    assert [delay_before_retry(retry, n, middle) for n in range(4)] == [SECOND, 3 * SECOND, 9 * SECOND, 20 * SECOND]


@given(retries, st.integers(0, 10**12), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_never_negative_nor_longer_than_the_longest(retry, failures, chance):
    assert 0 <= delay_before_retry(retry, failures, lambda: chance) <= retry.max_delay_micros


@given(st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_spread_by_jitter_around_its_middle(jitter, chance):
    delay = delay_before_retry(Retry(delay=10, jitter=jitter), 0, lambda: chance)
    assert 10 * (1 - jitter) - 1e-5 <= delay / SECOND <= 10 * (1 + jitter) + 1e-5


def test_delays_at_the_limit_are_still_spread():
    retry = Retry(delay=300, max_delay=300, jitter=0.25)
    delays = {delay_before_retry(retry, 5, lambda n=n: n / 100) for n in range(100)}
    assert len(delays) == 100
    assert max(delays) < 300 * SECOND


def test_no_delay_stays_none_however_often_it_fails():
    assert delay_before_retry(Retry(delay=0, factor=10), 10**9, middle) == 0


def test_a_failure_within_the_budget_is_tried_again_and_the_last_one_is_not():
    retry = Retry(max_attempts=3, jitter=0)
    outcomes = [decide_after_failure(retry, failures, ValueError(), middle) for failures in range(4)]
    assert outcomes == [
        RetryDecision("error", SECOND),
        RetryDecision("error", 2 * SECOND),
        RetryDecision("error"),
        RetryDecision("error"),
    ]


def test_a_fatal_failure_is_not_tried_again():
    assert decide_after_failure(Retry(max_attempts=9), 0, Fatal("no"), middle) == RetryDecision("fatal")
    assert decide_after_failure(Retry(max_attempts=1), 0, Fatal("no"), middle) == RetryDecision("fatal")


def test_an_exception_that_is_not_to_be_retried_ends_the_run():
    assert decide_after_failure(Retry(on=OSError), 0, ValueError(), middle) == RetryDecision("error")
    assert decide_after_failure(Retry(never_on=OSError), 0, Broken(), middle) == RetryDecision("error")


def test_retry_after_chooses_the_delay_within_the_budget_whatever_the_filters():
    assert decide_after_failure(Retry(on=OSError), 0, RetryAfter(60), middle) == RetryDecision("error", 60 * SECOND)
    assert decide_after_failure(Retry(), 1, RetryAfter(timedelta(days=1)), middle) == RetryDecision(
        "error", 86400 * SECOND
    )
    assert decide_after_failure(Retry(), 2, RetryAfter(60), middle) == RetryDecision("error")


def test_of_a_group_the_longest_delay_that_was_chosen_counts():
    def after(*those):
        return decide_after_failure(Retry(never_on=KeyError), 0, ExceptionGroup("several", those), middle)

    assert after(RetryAfter(60), ValueError(), RetryAfter(90)) == RetryDecision("error", 90 * SECOND)
    assert after(ExceptionGroup("within", [RetryAfter(60)])) == RetryDecision("error", 60 * SECOND)
    assert after(RetryAfter(60), KeyError()) == RetryDecision("error")
    assert after(RetryAfter(60), Fatal()) == RetryDecision("fatal")


@pytest.mark.parametrize("delay", [-1, "soon", float("nan"), float("inf"), None])
def test_a_delay_that_is_none_falls_back_to_the_task_s_own(delay):
    assert decide_after_failure(Retry(), 0, RetryAfter(delay), middle) == RetryDecision("error", SECOND)


def test_a_timeout_is_tried_again_within_the_budget_whatever_on_says():
    assert decide_after_timeout(Retry(on=OSError), 0, middle) == RetryDecision("timeout", SECOND)
    assert decide_after_timeout(Retry(), 2, middle) == RetryDecision("timeout")
    assert decide_after_timeout(Retry(never_on=TimeoutError), 0, middle) == RetryDecision("timeout")


def test_results_that_cannot_be_kept_have_codes_of_their_own():
    assert payload_error_code(TooLarge()) == "too_large"
    assert payload_error_code(NotSerializable()) == "not_serializable"
