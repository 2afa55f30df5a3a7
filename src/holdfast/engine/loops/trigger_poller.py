"""Polls triggers, each by one worker at a time, and enqueues what they give, once per key.

The functions of triggers are author code: a plain one runs in a thread, an async one on the event loop. One that takes
longer than its timeout is given up: what it gives after that doesn't count. A thread can't be stopped, so that this
worker polls its trigger again only when it has ended; others may before.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast

from holdfast.engine.loops.base import Loop
from holdfast.engine.services import ClientServices
from holdfast.engine.session import worker_name
from holdfast.errors import ConfigError, KeyConflict, StoreError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.failure import describe_exception, error_to_json
from holdfast.store import Store
from holdfast.store.rows import NewRun
from holdfast.store.schedules import PollResult
from holdfast.task.schedule_registry import ScheduleRegistry, Trigger
from holdfast.task.task import Request
from holdfast.telemetry import log

T = TypeVar("T")

LOOK = 1.0
"""How soon it is noticed what others changed, and that a poll takes too long."""
MARGIN = 15 * MICROS_PER_SECOND
"""How much longer than its timeout a poll has the right to be the only one."""
CHUNK = 100


class GivenUp(Exception):
    """A poll that doesn't count any more."""


class BrokenOff(GivenUp):
    """A poll that isn't to blame: another worker shall make it again at once."""


class Polling:
    """One poll under way, and what has come of it so far."""

    def __init__(self, trigger: Trigger, number: int) -> None:
        self.trigger = trigger
        self.number = number
        self.waiting: list[Any] = []  # what the function gave, and isn't enqueued yet
        self.found = 0
        self.made = 0
        self.refused: Exception | None = None  # why a request can't be enqueued, the first of them
        self.told = False  # what comes of it from here on doesn't count
        self.over = False  # what came of it is on record
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def full(self) -> bool:
        """Whether enough waits to be enqueued."""
        return len(self.waiting) >= CHUNK

    @property
    def left(self) -> float:
        return self.trigger.timeout / MICROS_PER_SECOND - self.seconds

    def take(self) -> list[Any]:
        """What is to be enqueued now."""
        given, self.waiting = self.waiting, []
        return given

    def too_long(self) -> GivenUp:
        return GivenUp(f"it took longer than its timeout, {self.trigger.timeout / MICROS_PER_SECOND:g} s")


