"""Poll triggers, each by one worker at a time, and enqueue the requests that they return, once per key.

The functions of triggers are user code: a plain one runs in a thread, an async one on the event loop. A poll that
takes longer than its timeout is given up; requests that it returns afterwards are ignored. A thread can't be stopped,
so this worker polls that trigger again only when the thread has ended; other workers may poll it earlier.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast

from holdfast.engine.attempt import worker_name
from holdfast.engine.loops.base import Loop
from holdfast.engine.services import ClientServices
from holdfast.errors import ConfigError, KeyConflict, StoreError, TenantMoved
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.failure import describe_exception, error_to_json
from holdfast.store import Store
from holdfast.store.rows import NewRun
from holdfast.store.schedules import PollResult
from holdfast.task.schedule_registry import ScheduleRegistry, Trigger
from holdfast.task.task import Request
from holdfast.telemetry import log

T = TypeVar("T")

POLL_INTERVAL_S = 1.0
"""How soon changes by other processes, and polls that take too long, are noticed."""
LOCK_MARGIN_MICROS = 15 * MICROS_PER_SECOND
"""How much longer than its timeout a poll keeps its lock on the trigger."""
MAX_BATCH_REQUESTS = 100


class PollGivenUp(Exception):
    """The poll was given up; its further requests are ignored."""


class WorkerStopped(PollGivenUp):
    """The worker stopped during the poll; another worker repeats it at once."""


class TriggerPoll:
    """One poll under way, and its results so far."""

    def __init__(self, trigger: Trigger, number: int) -> None:
        self.trigger = trigger
        self.number = number
        self.waiting: list[Any] = []  # returned by the function, not enqueued yet
        self.found = 0
        self.made = 0
        self.refused: Exception | None = None  # why the first rejected request can't be enqueued
        self.closed = False  # further requests are ignored
        self.stored = False  # its result is stored
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def full(self) -> bool:
        """Whether a whole batch waits to be enqueued."""
        return len(self.waiting) >= MAX_BATCH_REQUESTS

    @property
    def left(self) -> float:
        return self.trigger.timeout / MICROS_PER_SECOND - self.seconds

    def take(self) -> list[Any]:
        """Remove and return the requests to be enqueued now."""
        given, self.waiting = self.waiting, []
        return given

    def too_long(self) -> PollGivenUp:
        return PollGivenUp(f"it took longer than its timeout, {self.trigger.timeout / MICROS_PER_SECOND:g} s")


class TriggerPoller(Loop):
    """Locks the triggers of this code that are due, and polls each in a thread of its own."""

    name = "trigger_poller"

    def __init__(
        self,
        store: Store,
        schedule_registry: ScheduleRegistry,
        client: ClientServices,
        on_ready: Callable[[], None],
        run_in_thread: Callable[[Callable[[], None]], object],
        loop: Callable[[], asyncio.AbstractEventLoop],
    ) -> None:
        super().__init__()
        self._store = store
        self._triggers = schedule_registry.triggers
        self._client = client
        self._on_ready = on_ready
        self._run_in_thread = run_in_thread
        self._loop = loop
        self._id = f"{worker_name()}:{secrets.token_hex(4)}"
        self._polls: dict[str, TriggerPoll] = {}

    @property
    def busy(self) -> bool:
        """Whether a poll is under way that wasn't given up."""
        return any(not poll.stored for poll in list(self._polls.values()))

    def tick(self) -> float:
        for poll in list(self._polls.values()):
            if poll.left <= 0:
                self._end(poll, poll.too_long())
        free = {name: it for name, it in self._triggers.items() if name not in self._polls}
        left = self._store.triggers.until_next(list(free)) if free else None
        if left is None or left > 0:
            return POLL_INTERVAL_S if left is None else min(max(left / MICROS_PER_SECOND, 0.001), POLL_INTERVAL_S)
        wanted = {name: (it.timeout + LOCK_MARGIN_MICROS, it.every) for name, it in free.items()}
        taken = self._store.triggers.acquire_due(self._id, wanted)
        for name, number in taken.items():
            self._start(TriggerPoll(self._triggers[name], number))
        return 0.0 if taken else 0.02

    def _start(self, poll: TriggerPoll) -> None:
        name = poll.trigger.name
        self._polls[name] = poll
        try:
            self._run_in_thread(lambda: self._poll(poll))
        except RuntimeError as error:  # no thread could be started
            self._end(poll, error)
            del self._polls[name]

    def _poll(self, poll: TriggerPoll) -> None:
        """Carry out one poll. Runs in a thread."""
        error: BaseException | None = None
        try:
            self._read(poll)
        except BaseException as raised:  # also SystemExit of user code, which must not end the process
            error = raised
        finally:
            try:
                self._end(poll, error)
            finally:
                del self._polls[poll.trigger.name]
                self.wake()

    def give_up(self) -> None:
        """Give up all polls, because the worker stops. Other workers may poll at once."""
        for poll in list(self._polls.values()):
            self._end(poll, WorkerStopped("its worker stopped"))

    def _end(self, poll: TriggerPoll, error: BaseException | None) -> None:
        """Store the result of a poll, once. Requests that it returned before an error are enqueued."""
        if poll.closed:
            return
        poll.closed = True
        name = poll.trigger.name
        try:
            self._enqueue(poll)
        except StoreError as trouble:
            error = error or trouble
        error = error or poll.refused
        if error is not None:
            log.trigger_failed(name, None if isinstance(error, PollGivenUp) else error, str(describe_exception(error)))
        said = None if error is None else error_to_json(describe_exception(error))
        result = PollResult(int(poll.seconds * MICROS_PER_SECOND), poll.found, poll.made, said)
        try:
            self._store.triggers.finish_poll(
                self._id, name, poll.number, result, again=isinstance(error, WorkerStopped)
            )
        except StoreError as trouble:  # then its lock expires by itself
            log.database_error(f"trigger {name}", trouble)
        finally:
            poll.stored = True

    # Requests of a trigger

    def _read(self, poll: TriggerPoll) -> None:
        """Call the function and enqueue its requests in batches, until its timeout."""
        given: Any = poll.trigger.fn()
        if inspect.isawaitable(given):
            given = self._on_loop(poll, _awaited(given))
        if isinstance(given, AsyncIterable):
            stream = aiter(given)
            while self._on_loop(poll, _gather(poll, stream)) and not poll.closed:
                self._enqueue(poll)
        elif given is not None:
            if isinstance(given, Request) or not isinstance(given, Iterable):
                name = poll.trigger.name
                raise ConfigError(
                    f"trigger {name} gave a {type(given).__name__}: let it yield requests, or return a list"
                )
            for each in given:
                if poll.left <= 0:
                    raise poll.too_long()
                if poll.closed:
                    return
                poll.waiting.append(each)
                if poll.full:
                    self._enqueue(poll)

    def _on_loop(self, poll: TriggerPoll, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(_contained(coroutine), self._loop())
        try:
            value, error = future.result(max(poll.left, 0.0))
        except TimeoutError:
            if future.done():
                raise  # raised by the user's code
            future.cancel()
            raise poll.too_long() from None
        if error is not None:
            raise error
        return cast(T, value)

    # Runs

    def _enqueue(self, poll: TriggerPoll) -> None:
        """Create the runs whose keys are new. A request that can't be enqueued doesn't affect the others."""
        runs: list[NewRun] = []
        for given in poll.take():
            try:
                runs.append(self._client.new_run(_checked(poll.trigger.name, given)))
            except Exception as error:  # also raised by a limit's `by`, which is user code
                poll.refused = poll.refused or error
        if not runs:
            return
        poll.found += len(runs)
        try:
            poll.made += self._add(runs)
        except (KeyConflict, TenantMoved):
            for run in runs:
                try:
                    poll.made += self._add([run])
                except (KeyConflict, TenantMoved) as error:
                    poll.refused = poll.refused or error
        self._on_ready()

    def _add(self, runs: list[NewRun]) -> int:
        ids = self._store.enqueuer.enqueue(runs)
        return sum(run.id == id for run, id in zip(runs, ids, strict=True))


async def _contained(coroutine: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """Await user code, and return SystemExit and KeyboardInterrupt, which would end the whole event loop."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


async def _awaited(given: Any) -> Any:
    return await given


async def _gather(poll: TriggerPoll, stream: AsyncIterator[Any]) -> bool:
    """Take a batch from a stream; return whether there may be more."""
    while not poll.full:
        try:
            poll.waiting.append(await anext(stream))
        except StopAsyncIteration:
            return False
    return True


def _checked(trigger: str, request: Any) -> Request[Any]:
    if not isinstance(request, Request):
        raise ConfigError(f"trigger {trigger} gave a {type(request).__name__}: let it yield task.request(…)")
    if request.options.key is None:
        raise ConfigError(
            f"trigger {trigger} gave a request of task {request.task} without a key, by which it is enqueued once: "
            "write task.options(key=…).request(…)"
        )
    if request.options.connection is not None:
        raise ConfigError(f"trigger {trigger}: leave option connection out: what it yields is enqueued by the worker")
    return request
