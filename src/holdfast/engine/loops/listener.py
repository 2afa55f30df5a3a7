"""Hears of new work from other processes and wakes who may care. A hint only: everybody polls as well."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.database import ChangeListener
from holdfast.engine.loops.base import Loop
from holdfast.store import Store

LONGEST = 1.0


class CommitListener(Loop):
    """Waits for commits (SQLite) or notifications (PostgreSQL)."""

    name = "listener"

    def __init__(self, store: Store, heard: Callable[[], None]) -> None:
        super().__init__()
        self._watch: ChangeListener = store.database.change_listener()
        self._heard = heard

    def tick(self) -> float:
        if self._watch.wait(LONGEST, self._stopping):
            self._heard()
        return 0.0

    def stop(self, timeout: float | None = None) -> None:
        self._stopping.set()
        self._watch.interrupt()
        super().stop(timeout)
        if not self.running:
            self._watch.close()
