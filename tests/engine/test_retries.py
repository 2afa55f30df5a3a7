"""Retries after failures, and final failures."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Context, Fatal, Retry, RetryAfter, RunFailed


def kinds(run):
    return [entry.kind for entry in run.history()]


def drain(app):
    app.worker().drain(timeout=60)


def test_a_failed_attempt_is_retried_after_its_delay(timed_app, clock, ledger):
    @timed_app.task(name="flaky", retry=Retry(max_attempts=3, delay=10, factor=3, jitter=0))
    async def flaky() -> str:
        ledger.write("try")
        if len(ledger.lines()) < 3:
            raise ValueError("not yet")
        return "ok"

    run = flaky.enqueue()
    drain(timed_app)
    info = run.info()
    assert (info.state, info.attempt, info.error.type, info.error.message) == ("scheduled", 1, "ValueError", "not yet")
    row = timed_app.store.queries.run(str(run.id))
    assert row.due_at == clock.micros + 10_000_000
    entry = run.history()[-1]
    assert (entry.kind, entry.data["retry_at"]) == ("retrying", info.due_at.isoformat())
    assert "retry_in" not in entry.data["error"]
    clock.forward(9.999)
    drain(timed_app)
    assert len(ledger.lines()) == 1, "tried before its time"
    clock.forward(0.001)
    drain(timed_app)
    assert timed_app.store.queries.run(str(run.id)).due_at == clock.micros + 30_000_000
    clock.forward(30)
    drain(timed_app)
    assert run.result(timeout=5) == "ok"
    assert run.info().error is None
    assert kinds(run) == ["enqueued", *["started", "retrying"] * 2, "started", "done"]
    assert [entry.attempt for entry in run.history()] == [0, 1, 1, 2, 2, 3, 3]


def test_the_default_is_ten_attempts(app, monkeypatch, ledger):
    monkeypatch.setattr("holdfast.policy.retry_decision.delay_before_retry", lambda *_: 0)

    @app.task(name="hopeless")
    def hopeless() -> None:
        ledger.write("try")
        raise ValueError("never")

    run = hopeless.enqueue()
    drain(app)
    with pytest.raises(RunFailed, match="ValueError: never") as failed:
        run.result(timeout=5)
    assert failed.value.run_id == run.id
    assert failed.value.error.code == "error"
    assert "in hopeless" in failed.value.error.traceback
    assert len(ledger.lines()) == 10
    assert kinds(run) == ["enqueued", *["started", "retrying"] * 9, "started", "failed"]


def test_fatal_fails_at_once(app, ledger):
    @app.task(name="fatal", retry=Retry(max_attempts=10, delay=0))
    async def fatal() -> None:
        ledger.write("try")
        raise Fatal("no use")

    run = fatal.enqueue()
    drain(app)
    assert (run.info().state, run.info().error.code, len(ledger.lines())) == ("failed", "fatal", 1)


@pytest.mark.parametrize("delay", [60, timedelta(minutes=1)])
def test_retry_after_chooses_the_delay(timed_app, clock, delay):
    @timed_app.task(name="later", retry=Retry(max_attempts=2, delay=1))
    def later() -> None:
        raise RetryAfter(delay)

    run = later.enqueue()
    drain(timed_app)
    assert timed_app.store.queries.run(str(run.id)).due_at == clock.micros + 60_000_000
    clock.forward(60)
    drain(timed_app)
    assert run.info().state == "failed", "it counts as a try"


def test_on_and_never_on_decide_which_exceptions_are_retried(app, ledger):
    @app.task(name="picky", retry=Retry(max_attempts=3, delay=0, on=LookupError, never_on=KeyError))
    def picky(which: str) -> None:
        ledger.write(which)
        raise {"index": IndexError, "key": KeyError, "value": ValueError}[which](which)

    picky.enqueue_many([("index",), ("key",), ("value",)])
    drain(app)
    assert ledger.counts() == {"index": 3, "key": 1, "value": 1}
    assert {info.state for info in app.runs()} == {"failed"}


def test_a_retry_policy_given_at_enqueue_overrides_the_tasks_own(app, ledger):
    @app.task(name="often", retry=Retry(max_attempts=5, delay=0))
    def often(which: str) -> None:
        ledger.write(which)
        raise ValueError

    often.options(retry=Retry(max_attempts=1)).enqueue("once")
    often.options(retry=Retry(max_attempts=2, delay=0)).enqueue("twice")
    often.enqueue("as declared")
    drain(app)
    assert ledger.counts() == {"once": 1, "twice": 2, "as declared": 5}


def test_system_exit_in_a_thread_fails_the_run_and_not_the_worker(app):
    @app.task(name="exit", retry=Retry(max_attempts=1))
    def leave() -> None:
        raise SystemExit(3)

    @app.task(name="aexit", retry=Retry(max_attempts=1))
    async def aleave() -> None:
        raise KeyboardInterrupt

    @app.task(name="after")
    async def after() -> int:
        return 1

    first, second = leave.enqueue(), aleave.enqueue()
    drain(app)
    last = after.enqueue()
    drain(app)
    assert (first.info().error.type, second.info().error.type) == ("SystemExit", "KeyboardInterrupt")
    assert last.result(timeout=5) == 1


def test_stored_arguments_that_no_longer_fit_fail_the_run_without_a_call(app, make_app, ledger):
    app.remote("changed").enqueue("text", extra=1)

    @app.task(name="changed")
    def changed(x: int) -> None:
        ledger.write("called")

    drain(app)
    [info] = app.runs()
    assert (info.state, info.error.code, info.attempt) == ("failed", "bad_arguments", 1)
    assert "changed" in info.error.message
    assert ledger.lines() == []


def test_a_payload_error_raised_by_user_code_is_an_ordinary_failure(app, ledger):
    @app.task(name="inner")
    def inner(x: object) -> None: ...

    @app.task(name="outer", retry=Retry(max_attempts=2, delay=0))
    def outer() -> None:
        ledger.write("try")
        inner.enqueue(float("nan"))

    run = outer.enqueue()
    drain(app)
    assert (run.info().state, run.info().error.code, len(ledger.lines())) == ("failed", "error", 2)


def test_a_traceback_starts_in_user_code(app):
    @app.task(name="failing", retry=Retry(max_attempts=1))
    def failing() -> None:
        raise ValueError("no")

    run = failing.enqueue()
    app.worker().drain(timeout=60)
    frames = (run.info().error.traceback or "").splitlines()
    assert frames[0].startswith("Traceback")
    assert __file__ in frames[1]


# At most once


def lose_a_worker(app, clock, runs):
    """Let a session claim these many runs and die."""
    app.store.sessions.open("dead", "dead", 1_000_000, "{}")
    assert len(app.store.claims.claim("dead", list(app.store.lanes.refresh()), runs)) == runs
    clock.forward(2)


@pytest.mark.parametrize("together", [1, 2])
def test_max_crashes_0_fails_a_run_that_died_alone_but_not_one_among_others(timed_app, clock, ledger, together):
    @timed_app.task(name="work", retry=Retry(max_attempts=1), max_crashes=0)
    async def work(n: int) -> None:
        ledger.write("began", n)

    runs = [work.enqueue(n) for n in range(together)]
    lose_a_worker(timed_app, clock, together)
    drain(timed_app)
    if together == 1:
        assert (runs[0].info().state, runs[0].info().error.code, ledger.lines()) == ("failed", "crashed", [])
    else:
        assert sorted(ledger.lines()) == ["began 0", "began 1"], "max_attempts=1 isn't at most once"
        assert {(run.info().state, run.info().attempt) for run in runs} == {("done", 2)}


@pytest.mark.parametrize("recorded", [False, True])
def test_a_step_that_refuses_later_attempts_runs_at_most_once(timed_app, clock, ledger, recorded):
    """The recipe of the guides."""

    @timed_app.task(name="send", retry=Retry(max_attempts=1), max_crashes=0)
    async def send(ctx: Context, order: int) -> None:
        def send_once(order: int) -> None:
            if ctx.attempt > 1:
                raise Fatal("may have been sent")
            ledger.write("sent", order)

        await ctx.step(send_once, order, name="send_once")
        await ctx.wait_for("go")

    runs = [send.enqueue(n) for n in range(2)]
    if recorded:
        drain(timed_app)
        timed_app.emit("go")
    lose_a_worker(timed_app, clock, 2)
    drain(timed_app)
    if recorded:
        assert {run.info().state for run in runs} == {"done"}
        assert sorted(ledger.lines()) == ["sent 0", "sent 1"]
    else:
        assert {run.info().error.code for run in runs} == {"fatal"}
        assert ledger.lines() == []
        fork = runs[0].fork()
        drain(timed_app)
        assert (fork.info().state, ledger.lines()) == ("waiting", ["sent 0"])
