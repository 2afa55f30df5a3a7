"""Options of a call and settings of a task: each is validated where it is passed."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Keep
from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import canonical
from holdfast.model.retry import Retry
from holdfast.task.options import Declaration, Options, check_declaration

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_options_are_converted_to_the_units_of_the_store():
    options = Options().merge(
        queue="mail", priority=-5, delay=1.5, key="k", unique="u", tenant="acme", timeout=timedelta(minutes=1),
        deadline=3600, tags=["a", "b", "a"], limits=("openai",), connection="django", retry=Retry(max_attempts=1),
    )  # fmt: skip
    assert options == Options(
        queue="mail", priority=-5, delay=1_500_000, key="k", unique="u", tenant="acme", timeout=60 * MICROS_PER_SECOND,
        deadline=3600 * MICROS_PER_SECOND,
        tags=("a", "b"), limits=("openai",), connection="django", retry=Retry(max_attempts=1),
    )  # fmt: skip


def test_later_options_override_earlier_ones_and_none_resets_an_option():
    options = Options().merge(queue="a", priority=1).merge(queue="b", tags=["x"])
    assert (options.queue, options.priority, options.tags) == ("b", 1, ("x",))
    assert options.merge(queue=None).queue is None


def test_a_deadline_is_a_duration_or_a_time_and_the_last_one_set_applies():
    options = Options().merge(deadline=NOW)
    assert (options.deadline, options.deadline_at) == (None, int(NOW.timestamp()) * MICROS_PER_SECOND)
    options = options.merge(deadline=5)
    assert (options.deadline, options.deadline_at) == (5 * MICROS_PER_SECOND, None)
    options = options.merge(deadline=NOW).merge(deadline=None)
    assert (options.deadline, options.deadline_at) == (None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue", ""),
        ("queue", 3),
        ("queue", "a\0"),
        ("priority", True),
        ("priority", 1.0),
        ("priority", 1_000_001),
        ("priority", -1_000_001),
        ("delay", -1),
        ("delay", True),
        ("delay", float("nan")),
        ("run_at", datetime(2026, 1, 1)),  # noqa: DTZ001
        ("run_at", 5),
        ("key", "k" * 501),
        ("unique", ""),
        ("tenant", b"x"),
        ("retry", 3),
        ("timeout", 0),
        ("deadline", "tomorrow"),
        ("deadline", 0),
        ("tags", "urgent"),
        ("tags", ["a", 3]),
        ("tags", 3),
        ("tags", [str(n) for n in range(101)]),
        ("limits", "openai"),
    ],
)
def test_an_invalid_option_is_rejected_by_name(name, value):
    with pytest.raises(ConfigError, match=f"option {name}"):
        Options().merge(**{name: value})


def test_an_unknown_option_is_rejected_with_a_list_of_valid_ones():
    with pytest.raises(ConfigError, match="unknown option 'prio'; the options are queue, priority"):
        Options().merge(prio=1)


def test_delay_and_run_at_exclude_each_other_also_in_successive_calls():
    with pytest.raises(ConfigError, match="mutually exclusive"):
        Options().merge(delay=1, run_at=NOW)
    with pytest.raises(ConfigError, match="mutually exclusive"):
        Options().merge(delay=1).merge(run_at=NOW)
    assert Options().merge(delay=1).merge(delay=None, run_at=NOW).delay is None


def test_the_digest_ignores_key_tenant_and_connection():
    options = Options().merge(
        queue="a", retry=Retry(), key="k", tenant="t", connection=object(), unique="u", tags=["x"]
    )
    assert options.canonical() == {"queue": "a", "retry": Retry().identity(), "unique": "u", "tags": ("x",)}
    assert canonical(options.canonical()).startswith('{"queue":"a"')
    assert Options().canonical() == {}


def test_a_task_without_settings_has_the_documented_defaults():
    assert check_declaration("t", is_async=True) == Declaration(
        name="t", queue="default", priority=0, retry=Retry(), run_in="loop", max_crashes=3
    )
    assert check_declaration("t", is_async=False).run_in == "thread"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("aliases", "old"),
        ("aliases", [""]),
        ("queue", ""),
        ("priority", "high"),
        ("retry", {}),
        ("timeout", -1),
        ("deadline", 0),
        ("limits", "x"),
        ("max_crashes", -1),
        ("max_crashes", True),
        ("keep", "week"),
        ("run_in", "fiber"),
    ],
)
def test_an_invalid_setting_is_rejected_with_task_and_setting(setting, value):
    with pytest.raises(ConfigError, match=f"task shop.pay: {setting}"):
        check_declaration("shop.pay", is_async=False, **{setting: value})


@pytest.mark.parametrize(
    ("is_async", "run_in", "words"),
    [
        (True, "thread", "plain def"),
        (True, "process", "plain def"),
        (False, "loop", "would block the event loop"),
    ],
)
def test_a_run_in_that_does_not_suit_the_function_is_rejected(is_async, run_in, words):
    with pytest.raises(ConfigError, match=words):
        check_declaration("t", is_async=is_async, run_in=run_in)


def test_a_setting_within_range_is_stored():
    declaration = check_declaration(
        "t", is_async=False, aliases=("a",), timeout=1, keep=timedelta(days=7), run_in="thread"
    )
    assert (declaration.aliases, declaration.timeout, declaration.keep) == (
        ("a",),
        MICROS_PER_SECOND,
        Keep(done=timedelta(days=7), failed=timedelta(days=7)),
    )
