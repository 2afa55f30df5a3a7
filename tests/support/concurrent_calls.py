"""Make store calls at the same time, each in its own thread with its own connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.store import Store
from tests.support.store_harness import StoreHarness

TIMEOUT_S = 60


class ConcurrentCalls:
    """A number of stores, each with a thread."""

    def __init__(self, harness: StoreHarness, count: int = 2) -> None:
        self._stores = [harness.another_store() for _ in range(count)]
        self._threads = ThreadPoolExecutor(count)
        self._ready = threading.Barrier(count)
        self._round = 0

    def __enter__(self) -> ConcurrentCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def run(self, *calls: Callable[[Store], Any]) -> list[Any]:
        """Make the calls concurrently and return what each returned or raised."""
        self._round += 1
        order = [(at + self._round) % len(calls) for at in range(len(calls))]  # no call always starts first
        begun = {at: self._threads.submit(self._call, self._stores[at], calls[at]) for at in order}
        return [begun[at].result(TIMEOUT_S) for at in range(len(calls))]

    def _call(self, store: Store, call: Callable[[Store], Any]) -> Any:
        self._ready.wait(TIMEOUT_S)
        try:
            return call(store)
        except Exception as error:
            return error
