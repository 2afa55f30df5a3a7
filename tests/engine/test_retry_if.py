"""`Retry(retry_if=…)`: the exception itself decides."""

from __future__ import annotations

import copy

import pytest

from holdfast import Context, Retry, StepFailed
from holdfast.errors import ConfigError
from tests.support.durable import drain, kinds, state


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def is_temporary(error: Exception) -> bool:
    return error.status >= 500  # raises AttributeError for other exceptions


POLICY = Retry(max_attempts=3, delay=0, retry_if=is_temporary)


@pytest.mark.parametrize(("error", "attempts"), [(HttpError(503), 3), (HttpError(404), 1), (ValueError("?"), 3)])
def test_the_predicate_decides_about_attempts_and_steps(app, error, attempts):
    calls = {"task": 0, "step": 0}

    def step() -> None:
        calls["step"] += 1
        raise error

    @app.task(name="plain", retry=POLICY)
    async def plain() -> None:
        calls["task"] += 1
        raise error

    @app.task(name="durable")
    async def durable(ctx: Context) -> str:
        try:
            await ctx.options(retry=POLICY, name="step").step(step)
        except StepFailed:
            return "failed"
        return "?"

    run, other = plain.enqueue(), durable.enqueue()
    for _ in range(attempts):
        drain(app)
        app.store.timers.promote_due()
    assert calls == {"task": attempts, "step": attempts}
    assert (state(run), kinds(run).count("retrying"), other.result()) == ("failed", attempts - 1, "failed")
    noted = "retry_if raised AttributeError" in (run.info().error.traceback or "")
    assert noted == isinstance(error, ValueError)


def test_a_predicate_is_code_and_stays_out_of_what_is_stored(app):
    @app.task(name="work")
    def work() -> None: ...

    with pytest.raises(ConfigError, match="option retry: retry_if is code, which isn't stored with a run"):
        work.options(retry=POLICY)
    with pytest.raises(ConfigError, match='retry_if can\'t be used with run_in="process"'):
        app.task(name="other", run_in="process", retry=POLICY)(work.fn)
    with pytest.raises(ConfigError, match="retry_if must be a plain function"):
        Retry(retry_if=3)
    assert "retry_if" not in POLICY.to_json()
    assert POLICY.identity() == Retry(max_attempts=3, delay=0).identity()
    assert copy.deepcopy(POLICY) == POLICY != Retry(max_attempts=3, delay=0)


def test_a_predicate_that_cannot_take_one_argument_is_refused():
    with pytest.raises(
        ConfigError, match=r"retry_if is called with one argument, the exception, and .*\(error, attempt\)"
    ):
        Retry(retry_if=lambda error, attempt: True)
    with pytest.raises(ConfigError, match="takes others: too many positional arguments"):
        Retry(retry_if=lambda: True)
    assert Retry(retry_if=lambda error, attempt=1: True).retryable(ValueError())
    assert Retry(retry_if=bool).retry_if is bool
