"""What is to be known of a function that an author gives to a context, worked out once: whether it is awaited, and how
what it returned is read back from its JSON, as the annotated type.

Unlike a task's, these annotations are never refused: where one can't be used, the result is read as plain JSON.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import typing
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import msgspec

from holdfast.errors import ConfigError, TaskError
from holdfast.model.codec import decode, decoder
from holdfast.task.annotations import Unresolved, check, resolve
from holdfast.task.functions import is_async, own_name

STEP_OPTIONS = frozenset(("name", "retry", "timeout", "undo"))
_AWAITED = (collections.abc.Coroutine, collections.abc.Awaitable)


class Callee:
    """One function. `name` is what a step of it is called by itself, None where it must be given one; `like_options`
    are those of its variables that are named like options of steps, perhaps as parameters."""

    __slots__ = ("_decoder", "awaited", "like_options", "name")

    def __init__(self, fn: Callable[..., Any]) -> None:
        kind = _kind_of(fn)
        self._decoder = None if kind is Any else decoder(kind)
        self.awaited = is_async(fn)
        code = getattr(fn, "__code__", None)
        self.like_options = STEP_OPTIONS.intersection(() if code is None else code.co_varnames)
        try:
            self.name: str | None = own_name("step", fn)
        except (TaskError, ConfigError):
            self.name = None

    def decode(self, text: str) -> Any:
        """What the function returned, as the annotated type, or as plain JSON where it doesn't fit that."""
        if self._decoder is not None:
            try:
                return self._decoder.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                return decode(text)
        return decode(text)


_known: dict[int, tuple[weakref.ref[Callable[..., Any]], Callee]] = {}
"""By id, with a weak reference that tells whether it is still the same object: looked up for every step."""


def known(fn: Any) -> Callee | None:
    """What is known of a function by now."""
    found = _known.get(id(fn))
    return found[1] if found is not None and found[0]() is fn else None


def callee_of(fn: Callable[..., Any]) -> Callee:
    """What is known of a function; of a method once for all objects."""
    found = known(fn)
    if found is not None:
        return found
    if isinstance(fn, MethodType):
        return callee_of(fn.__func__)
    callee = Callee(fn)
    place = id(fn)
    with contextlib.suppress(TypeError):  # nothing that can be referred to weakly
        _known[place] = (weakref.ref(fn, lambda _: _known.pop(place, None)), callee)
    return callee


def _kind_of(fn: Callable[..., Any]) -> Any:
    """The type of what the function gives in the end; Any where nothing is known that JSON can be read as."""
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
    """Where the annotation stands: behind partial calls, or at the method that makes an object callable.
    Calling a class gives an object of it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type) or inspect.isroutine(fn):
        return fn
    return getattr(type(fn), "__call__", fn)  # noqa: B004


def _awaited(kind: Any) -> Any:
    """Of a plain def that is annotated to return a coroutine: what that gives."""
    if typing.get_origin(kind) in _AWAITED:
        return typing.get_args(kind)[-1]
    return kind
