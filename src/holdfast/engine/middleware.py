"""Middleware: functions of the application around attempts and steps, `@app.middleware`.

Each middleware gets a `Call` and returns what the code returned. Code that runs on the event loop is wrapped in a
coroutine. A `def` task or step is wrapped in its own thread, without an event loop: there, `await call()` of an `async
def` middleware executes the code at once, and nothing else can be awaited. Without middleware, nothing is wrapped.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import ConfigError, TaskError
from holdfast.task.operations import FunctionCall

Middleware: TypeAlias = Callable[["Call"], Any]

O = TypeVar("O", bound=FunctionCall)  # noqa: E741


class Call:
    """An attempt of a run, or a call of one of its steps, as middleware sees it. `await call()` executes it.

    Attributes:
        task: The name of the task.
        run_id: The run's id.
        attempt: The number of the attempt.
        step: The name of the step; None for the attempt itself.
    """

    __slots__ = ("_awaits", "_next", "_on_loop", "attempt", "run_id", "step", "task")

    def __init__(self, task: str, run_id: UUID, attempt: int, step: str | None = None) -> None:
        self.task = task
        self.run_id = run_id
        self.attempt = attempt
        self.step = step
        self._next: Callable[[], Any] = _nothing
        self._on_loop = False
        self._awaits = False

    def __call__(self) -> Any:
        """Execute the code, and return its result: awaitable in an `async def` middleware and around async code."""
        if self._on_loop:
            return _awaited(self._next)
        value = self._next()
        return _ready(value) if self._awaits else value

    def __repr__(self) -> str:
        return f"<call of {self.task if self.step is None else f'step {self.step} of {self.task}'}, run {self.run_id}>"

    def around(self, middleware: Middleware, inner: Callable[[], Any], on_loop: bool) -> Callable[[], Any]:
        """Return a function that calls a middleware around `inner`."""
        call = copy.copy(self)
        call._next = inner
        call._on_loop = on_loop
        call._awaits = inspect.iscoroutinefunction(middleware)
        if on_loop or not call._awaits:
            return functools.partial(middleware, call)
        return lambda: _run_in_thread(middleware(call), middleware)


def check_middleware(middleware: Any) -> Middleware:
    """Return the function if it can be middleware."""
    if not callable(middleware) or inspect.isclass(middleware) or inspect.isasyncgenfunction(middleware):
        raise ConfigError(f"@app.middleware takes a function of a Call, not {middleware!r}")
    checked: Middleware = middleware
    return checked


def wrap_operation(operation: O, middleware: Sequence[Middleware], call: Call) -> O:
    """Return a step or transaction whose function has the middleware around it."""
    on_loop = operation.function_info.is_async
    return replace(operation, fn=wrap_function(operation.fn, middleware, call, on_loop=on_loop))


def wrap_function(
    fn: Callable[..., Any], middleware: Sequence[Middleware], call: Call, *, on_loop: bool
) -> Callable[..., Any]:
    """Return a function of the same kind as `fn`, with the middleware around it, the first one outermost."""

    def chained(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        inner: Callable[[], Any] = functools.partial(fn, *args, **kwargs)
        for each in reversed(middleware):
            inner = call.around(each, inner, on_loop)
        return inner

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return chained(args, kwargs)()

    async def wrapped_async(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(chained(args, kwargs))

    return functools.update_wrapper(wrapped_async if on_loop else wrapped, fn)


async def _awaited(call: Callable[[], Any]) -> Any:
    value = call()
    return await value if inspect.isawaitable(value) else value


def _nothing() -> None:
    """Do nothing: this call isn't around anything yet."""


async def _ready(value: Any) -> Any:
    return value


def _run_in_thread(coroutine: Coroutine[Any, Any, Any], middleware: Middleware) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    name = getattr(middleware, "__qualname__", repr(middleware))
    raise TaskError(f"the middleware {name} awaits more than call() around a `def` task or step: write it as a `def`")
