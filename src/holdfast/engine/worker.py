"""The worker: starts and stops the loops of one process, in a block, until a signal, or until there is nothing to do.

Stopping: claim no more; let what runs finish within the grace; cancel the rest and hand it back, uncharged; write all
that; run the stop hooks; close the session. Author code that can't be stopped (a thread, a blocked loop) is handed back
as the very last act of a process that ends, and otherwise stays marked as ours until it is over.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

from holdfast.engine.components import WorkerComponents
from holdfast.engine.event_loop import EventLoopThread
from holdfast.engine.loops.base import FIRST_PAUSE
from holdfast.engine.runner import CLEAN_UP
from holdfast.engine.startup import StartAborted, Startup, await_or_abort, own_process, wait_or_abort
from holdfast.engine.threads import aside, beside, to_the_end
from holdfast.engine.write_queue import AttemptEnd
from holdfast.errors import BlockingCall, ResultTimeout, StoreUnavailable
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.task.registry import Registry
from holdfast.telemetry import log

RESTART = 75
"""The exit code of a worker that needs a new process: its supervisor starts it again."""
FLUSH = 30.0
LOOK = 0.02
SIGNAL_LOOK = 0.5
LAST_ACT = 5.0


class Worker:
    """Works in the background of a `with` block, or by itself with `run()` or `drain()`. Made by `app.worker(…)`."""

    def __init__(self, components: WorkerComponents, registry: Registry) -> None:
        self._components = components
        self._own_loop: EventLoopThread | None = None
        self._told: SimpleQueue[None] = SimpleQueue()  # no Event: its lock may be held by the code that a signal breaks
        self._asked = 0
        self._signalled = 0
        self._unhealthy = False
        self._startup = Startup(components, registry, self._should_stop)
        self._closing: threading.Thread

    # The blocking forms

    def __enter__(self) -> Self:
        self._refuse_in_loop("with app.worker()", "async with app.worker()")
        self._start_with_own_loop()
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        to_the_end(self._stop, self._hurry)

    def run(self) -> None:
        """Work until SIGTERM or Ctrl-C (or `stop()`): finish within the grace, hand the rest back. A second signal
        ends the grace at once. Author code that still can't be stopped ends with the process."""
        self._refuse_in_loop("run()", "arun()")
        with self._signals():
            try:
                self._start_with_own_loop(abortable=True)
            except StartAborted:
                log.startup_aborted()
                return
            with own_process():
                self._wait_until_told()
                self._stop(exiting=True)
        self._exit_if_stuck()

    def drain(self, timeout: Duration | None = None) -> int:
        """Work until nothing that this worker can run is ready or running; how many attempts ended here. Scheduled
        runs are left, unless they come due meanwhile. ResultTimeout after `timeout`."""
        self._refuse_in_loop("drain()", "adrain()")
        limit = _deadline(timeout)
        self._start_with_own_loop(drain=True)
        try:
            while not self._drained(limit):
                time.sleep(LOOK)
        finally:
            to_the_end(self._stop, self._hurry)
        return self._components.committer.ended_attempts

    def stop(self) -> None:
        """Ask `run()` to end, from another thread; asked twice, it hurries."""
        self._asked += 1
        self._told.put(None)

    def restart_if_unhealthy(self) -> None:
        """End `run()` when the event loop is blocked for too long or too many threads are lost, with the exit code
        that asks a supervisor for a new process."""
        self._components.on_unhealthy = self._stop_unhealthy

    def _stop_unhealthy(self, reason: str) -> None:
        if not self._unhealthy:
            self._unhealthy = True
            log.worker_restarting(reason)
            self.stop()

    def session_ended(self, session: str) -> None:
        """Recover the runs of another worker's session at once: its process is known to have ended."""
        self._components.recovery.session_ended(session)

    def on_session(self, report: Callable[[str], None]) -> None:
        """Call `report` with the id of each session that this worker opens."""
        self._components.on_session = report

    @property
    def exit_code(self) -> int:
        """The exit code for the process after `run()`."""
        return RESTART if self._unhealthy else 0

    def _hurry(self) -> None:
        """Whoever waits for the end doesn't want to any more."""
        self._asked += 2

    def _hurried(self) -> bool:
        """Not added up: systemd signals a worker whose supervisor tells it the same in its own way."""
        return max(self._asked, self._signalled) > 1

    def _wait_until_told(self) -> None:
        """Wake up now and then: a signal that came while the process was frozen may have gone to another thread, and
        its handler runs only when the main thread does."""
        while self._components.store.database.failure is None:
            with suppress(Empty):
                self._told.get(timeout=SIGNAL_LOOK)
                return

    async def _await_until_told(self) -> None:
        told = asyncio.create_task(aside(self._told.get))
        while not told.done() and self._components.store.database.failure is None:
            await asyncio.wait([told], timeout=SIGNAL_LOOK)

    # The awaited forms: author code runs on the loop that awaits

    async def __aenter__(self) -> Self:
        await self._start_here()
        return self

    async def __aexit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        await self._stop_surely(exiting=False)

    async def arun(self) -> None:
        """As `run`, with author code on the running loop."""
        with self._signals():
            try:
                await self._start_here(abortable=True)
            except StartAborted:
                log.startup_aborted()
                return
            try:
                await self._await_until_told()
            finally:
                self._told.put(None)  # ends the thread that waits, when it was us who were cancelled
                await self._stop_surely(exiting=True)
        self._exit_if_stuck()

    async def adrain(self, timeout: Duration | None = None) -> int:
        """As `drain`, with author code on the running loop."""
        limit = _deadline(timeout)
        await self._start_here(drain=True)
        try:
            while not await aside(self._drained, limit):
                await asyncio.sleep(LOOK)
        finally:
            await self._stop_surely(exiting=False)
        return self._components.committer.ended_attempts

    # Starting

    def _start_with_own_loop(self, *, drain: bool = False, abortable: bool = False) -> None:
        """Start the worker. `abortable`: a request to stop aborts the start, even if a hook or a connection hangs."""
        should_stop = self._should_stop if abortable else _never
        self._startup.load()
        if abortable:
            wait_or_abort(beside(self._startup.connect), should_stop)
        else:
            self._startup.connect()
        self._own_loop = EventLoopThread()
        try:
            self._components.use(self._own_loop.loop)
            wait_or_abort(self._own_loop.submit(self._components.lifespan.start()), should_stop)
            self._startup.start_loops(drain=drain)
        except BaseException:
            closing = self._own_loop.submit(self._components.lifespan.abort())
            if not self._stuck_loop():
                self._wait_for_hooks(closing.done)
            self._abort()
            self._own_loop.stop(CLEAN_UP)
            raise

    async def _start_here(self, *, drain: bool = False, abortable: bool = False) -> None:
        should_stop = self._should_stop if abortable else _never
        try:
            await aside(self._startup.load)
            await await_or_abort(aside(self._startup.connect), should_stop)
        except asyncio.CancelledError:
            self.stop()  # ends the thread that waits for the database
            raise
        try:
            self._components.use(asyncio.get_running_loop())
            await await_or_abort(self._components.lifespan.start(), should_stop)
            await aside(self._startup.start_loops, drain=drain)
        except BaseException:
            await self._components.lifespan.abort()
            await aside(self._abort)
            raise

    def _should_stop(self) -> bool:
        return self._asked > 0 or self._signalled > 0

    def _drained(self, limit: float) -> bool:
        try:
            while not self._nothing_is_due():
                pass
            if self._components.claimer.rounds_without_work and self._components.quiet() and self._nothing_is_due():
                return True  # what ended since the first look may have left a retry that is due at once
        except StoreUnavailable as error:  # the loops wait for the database too
            log.database_error("drain", error)
            time.sleep(FIRST_PAUSE)
        if time.monotonic() > limit:
            raise ResultTimeout("the worker wasn't done in the time given to drain; what is left stays in the database")
        return False

    def _nothing_is_due(self) -> bool:
        return all(clock.tick() > 0.0 for clock in self._components.clocks)

    # Stopping

    def _stop(self, *, exiting: bool = False) -> None:
        own_loop = self._own_loop
        assert own_loop is not None
        self._finish_or_cancel()
        if not self._stuck_loop():
            self._write_and_tell()
            hooks = asyncio.run_coroutine_threadsafe(self._components.lifespan.stop(), own_loop.loop)
            self._wait_for_hooks(hooks.done)
        lingers = self._close(exiting=exiting)
        if not lingers and not (exiting and self._components.runner.taken):
            own_loop.stop(CLEAN_UP)

    async def _stop_here(self, *, exiting: bool) -> None:
        await aside(self._finish_or_cancel)
        await aside(self._write_and_tell)
        hooks = asyncio.ensure_future(self._components.lifespan.stop())
        await aside(self._wait_for_hooks, hooks.done)
        await aside(self._close, exiting=exiting)

    async def _stop_surely(self, *, exiting: bool) -> None:
        """Stop to the end, also when whoever waits for it is cancelled: that only hurries it."""
        stopping = asyncio.ensure_future(self._stop_here(exiting=exiting))
        cancelled = False
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                cancelled = True
                self._hurry()
        stopping.result()
        if cancelled:
            raise asyncio.CancelledError

    def _wait_for_hooks(self, done: Callable[[], bool]) -> None:
        """Stop hooks have the grace, as what runs had it, and a moment also in a hurry."""
        components = self._components
        if not (
            components.wait_until(done, components.settings.grace, self._hurried)
            or components.wait_until(done, CLEAN_UP)
        ):
            log.stop_hooks_timed_out()

    def _finish_or_cancel(self) -> None:
        """Claim no more, give what runs its grace, then tell it to stop."""
        components = self._components
        components.claimer.stop()
        for clock in components.clocks:
            clock.stop()
        session = components.state.session
        if session is not None and components.store.database.failure is not None:
            components.lose(session, "its database can't be used any more")
        log.worker_stopping(session.id if session else "(none)", components.runner.taken, components.settings.grace)
        components.wait_until(
            lambda: not (components.unfinished() or components.trigger_poller.busy),
            components.settings.grace,
            self._hurried,
        )
        components.trigger_poller.give_up()
        components.runner.stop(components.unfinished(), "hand back")
        components.wait_until(
            lambda: all(attempt.place == "thread" for attempt in components.unfinished()), CLEAN_UP, self._hurried
        )

    def _write_and_tell(self) -> None:
        """What has ended is durable, and failure hooks know of it, before the stop hooks run."""
        self._flush()
        components = self._components
        components.wait_until(
            lambda: not components.failures.pending, max(components.settings.grace, CLEAN_UP), self._hurried
        )
        components.failures.close()

    def _stuck_loop(self) -> bool:
        """Whether author code blocks the event loop."""
        passed = threading.Event()
        with suppress(RuntimeError):  # it is closed
            self._components.runner.loop.call_soon_threadsafe(passed.set)
        return not self._components.wait_until(passed.is_set, CLEAN_UP)

    def _close(self, *, exiting: bool) -> bool:
        """Write what has ended, then close the session, or keep it until author code that can't be stopped is over;
        whether there is such."""
        self._components.failures.close()
        lingering = self._components.unfinished()
        if lingering and not exiting:
            for attempt in lingering:
                self._components.runner.give_up(attempt)
            self._flush()
            atexit.register(self._end_with_the_process)
            self._closing = threading.Thread(target=self._close_when_over, name="holdfast-closing", daemon=True)
            self._closing.start()
            return True
        self._flush()
        for attempt in lingering:  # the last act
            self._components.runner.give_up(attempt, lingers=False)
            self._components.submit(AttemptEnd(attempt, None))
        self._end_session()
        return False

    def _close_when_over(self) -> None:
        while self._components.unfinished():
            time.sleep(LOOK)
        self._end_session()
        if self._own_loop is not None:
            self._own_loop.stop(CLEAN_UP)
        atexit.unregister(self._end_with_the_process)

    def _end_with_the_process(self) -> None:
        """The author code that outlived us ends now, as all else here does."""
        for attempt in self._components.unfinished():
            self._components.submit(AttemptEnd(attempt, None))
        self._closing.join(LAST_ACT)

    def _flush(self) -> None:
        """Wait until all ends are durable, or the session is over. What a loop that author code blocks has gathered
        isn't waited for: it may stay there for ever."""
        components = self._components
        self._stuck_loop()  # in a turn of it, what has gathered there is handed over
        components.committer.wake()
        components.wait_until(
            lambda: not components.committer.queue.available or components.state.session is None, FLUSH
        )

    def _end_session(self) -> None:
        components = self._components
        self._flush()
        components.virtual_time.end()
        if components.telemetry is not None:
            components.telemetry.stop()
        for loop in (
            *components.housekeepers,
            components.committer,
            components.timer_thread,
            components.lease_guard,
            components.heartbeat,
        ):
            loop.stop(CLEAN_UP)
        session = components.state.session
        if session is not None:
            components.state.end(session)
            try:
                components.store.sessions.close(session.id)
            except Exception as error:
                log.database_error("closing the session", error)
            log.worker_stopped(session.id, components.committer.ended_attempts, components.committer.released_attempts)
        components.runner.close()

    def _abort(self) -> None:
        """The start failed half way."""
        components = self._components
        components.virtual_time.end()
        for loop in (
            components.claimer,
            *components.housekeepers,
            components.committer,
            components.timer_thread,
            components.lease_guard,
            components.heartbeat,
        ):
            loop.stop(CLEAN_UP)
        session = components.state.session
        if session is not None:
            components.state.end(session)
            try:
                components.store.sessions.close(session.id)
            except StoreUnavailable as error:
                log.database_error("closing the session", error)

    def _exit_if_stuck(self) -> None:
        """End the process if author code still runs: its runs were handed back. Raise the database's failure."""
        failure = self._components.store.database.failure
        if self._components.runner.taken or self._components.runner.lost_threads:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.exit_code if failure is None else 2)
        if failure is not None:
            raise failure

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def told(_number: int, _frame: FrameType | None) -> Any:
            self._signalled += 1
            self._told.put(None)

        before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @staticmethod
    def _refuse_in_loop(called: str, instead: str) -> None:
        if asyncio._get_running_loop() is not None:
            raise BlockingCall(f"{called} would block the running event loop; use {instead}")


def _never() -> bool:
    return False


def _deadline(timeout: Duration | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + to_micros(timeout, "timeout") / MICROS_PER_SECOND
