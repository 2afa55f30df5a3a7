"""Read the results of runs, and wait for runs to finish.

`RunResults` serves run handles. `ResultWaiter` decides when a waiting caller reads again. The coroutines of one event
loop share one poll of the database; each thread polls for itself. Polling backs off exponentially. A local worker
hands the outcomes that it commits to the callers, so a run that it executes isn't polled at first. After
`LISTEN_FROM_S` a `CompletionListener` reports completions in other processes, and polling slows down. It never stops:
a notification may be lost.

A caller that has seen its run once waits through an outage of the database.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from holdfast.client.completion_listener import CompletionListenerLoop, rest_after
from holdfast.database import Row, Topic
from holdfast.database.faults import AccessDenied
from holdfast.database.fork_safety import register_fork_hooks
from holdfast.errors import ErrorInfo, ResultTimeout, RunCancelled, RunFailed, RunNotFound, StoreUnavailable
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.clock import MICROS_PER_SECOND, Duration, database_clock, to_micros
from holdfast.model.failure import error_from_json
from holdfast.model.payloads import PayloadContext
from holdfast.model.run import FINAL_STATES
from holdfast.store import AttemptEnd, Store
from holdfast.store.run_reader import RunReader
from holdfast.task.registry import Registry

if TYPE_CHECKING:
    import asyncio

FIRST_POLL_INTERVAL_S = 0.002
MAX_POLL_INTERVAL_S = 0.25
MAX_POLL_INTERVAL_LISTENING_S = 1.0
BACKOFF_FACTOR = 1.5
LISTEN_FROM_S = 0.02
"""Poll intervals from this length on start a listener. Shorter waits aren't worth a connection."""
LISTENER_LINGER_S = 3.0
"""The listener stays this long after the last caller has stopped waiting."""
LISTENER_STOP_TIMEOUT_S = 5.0
MAX_DECODED_ON_LOOP_CHARS = 4096
"""Longer results are decoded in a thread, because decoding would delay the caller's event loop."""
FOLLOWER = "follower:"
"""How the ids of processes begin in `watchers` that follow streams. Statements that write chunks notify only these."""

MAX_OUTAGE_S = 300.0
"""After an outage of this length waiting callers get the error, unless their own timeout is sooner."""

RUNNING: Row = ("running", None, None, None, None, None)
"""What a read of a run would return that a local worker executes, as far as callers that wait use it."""

Poll: TypeAlias = Callable[[Iterable[str]], dict[str, Row]]
"""Read state, result, error, kind, options and tenant of the runs that exist, by id. Blocking."""


class PollBackoff:
    """Growing intervals between polls for one run, until its timeout."""

    def __init__(self, id: UUID, timeout: Duration | None) -> None:
        self._id = id
        self._timeout_s = None if timeout is None else to_micros(timeout, "timeout") / MICROS_PER_SECOND
        self._deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        self._pause = FIRST_POLL_INTERVAL_S
        self._seen = False
        self._outage_since: float | None = None

    def pause(self, state: str, longest: float) -> float:
        """Return the seconds to the next poll of a run in this state. Raises ResultTimeout after the deadline."""
        self._seen, self._outage_since = True, None
        if self._deadline is not None and self._deadline <= time.monotonic():
            hint = "; is a worker running that has this task and serves its queue?" if state == "ready" else ""
            raise ResultTimeout(
                f"run {self._id} did not finish within {self._timeout_s:g} s: it is still {state}{hint}"
            )
        return self._next(longest)

    @property
    def is_short(self) -> bool:
        """Whether the caller has waited only for a moment."""
        return self._pause < LISTEN_FROM_S

    def pause_after_failure(self, error: StoreUnavailable, longest: float) -> float:
        """Return the seconds to the next poll after one that failed.

        Raises the error if the run was never seen, if retrying can't help, or if the outage lasts too long; raises
        ResultTimeout after the deadline.
        """
        now = time.monotonic()
        self._outage_since = self._outage_since or now
        if not self._seen or isinstance(error, AccessDenied) or now - self._outage_since > MAX_OUTAGE_S:
            raise error
        if self._deadline is not None and self._deadline <= now:
            raise ResultTimeout(f"run {self._id} did not finish within {self._timeout_s:g} s: {error}") from error
        return self._next(longest)

    def _next(self, longest: float) -> float:
        pause, self._pause = self._pause, min(self._pause * BACKOFF_FACTOR, longest)
        return pause if self._deadline is None else max(min(pause, self._deadline - time.monotonic()), 0.0)


