"""How what the functions of steps returned is read back from its JSON: as the annotated type.

Unlike a task's, these annotations are never refused: where one can't be used, the result is read as plain JSON.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import typing
import weakref
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import TaskError
from holdfast.model.codec import decode, decoder
from holdfast.task.annotations import Unresolved, check, resolve

_AWAITED = (collections.abc.Coroutine, collections.abc.Awaitable)


class StepResult:
    """How the results of one function are read."""

    __slots__ = ("_decoder",)

    def __init__(self, fn: Callable[..., Any]) -> None:
        kind = _kind_of(fn)
        self._decoder = None if kind is Any else decoder(kind)

    def decode(self, text: str) -> Any:
        """What the function returned, as the annotated type, or as plain JSON where it doesn't fit that."""
        if self._decoder is not None:
            try:
                return self._decoder.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                return decode(text)
        return decode(text)


_known: dict[int, tuple[weakref.ref[Callable[..., Any]], StepResult]] = {}
"""By id, with a weak reference that tells whether it is still the same object: looked up for every step."""


def result_of(fn: Callable[..., Any]) -> StepResult:
    """The result of a function, worked out once; of a method once for all objects."""
    key: Callable[..., Any] = getattr(fn, "__func__", fn)
    known = _known.get(id(key))
    if known is not None and known[0]() is key:
        return known[1]
    result = StepResult(fn)
    try:
        place = id(key)
        _known[place] = (weakref.ref(key, lambda _: _known.pop(place, None)), result)
    except TypeError:  # nothing that can be referred to weakly
        pass
    return result


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
