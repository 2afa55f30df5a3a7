"""Hears of ends in other processes, for all of this one who wait for some. A hint only: they look by themselves, too.

One listener serves them all, on a connection and in a thread of its own. It begins when somebody has waited for a
moment, says in the database that this process wants to be told, and leaves when nobody has waited for some seconds. A
database that fails is no concern of those who wait: while nothing is heard they look more often.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.database import ChangeListener
from holdfast.database.fork_safety import register_fork_hooks
from holdfast.engine.loops.base import Loop
from holdfast.errors import StoreError
from holdfast.model.clock import MICROS_PER_SECOND, database_clock
from holdfast.model.ids import new_id_text
from holdfast.store import Store

WATCHER_TTL_S = 30.0
"""Seconds for which the database believes that this process wants to be told, unless it says so again."""
WATCHER_RENEWAL_S = 10.0
LINGER_S = 3.0
MAX_WAIT_S = 1.0
MIN_RETRY_S, MAX_RETRY_S = 1.0, 5.0
MIN_REST_S = 0.005
REST_FACTOR = 4
STOP_TIMEOUT_S = 5.0


def rest_after(took: float) -> float:
    """How long to rest after a look that took so many seconds: where much ends there is news all the time, and who
    waits for many must not do nothing but look."""
    return max(MIN_REST_S, REST_FACTOR * took)


class CompletionListenerLoop(Loop):
    """Waits for notifications (PostgreSQL) or commits (SQLite), and tells that there were some."""

    name = "ends"

    def __init__(
        self,
        store: Store,
        watch: ChangeListener,
        heard: Callable[[], None],
        wanted: Callable[[CompletionListenerLoop], bool],
    ) -> None:
        super().__init__()
        self._watchers = store.watchers
        self._watch = watch
        self._heard = heard
        self._wanted = wanted
        self._id = new_id_text()
        self._registered_at: float | None = None
        self.listens = False
        self.over = False

    @property
    def deaf(self) -> bool:
        return self._watch.polling_only

    def tick(self) -> float:
        if not self._wanted(self):
            self._stopping.set()
            self._unregister()
            return 0.0
        try:
            return self._listen()
        except Exception as error:
            self.listens, self._registered_at = False, None
            if isinstance(error, StoreError):
                return random.uniform(MIN_RETRY_S, MAX_RETRY_S)
            raise

    def _listen(self) -> float:
        """What ended before both the listening and the word in the database is found by the look behind them."""
        heard = self._watch.wait(MAX_WAIT_S, self._stopping)
        if self._watch.polling_only or self._stopping.is_set():
            return 0.0
        heard = self._register() or heard
        self.listens = True
        if not heard:
            return 0.0
        began = time.monotonic()
        self._heard()
        return rest_after(time.monotonic() - began)

    def _register(self) -> bool:
        """Let the database know that we want to be told; whether it didn't."""
        now, lasts = time.monotonic(), round(WATCHER_TTL_S * MICROS_PER_SECOND)
        new = self._registered_at is None
        if self._registered_at is None:
            self._watchers.add(self._id, lasts)
        elif now - self._registered_at >= WATCHER_RENEWAL_S:
            self._watchers.renew(self._id, lasts)
        else:
            return False
        self._registered_at = now
        return new

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
        """The connection first: who wants to drop the database waits for that. Once more does nothing."""
        registered_at, self._registered_at, self.listens = self._registered_at, None, False
        self._watch.close()
        if registered_at is not None:
            with suppress(StoreError):  # then it is over by itself
                self._watchers.remove(self._id)


class CompletionListener:
    """The listener of a process, while it is wanted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._deaf = store.clock is not database_clock  # a test's own time, which passes without us
        self._lock = threading.Lock()
        self._listener: CompletionListenerLoop | None = None
        self._wanted_until = 0.0
        register_fork_hooks(self)

    @property
    def listens(self) -> bool:
        """Whether ends are heard of now, as far as we know."""
        return self._listener is not None and self._listener.listens

    def want(self, seconds: float, heard: Callable[[], None]) -> None:
        """Somebody waits for so long before the next look, unless `heard` is called, in another thread."""
        if self._deaf:
            return
        with self._lock:
            self._wanted_until = max(self._wanted_until, time.monotonic() + seconds + LINGER_S)
            if self._listener is None or self._listener.over:
                self._begin(heard)

    def _begin(self, heard: Callable[[], None]) -> None:
        watch = self._store.database.change_listener("completions")
        if watch.polling_only:
            self._deaf = True
            return
        self._listener = CompletionListenerLoop(self._store, watch, heard, self._is_wanted)
        try:
            self._listener.start()
        except RuntimeError:  # no thread to be had
            self._listener = None

    def _is_wanted(self, listener: CompletionListenerLoop) -> bool:
        with self._lock:
            self._deaf = self._deaf or listener.deaf
            listener.over = self._deaf or time.monotonic() >= self._wanted_until
            return not listener.over

    def close(self) -> None:
        """Hear nothing more, until somebody wants to again."""
        with self._lock:
            listener, self._listener = self._listener, None
            self._wanted_until = 0.0
        if listener is not None:
            listener.stop(STOP_TIMEOUT_S)

    def before_fork(self) -> None:
        """Nothing: the child leaves our listener alone."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # where its thread isn't
            self._lock, self._listener, self._wanted_until = threading.Lock(), None, 0.0
