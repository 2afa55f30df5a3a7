"""Methods of test objects as step functions.

A bound method can't be a step without `name=`, because its object isn't part of the step's identity. In tests there is
one object, so `step_function` lets its methods pass for functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class _Call:
    """A call of a method, with the method's name."""

    def __init__(self, method: Callable[..., Any], owner: object) -> None:
        self._method = method
        self._owner = owner
        self.__name__ = method.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._method(self._owner, *args, **kwargs)


class _AsyncCall(_Call):
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._method(self._owner, *args, **kwargs)


class step_function:  # noqa: N801 - a decorator
    """Decorate a method so that its instances have a function of this name instead of a bound method."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self._call = _AsyncCall if inspect.iscoroutinefunction(method) else _Call

    def __get__(self, owner: object, _type: type | None = None) -> Any:
        return self if owner is None else self._call(self._method, owner)
