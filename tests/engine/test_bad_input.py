"""Malformed arguments, results, exceptions and names are rejected at once or stored without harm."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Retry, RunFailed
from holdfast.errors import ConfigError, HoldfastError, NotSerializable, TooLarge

BIG = 2 * 1024 * 1024
ONCE = Retry(max_attempts=1)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


JUNK = {
    "a lone surrogate": "\ud800",
    "a surrogate in a key": {"\udfff": 1},
    "NaN": float("nan"),
    "infinity": [1, {"x": float("-inf")}],
    "a long integer": 10**5000,
    "deep nesting": nested(5000),
    "an object": object(),
    "a function": print,
}


@pytest.fixture
def echo(app):
    @app.task(name="echo")
    def echo(x: Any) -> Any:
        return x

    return echo


@pytest.mark.parametrize("name", JUNK)
def test_values_that_cannot_be_encoded_are_rejected_at_enqueue(app, echo, name):
    with pytest.raises(NotSerializable, match="echo"):
        echo.enqueue(JUNK[name])
    with pytest.raises(NotSerializable):
        app.enqueue_many([echo.request(1), echo.request([{"deep": JUNK[name]}])])
    assert app.runs() == []


def test_payloads_above_the_size_limit_are_rejected_at_enqueue(app, echo):
    with pytest.raises(TooLarge, match="2,097,152"):
        echo.enqueue("x" * BIG)
    with pytest.raises(TooLarge):
        echo.enqueue("x" * 30_000_000)
    assert app.runs() == []
    text = "x" * (BIG - 100)
    run = echo.enqueue(text)
    app.worker().drain(timeout=60)
    assert run.result(timeout=10) == text


def test_unusual_but_valid_values_round_trip(app, echo):
    odd = [
        "a\0b",
        "\0",
        "\x7f\x80",
        "'; drop table runs; --",
        "{curly} %s $1 :name",
        "\U0001f600",
        "\u2028",
        "",
        {"\0": None},
    ]
    odd += [10**3000, -(2**63) - 1, 1e308, 5e-324, [], {}, nested(190)]
    runs = echo.enqueue_many([(value,) for value in odd])
    app.worker().drain(timeout=60)
    assert [run.result(timeout=10) for run in runs] == odd


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("can't say")


class Odd(Exception):
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("a\0b\ud800c"), "a\\x00b\\ud800c"),
        (ValueError("x" * 5_000_000), "xxx"),
        (Unspeakable(), "__str__ raised RuntimeError"),
        (Odd(), "__str__ raised RuntimeError"),
        (ValueError(float("nan"), object), "nan"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "junk"), "junk"),
        (ExceptionGroup("many", [ValueError("\udfff")] * 300), "many"),
        (BaseException("not even an Exception"), "not even"),
        (ValueError("'); drop table x; --"), "drop table"),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("is_async", [True, False], ids=["coroutine", "thread"])
def test_an_exception_with_unencodable_content_fails_the_run_cleanly(app, error, said, is_async):
    async def fail() -> None:
        raise error

    def fail_in_thread() -> None:
        raise error

    run = app.task(name="fail", retry=ONCE)(fail if is_async else fail_in_thread).enqueue()
    app.worker().drain(timeout=60)
    with pytest.raises(RunFailed) as failed:
        run.result(timeout=5)
    assert said in failed.value.error.message
    assert len(failed.value.error.message) < 10_000
    assert run.history()[-1].data["error"]["message"] == failed.value.error.message


def test_a_result_that_cannot_be_encoded_fails_the_run_and_names_the_type(app, ledger):
    class Secret:
        pass

    @app.task(name="give", retry=Retry(max_attempts=5, delay=0))
    def give(which: str) -> Any:
        ledger.write(which)
        return {"object": [Secret()], "nan": float("nan"), "surrogate": "\ud800", "big": "x" * (BIG + 1)}[which]

    runs = {which: give.enqueue(which) for which in ("object", "nan", "surrogate", "big")}
    app.worker().drain(timeout=60)
    assert ledger.counts() == dict.fromkeys(runs, 1)
    errors = {which: run.info().error for which, run in runs.items()}
    assert {run.info().state for run in runs.values()} == {"failed"}
    assert "Secret" in errors["object"].message
    assert {which: error.code for which, error in errors.items()} == {
        "object": "not_serializable",
        "nan": "not_serializable",
        "surrogate": "not_serializable",
        "big": "too_large",
    }


def test_many_large_results_are_written(app):
    """Together they exceed one batch of the committer."""

    @app.task(name="large")
    async def large(n: int) -> str:
        return chr(97 + n) * (BIG - 10)

    runs = large.enqueue_many([(n,) for n in range(12)])
    app.worker().drain(timeout=120)
    assert [run.result(timeout=10)[:2] for run in runs] == [chr(97 + n) * 2 for n in range(12)]


NAMES = [
    'a"b',
    "a'b",
    "a;b; drop table runs",
    "with space",
    "%s",
    "$1",
    ":x",
    "{curly}",
    "\\",
    "ü☂",
    "x" * 200,
    "a.b-c/d",
]


@pytest.mark.parametrize("name", NAMES)
def test_allowed_names_are_safe_everywhere(app, name):
    queue = f"q {name}"[:200]  # a $ at its beginning is Holdfast's own

    @app.task(name=name, queue=queue, aliases=(f"alias {name}"[:200],))
    def work() -> int:
        return 1

    run = work.options(tenant=name, tags=[name], key=name, unique=name).enqueue()
    assert work.options(tenant=name, tags=[name], key=name, unique=name).enqueue() == run
    app.worker(queues=[queue]).drain(timeout=60)
    assert run.result(timeout=5) == 1
    [info] = app.runs(task=name, queue=queue, tenant=name, tag=name)
    assert (info.task, info.queue, info.tenant, list(info.tags)) == (name, queue, name, [name])


@pytest.mark.parametrize("name", ["", "x" * 10_240, "a\0b", "a\nb", "\ud800", 3, None, b"x"], ids=range(8))
def test_unsafe_names_are_rejected(app, echo, name):
    with pytest.raises(HoldfastError):
        app.task(name=name, queue="q")(lambda: None) if name is not None else app.worker(queues=[name])
    for option in ("queue", "key", "unique", "tenant"):
        if name is not None:
            with pytest.raises(ConfigError):
                echo.options(**{option: name})
    with pytest.raises(ConfigError):
        echo.options(tags=[name])
    with pytest.raises(ConfigError):
        app.worker(queues=[name])


def test_a_cancel_reason_may_contain_any_text(app, echo):
    run = echo.enqueue(1)
    with pytest.raises(ConfigError):
        run.cancel(3)
    assert run.cancel("why\0 \ud800 " + "x" * 100_000)
    assert run.history()[-1].data["reason"].startswith("why\\x00 \\ud800 xxx")
