"""The scope of the running code: a job, the body of a durable function, or one of its steps.

A context variable, so it follows the code into coroutines, asyncio tasks and the threads that Holdfast starts.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

import msgspec

from holdfast.errors import BlockingCall, TaskError
from holdfast.model.interactive import await_hint


class StopFlag(Protocol):
    """What says whether code has to stop."""

    @property
    def requested(self) -> bool: ...


class StopSignal(msgspec.Struct, gc=False):
    """The stop flag of one attempt. A separate object, so that a reference to it doesn't keep the attempt alive."""

    requested: bool = False


class Scope(msgspec.Struct, frozen=True, gc=False):
    """The run that the code belongs to.

    `step` is the key of the current step, or None outside of steps; `step_try` the number of its try in the attempt.
    `part` returns which part of the step runs, if a framework executes several in one step.
    """

    run: str
    durable: bool = False
    generation: int = 0
    stop: StopFlag | None = None
    step: str | None = None
    step_try: int = 1
    part: Callable[[], str | None] | None = None

    @property
    def part_key(self) -> str | None:
        """The key of the step, and behind it what identifies its part."""
        part = None if self.part is None or self.step is None else self.part()
        return self.step if part is None else f"{self.step}/{part}"

    @property
    def in_body(self) -> bool:
        return self.durable and self.step is None


current_scope: ContextVar[Scope | None] = ContextVar("holdfast_scope", default=None)


def idempotency_key() -> str:
    """Return a key for calls to external systems that is the same for every attempt of the current step or job.

    Example:
        ```python
        def charge(order_id: int) -> str:
            return stripe.charge(order_id, idempotency_key=holdfast.idempotency_key())
        ```

    Raises:
        TaskError: Called outside of a run, or in a durable function outside of a step.
    """
    now = current_scope.get()
    if now is None:
        raise TaskError("idempotency_key() was called outside a run: call it in a job or in a step function")
    if now.in_body:
        raise TaskError("idempotency_key() was called outside a step: call it in the function passed to ctx.step(…)")
    if now.step is None:
        return now.run if now.generation == 0 else f"{now.run}~{now.generation}"
    return hashlib.sha256(f"{now.run}/{now.generation}/{now.part_key}".encode()).hexdigest()[:32]


def stop_requested() -> bool:
    """Return whether the calling code should stop.

    True once its run was cancelled, timed out or was lost to another worker, or when the worker stops and its grace
    period has passed. Call it in long loops of `def` tasks and steps, which nothing can interrupt. It also works in a
    thread that was started with a copy of the context (`asyncio.to_thread`) and in a `DaskExecutor`. Always False
    outside a run, in processes of `run_in="process"`, which are killed instead, and in those of other executors.
    """
    now = current_scope.get()
    return now is not None and now.stop is not None and now.stop.requested


def refuse_in_body(verb: str, instead: str) -> None:
    """Raise in the body of a durable function, where a replay would repeat the call."""
    now = current_scope.get()
    if now is not None and now.in_body:
        raise TaskError(f"{verb}() in the body of a durable function would run again at every replay: {instead}")


def reject_in_event_loop(verb: str, instead: str | None = None) -> None:
    """Raise BlockingCall if an event loop runs in this thread, which the call would block.

    asyncio is not imported for that: a process that only enqueues doesn't need it.
    """
    asyncio = sys.modules.get("asyncio.events")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        use = instead or f"use `await …a{verb}(…)`"
        raise BlockingCall(f"{verb}() would block the running event loop; {use}{await_hint()}")
