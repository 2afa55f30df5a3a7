"""The loop that listens for completions of runs in other processes, on behalf of everything here that waits.

`CompletionListener` in `results.py` starts one per process and store, with its own thread and connection. It registers
a row in `watchers`, so that finishing statements notify this process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.database import ChangeListener
from holdfast.engine.loops.base import Loop
from holdfast.errors import StoreError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.ids import new_id_text
from holdfast.store import Store

WATCHER_TTL_S = 30.0
"""The row in `watchers` expires after this time unless it is renewed."""
WATCHER_RENEWAL_S = 10.0
MAX_WAIT_S = 1.0
MIN_RETRY_S, MAX_RETRY_S = 1.0, 5.0
MIN_REST_S = 0.005
REST_FACTOR = 4


def rest_after(poll_s: float) -> float:
    """Return how long to rest after a poll that took this long.

    On a busy database notifications never pause. Resting four times as long as polling bounds the cost to a fifth.
    """
    return max(MIN_REST_S, REST_FACTOR * poll_s)


class CompletionListenerLoop(Loop):
    """Waits for notifications (PostgreSQL) or commits (SQLite) and reports them."""

    name = "completions"

    def __init__(
        self,
        store: Store,
        watch: ChangeListener,
        on_completion: Callable[[], None],
        is_wanted: Callable[[CompletionListenerLoop], bool],
        kind: str = "",
    ) -> None:
        super().__init__()
        self._watchers = store.watchers
        self._watch = watch
        self._on_completion = on_completion
        self._is_wanted = is_wanted
        self._id = kind + new_id_text()
        self._hears_workers = not kind
        self._registered_at: float | None = None
        self.is_listening = False
        self.is_finished = False

    @property
    def polling_only(self) -> bool:
        return self._watch.polling_only

    def tick(self) -> float:
        if not self._is_wanted(self):
            self._stopping.set()
            self._unregister()
            return 0.0
        try:
            return self._listen()
        except Exception as error:
            self.is_listening, self._registered_at = False, None
            if isinstance(error, StoreError):
                return random.uniform(MIN_RETRY_S, MAX_RETRY_S)
            raise

    def _listen(self) -> float:
        """Wait once. Runs that finished before the registration are found by the poll that follows it."""
        notified = self._watch.wait(MAX_WAIT_S, self._stopping)
        if self._watch.polling_only or self._stopping.is_set():
            return 0.0
        notified = self._register() or notified
        self.is_listening = True
        if not notified:
            return 0.0
        began = time.monotonic()
        self._on_completion()
        return rest_after(time.monotonic() - began)

    def _register(self) -> bool:
        """Add or renew the row in `watchers`. Returns whether it is new."""
        now, ttl = time.monotonic(), round(WATCHER_TTL_S * MICROS_PER_SECOND)
        is_new = self._registered_at is None
        if self._registered_at is None:
            self._watchers.add(self._id, ttl, hears_workers=self._hears_workers)
        elif now - self._registered_at >= WATCHER_RENEWAL_S:
            self._watchers.renew(self._id, ttl)
        else:
            return False
        self._registered_at = now
        return is_new

    def _run(self) -> None:
        super()._run()
        self._unregister()

    def stop(self, timeout: float | None = None) -> None:
        self._stopping.set()
        self._watch.interrupt()
        super().stop(timeout)
        if not self.running:
            self._unregister()

    def _unregister(self) -> None:
        """Close the connection, then remove the row. Idempotent.

        The connection first: dropping the database would wait for it.
        """
        registered_at, self._registered_at, self.is_listening = self._registered_at, None, False
        self._watch.close()
        if registered_at is not None:
            with suppress(StoreError):  # The row expires by itself.
                self._watchers.remove(self._id)
