"""Runs the author's functions of one attempt on the event loop, or in threads beside it: the calls of its steps."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.engine.desk import Desk
from holdfast.engine.effects import Tried
from holdfast.engine.loop import FIRST_PAUSE
from holdfast.engine.past import Past
from holdfast.engine.trying import TookTooLong, Tries, returned
from holdfast.errors import StoreUnavailable
from holdfast.model.clock import SECOND
from holdfast.task.current import Scope, scope
from holdfast.task.functions import is_async
from holdfast.task.operations import Step

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

LOOK = 0.005


class Caller(Protocol):
    """Who has steps run. Given with each of them, not kept: the two would have each other, and only the garbage
    collector could free them."""

    def begin(self) -> None: ...

    def finish(self) -> None: ...

    def given_up(self, key: str, tried: Tried) -> None:
        """What came of a step that has an undo, and whose thread went on when its caller was cancelled."""


class Calls:
    """The calls of one attempt's steps. A thread can't be stopped: `threads` counts them until they end."""

    __slots__ = ("_attempt", "_desk", "_generation", "_loop", "_past", "_run", "threads")

    def __init__(self, attempt: Attempt, past: Past, desk: Desk, loop: asyncio.AbstractEventLoop) -> None:
        self._attempt = attempt
        self._run = attempt.claim.id
        self._generation = attempt.claim.generation
        self._past = past
        self._desk = desk
        self._loop = loop
        self.threads = 0

    def _scope(self, key: str) -> Scope:
        return Scope(self._run, True, self._generation, self._past.tried_as(key))

    async def run_in_thread(self, call: Callable[[], Any], key: str) -> Any:
        """A plain function as part of a step."""
        token = scope.set(self._scope(key))
        try:
            return await self.in_thread(call)
        finally:
            scope.reset(token)

    async def run(self, caller: Caller, step: Step, key: str) -> Tried:
        """A step with its retries."""
        tries: Tries | None = None
        under_way = None if is_async(step.call.fn) else UnderWay()
        started = time.monotonic()
        token = scope.set(self._scope(key))
        caller.begin()
        call = step.call
        try:
            while True:
                try:
                    if under_way is None and step.timeout is None:
                        value = await call.fn(*call.args, **call.kwargs)
                    else:
                        value = await self._call(step, under_way)
                    tried: Tried | float = returned(call, value)
                except (Exception, SystemExit, KeyboardInterrupt) as error:  # the last two would end the whole loop
                    tries = tries or Tries(call, step.retry, step.timeout)
                    tried = tries.failed(error)
                if isinstance(tried, Tried):
                    tried.took = int((time.monotonic() - started) * SECOND)
                    return tried
                await asyncio.sleep(tried)
                while (
                    under_way is not None and under_way.threads
                ):  # one that outlived its timeout: two tries of a step never run at once
                    await asyncio.sleep(LOOK)
        except asyncio.CancelledError:
            if step.undo is not None and under_way is not None and under_way.threads:
                under_way.result = partial(_came_late, caller, step, key)
            raise
        finally:
            caller.finish()
            scope.reset(token)

    def _call(self, step: Step, under_way: UnderWay | None) -> Coroutine[Any, Any, Any]:
        """The function as a coroutine; `under_way` is for the threads of a plain one."""
        call = step.call
        coroutine: Coroutine[Any, Any, Any]
        if under_way is None:
            coroutine = call.fn(*call.args, **call.kwargs)
        else:
            coroutine = self._in_thread_or_awaited(partial(call.fn, *call.args, **call.kwargs), under_way)
        return coroutine if step.timeout is None else _within(step.timeout / SECOND, coroutine)

    async def _in_thread_or_awaited(self, call: Callable[[], Any], under_way: UnderWay) -> Any:
        value = await self.in_thread(call, under_way)
        return await value if inspect.isawaitable(value) else value  # a plain wrapper around an async function

    async def in_thread(self, call: Callable[[], Any], under_way: UnderWay | None = None) -> Any:
        """A plain function in a thread of the worker's."""
        counted = under_way or UnderWay()
        done: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()

        def finish(value: Any, error: BaseException | None) -> None:
            counted.threads -= 1
            if error is None and counted.result is not None:
                counted.result(value)
            self._ended()
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        def work() -> None:
            value, error = None, None
            try:
                value = context.run(call)
            except StopIteration as stop:  # which a future doesn't take
                error = RuntimeError(f"the function raised {stop!r}")
            except BaseException as raised:
                error = raised  # type: ignore[assignment]
            self._loop.call_soon_threadsafe(finish, value, error)

        self.threads += 1
        counted.threads += 1
        try:
            self._desk.run_in_thread(work)
        except BaseException:
            counted.threads -= 1
            self.threads -= 1
            raise
        return await done

    async def look(self, read: Callable[[], Any]) -> Any:
        """A blocking look at the database. One that isn't there just now is waited for: author code would take the
        trouble for its own, and a replay show it something else."""
        while True:
            try:
                return await self.in_thread(read)
            except StoreUnavailable:
                await asyncio.sleep(FIRST_PAUSE)

    def _ended(self) -> None:
        self.threads -= 1
        if self.threads == 0 and self._attempt.threads_over is not None:
            self._attempt.threads_over()


def _came_late(caller: Caller, step: Step, key: str, value: Any) -> None:
    caller.given_up(key, returned(step.call, value))


class UnderWay:
    """The threads of one step."""

    __slots__ = ("result", "threads")

    def __init__(self) -> None:
        self.threads = 0
        self.result: Callable[[Any], None] | None = None


async def _within(seconds: float, coroutine: Coroutine[Any, Any, Any]) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as error:
        if limit.expired():
            raise TookTooLong from error
        raise
