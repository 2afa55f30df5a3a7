"""From a function to a task: what `@app.task` does, and the types of that decorator. It does no I/O."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.errors import ConfigError, TaskError
from holdfast.model.names import check_name
from holdfast.task.annotations import named
from holdfast.task.context import Context
from holdfast.task.machine import Machine, State
from holdfast.task.options import Declaration, Settings, check_declaration
from holdfast.task.registry import Registry, task_name
from holdfast.task.signature import Signature
from holdfast.task.sync_context import SyncContext
from holdfast.task.task import Enqueuer, RemoteTask, Task, _AsyncDurable, _AsyncTask, _SyncDurable, _SyncTask

P = ParamSpec("P")
S = TypeVar("S", bound=State)
R = TypeVar("R")

_Parameter = inspect.Parameter


class Decorate(Protocol):
    """What `@app.task(...)` returns. The order of the overloads matters."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> _AsyncDurable[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[Concatenate[SyncContext, P], R], /) -> _SyncDurable[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> _AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> _SyncTask[P, R]: ...


def declare(
    fn: Callable[..., Any],
    *,
    enqueuer: Enqueuer,
    registry: Registry,
    name: str | None = None,
    **settings: Unpack[Settings],
) -> Task[..., Any]:
    """Make a task of a function and register it. One that takes a context first is a durable function."""
    _check_function(fn)
    is_async = inspect.iscoroutinefunction(fn)
    durable = _takes_context(fn, is_async)
    if durable and settings.get("run_in") == "process":
        raise ConfigError(
            f"{fn.__qualname__} is a durable function, whose context lives in the worker, so it can't have "
            'run_in="process": put the heavy part into a job with run_in="process", and ctx.call it'
        )
    declaration = check_declaration(task_name(fn) if name is None else name, is_async=is_async, **settings)
    if declaration.run_in == "process" and "<" in fn.__qualname__:
        raise TaskError(f"task {declaration.name}: a process must be able to import it; move it to the module's level")
    task = _KINDS[durable, is_async](declaration, Signature(fn, declaration.name, durable=durable), enqueuer, fn)
    registry.register(task)
    return task


_KINDS: dict[tuple[bool, bool], type[Task[..., Any]]] = {
    (False, False): _SyncTask,
    (False, True): _AsyncTask,
    (True, False): _SyncDurable,
    (True, True): _AsyncDurable,
}


def declare_machine(
    name: str,
    states: tuple[type[S], ...],
    *,
    enqueuer: Enqueuer,
    registry: Registry,
    history: int | None,
    **settings: Unpack[Settings],
) -> Machine[S]:
    """Make a machine of the classes of its states and register it."""
    declaration = check_declaration(check_name(name, "the name of a machine"), is_async=True, **settings)
    if history is not None and (isinstance(history, bool) or not isinstance(history, int) or history < 1):
        raise ConfigError(f"machine {name}: history is how many entries are kept, at least 1, or None, not {history!r}")
    machine = Machine(declaration, states, enqueuer, history)
    registry.register(machine)
    return machine


def declare_remote(name: str, *, enqueuer: Enqueuer, queue: str = "default") -> RemoteTask:
    """A task whose code lives elsewhere. It isn't registered: this app can't run it."""
    checked = check_declaration(name, is_async=False, queue=queue)
    return RemoteTask(Declaration(name=checked.name, queue=checked.queue), enqueuer)


def _check_function(fn: Any) -> None:
    shown = getattr(fn, "__qualname__", None) or repr(fn)
    if isinstance(fn, Task):
        raise TaskError(f"{fn.name} is a task already; to register it twice, register its function: task.fn")
    if inspect.ismethod(fn):
        raise TaskError(f"{shown} is a bound method, and its object can't be kept; make the task a plain function")
    if not inspect.isfunction(fn):
        hint = "; wrap it in a def" if isinstance(fn, functools.partial) or callable(fn) else ""
        raise TaskError(f"a task must be a function, but {shown} is a {type(fn).__name__}{hint}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TaskError(f"{shown} is a generator function; a task returns its result: return a list instead")
    _check_is_no_method(fn, shown)


def _takes_context(fn: Callable[..., Any], is_async: bool) -> bool:
    """Whether the first parameter is annotated with a context. Raises when it isn't the right one, or not the first."""
    durable = False
    for at, parameter in enumerate(inspect.signature(fn).parameters.values()):
        kind = named(fn, parameter.annotation)
        if kind is Context or kind is SyncContext:
            _check_context(fn.__qualname__, at, parameter, kind, is_async)
            durable = True
    return durable


def _check_context(shown: str, at: int, parameter: inspect.Parameter, kind: type, is_async: bool) -> None:
    if at > 0 or parameter.kind not in (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD):
        raise TaskError(
            f"{shown}: the {kind.__name__} must be the first parameter, and only that, but it is {parameter}; "
            "move it to the front"
        )
    if kind is Context and not is_async:
        raise TaskError(
            f"{shown} is a plain def, which can't await: write async def, or annotate {parameter.name} as SyncContext"
        )
    if kind is SyncContext and is_async:
        raise TaskError(
            f"{shown} is an async def, and a SyncContext would block its loop: annotate {parameter.name} as Context"
        )


def _check_is_no_method(fn: Any, shown: str) -> None:
    owner = fn.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(fn).parameters), None)
    if owner and not owner.endswith("<locals>") and first in ("self", "cls"):
        raise TaskError(
            f"{shown} is a method: a task is called without an object, so its parameter {first} can't be filled; "
            f"move it out of the class, or drop {first} and write @staticmethod above @app.task"
        )
