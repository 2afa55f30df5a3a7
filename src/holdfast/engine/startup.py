"""The start of a worker: load its tasks, connect, open a session, start its loops.

`holdfast worker` waits for a database that is unavailable. A request to stop aborts the start, whatever it waits for.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from holdfast.database.faults import AccessDenied
from holdfast.engine.components import WorkerComponents
from holdfast.errors import ConfigError, StoreMoved, StoreUnavailable
from holdfast.task.registry import Registry
from holdfast.telemetry import log
from holdfast.telemetry.log_format import current_worker

T = TypeVar("T")
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 15.0
CHECK_INTERVAL_S = 0.02


class StartAborted(Exception):
    """The worker was asked to stop before it had started."""


class Startup:
    """The parts of one worker's start, in order. The start hooks run between `connect` and `start_loops`."""

    def __init__(self, components: WorkerComponents, registry: Registry, should_stop: Callable[[], bool]) -> None:
        self._components = components
        self._registry = registry
        self._should_stop = should_stop
        self._started = False

    def load(self) -> None:
        """Import the tasks."""
        if self._started:
            raise ConfigError("a worker can be started only once; create a new one with app.worker()")
        self._started = True
        self._registry.load()
        self._registry.resolve()

    def connect(self) -> None:
        """Create or check the tables, and declare the limits and schedules of the app's code."""
        self._when_available(self._prepare)

    def _prepare(self) -> None:
        components = self._components
        components.store.set_idle_transaction_timeout(max(components.settings.lease / 3, 1.0))
        components.store.prepare()
        components.store.limits.declare(
            (limit.name, limit.concurrency, limit.rate, limit.cost is not None) for limit in self._registry.limits
        )
        components.store.budgets.declare(self._registry.budgets)
        components.scheduler.declare()

    def start_loops(self, *, drain: bool) -> None:
        """Open a session, so that an unusable database raises here, and start the loops."""
        components = self._components
        self._registry.check_resources(components.lifespan.resources)
        self._when_available(self._open_session)
        session = components.state.session
        assert session is not None
        log.worker_started(
            session.id, components.store.database.display_url, len(self._registry), components.settings.concurrency,
            components.runner.threads,
        )  # fmt: skip
        if len(self._registry) == 0:
            log.worker_without_tasks(session.id)
        token = current_worker.set(components.state.session_id)
        if components.telemetry is not None:
            components.telemetry.start()
        components.virtual_time.begin()
        for loop in reversed(components.core_loops):
            loop.start()
        for loop in components.background_loops:
            if not (drain and loop in components.clock_loops):
                loop.start()
        if components.log_collector is not None:
            components.log_collector.install()
        components.claimer.batches.is_draining = drain
        components.claimer.start()
        current_worker.reset(token)

    def _open_session(self) -> None:
        self._components.lanes.refresh()
        self._components.heartbeat.tick()

    def _when_available(self, work: Callable[[], None]) -> None:
        if self._components.settings.wait_for_database:
            retry_until_available(work, self._should_stop)
        else:
            work()


def pause_after(tries: int, chance: float) -> float:
    """Return the seconds to wait after this many failed tries: exponential backoff minus up to a quarter of jitter."""
    longest = min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 32), MAX_PAUSE_S)
    return longest * (1 - chance / 4)


def retry_until_available(work: Callable[[], T], should_stop: Callable[[], bool]) -> T:
    """Call `work`, which is safe to repeat, until the database is available. Raises StartAborted when asked to stop.

    If the database rejects this client (a password, a permission) or its data was moved, the error is raised at once:
    waiting doesn't help.
    """
    tries = 0
    while True:
        try:
            done = work()
        except (AccessDenied, StoreMoved):
            raise
        except StoreUnavailable as error:
            tries += 1
            pause = pause_after(tries, random.random())
            log.startup_waiting_for_database(error, tries, pause)
            _sleep(pause, should_stop)
        else:
            if tries:
                log.startup_database_available(tries)
            return done


def _sleep(seconds: float, should_stop: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if should_stop():
            raise StartAborted
        time.sleep(min(left, CHECK_INTERVAL_S))


def wait_or_abort(future: Future[T], should_stop: Callable[[], bool]) -> T:
    """Wait for a part of the start; when asked to stop, cancel it and raise StartAborted."""
    try:
        while not future.done():
            if should_stop():
                raise StartAborted
            wait([future], CHECK_INTERVAL_S)
    finally:
        future.cancel()  # no effect if it has ended
    return future.result()


async def await_or_abort(part: Coroutine[Any, Any, T], should_stop: Callable[[], bool]) -> T:
    """Await a part of the start; when asked to stop, cancel it and raise StartAborted."""
    task = asyncio.ensure_future(part)
    try:
        while not task.done():
            if should_stop():
                raise StartAborted
            await asyncio.wait([task], timeout=CHECK_INTERVAL_S)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=1.0)


GC_THRESHOLD_OBJECTS = 50_000
"""New objects between two garbage collections. Finished runs leave no cycles, so they don't need the collector."""
SWITCH_INTERVAL_S = 0.0005
"""How long a thread may hold the GIL while another one waits. The thread that holds SQLite's only writer connection
waits this long after each call (bench: jobs)."""


@contextmanager
def tuned_interpreter() -> Iterator[None]:
    """Tune the interpreter of a process that does nothing but work.

    Objects that exist now are excluded from garbage collection, which otherwise takes a fifth of the time with hundreds
    of concurrent runs. Threads that return from the database get the GIL earlier than after the default 5 ms, because
    hundreds of runs may wait for one commit.
    """
    gc.collect()
    gc.freeze()
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(max(threshold[0], GC_THRESHOLD_OBJECTS) if threshold[0] else 0, *threshold[1:])
    sys.setswitchinterval(min(interval, SWITCH_INTERVAL_S))
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
