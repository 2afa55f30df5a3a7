"""Which idle worker new work wakes, and what happens if that worker can't take it or doesn't respond."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack

import pytest

from holdfast import Holdfast
from holdfast.engine.loops import claimer
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until


def idle_workers(app):
    """Return the sessions of idle workers in the order in which they are notified."""
    return [row[0] for row in fetch(app, "select session from {}workers where idle = 1 order by wake_channel")]


def test_a_full_worker_hands_announced_work_on(postgres_url, connect, monkeypatch):
    """Nothing is found by polling here, so a notification that isn't handed on leaves a run waiting."""
    monkeypatch.setattr(claimer, "POLL_INTERVAL_S", 3600.0)
    monkeypatch.setattr(claimer, "MAX_IDLE_POLL_INTERVAL_S", 3600.0)
    running: list[int] = []
    release = threading.Event()
    with ExitStack() as stack:
        for number in range(3):
            app = stack.enter_context(Holdfast(postgres_url))

            @app.task(name="note")
            def note(number: int = number) -> None:
                running.append(number)
                assert release.wait(60)

            stack.enter_context(app.worker(concurrency=1, lease=60))
        client = connect(postgres_url)
        stack.callback(release.set)
        wait_until(lambda: len(idle_workers(client)) == 3)
        for count in range(1, 4):
            client.remote("note").enqueue()
            wait_until(lambda count=count: len(running) == count)
        assert sorted(running) == [0, 1, 2]


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "killed"])
def test_polling_finds_work_that_was_announced_to_a_worker_that_does_not_respond(
    postgres_url, start_worker, connect, ledger, how
):
    """The lease of the chosen worker stays valid. It is notified no more once another worker had to find the work."""
    client = connect(postgres_url)
    workers = [start_worker(postgres_url, lease=60) for _ in range(2)]
    wait_until(lambda: len(idle_workers(client)) == 2)
    chosen, other = idle_workers(client)
    victim = next(worker for worker in workers if f":{worker.pid}:" in chosen)
    victim.signal(how)
    try:
        run = client.remote("count").enqueue(1)
        wait_until(lambda: run.info().final)
        ((_, pid),) = ledger.words()
        assert f":{pid}:" in other
        wait_until(lambda: chosen not in idle_workers(client), what="the worker is notified no more")
    finally:
        if how == signal.SIGSTOP:
            victim.signal(signal.SIGCONT)
    if how == signal.SIGSTOP:
        wait_until(lambda: chosen in idle_workers(client), what="the worker asks for notifications again")
