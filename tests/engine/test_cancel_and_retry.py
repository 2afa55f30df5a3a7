"""Cancel, retry by an operator, and `unique`."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Retry, RunCancelled
from holdfast.engine import runner
from holdfast.errors import ConfigError, KeyConflict, RunFinished
from tests.support.wait_until import wait_until


def kinds(run):
    return [entry.kind for entry in run.history()]


def row(app, run):
    return app.store.queries.run(str(run.id))


@pytest.mark.parametrize("delay", [None, 3600], ids=["ready", "scheduled"])
def test_a_run_cancelled_before_its_start_never_starts(app, ledger, delay):
    @app.task(name="work")
    def work() -> None:
        ledger.write("ran")

    run = work.options(delay=delay).enqueue()
    assert run.info().state == ("ready" if delay is None else "scheduled")
    assert run.cancel("not needed") is True
    assert run.cancel() is False
    app.worker().drain(timeout=60)
    assert ledger.lines() == []
    assert kinds(run) == ["enqueued", "cancelled"]
    assert run.history()[-1].data == {"reason": "not needed"}
    with pytest.raises(RunCancelled, match="not needed") as cancelled:
        run.result(timeout=5)
    assert (cancelled.value.run_id, cancelled.value.reason) == (run.id, "not needed")


def test_a_finished_run_cannot_be_cancelled(app):
    @app.task(name="work")
    def work() -> int:
        return 1

    run = work.enqueue()
    app.worker().drain(timeout=60)
    assert run.cancel() is False
    assert run.result(timeout=5) == 1
    with pytest.raises(RunFinished):
        run.retry()


def test_the_history_says_who_cancelled_retried_and_sent(app):
    @app.task(name="work")
    def work() -> None: ...

    run = work.enqueue()
    run.send("topic", 1)
    run.send("topic", 2, by="ada")
    assert run.cancel("ordered twice", by="bob") is True
    assert run.retry(by="eve") is True
    assert run.retry(by="eve") is False, "it is unfinished, so that it runs anyway"
    assert [(entry.kind, dict(entry.data)) for entry in run.history()[1:]] == [
        ("sent", {"by": "ada", "topic": "topic"}),
        ("cancelled", {"reason": "ordered twice", "by": "bob"}),
        ("retried", {"by": "eve"}),
    ]
    for act in (run.cancel, run.retry, lambda by: run.send("topic", by=by)):
        with pytest.raises(ConfigError):
            act(by="")


def test_a_running_coroutine_is_cancelled(app, ledger):
    @app.task(name="long")
    async def long() -> None:
        ledger.write("began")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ledger.write("cancelled")
            raise

    with app.worker(lease=1.5):
        run = long.enqueue()
        wait_until(ledger.lines)
        assert run.cancel()
        assert run.info().state == "cancelled", "for everyone else it ends at once"
        wait_until(lambda: "cancelled" in ledger.lines())
        wait_until(lambda: row(app, run).session is None)
    assert kinds(run) == ["enqueued", "started", "cancelled", "let_go"]


def test_the_result_of_a_cancelled_thread_is_discarded(app, ledger, caplog):
    release = threading.Event()

    @app.task(name="long")
    def long() -> str:
        ledger.write("began")
        release.wait(60)
        ledger.write("ended")
        return "late"

    with app.worker():
        run = long.enqueue()
        wait_until(ledger.lines)
        run.cancel()
        release.set()
        wait_until(lambda: row(app, run).session is None)
    assert ledger.lines() == ["began", "ended"]
    assert run.info().state == "cancelled"
    assert row(app, run).result is None
    assert "result discarded" in caplog.text


def test_a_retry_of_a_cancelled_run_waits_for_the_old_attempt(app, ledger, monkeypatch):
    monkeypatch.setattr(runner, "ABANDON_AFTER_S", 600)
    release = threading.Event()

    @app.task(name="long")
    def long() -> str:
        ledger.write("began")
        release.wait(60)
        ledger.write("ended")
        return "done"

    with app.worker(lease=1):
        run = long.enqueue()
        wait_until(ledger.lines)
        run.cancel()
        run.retry()
        assert (row(app, run).state, row(app, run).held) == ("ready", "quiescing")
        wait_for_heartbeats(app, 4)  # many lookings at what is ours don't let it go
        assert ledger.lines() == ["began"]
        release.set()
        assert run.result(timeout=30) == "done"
    assert ledger.lines() == ["began", "ended", "began", "ended"]
    assert kinds(run) == ["enqueued", "started", "cancelled", "retried", "let_go", "started", "done"]


def test_a_retry_of_a_cancelled_run_does_not_wait_for_a_thread_that_never_ends(app, ledger):
    release = threading.Event()

    @app.task(name="long")
    def long() -> str:
        ledger.write("began")
        if len(ledger.lines()) == 1:
            release.wait(60)
            return "too late"
        return "done"

    with app.worker(lease=1):
        run = long.enqueue()
        wait_until(ledger.lines)
        run.cancel()
        run.retry()
        assert run.result(timeout=30) == "done"
        release.set()
    assert kinds(run) == ["enqueued", "started", "cancelled", "retried", "let_go", "started", "done"]


def test_a_cancelled_thread_past_its_timeout_is_released_when_it_ends(app, ledger, monkeypatch):
    """The store rejects the end of the cancelled run, but the run must keep its session until the thread ends."""
    monkeypatch.setattr(runner, "ABANDON_AFTER_S", 600)
    release = threading.Event()

    @app.task(name="long", timeout=0.5)
    def long() -> str:
        ledger.write("began")
        release.wait(60)
        ledger.write("ended")
        return "done"

    worker = app.worker(lease=60)
    with worker:
        components = worker._components
        run = long.enqueue()
        wait_until(ledger.lines)
        run.cancel()
        [attempt] = components.state.unfinished()
        wait_until(lambda: attempt.reported and not components.queue.backlog)
        assert attempt.stop_reason == "timeout", "the heartbeat was first"
        run.retry()
        for _ in range(4):
            components.heartbeat.renew()
        assert row(app, run).held == "quiescing"
        assert components.state.unfinished() == [attempt]
        assert ledger.lines() == ["began"]
        release.set()
        run.result(timeout=30)
    assert ledger.lines() == ["began", "ended", "began", "ended"]


def wait_for_heartbeats(app, count):
    seen = set()

    def enough():
        seen.update(row[3] for row in app.store.sessions.list_live())
        return len(seen) > count

    wait_until(enough)


@pytest.mark.parametrize("ended", ["failed", "cancelled"])
def test_a_retry_resets_the_retry_budget(app, ledger, ended):
    @app.task(name="flaky", retry=Retry(max_attempts=2, delay=0))
    def flaky() -> str:
        ledger.write("try")
        if len(ledger.lines()) < 4:
            raise ValueError
        return "ok"

    run = flaky.enqueue()
    if ended == "cancelled":
        run.cancel()
    else:
        app.worker().drain(timeout=60)
        assert run.info().state == "failed"
    tries = len(ledger.lines())
    run.retry()
    assert (run.info().state, run.info().attempt, run.info().error) == ("ready", 0, None)
    app.worker().drain(timeout=60)
    assert len(ledger.lines()) == tries + 2
    assert run.info().state == ("done" if ended == "failed" else "failed")
    assert "retried" in kinds(run)


def test_retry_of_an_unfinished_run_changes_nothing(app):
    @app.task(name="work")
    def work() -> None: ...

    run = work.enqueue()
    assert run.retry() is False
    assert kinds(run) == ["enqueued"]


def test_at_most_one_unfinished_run_has_a_unique_name(app, ledger):
    @app.task(name="report")
    def report(n: int) -> None:
        ledger.write(n)

    only = report.options(unique="daily")
    first = only.enqueue(1)
    second = only.enqueue(2)
    assert (second == first, first.created, second.created) == (True, True, False)
    assert app.get_run(first.id).created is False
    assert only.options(tenant="acme").enqueue(3) != first
    app.worker().drain(timeout=60)
    second = only.enqueue(4)
    assert second != first
    app.worker().drain(timeout=60)
    assert sorted(ledger.lines()) == ["1", "3", "4"]


def test_a_unique_successor_of_a_cancelled_run_waits_for_its_worker(app, ledger):
    release = threading.Event()

    @app.task(name="report")
    def report(n: int) -> int:
        ledger.write("began", n)
        release.wait(60)
        ledger.write("ended", n)
        return n

    only = report.options(unique="daily")
    with app.worker(lease=1):
        first = only.enqueue(1)
        wait_until(ledger.lines)
        first.cancel()
        second = only.enqueue(2)
        assert second != first
        with pytest.raises(KeyConflict):
            first.retry()
        wait_for_heartbeats(app, 3)
        assert ledger.lines() == ["began 1"]
        release.set()
        assert second.result(timeout=30) == 2
    assert ledger.lines() == ["began 1", "ended 1", "began 2", "ended 2"]
