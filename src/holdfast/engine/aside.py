"""Blocking calls of the worker itself, each in a thread of its own: awaited, not in the loop's pool, which author code
may have filled; or waited for to the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def aside(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a blocking call beside the loop and wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        set_outcome: Callable[[Any], None] = future.set_result
        try:
            outcome: Any = call(*args, **kwargs)
        except StopIteration as error:  # which no future can carry
            set_outcome, outcome = future.set_exception, RuntimeError(f"{call} raised {error!r}")
        except BaseException as error:
            set_outcome, outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, set_outcome, outcome)

    threading.Thread(target=run, name="holdfast-aside", daemon=True).start()
    return await future


def beside(call: Callable[[], T]) -> Future[T]:
    """Start a blocking call in a thread and return its future. Cancelling the future doesn't stop the thread."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            outcome = call()
        except BaseException as error:
            with suppress(InvalidStateError):  # cancelled
                ended.set_exception(error)
        else:
            with suppress(InvalidStateError):
                ended.set_result(outcome)

    threading.Thread(target=run, name="holdfast-aside", daemon=True).start()
    return ended


def to_the_end(call: Callable[[], None], hurry: Callable[[], None]) -> None:
    """Wait for a blocking call, also when a signal interrupts us: that hurries the call, and is raised after it."""
    ended = beside(call)
    interrupted: BaseException | None = None
    while not ended.done():
        try:
            ended.exception()
        except BaseException as error:
            interrupted = error
            hurry()
    if interrupted is not None:
        raise interrupted
    ended.result()
