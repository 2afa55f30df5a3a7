"""One call of a function in an executor: picklable, so that it can run in another process or on another machine."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError
from contextvars import Context
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.engine.function_lookup import find
from holdfast.task.scope import Scope, StopFlag, current_scope
from holdfast.task.task import Task
from holdfast.telemetry.log_format import CurrentAttempt, current_attempt


class FunctionPath(NamedTuple):
    """Where a function can be imported from. `file`: that of its module."""

    module: str
    file: str
    qualname: str


Called: TypeAlias = Callable[..., Any] | FunctionPath


class RemoteCall(msgspec.Struct):
    """A function, its arguments, and which run and step it belongs to.

    `nonce` makes each call distinct: an executor must not answer it with the result of an equal one.
    """

    name: str
    function: Called
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    scope: Scope | None
    attempt: CurrentAttempt | None
    nonce: str

    def __repr__(self) -> str:
        return f"<call of {self.name}>"  # without the arguments, which may be secret: executors log it

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a function that its module knows as a task by its path: pickle would find the task by its name.

        A call that stays in this process keeps its function: looking it up might execute a script once more.
        """
        called = self.function
        if not isinstance(called, FunctionPath):
            called = _path_of_task(called) or called
        fields = (self.name, called, self.args, self.kwargs, self.scope, self.attempt, self.nonce)
        return RemoteCall, fields

    def with_stop_flag(self, flag: StopFlag) -> RemoteCall:
        """Return the call with the flag that `holdfast.stop_requested()` reads where it is executed."""
        return self if self.scope is None else replace(self, scope=replace(self.scope, stop=flag))

    def __call__(self) -> Any:
        """Call the function, in the executor."""
        return Context().run(self._run)

    def _run(self) -> Any:
        current_scope.set(self.scope)
        current_attempt.set(self.attempt)
        function = find(*self.function) if isinstance(self.function, FunctionPath) else self.function
        try:
            return function(*self.args, **self.kwargs)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, _AMBIGUOUS):
                raise
            raise RuntimeError(f"the function raised {error!r}") from error


_AMBIGUOUS = (BrokenExecutor, CancelledError, StopIteration)
"""Exceptions that, outside the executor, would mean something else than that the function raised them."""


def remote_call(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> RemoteCall:
    """Return a call of the function for the code that runs now."""
    scope = current_scope.get()
    if scope is not None:
        scope = replace(scope, part=None)
    return RemoteCall(name, function, args, kwargs, scope, current_attempt.get(), uuid.uuid4().hex)


def _path_of_task(function: Callable[..., Any]) -> FunctionPath | None:
    """Return the path of a function that its module knows as a task."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module or "")
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if module is None or not isinstance(found, Task) or found.fn is not function:
        return None
    code = getattr(function, "__code__", None)
    return FunctionPath(module, "" if code is None else code.co_filename, qualname)
