"""Inspect the functions that users pass to a context: whether they are usable, their names, their result types.

Unlike those of a task, the annotations of a step function are never rejected: a result that can't be decoded as the
annotated type is returned as plain JSON.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import sys
import typing
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import msgspec

from holdfast.errors import ConfigError, TaskError
from holdfast.model.codec import decode_value, decoder, restore_secrets
from holdfast.model.names import MAX_NAME_CHARS, check_name
from holdfast.task.annotations import Unresolved, check, resolve
from holdfast.task.resources import injections_of
from holdfast.task.task import Task

WRAPPED_FUNCTION = "__holdfast_function__"
"""The attribute of a wrapper that names the function which identifies its steps."""

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def plain_function(verb: str, fn: Any) -> Callable[..., Any]:
    """Return the function to call; for a task, its function. `verb` is the context method, for messages."""
    if type(fn) is not FunctionType:
        if isinstance(fn, Task):
            fn = _function_of(verb, fn)
        if not callable(fn):
            raise _no_function(verb, fn)
        if not hasattr(fn, "__code__"):
            return fn  # type: ignore[no-any-return]
    if fn.__code__.co_flags & _GENERATORS:
        raise TaskError(f"ctx.{verb}: {shown(fn)} is a generator function: return a list instead")
    return fn  # type: ignore[no-any-return]


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether calling it returns a coroutine."""
    if type(fn) is FunctionType and fn.__code__.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


def refuse_async(verb: str, fn: Callable[..., Any], instead: str) -> None:
    if is_async(fn):
        raise TaskError(f"ctx.{verb}: {shown(fn)} is an async def: {instead}")


@functools.lru_cache(maxsize=1024)
def given_name(name: str) -> str:
    """Check an explicit step name."""
    if check_name(name, "the name of a step").startswith("$"):
        raise ConfigError(f"the name of a step must not start with $, which is reserved: {name!r}")
    return name


def own_name(verb: str, fn: Callable[..., Any]) -> str:
    """Return the name of a function. Steps of lambdas, closures and bound methods need an explicit `name=`."""
    can_name = verb in ("step", "transaction")
    fn = getattr(fn, WRAPPED_FUNCTION, fn)
    name = getattr(fn, "__name__", None)
    if isinstance(fn, functools.partial) or not isinstance(name, str):
        raise _nameless(verb, f"a {type(fn).__name__} has no name", can_name=can_name)
    if name == "<lambda>":
        raise _nameless(verb, "a lambda has no name", can_name=can_name)
    if can_name:
        _check_identity(verb, name, fn)
    if name.isidentifier() and len(name) <= MAX_NAME_CHARS:
        return name
    return given_name(name)


def _check_identity(verb: str, name: str, fn: Any) -> None:
    """Reject functions that depend on more than their arguments."""
    owner = getattr(fn, "__self__", None)
    if owner is not None and not isinstance(owner, type | ModuleType):
        raise _nameless(verb, f"{name} is a method of a {type(owner).__name__} object", can_name=True, name=name)
    if _is_closure(fn):
        captured = ", ".join(fn.__code__.co_freevars)
        raise _nameless(verb, f"the function {name} is a closure over {captured}", can_name=True, name=name)