class TriggerPoller(Loop):
    """Takes the triggers of this code that are due, and polls each in a thread of its own."""

    name = "poller"

    def __init__(
        self,
        store: Store,
        schedule_registry: ScheduleRegistry,
        client: ClientServices,
        made: Callable[[], None],
        run_in_thread: Callable[[Callable[[], None]], object],
        loop: Callable[[], asyncio.AbstractEventLoop],
    ) -> None:
        super().__init__()
        self._store = store
        self._triggers = schedule_registry.triggers
        self._client = client
        self._made = made
        self._run_in_thread = run_in_thread
        self._loop = loop
        self._id = f"{worker_name()}:{secrets.token_hex(4)}"
        self._under_way: dict[str, Polling] = {}

    @property
    def busy(self) -> bool:
        """Whether a poll is under way that counts."""
        return any(not polling.over for polling in list(self._under_way.values()))

    def tick(self) -> float:
        for polling in list(self._under_way.values()):
            if polling.left <= 0:
                self._end(polling, polling.too_long())
        free = {name: it for name, it in self._triggers.items() if name not in self._under_way}
        left = self._store.triggers.until_next(list(free)) if free else None
        if left is None or left > 0:
            return LOOK if left is None else min(max(left / MICROS_PER_SECOND, 0.001), LOOK)
        wanted = {name: (it.timeout + MARGIN, it.every) for name, it in free.items()}
        taken = self._store.triggers.acquire_due(self._id, wanted)
        for name, number in taken.items():
            self._begin(Polling(self._triggers[name], number))
        return 0.0 if taken else 0.02

    def _begin(self, polling: Polling) -> None:
        name = polling.trigger.name
        self._under_way[name] = polling
        try:
            self._run_in_thread(lambda: self._poll(polling))
        except RuntimeError as error:  # no thread to be had
            self._end(polling, error)
            del self._under_way[name]

    def _poll(self, polling: Polling) -> None:
        """In a thread: the whole of one poll."""
        error: BaseException | None = None
        try:
            self._read(polling)
        except BaseException as raised:  # also of author code that wants to end the process: it isn't its to end
            error = raised
        finally:
            try:
                self._end(polling, error)
            finally:
                del self._under_way[polling.trigger.name]
                self.wake()

    def give_up(self) -> None:
        """The worker stops: what is under way doesn't count any more, and others may poll at once."""
        for polling in list(self._under_way.values()):
            self._end(polling, BrokenOff("its worker stopped"))

    def _end(self, polling: Polling, error: BaseException | None) -> None:
        """Put what came of a poll on record, once. What it gave before counts, also when it ended with an error."""
        if polling.told:
            return
        polling.told = True
        name = polling.trigger.name
        try:
            self._enqueue(polling)
        except StoreError as trouble:
            error = error or trouble
        error = error or polling.refused
        if error is not None:
            log.trigger_failed(name, None if isinstance(error, GivenUp) else error, str(describe_exception(error)))
        said = None if error is None else error_to_json(describe_exception(error))
        result = PollResult(int(polling.seconds * MICROS_PER_SECOND), polling.found, polling.made, said)
        try:
            self._store.triggers.finish_poll(self._id, name, polling.number, result, again=isinstance(error, BrokenOff))
        except StoreError as trouble:  # then its right ends by itself
            log.database_error(f"trigger {name}", trouble)
        finally:
            polling.over = True

    # What a trigger gives

    def _read(self, polling: Polling) -> None:
        """Take what the function gives, and enqueue it, some at a time, while there is time left."""
        given: Any = polling.trigger.fn()
        if inspect.isawaitable(given):
            given = self._on_loop(polling, _awaited(given))
        if isinstance(given, AsyncIterable):
            stream = aiter(given)
            while self._on_loop(polling, _gather(polling, stream)) and not polling.told:
                self._enqueue(polling)
        elif given is not None:
            if isinstance(given, Request) or not isinstance(given, Iterable):
                name = polling.trigger.name
                raise ConfigError(
                    f"trigger {name} gave a {type(given).__name__}: let it yield requests, or return a list"
                )
            for each in given:
                if polling.left <= 0:
                    raise polling.too_long()
                if polling.told:
                    return
                polling.waiting.append(each)
                if polling.full:
                    self._enqueue(polling)

    def _on_loop(self, polling: Polling, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(_kept_in(coroutine), self._loop())
        try:
            value, error = future.result(max(polling.left, 0.0))
        except TimeoutError:
            if future.done():
                raise  # the author's own
            future.cancel()
            raise polling.too_long() from None
        if error is not None:
            raise error
        return cast(T, value)

    # Runs

    def _enqueue(self, polling: Polling) -> None:
        """Make the runs whose keys are new. A request that can't be enqueued, and can't be at any poll, keeps no other
        from it."""
        runs: list[NewRun] = []
        for given in polling.take():
            try:
                runs.append(self._client.new_run(_checked(polling.trigger.name, given)))
            except Exception as error:  # also of a limit's `by`, which is author code
                polling.refused = polling.refused or error
        if not runs:
            return
        polling.found += len(runs)
        try:
            polling.made += self._add(runs)
        except KeyConflict:
            for run in runs:
                try:
                    polling.made += self._add([run])
                except KeyConflict as error:
                    polling.refused = polling.refused or error
        self._made()

    def _add(self, runs: list[NewRun]) -> int:
        ids = self._store.enqueuer.enqueue(runs)
        return sum(run.id == id for run, id in zip(runs, ids, strict=True))


async def _kept_in(coroutine: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """What comes of author code; what would end the whole loop doesn't come out of it."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


async def _awaited(given: Any) -> Any:
    return await given


async def _gather(polling: Polling, stream: AsyncIterator[Any]) -> bool:
    """Take some of a stream; whether there may be more."""
    while not polling.full:
        try:
            polling.waiting.append(await anext(stream))
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