class PendingResult:
    """A coroutine that waits for a run."""

    __slots__ = ("backoff", "future", "id")

    def __init__(self, id: UUID, backoff: PollBackoff, future: asyncio.Future[Row | None]) -> None:
        self.id = str(id)
        self.backoff = backoff
        self.future = future

    def needs_poll(self, is_claimed_here: Callable[[str], bool]) -> bool:
        """Return whether to read the run now: at first not while a local worker executes it, which reports its end."""
        return not (self.backoff.is_short and is_claimed_here(self.id))

    def update(self, row: Row | None, longest: float) -> float | None:
        """Take the row of a poll. Returns the seconds to the next poll, or None if the wait has ended."""
        if self.future.done():  # The caller was cancelled.
            return None
        if row is None or row[0] in FINAL_STATES:
            self.future.set_result(row)
            return None
        try:
            return self.backoff.pause(row[0], longest)
        except ResultTimeout as error:
            self.future.set_exception(error)
            return None

    def poll_failed(self, error: Exception, longest: float) -> float | None:
        """Take the error of a poll. Returns the seconds to the next poll, or None if the wait has ended."""
        if self.future.done():
            return None
        try:
            if not isinstance(error, StoreUnavailable):
                raise error
            return self.backoff.pause_after_failure(error, longest)
        except Exception as final:
            self.future.set_exception(final)
            return None


class LoopPoller:
    """Polls for all coroutines of one event loop that wait."""

    def __init__(self, waiter: ResultWaiter) -> None:
        import asyncio

        self._waiter = waiter
        self.pending: list[PendingResult] = []
        self.awaited: dict[str, list[PendingResult]] = {}
        """The coroutines that wait for each run. Changed on the loop, read from any thread."""
        self.wake = asyncio.Event()
        self._notified = self._resting = False
        self.notification_sent = False
        """A notification is on its way to the loop. A blocked loop must not collect more of them."""

    async def run(self) -> None:
        """Poll until no coroutine waits."""
        import asyncio

        try:
            while self.pending:
                self.wake.clear()
                self._notified, self._resting = False, True
                began = time.monotonic()
                pause = await self._poll_once()
                rest = asyncio.get_running_loop().call_later(rest_after(time.monotonic() - began), self._rested)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self.wake.wait()
                rest.cancel()
        finally:
            for pending in self.pending:  # The loop is shutting down.
                pending.future.cancel()

    def take(self, ended: Mapping[str, Row | None]) -> None:
        """Take the outcomes of runs that a local worker has ended; poll for those that aren't known."""
        for id, row in ended.items():
            for pending in self.awaited.get(id, ()):
                if row is None:
                    self.wake.set()
                elif not pending.future.done():
                    pending.future.set_result(row)
        if all(pending.future.done() for pending in self.pending):  # nobody is left to poll for
            self.wake.set()

    def notify(self) -> None:
        """Poll because a run has finished in another process, now or after the rest that follows a poll."""
        self.notification_sent, self._notified = False, True
        if not self._resting:
            self.wake.set()

    def _rested(self) -> None:
        self._resting = False
        if self._notified:
            self.wake.set()

    async def _poll_once(self) -> float:
        polled, self.pending = [each for each in self.pending if not each.future.done()], []
        if not polled:
            return 0.0
        longest = self._waiter.max_interval()
        wanted = {pending.id for pending in polled if pending.needs_poll(self._waiter.is_claimed_here)}
        rows: dict[str, Row] = {pending.id: RUNNING for pending in polled if pending.id not in wanted}
        try:
            if wanted:
                rows |= await run_in_thread(self._waiter.poll, wanted)
        except Exception as error:
            updated = [(pending, pending.poll_failed(error, longest)) for pending in polled]
        except BaseException:
            self.pending += polled
            raise
        else:
            updated = [(pending, pending.update(rows.get(pending.id), longest)) for pending in polled]
        pauses = {pending: pause for pending, pause in updated if pause is not None}
        self.pending += pauses
        pause = min(pauses.values(), default=0.0)
        self._waiter.request_listener(pause)
        return pause


