"""The pool of threads: which thread gets a call, when threads end, and what they call then."""

from __future__ import annotations

import threading

import pytest

from holdfast.engine import runner
from holdfast.engine.threads import ThreadPool
from tests.support.wait_until import wait_until


class Call:
    """A call that waits until it may return."""

    def __init__(self, pool: ThreadPool) -> None:
        self.may_return = threading.Event()
        self.started = threading.Event()
        self.thread = ""
        self.handle = pool.run(self)
        assert self.started.wait(60)

    def __call__(self) -> None:
        self.thread = threading.current_thread().name
        self.started.set()
        self.may_return.wait(60)


@pytest.fixture
def ended():
    return []


@pytest.fixture
def pool(ended):
    made = ThreadPool(at_end=[lambda: ended.append(threading.current_thread().name)])
    yield made
    made.close()


def finish(pool, call):
    idle = pool._idle
    call.may_return.set()
    wait_until(lambda: pool._idle > idle, 60, lambda: "the thread is idle")


def test_threads_that_are_not_needed_any_more_end(pool, ended):
    burst = [Call(pool), Call(pool), Call(pool)]
    for call in burst:
        finish(pool, call)
    assert pool.shrink()  # all three were needed
    for _ in range(4):  # idle threads take turns, so that each of them was used
        finish(pool, Call(pool))
    assert pool.shrink()
    wait_until(lambda: len(ended) == 2, 60, lambda: f"the end of two threads: {ended}")
    assert not pool.shrink()  # nothing was called since then
    wait_until(lambda: sorted(ended) == sorted(call.thread for call in burst), 60, lambda: f"the end of all: {ended}")
    again = Call(pool)
    assert again.thread not in ended
    again.may_return.set()


def test_a_worker_ends_threads_that_it_does_not_need(make_app, monkeypatch):
    monkeypatch.setattr(runner, "SHRINK_INTERVAL_S", 0.01)
    app = make_app()

    @app.task(name="job")
    def job() -> str:
        return threading.current_thread().name

    with app.worker():
        name = job.enqueue().result(timeout=60)
        wait_until(lambda: name not in [each.name for each in threading.enumerate()], 60, lambda: f"the end of {name}")


def test_close_waits_for_threads_whose_call_has_returned_but_not_for_hung_ones(pool, ended):
    idle, hung = Call(pool), Call(pool)
    finish(pool, idle)
    pool.close(wait_s=60)
    assert ended == [idle.thread]
    hung.handle.abandon()
    assert pool.lost == 1
    hung.may_return.set()
    wait_until(lambda: ended == [idle.thread, hung.thread], 60, lambda: "the end of the hung thread")
    assert pool.lost == 0


def test_a_call_waits_for_a_busy_thread_if_no_thread_can_be_started(pool, monkeypatch):
    busy = Call(pool)

    def refuse(_self) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = threading.Event()
    pool.run(done.set)
    busy.may_return.set()
    assert done.wait(60)
