"""Refuse `asyncio.timeout` and similar timeouts around durable waits.

A timeout of asyncio is a timer of the event loop. When a durable function is suspended it leaves memory, and its timers
with it: such a timeout would never fire, or begin anew with each replay. So a wait inside one is refused, with an error
that names the wait's own `timeout=`. Around steps, which run in memory, they work as always.

The event loop reports the timers that the body of a durable function sets. Their callbacks identify them:
`asyncio.timeout` and `timeout_at`, `asyncio.wait_for` and `asyncio.wait`, and the cancel scopes of anyio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, NamedTuple, TypeAlias

from holdfast.engine import effects as fx
from holdfast.engine.score import Score
from holdfast.errors import Fatal
from holdfast.model.step_keys import key_label
from holdfast.store.commands import Wait
from holdfast.task.current import scope

CALLBACKS = {"_on_timeout", "_release_waiter", "_timeout"}
PACKAGES = {"asyncio", "anyio", "async_timeout"}
MAX_KEPT = 16
"""With this many timers, those that have expired or were cancelled are removed."""

OpenWaits: TypeAlias = Mapping[str, tuple[fx.Await, asyncio.Future[Any]]]


class Timer(NamedTuple):
    """A timer of the event loop that cancels the code of a timeout block."""

    handle: asyncio.TimerHandle
    callback: Callable[..., Any]
    args: tuple[Any, ...]


class EnclosingTimeouts:
    """The timeouts that the body of one attempt has set."""

    __slots__ = ("_loop", "_timers")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: list[Timer] = []
        timeouts.set(self)

    def add(self, timer: Timer) -> None:
        if len(self._timers) >= MAX_KEPT:
            self._timers = self.pending()
        self._timers.append(timer)

    def pending(self) -> list[Timer]:
        """Return the timeouts that haven't expired and whose block hasn't ended."""
        now = self._loop.time()
        return [timer for timer in self._timers if not timer.handle.cancelled() and timer.handle.when() > now]

    def check(self, wait: Wait, score: Score) -> None:
        """Refuse a wait of the current task inside a timeout."""
        if self._timers:
            task = asyncio.current_task(self._loop)
            if task is not None and any(_encloses(timer, task) for timer in self.pending()):
                score.unused(wait.n)
                raise refusal(wait.key)

    def refuse(self, waits: OpenWaits, withdraw: Callable[[fx.Effect], None]) -> bool:
        """Fail all waits if a timeout is pending while the run does nothing but wait; return whether it is."""
        if not self.pending():
            return False
        for key, (effect, future) in list(waits.items()):
            withdraw(effect)
            if not future.done():
                future.set_exception(refusal(key))
        return True


timeouts: ContextVar[EnclosingTimeouts | None] = ContextVar("holdfast_timeouts", default=None)


def refusal(key: str) -> Fatal:
    return Fatal(
        f"{key_label(key)}: a durable wait can't be inside asyncio.timeout, asyncio.wait_for or another timeout of the "
        "event loop, which doesn't survive a suspension: give the wait itself a timeout=… (ctx.wait_for, ctx.receive), "
        "or let it race with ctx.sleep"
    )


def _encloses(timer: Timer, task: asyncio.Task[Any]) -> bool:
    """Return whether the task is what the timeout would cancel."""
    if timer.callback.__name__ == "_release_waiter":  # asyncio.wait_for of Python 3.11 waits for a task of its own
        callbacks = getattr(task, "_callbacks", None) or ()
        return any(isinstance(each, partial) and each.args == timer.args for each, _ in callbacks)
    owner = getattr(timer.callback, "__self__", None)
    return task in (getattr(owner, "_task", None), getattr(owner, "_host_task", None))


def watch_timers(loop: asyncio.AbstractEventLoop) -> None:
    """Make the loop report the timeouts that bodies of durable functions set. Does nothing the second time."""
    if getattr(loop, "_holdfast_watched", False):
        return
    with suppress(AttributeError):  # a loop that can't be changed: there a timeout around a wait isn't noticed
        loop._holdfast_watched = True  # type: ignore[attr-defined]
        loop.call_at = _watched(loop.call_at)  # type: ignore[assignment, method-assign]
        loop.call_later = _watched(loop.call_later)  # type: ignore[assignment, method-assign]


def _watched(call: Callable[..., asyncio.TimerHandle]) -> Callable[..., asyncio.TimerHandle]:
    @wraps(call)
    def watched(when: float, callback: Callable[..., Any], *args: Any, **context: Any) -> asyncio.TimerHandle:
        handle = call(when, callback, *args, **context)
        if getattr(callback, "__name__", None) in CALLBACKS and callback.__module__.partition(".")[0] in PACKAGES:
            known, now = timeouts.get(), scope.get()
            if known is not None and now is not None and now.in_body:
                known.add(Timer(handle, callback, args))
        return handle

    return watched
