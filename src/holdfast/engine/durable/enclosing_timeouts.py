"""Reject timeouts of the event loop around durable waits.

`asyncio.timeout` and similar functions set a timer on the event loop. A suspended function leaves memory with its
timers: such a timeout would never fire, or would start over with each replay. So a wait inside one is rejected with
an error that names the wait's own `timeout=`. Around steps, which run in memory, they work as usual.

The event loop reports the timers that the body of a durable function sets. Their callbacks identify them:
`asyncio.timeout` and `timeout_at`, `asyncio.wait_for` and `asyncio.wait`, and the cancel scopes of anyio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, NamedTuple

from holdfast.errors import Fatal
from holdfast.model.step_keys import key_label
from holdfast.task.scope import current_scope

_TIMEOUT_CALLBACKS = {"_on_timeout", "_release_waiter", "_timeout"}
_TIMEOUT_PACKAGES = {"asyncio", "anyio", "async_timeout"}
_MAX_TIMERS = 16
"""When there are this many timers, those that have expired or were cancelled are removed."""


class TimeoutTimer(NamedTuple):
    """A timer of the event loop that cancels the code inside a timeout."""

    handle: asyncio.TimerHandle
    callback: Callable[..., Any]
    args: tuple[Any, ...]

    def encloses(self, task: asyncio.Task[Any]) -> bool:
        """Return whether the timeout would cancel this task."""
        if self.callback.__name__ == "_release_waiter":  # asyncio.wait_for of Python 3.11 creates a task of its own.
            callbacks: Iterable[Any] = getattr(task, "_callbacks", None) or ()
            return any(isinstance(each, partial) and each.args == self.args for each, _ in callbacks)
        owner = getattr(self.callback, "__self__", None)
        return task in (getattr(owner, "_task", None), getattr(owner, "_host_task", None))


enclosing_timers: ContextVar[list[TimeoutTimer] | None] = ContextVar("holdfast_timeouts", default=None)
"""The timeouts that the body of the current attempt has set."""


def pending_timers(timers: list[TimeoutTimer], loop: asyncio.AbstractEventLoop) -> list[TimeoutTimer]:
    """Return the timeouts that haven't expired and whose block hasn't ended."""
    now = loop.time()
    return [timer for timer in timers if not timer.handle.cancelled() and timer.handle.when() > now]


def reject_inside_timeout(wait: str, timers: list[TimeoutTimer], loop: asyncio.AbstractEventLoop) -> None:
    """Reject a wait of the current task inside one of these timeouts; `wait` is its key."""
    task = asyncio.current_task(loop)
    if task is not None and any(timer.encloses(task) for timer in pending_timers(timers, loop)):
        raise enclosing_timeout_error(wait)


def enclosing_timeout_error(key: str) -> Fatal:
    return Fatal(
        f"{key_label(key)}: a durable wait can't be inside asyncio.timeout, asyncio.wait_for or another timeout of the "
        "event loop, which doesn't survive a suspension; pass timeout= to the wait itself (ctx.wait_for, ctx.receive), "
        "or race it against ctx.sleep"
    )


def watch_timers(loop: asyncio.AbstractEventLoop) -> None:
    """Make the event loop report the timeouts that bodies of durable functions set. Idempotent."""
    if getattr(loop, "_holdfast_watched", False):
        return
    with suppress(AttributeError):  # On a loop that can't be patched, a timeout around a wait goes unnoticed.
        loop._holdfast_watched = True  # type: ignore[attr-defined]
        loop.call_at = _reporting_timeouts(loop.call_at)  # type: ignore[assignment, method-assign]
        loop.call_later = _reporting_timeouts(loop.call_later)  # type: ignore[assignment, method-assign]


def _reporting_timeouts(call: Callable[..., asyncio.TimerHandle]) -> Callable[..., asyncio.TimerHandle]:
    @wraps(call)
    def reporting(when: float, callback: Callable[..., Any], *args: Any, **context: Any) -> asyncio.TimerHandle:
        handle = call(when, callback, *args, **context)
        is_timeout = getattr(callback, "__name__", None) in _TIMEOUT_CALLBACKS
        if is_timeout and callback.__module__.partition(".")[0] in _TIMEOUT_PACKAGES:
            timers, current = enclosing_timers.get(), current_scope.get()
            if timers is not None and current is not None and current.in_body:
                if len(timers) >= _MAX_TIMERS:
                    timers[:] = pending_timers(timers, asyncio.get_running_loop())
                timers.append(TimeoutTimer(handle, callback, args))
        return handle

    return reporting
