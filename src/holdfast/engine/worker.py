"""The worker: starts and stops the components of one process.

A worker runs for the duration of a `with` block, until a signal (`run`), or until there is nothing to do (`drain`).

It stops in this order: claim nothing more; let running attempts finish within the grace period; cancel the others and
release their runs, uncharged; write all ends; run the stop hooks; close the session. Code that can't be stopped (a
thread, a blocked event loop) is released as the last act of a process that exits. If the process continues, such runs
stay claimed until their code stops.
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

from holdfast.engine.attempt import Session
from holdfast.engine.components import WorkerComponents
from holdfast.engine.event_loop import EventLoopThread
from holdfast.engine.health import WorkerHealth
from holdfast.engine.loops.base import FIRST_RETRY_PAUSE_S, Loop
from holdfast.engine.runner import CLEANUP_GRACE_S
from holdfast.engine.startup import StartAborted, Startup, await_or_abort, tuned_interpreter, wait_or_abort
from holdfast.engine.threads import run_in_own_thread, run_uninterrupted, start_in_own_thread
from holdfast.engine.write_queue import PendingEnd
from holdfast.errors import BlockingCall, ResultTimeout, StoreUnavailable
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.model.interactive import await_hint
from holdfast.task.registry import Registry
from holdfast.telemetry import log

RESTART_EXIT_CODE = 75
"""The exit code of a worker that needs a new process: its supervisor starts one."""
FLUSH_TIMEOUT_S = 30.0
EXIT_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.02
FAST_POLL_INTERVAL_S = 0.005
SIGNAL_POLL_INTERVAL_S = 0.5


class Worker:
    """Runs tasks, in the background of a `with` block or with `run()` or `drain()`. Created by `app.worker(…)`."""

    def __init__(self, components: WorkerComponents, registry: Registry) -> None:
        self._components = components
        self._own_loop: EventLoopThread | None = None
        # A signal handler puts into this queue. An Event won't do: the interrupted code may hold its lock.
        self._stop_requested: SimpleQueue[None] = SimpleQueue()
        self._stop_requests = 0
        self._signals_received = 0
        self._unhealthy = False
        self._startup = Startup(components, registry, self._should_stop)
        self.health = WorkerHealth(components, self._should_stop)
        """Answers liveness and readiness probes, for programs that serve them."""
        self._closing_thread: threading.Thread

    # Blocking

    def __enter__(self) -> Self:
        self._refuse_in_loop("with app.worker()", "`async with app.worker()`")
        self._start_with_own_loop()
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        run_uninterrupted(self._stop, self._hurry)

    def run(self) -> None:
        """Run until SIGTERM, Ctrl-C or `stop()`, then finish within the grace period and release the remaining runs.

        A second signal ends the grace period at once. Code that still can't be stopped ends with the process.
        """
        self._refuse_in_loop("run()", "`await worker.arun()`")
        with self._signal_handlers():
            try:
                self._start_with_own_loop(abortable=True)
            except StartAborted:
                log.startup_aborted()
                return
            with tuned_interpreter():
                self._wait_for_stop()
                self._stop(exiting=True)
        self._exit_if_stuck()

    def drain(self, timeout: Duration | None = None) -> int:
        """Run until no run of this worker's tasks is ready or running, and return how many attempts ended here.

        Runs that are scheduled for later are left alone unless they become due meanwhile. Ready runs are left if a
        limit is full, if their queue is paused or not served, or if the app has no such task. Raises ResultTimeout
        after `timeout`.
        """
        self._refuse_in_loop("drain()", "`await worker.adrain()`")
        deadline = _deadline(timeout)
        self._start_with_own_loop(drain=True)
        try:
            while not self._is_drained(deadline):
                time.sleep(POLL_INTERVAL_S)
        finally:
            run_uninterrupted(self._stop, self._hurry)
        return self._components.committer.ended_attempts

    def stop(self) -> None:
        """Ask `run()` to stop, from another thread. A second call ends the grace period."""
        self._stop_requests += 1
        self._stop_requested.put(None)

    def restart_if_unhealthy(self) -> None:
        """End `run()` when the event loop is blocked for too long or too many threads are lost.

        The exit code then asks a supervisor for a new process.
        """
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

    def on_progress(self, report: Callable[[float], None]) -> None:
        """Call `report` regularly while the threads of this process run.

        Its argument is the number of seconds after which silence means that the process is frozen.
        """
        self._components.on_progress = report

    @property
    def exit_code(self) -> int:
        """The exit code for the process after `run()`."""
        return RESTART_EXIT_CODE if self._unhealthy else 0

    def _hurry(self) -> None:
        """End the grace period, because the caller was interrupted while it waited for the stop."""
        self._stop_requests += 2

    def _is_hurried(self) -> bool:
        """Return whether a stop was requested twice by the same means.

        The two counts aren't added up: systemd signals a worker whose supervisor also asks it to stop.
        """
        return max(self._stop_requests, self._signals_received) > 1

    def _wait_for_stop(self) -> None:
        """Wait for a request to stop, waking up regularly.

        A signal that arrived while the process was frozen may have gone to another thread; its handler runs only when
        the main thread executes Python code.
        """
        while self._components.store.database.failure is None:
            with suppress(Empty):
                self._stop_requested.get(timeout=SIGNAL_POLL_INTERVAL_S)
                return

    async def _await_stop(self) -> None:
        requested = asyncio.create_task(run_in_own_thread(self._stop_requested.get))
        while not requested.done() and self._components.store.database.failure is None:
            await asyncio.wait([requested], timeout=SIGNAL_POLL_INTERVAL_S)

    # Awaited: user code runs on the caller's event loop

    async def __aenter__(self) -> Self:
        await self._start_on_callers_loop()
        return self

    async def __aexit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        await self._stop_shielded(exiting=False)

    async def arun(self) -> None:
        """Like `run`, with user code on the running event loop."""
        with self._signal_handlers():
            try:
                await self._start_on_callers_loop(abortable=True)
            except StartAborted:
                log.startup_aborted()
                return
            try:
                await self._await_stop()
            finally:
                self._stop_requested.put(None)  # ends the waiting thread if this coroutine was cancelled
                await self._stop_shielded(exiting=True)
        self._exit_if_stuck()

    async def adrain(self, timeout: Duration | None = None) -> int:
        """Like `drain`, with user code on the running event loop."""
        deadline = _deadline(timeout)
        await self._start_on_callers_loop(drain=True)
        try:
            while not await run_in_own_thread(self._is_drained, deadline):
                await asyncio.sleep(POLL_INTERVAL_S)
        finally:
            await self._stop_shielded(exiting=False)
        return self._components.committer.ended_attempts

    # Starting

    def _start_with_own_loop(self, *, drain: bool = False, abortable: bool = False) -> None:
        """Start the worker. If `abortable`, a request to stop aborts the start even if a hook or a connection hangs."""
        should_stop = self._should_stop if abortable else _never
        self._startup.load()
        if abortable:
            wait_or_abort(start_in_own_thread(self._startup.connect), should_stop)
        else:
            self._startup.connect()
        self._own_loop = EventLoopThread()
        try:
            self._components.set_event_loop(self._own_loop.loop)
            wait_or_abort(self._own_loop.submit(self._components.lifespan.start()), should_stop)
            self._startup.start_loops(drain=drain)
        except BaseException:
            closing = self._own_loop.submit(self._components.lifespan.abort())
            if not self._loop_is_blocked():
                self._wait_for_hooks(closing.done)
            self._abort_start()
            self._own_loop.stop(CLEANUP_GRACE_S)
            raise

    async def _start_on_callers_loop(self, *, drain: bool = False, abortable: bool = False) -> None:
        should_stop = self._should_stop if abortable else _never
        try:
            await run_in_own_thread(self._startup.load)
            await await_or_abort(run_in_own_thread(self._startup.connect), should_stop)
        except asyncio.CancelledError:
            self.stop()  # ends the thread that waits for the database
            raise
        try:
            self._components.set_event_loop(asyncio.get_running_loop())
            await await_or_abort(self._components.lifespan.start(), should_stop)
            await run_in_own_thread(self._startup.start_loops, drain=drain)
        except BaseException:
            await self._components.lifespan.abort()
            await run_in_own_thread(self._abort_start)
            raise

    def _should_stop(self) -> bool:
        return self._stop_requests > 0 or self._signals_received > 0

    def _is_drained(self, deadline: float) -> bool:
        try:
            while not self._nothing_is_due():
                pass
            if self._components.claimer.empty_rounds and self._components.is_idle() and self._nothing_is_due():
                return True  # checked again because an attempt that ended meanwhile may have left a retry that is due
        except StoreUnavailable as error:  # the loops wait for the database too
            log.database_error("drain", error)
            time.sleep(FIRST_RETRY_PAUSE_S)
        if time.monotonic() > deadline:
            raise ResultTimeout("the worker did not finish within the timeout of drain; remaining runs stay queued")
        return False

    def _nothing_is_due(self) -> bool:
        return all(loop.tick() > 0.0 for loop in self._components.clock_loops)

    # Stopping

    def _stop(self, *, exiting: bool = False) -> None:
        own_loop = self._own_loop
        assert own_loop is not None
        self._finish_or_cancel()
        if not self._loop_is_blocked():
            self._flush_and_notify()
            hooks = asyncio.run_coroutine_threadsafe(self._components.lifespan.stop(), own_loop.loop)
            self._wait_for_hooks(hooks.done)
        stays_open = self._close(exiting=exiting)
        if not stays_open and not (exiting and self._components.runner.busy_slots):
            own_loop.stop(CLEANUP_GRACE_S)

    async def _stop_on_callers_loop(self, *, exiting: bool) -> None:
        await run_in_own_thread(self._finish_or_cancel)
        await run_in_own_thread(self._flush_and_notify)
        hooks = asyncio.ensure_future(self._components.lifespan.stop())
        await run_in_own_thread(self._wait_for_hooks, hooks.done)
        await run_in_own_thread(self._close, exiting=exiting)

    async def _stop_shielded(self, *, exiting: bool) -> None:
        """Stop completely even if the caller is cancelled; a cancellation only ends the grace period."""
        stopping = asyncio.ensure_future(self._stop_on_callers_loop(exiting=exiting))
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
        """Give hooks the grace period, and a moment even if the stop is hurried."""
        grace_s = self._components.settings.grace
        if not (_wait_until(done, grace_s, self._is_hurried) or _wait_until(done, CLEANUP_GRACE_S)):
            log.stop_hooks_timed_out()

    def _finish_or_cancel(self) -> None:
        """Claim nothing more, give running attempts the grace period, then ask them to stop.

        Suspended functions leave memory. Their cleanup gets a moment, because the end of the loop would interrupt it.
        """
        components, state = self._components, self._components.state
        triggers, grace_s = components.trigger_poller, components.settings.grace
        components.claimer.stop()
        for loop in components.clock_loops:
            loop.stop()
        session = state.session
        if session is not None and components.store.database.failure is not None:
            components.lose_session(session, "the database can't be used any more")
        log.worker_stopping(session.id if session else "(none)", components.runner.busy_slots, grace_s)
        _wait_until(lambda: not (state.unfinished() or triggers.busy), grace_s, self._is_hurried)
        triggers.give_up()
        components.runner.stop(state.unfinished(), "release")
        _wait_until(
            lambda: all(attempt.run_in == "thread" for attempt in state.unfinished()),
            CLEANUP_GRACE_S,
            self._is_hurried,
        )
        leaving = components.residents.close()
        _wait_until(lambda: all(task.done() for task in leaving), CLEANUP_GRACE_S, self._is_hurried)

    def _flush_and_notify(self) -> None:
        """Make all ends durable and call the failure hooks for them, before the stop hooks run."""
        self._flush()
        failures = self._components.failures
        grace_s = max(self._components.settings.grace, CLEANUP_GRACE_S)
        _wait_until(lambda: not failures.pending, grace_s, self._is_hurried)
        failures.close()

    def _loop_is_blocked(self) -> bool:
        """Return whether user code blocks the event loop. Otherwise the loop has completed an iteration."""
        answered = threading.Event()
        with suppress(RuntimeError):  # the loop is closed
            self._components.runner.loop.call_soon_threadsafe(answered.set)
        return not _wait_until(answered.is_set, CLEANUP_GRACE_S)

    def _close(self, *, exiting: bool) -> bool:
        """Write what has ended and close the session.

        If code that can't be stopped is still running and the process continues, keep the session until that code
        stops, and return True.
        """
        components = self._components
        components.failures.close()
        unfinished = components.state.unfinished()
        if unfinished and not exiting:
            for attempt in unfinished:
                components.runner.end_unresponsive(attempt)
            self._flush()
            atexit.register(self._release_at_exit)
            self._closing_thread = threading.Thread(
                target=self._close_when_stopped, name="holdfast-closing", daemon=True
            )
            self._closing_thread.start()
            return True
        self._flush()
        for attempt in unfinished:  # the process exits now, and the code with it
            components.runner.end_unresponsive(attempt, still_running=False)
            components.queue.submit(PendingEnd(attempt, None))
        self._end_session()
        return False

    def _close_when_stopped(self) -> None:
        while self._components.state.unfinished():
            time.sleep(POLL_INTERVAL_S)
        self._end_session()
        if self._own_loop is not None:
            self._own_loop.stop(CLEANUP_GRACE_S)
        atexit.unregister(self._release_at_exit)

    def _release_at_exit(self) -> None:
        """Release the runs whose code outlived the worker: the process exits now, and the code with it."""
        for attempt in self._components.state.unfinished():
            self._components.queue.submit(PendingEnd(attempt, None))
        self._closing_thread.join(EXIT_TIMEOUT_S)

    def _flush(self) -> None:
        """Wait until all submitted writes are durable, or the session has ended.

        Writes that a blocked event loop has gathered are not waited for, because it may block forever.
        """
        self._loop_is_blocked()  # otherwise the iteration that has passed flushed the loop's writes
        queue, state = self._components.queue, self._components.state
        self._components.committer.wake()
        _wait_until(lambda: not queue.available or state.session is None, FLUSH_TIMEOUT_S)

    def _end_session(self) -> None:
        components = self._components
        self._flush()
        if components.telemetry is not None:
            components.telemetry.stop()
        session = self._close_session([*components.background_loops, *components.core_loops])
        if session is not None:
            committer = components.committer
            log.worker_stopped(session.id, committer.ended_attempts, committer.released_attempts)
        components.runner.close()

    def _abort_start(self) -> None:
        components = self._components
        self._close_session([components.claimer, *components.background_loops, *components.core_loops])

    def _close_session(self, loops: list[Loop]) -> Session | None:
        components = self._components
        components.virtual_time.end()
        if components.log_collector is not None:
            components.log_collector.uninstall()
        for loop in loops:
            loop.stop(CLEANUP_GRACE_S)
        session = components.state.session
        if session is not None:
            components.state.end(session)
            try:
                components.store.sessions.close(session.id)
            except Exception as error:
                log.database_error("closing the session", error)
        return session

    def _exit_if_stuck(self) -> None:
        """Exit the process if user code still runs: its runs were released. Raise the database's failure, if any."""
        failure = self._components.store.database.failure
        if self._components.runner.busy_slots or self._components.runner.lost_threads:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.exit_code if failure is None else 2)
        if failure is not None:
            raise failure

    @contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(_number: int, _frame: FrameType | None) -> Any:
            self._signals_received += 1
            self._stop_requested.put(None)

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @staticmethod
    def _refuse_in_loop(called: str, instead: str) -> None:
        if asyncio._get_running_loop() is not None:
            raise BlockingCall(f"{called} would block the running event loop; use {instead}{await_hint()}")


def _never() -> bool:
    return False


def _deadline(timeout: Duration | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + to_micros(timeout, "timeout") / MICROS_PER_SECOND


def _wait_until(reached: Callable[[], bool], seconds: float, is_hurried: Callable[[], bool] = _never) -> bool:
    """Wait until a condition holds, at most `seconds`, or until the stop is hurried. Return whether it holds."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() >= deadline or is_hurried():
            return reached()
        time.sleep(FAST_POLL_INTERVAL_S)
    return True
