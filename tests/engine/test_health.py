"""Liveness and readiness of a worker: what makes each probe fail, and that it passes again."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from holdfast import Retry
from holdfast.database.base import SLOW_CALL_S
from holdfast.engine import runner as runner_module
from holdfast.engine.event_loop import REPORT_STALL_S
from holdfast.errors import StoreUnavailable
from holdfast.telemetry.metrics import METRICS
from tests.support.wait_until import wait_until

MAX_DETECTION_S = 5.0


class HandClock:
    """A manual monotonic clock."""

    def __init__(self) -> None:
        self.seconds = time.monotonic()

    def monotonic(self) -> float:
        return self.seconds


def failed(report):
    return {name: reason for name, reason in report.checks.items() if reason is not None}


def test_a_worker_is_live_from_the_start_and_ready_while_it_claims(app):
    worker = app.worker(lease=60)
    assert worker.health.live().ok
    assert set(failed(worker.health.ready())) == {"schema", "claiming"}
    with worker:
        wait_until(lambda: worker.health.ready().ok, what=lambda: failed(worker.health.ready()))
        assert worker.health.live().ok
        worker.stop()
        assert failed(worker.health.ready()) == {"claiming": "the worker is stopping"}
        assert worker.health.live().ok
    assert worker.health.live().ok


def test_a_blocked_event_loop_fails_both_probes_until_it_turns_again(app, monkeypatch):
    began, release = threading.Event(), threading.Event()

    @app.task(name="blocker")
    async def blocker() -> None:
        began.set()
        release.wait(60)

    worker = app.worker(lease=60)
    with worker:
        components = worker._components
        run = blocker.enqueue()
        assert began.wait(30)
        components.lease_guard.stop()  # it pings by the real clock
        clock = HandClock()
        monkeypatch.setattr(runner_module, "time", clock)
        components.monitor.ping()
        clock.seconds += MAX_DETECTION_S - 1  # the lease guard pings at least once a second
        components.stall_handler.check(1.0)
        assert set(failed(worker.health.live())) == {"event_loop"}
        assert set(failed(worker.health.ready())) == {"claiming"}
        assert "blocker" in worker.health.live().checks["event_loop"]
        release.set()
        wait_until(lambda: worker.health.live().ok and worker.health.ready().ok)
        assert run.result(timeout=30) is None
    assert REPORT_STALL_S < MAX_DETECTION_S - 1


def test_lost_threads_fail_the_liveness_probe_until_their_code_ends(app):
    release = threading.Event()
    calls = itertools.count()

    # An attempt may time out before its thread begins; then the next one is lost instead.
    @app.task(name="deaf", timeout=0.01, retry=Retry(max_attempts=1000, delay=0))
    def deaf() -> None:
        if next(calls) < 2:
            release.wait(60)

    worker = app.worker(lease=60, threads=4)
    with worker:
        deaf.enqueue_many([()] * 2)
        wait_until(lambda: failed(worker.health.live()), 30)
        assert failed(worker.health.live()) == {"threads": "2 of 4 threads lost to code that did not stop"}
        release.set()
        wait_until(lambda: worker.health.live().ok)


def test_a_missed_lease_fails_both_probes_until_a_new_session_is_open(timed_app, clock):
    worker = timed_app.worker(lease=60)
    with worker:
        wait_until(lambda: worker.health.ready().ok)
        components = worker._components
        components.heartbeat.stop()
        components.lease_guard.stop()
        session = components.state.session
        session.valid_until = time.monotonic() - 3
        assert failed(worker.health.live()) == {"lease": "expired 3 s ago"}
        clock.forward(60)
        components.heartbeat.renew()
        assert failed(worker.health.live()) == {"lease": "lost, and no new session is open"}
        assert "claiming" in failed(worker.health.ready())
        components.heartbeat.renew()
        wait_until(lambda: worker.health.live().ok and worker.health.ready().ok)


def test_a_lost_database_fails_only_the_readiness_probe_until_it_is_back(app):
    worker = app.worker(lease=60)
    database = app.store.database
    with worker:
        wait_until(lambda: worker.health.ready().ok)
        connections = list(database._connections.values())
        before = [connection._connect for connection in connections]

        def refuse():
            raise StoreUnavailable("the server is gone")

        for connection in connections:
            connection._connect = refuse
            connection.close()
        wait_until(lambda: failed(worker.health.ready()).get("database") == "the server is gone")
        worker._components.state.session.valid_until = 0.0
        assert worker.health.live().ok, "a restart doesn't bring the database back"
        for connection, connect in zip(connections, before, strict=True):
            connection._connect = connect
        wait_until(lambda: worker.health.ready().ok, 30)


def test_a_database_that_does_not_answer_fails_the_readiness_probe(app):
    worker = app.worker(lease=60)
    with worker:
        wait_until(lambda: worker.health.ready().ok)
        worker._components.claimer.stop()
        worker._components.heartbeat.stop()
        connection = app.store.database.connection("heartbeat")
        connection.run(lambda opened: setattr(opened, "busy_since", time.monotonic() - SLOW_CALL_S - 1))
        assert worker.health.ready().checks["database"] == "it hasn't answered for 3 s"
        connection.run(lambda opened: setattr(opened, "busy_since", None))
        assert worker.health.ready().checks["database"] is None
    assert SLOW_CALL_S < MAX_DETECTION_S - 1


@pytest.mark.parametrize("how", ["failed", "expired", "late"])
def test_missed_renewals_are_counted(timed_app, clock, how, monkeypatch):
    missed = []
    worker = timed_app.worker(lease=60)
    with worker:
        components = worker._components
        components.heartbeat.stop()
        components.lease_guard.stop()
        components.heartbeat.on_missed_renewal = lambda: missed.append(1)
        components.heartbeat.renew()
        assert not missed
        if how == "failed":
            with monkeypatch.context() as patch:

                def fail(*_given):
                    raise StoreUnavailable("down")

                patch.setattr(timed_app.store.sessions, "renew", fail)
                with pytest.raises(StoreUnavailable):
                    components.heartbeat.renew()
        elif how == "expired":
            clock.forward(60)
            components.heartbeat.renew()
        else:
            components.heartbeat._renew_at -= 41
            components.heartbeat.renew()
    assert missed == [1]
    assert "holdfast.lease.missed" in METRICS