def shown(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def _function_of(verb: str, task: Task[..., Any]) -> Callable[..., Any]:
    if task.durable:
        raise TaskError(f"ctx.{verb}: {task.name} is a durable function: use ctx.call(task, …)")
    if task.fn is None:
        raise TaskError(f"ctx.{verb}: the code of {task.name} is in another application: use ctx.call(task, …)")
    return task.fn


def _no_function(verb: str, given: Any) -> TaskError:
    if inspect.iscoroutine(given):
        given.close()
        return TaskError(
            f"ctx.{verb} takes a function and its arguments, not a coroutine: write ctx.{verb}({given.__name__}, …)"
        )
    return TaskError(f"ctx.{verb} takes a function and its arguments, not {type(given).__name__}")


def _nameless(verb: str, why: str, *, can_name: bool, name: str | None = None) -> TaskError:
    if can_name:
        example = "…" if name is None else f'"{name}"'
        return TaskError(
            f"ctx.{verb}: {why}: set name={example}. A {verb} is identified by its name and arguments; captured values "
            "and the object of a method are not part of that"
        )
    return TaskError(f"ctx.{verb}: {why}: write it as a def, and pass what it needs as arguments")


def _is_closure(fn: Any) -> bool:
    """Return whether it captures values. A decorated function that its module holds by name doesn't count."""
    fn = getattr(fn, "__func__", fn)
    if getattr(fn, "__closure__", None) is None or fn.__code__.co_freevars == ("__class__",):  # Captured by super().
        return False
    found: Any = sys.modules.get(fn.__module__)
    for part in fn.__qualname__.split("."):
        found = getattr(found, part, None)
    return not (found is fn or (isinstance(found, Task) and found.fn is fn))


# Cached facts about a function

STEP_OPTIONS = frozenset(("name", "retry", "timeout", "undo"))
_AWAITED = (collections.abc.Coroutine, collections.abc.Awaitable)


class FunctionInfo:
    """Facts about a function, computed once.

    `name` is the default name of its steps, or None if they need one. `option_like_names` are those of its variables,
    possibly parameters, that are named like step options. `injections` are its parameters that receive resources.
    """

    __slots__ = ("_decode", "injections", "is_async", "name", "option_like_names")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.injections = injections_of(fn, f"step {shown(fn)}")
        self._decode = decoder(_kind_of(fn)).decode
        self.is_async = is_async(fn)
        code = getattr(fn, "__code__", None)
        self.option_like_names = STEP_OPTIONS.intersection(() if code is None else code.co_varnames)
        try:
            self.name: str | None = own_name("step", fn)
        except (TaskError, ConfigError):
            self.name = None

    def decode(self, text: str) -> Any:
        """Decode a stored result as the annotated type, or as plain JSON if it doesn't match."""
        try:
            value = self._decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return decode_value(text)
        # Checked here, too, because the call of a function would cost more than the check (bench: steps).
        return value if "$" not in text and "\\" not in text else restore_secrets(value, text)


_known: dict[weakref.ref[Callable[..., Any]], FunctionInfo] = {}
"""Looked up for every step. Not by `id()`, which is slow once there is an audit hook, as on SQLite (bench: steps)."""


def cached_info(fn: Any) -> FunctionInfo | None:
    """Return the cached info of a function, if any."""
    try:
        return _known.get(weakref.ref(fn))
    except TypeError:  # It supports no weak references, or isn't hashable.
        return None


def inspect_function(fn: Callable[..., Any]) -> FunctionInfo:
    """Return the info of a function. The methods of all instances of a class share one."""
    found = cached_info(fn)
    if found is not None:
        return found
    if isinstance(fn, MethodType):
        return inspect_function(fn.__func__)
    info = FunctionInfo(fn)
    with contextlib.suppress(TypeError):
        _known[weakref.ref(fn, _forget)] = info
    return info


def _forget(reference: weakref.ref[Callable[..., Any]]) -> None:
    _known.pop(reference, None)


def _kind_of(fn: Callable[..., Any]) -> Any:
    """Return the type of the function's result, awaited if it is async, or Any if it can't be decoded."""
    plain = _annotated(fn)
    annotation = plain if isinstance(plain, type) else getattr(plain, "__annotations__", {}).get("return", Any)
    try:
        kind = _awaited(resolve(plain, annotation))
        if kind is not Any:
            check("", annotation, kind)
    except (Unresolved, TaskError):
        return Any
    return kind


def _annotated(fn: Any) -> Any:
    """Return the function that carries the annotations: behind partials, or `__call__` of an object."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type) or inspect.isroutine(fn):
        return fn
    return getattr(type(fn), "__call__", fn)  # noqa: B004


def _awaited(kind: Any) -> Any:
    """Unwrap the result type of a plain def that is annotated to return a coroutine."""
    if typing.get_origin(kind) in _AWAITED:
        return typing.get_args(kind)[-1]
    return kind
