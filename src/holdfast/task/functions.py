"""The functions that authors give to a context: which can be used, what they are called, whether they are awaited."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from holdfast.errors import ConfigError, TaskError
from holdfast.model.names import MAX_NAME_CHARS, check_name
from holdfast.task.task import Task

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def plain_function(verb: str, fn: Any) -> Callable[..., Any]:
    """What to call; of a task its function. `verb` is the context's, for messages."""
    if type(fn) is not FunctionType:
        if isinstance(fn, Task):
            fn = _function_of(verb, fn)
        if not callable(fn):
            raise _no_function(verb, fn)
        if not hasattr(fn, "__code__"):
            return fn  # type: ignore[no-any-return]
    if fn.__code__.co_flags & _GENERATORS:
        raise TaskError(f"ctx.{verb}: {shown(fn)} is a generator function; let it return a list instead")
    return fn  # type: ignore[no-any-return]


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    if type(fn) is FunctionType and fn.__code__.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


def refuse_async(verb: str, fn: Callable[..., Any], instead: str) -> None:
    if is_async(fn):
        raise TaskError(f"ctx.{verb}: {shown(fn)} is an async def; {instead}")


@functools.lru_cache(maxsize=1024)
def given_name(name: str) -> str:
    """A name that the author chose for a step."""
    if check_name(name, "the name of a step").startswith("$"):
        raise ConfigError(f"the name of a step must not start with $, which marks our own, but is {name!r}")
    return name


def own_name(verb: str, fn: Callable[..., Any]) -> str:
    """The name that a function has by itself. Where `name=` can be given, functions with captured values need it."""
    can_name = verb == "step"
    name = getattr(fn, "__name__", None)
    if isinstance(fn, functools.partial) or not isinstance(name, str):
        raise _nameless(verb, f"a {type(fn).__name__} has no name of its own", can_name)
    if name == "<lambda>":
        raise _nameless(verb, "a lambda has no name of its own", can_name)
    if can_name and _is_closure(fn):
        captured = ", ".join(fn.__code__.co_freevars)
        raise _nameless(verb, f"the function {name} captures values from around it ({captured})", can_name)
    if name.isidentifier() and len(name) <= MAX_NAME_CHARS:
        return name
    return given_name(name)


def shown(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def _function_of(verb: str, task: Task[..., Any]) -> Callable[..., Any]:
    if task.durable:
        raise TaskError(f"ctx.{verb}: {task.name} is a durable function with steps of its own: write ctx.call(task, …)")
    if task.fn is None:
        raise TaskError(f"ctx.{verb}: the code of {task.name} lives elsewhere: write ctx.call(task, …)")
    return task.fn


def _no_function(verb: str, given: Any) -> TaskError:
    if inspect.iscoroutine(given):
        given.close()
        return TaskError(
            f"ctx.{verb} takes a function and its arguments, not the call: write ctx.{verb}({given.__name__}, …)"
        )
    return TaskError(f"ctx.{verb} takes a function and its arguments, but got a {type(given).__name__}")


def _nameless(verb: str, why: str, can_name: bool) -> TaskError:
    if can_name:
        return TaskError(
            f"ctx.{verb}: {why}: give the step a name=… that says which it is. A step is known by its name and its "
            "arguments; what the function captured isn't part of that"
        )
    return TaskError(f"ctx.{verb}: {why}: write it as a def, and give it what it needs as arguments")


def _is_closure(fn: Any) -> bool:
    """Whether it was made with values of its own. What its module has under its name, as with a decorator, was not."""
    fn = getattr(fn, "__func__", fn)
    if getattr(fn, "__closure__", None) is None or fn.__code__.co_freevars == ("__class__",):  # that is super()'s
        return False
    found: Any = sys.modules.get(fn.__module__)
    for part in fn.__qualname__.split("."):
        found = getattr(found, part, None)
    return not (found is fn or (isinstance(found, Task) and found.fn is fn))