class WaitingCaller(Protocol):
    """A caller that waits for a run: a thread, or the follower of a stream."""

    id: str

    def wake(self, row: Row | None = None) -> None:
        """Make it take this outcome, or read the run again if that isn't known. From any thread."""


class WaitingThread:
    """A thread that waits for a run. It polls itself and pauses in between."""

    __slots__ = ("_backoff", "_waiter", "_wake", "id", "outcome")

    def __init__(self, id: UUID, backoff: PollBackoff, waiter: ResultWaiter) -> None:
        self.id = str(id)
        self.outcome: Row | None = None
        """How the run ended, if a local worker has reported it."""
        self._backoff = backoff
        self._waiter = waiter
        self._wake = threading.Event()

    def pause(self, state: str) -> None:
        """Sleep until the next poll of the run, which was last seen in this state."""
        self._sleep(self._backoff.pause(state, self._waiter.max_interval()))

    def pause_after_failure(self, error: StoreUnavailable) -> None:
        """Sleep until the next poll after one that failed, or raise."""
        self._sleep(self._backoff.pause_after_failure(error, self._waiter.max_interval()))

    def needs_poll(self) -> bool:
        """Return whether to read the run now: at first not while a local worker executes it, which reports its end."""
        return not (self._backoff.is_short and self._waiter.is_claimed_here(self.id))

    def _sleep(self, pause: float) -> None:
        self._waiter.request_listener(pause)
        self._wake.wait(pause)
        self._wake.clear()

    def wake(self, row: Row | None = None) -> None:
        self.outcome = row
        self._wake.set()


