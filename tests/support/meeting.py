"""Calls of stores that begin in the same instant, each with a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.store import Store
from tests.support.world import World

LONGEST = 60


class Meeting:
    """So many stores, and a thread for each."""

    def __init__(self, world: World, count: int = 2) -> None:
        self._stores = [world.another_store() for _ in range(count)]
        self._threads = ThreadPoolExecutor(count)
        self._ready = threading.Barrier(count)
        self._turn = 0

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def of(self, *calls: Callable[[Store], Any]) -> list[Any]:
        """Make the calls at once; what each returned or raised."""
        self._turn += 1
        order = [(at + self._turn) % len(calls) for at in range(len(calls))]  # nobody is always the first to start
        begun = {at: self._threads.submit(self._call, self._stores[at], calls[at]) for at in order}
        return [begun[at].result(LONGEST) for at in range(len(calls))]

    def _call(self, store: Store, call: Callable[[Store], Any]) -> Any:
        self._ready.wait(LONGEST)
        try:
            return call(store)
        except Exception as error:
            return error
