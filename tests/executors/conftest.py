"""An executor that the test controls, beside the app on both databases."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

import pytest

from holdfast import Holdfast
from tests.support.wait_until import wait_until


@pytest.fixture
def app(database_url):
    with Holdfast(database_url) as app:
        yield app


class HeldExecutor(Executor):
    """Holds its calls until the test runs, cancels or breaks them."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[[], Any], Future[Any]]] = []
        self.is_broken = False
        self.is_shut_down = False

    def submit(self, fn, /, *args, **kwargs):
        if self.is_broken:
            raise BrokenExecutor("broken before")
        future: Future[Any] = Future()
        self.calls.append((fn, future))
        return future

    def run(self, index: int = -1) -> None:
        """Execute a call, in the thread of the test."""
        call, future = self.calls[index]
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    def die(self) -> None:
        """Break as a pool does whose process dies: it loses all of its calls."""
        self.is_broken = True
        for _, future in self.calls:
            if not future.done():
                future.set_exception(BrokenExecutor("a process died"))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_shut_down = True


class Opened(list[HeldExecutor]):
    """The executors that workers have opened, in order."""

    def __call__(self) -> HeldExecutor:
        self.append(HeldExecutor())
        return self[-1]

    def calls(self) -> list[tuple[Callable[[], Any], Future[Any]]]:
        return [call for executor in self for call in executor.calls]

    def await_calls(self, count: int) -> list[tuple[Callable[[], Any], Future[Any]]]:
        """Wait until so many calls were submitted, and return them."""
        wait_until(lambda: len(self.calls()) >= count, what=lambda: f"{len(self.calls())} of {count} calls")
        return self.calls()


@pytest.fixture
def opened(app) -> Opened:
    """What the executor `held` of the app opens."""
    opened = Opened()
    app.executor("held", opened)
    return opened