class CompletionListener:
    """Listens for completions of one store's runs in other processes, on demand.

    It starts when a caller has waited for a moment and stops a few seconds after the last caller. Notifications are
    hints: callers also poll, and poll more often while it isn't active.
    """

    def __init__(self, store: Store, topic: Topic = "completions") -> None:
        self._store = store
        self._topic: Topic = topic
        self._polling_only = store.clock is not database_clock  # Nothing happens while a test's clock stands still.
        self._lock = threading.Lock()
        self._loop: CompletionListenerLoop | None = None
        self._wanted_until = 0.0
        register_fork_hooks(self)

    @property
    def is_listening(self) -> bool:
        """Whether completions are reported at present, as far as this process knows."""
        return self._loop is not None and self._loop.is_listening

    def request(self, seconds: float, on_completion: Callable[[], None]) -> None:
        """Listen for at least this long. `on_completion` is called in another thread."""
        if self._polling_only:
            return
        with self._lock:
            self._wanted_until = max(self._wanted_until, time.monotonic() + seconds + LISTENER_LINGER_S)
            if self._loop is None or self._loop.is_finished:
                self._start(on_completion)

    def _start(self, on_completion: Callable[[], None]) -> None:
        watch = self._store.database.change_listener(self._topic)
        if watch.polling_only:
            self._polling_only = True
            return
        kind = FOLLOWER if self._topic == "chunks" else ""
        self._loop = CompletionListenerLoop(self._store, watch, on_completion, self._is_wanted, kind)
        try:
            self._loop.start()
        except RuntimeError:  # No thread could be started.
            self._loop = None

    def _is_wanted(self, loop: CompletionListenerLoop) -> bool:
        with self._lock:
            self._polling_only = self._polling_only or loop.polling_only
            loop.is_finished = self._polling_only or time.monotonic() >= self._wanted_until
            return not loop.is_finished

    def close(self) -> None:
        """Stop listening until the next request."""
        with self._lock:
            loop, self._loop = self._loop, None
            self._wanted_until = 0.0
        if loop is not None:
            loop.stop(LISTENER_STOP_TIMEOUT_S)

    def before_fork(self) -> None:
        """Do nothing: the child never uses the parent's listener."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # The listener's thread exists only in the parent.
            self._lock, self._loop, self._wanted_until = threading.Lock(), None, 0.0


class ResultWaiter:
    """All coroutines and threads of this process that wait for runs of one store."""

    def __init__(
        self,
        poll: Poll,
        listener: CompletionListener | None = None,
        is_claimed_here: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.poll = poll
        self._listener = listener
        self.is_claimed_here = is_claimed_here
        self.callers: set[WaitingCaller] = set()
        """The callers that wait outside an event loop, or follow streams."""
        self._pollers: dict[asyncio.AbstractEventLoop, LoopPoller] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # A loop keeps only weak references to its tasks.
        register_fork_hooks(self)

    async def wait(self, id: UUID, timeout: Duration | None) -> Row | None:
        """Wait for a run to finish and return its row, or None if it doesn't exist."""
        import asyncio

        loop = asyncio.get_running_loop()
        pending = PendingResult(id, PollBackoff(id, timeout), loop.create_future())
        poller = self._pollers.get(loop)
        if poller is None:
            self._pollers[loop] = poller = LoopPoller(self)
            task = loop.create_task(self._run(loop, poller), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        poller.pending.append(pending)
        poller.awaited.setdefault(pending.id, []).append(pending)
        poller.wake.set()
        try:
            return await pending.future
        finally:
            poller.awaited[pending.id].remove(pending)
            if not poller.awaited[pending.id]:
                del poller.awaited[pending.id]

    async def _run(self, loop: asyncio.AbstractEventLoop, poller: LoopPoller) -> None:
        try:
            await poller.run()
        finally:  # No await since `pending` was empty, so no waiter can be lost.
            self._pollers.pop(loop, None)

    @contextmanager
    def thread(self, id: UUID, timeout: Duration | None) -> Iterator[WaitingThread]:
        """Register the calling thread as waiting. Registered before its first poll, so it misses no notification."""
        thread = WaitingThread(id, PollBackoff(id, timeout), self)
        self.callers.add(thread)
        try:
            yield thread
        finally:
            self.callers.discard(thread)

    def max_interval(self) -> float:
        """Return the longest interval between two polls, given whether a listener is active."""
        is_listening = self._listener is not None and self._listener.is_listening
        return MAX_POLL_INTERVAL_LISTENING_S if is_listening else MAX_POLL_INTERVAL_S

    def request_listener(self, pause: float) -> None:
        """Listen for completions if a caller pauses for this many seconds."""
        if self._listener is not None and pause >= LISTEN_FROM_S:
            self._listener.request(pause, self.on_completion)

    def on_completion(self) -> None:
        """Notify the loops, and wake the other callers whose run has finished. Blocking."""
        for loop, poller in list(self._pollers.items()):
            if not poller.notification_sent:
                poller.notification_sent = True
                with suppress(RuntimeError):  # The loop was closed.
                    loop.call_soon_threadsafe(poller.notify)
        callers = list(self.callers)
        if callers:
            rows = self.poll({caller.id for caller in callers})
            for caller in callers:
                row = rows.get(caller.id)
                if row is None or row[0] in FINAL_STATES:
                    caller.wake()

    def on_local_ends(self, ended: Mapping[str, AttemptEnd | None]) -> None:
        """Hand outcomes to the callers that wait for these runs, because a local worker has ended them.

        From any thread. An end that is None, or doesn't tell the whole outcome, makes them read it.
        """
        for caller in list(self.callers):
            if caller.id in ended:
                caller.wake(_outcome_row(ended[caller.id]))
        for loop, poller in list(self._pollers.items()):
            if found := {run: _outcome_row(end) for run, end in ended.items() if run in poller.awaited}:
                with suppress(RuntimeError):  # The loop was closed.
                    loop.call_soon_threadsafe(poller.take, found)

    def close(self) -> None:
        """Stop listening. Callers that still wait continue by polling."""
        if self._listener is not None:
            self._listener.close()

    def before_fork(self) -> None:
        """Do nothing."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # The waiting threads and loops exist only in the parent.
            self.callers, self._pollers = set(), {}


def _outcome_row(end: AttemptEnd | None) -> Row | None:
    """Return the row that a read of the ended run would return, as far as `RunResults` uses it.

    None if it has to be read: the end doesn't tell it, or the payload is stored in another form.
    """
    if end is None or end.kind not in ("done", "failed") or end.state != end.kind:
        return None
    payload = end.result if end.kind == "done" else end.error
    if payload is None or payload[:1] == "~":
        return None
    return end.state, end.result, end.error, None, None, None


class Finished(NamedTuple):
    """The result of a run that succeeded."""

    result: Any


class RunResults:
    """The results of runs, typed by their tasks."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self.reader = RunReader(store, self.decode_result)
        self.waiter = ResultWaiter(self._outcomes, CompletionListener(store), self._is_claimed_here)

    def decode_result(self, task: str, text: str) -> Any:
        """Decode a result, given as JSON, with the types of its task."""
        return self._registry.decode_result(task, text)

    def _is_claimed_here(self, run: str) -> bool:
        return self._store.is_claimed_here(run)

    def _outcomes(self, ids: Iterable[str]) -> dict[str, Row]:
        return self._store.outcomes.read_many(ids)

    # Results

    def result(self, id: UUID, task: str, timeout: Duration | None) -> Any:
        """Wait in this thread for a run to finish. Returns its result or raises its failure."""
        with self.waiter.thread(id, timeout) as thread:
            while True:
                try:
                    row, thread.outcome = thread.outcome, None
                    if row is None:
                        row = self._store.outcomes.read(str(id)) if thread.needs_poll() else RUNNING
                    seen = self._outcome(id, task, row)
                except StoreUnavailable as error:
                    thread.pause_after_failure(error)
                    continue
                if isinstance(seen, Finished):
                    return seen.result
                self._store.database.reject_wait_in_transaction(f"run {id}")
                thread.pause(seen)

    async def aresult(self, id: UUID, task: str, timeout: Duration | None) -> Any:
        """Wait for a run to finish. Returns its result or raises its failure."""
        row = await self.waiter.wait(id, timeout)
        if self._is_small(row):
            seen = self._outcome(id, task, row)
        else:
            seen = await run_in_thread(self._outcome, id, task, row)
        assert isinstance(seen, Finished)
        return seen.result

    def _is_small(self, row: Row | None) -> bool:
        """Return whether decoding an outcome neither blocks nor takes long."""
        if row is None or row[0] != "done" or row[3] == "graph" or self._store.payloads.rejects_plain:
            return False
        result = row[1]
        return isinstance(result, str) and result[:1] != "~" and len(result) <= MAX_DECODED_ON_LOOP_CHARS

    def _outcome(self, id: UUID, task: str, row: Row | None) -> Finished | str:
        """Return the result, or the state of an unfinished run. Raises if the run failed or was cancelled."""
        if row is None:
            raise RunNotFound.of(id)
        state, result, error, kind, options, tenant = row
        if state not in FINAL_STATES:
            return str(state)
        if state == "done" and kind == "graph":
            return Finished(self.reader.graph_result(str(id), options))
        if state == "done":
            payloads = self._store.payloads
            if result[:1] == "~" or payloads.rejects_plain:
                result = payloads.unpack(result, PayloadContext("result", tenant, str(id)))
            return Finished(self._registry.decode_result(task, result))
        info = error_from_json(error) if error else ErrorInfo("error", state, "")
        if state == "cancelled":
            raise RunCancelled(id, info.message or None)
        raise RunFailed(id, info)
