"""Finding what in a value can't be kept as JSON, and where. Slow and exact: called only when something seems wrong.

The fast path, which decides whether to look, is in `codec.py`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from holdfast.model.names import type_name

MAX_DEPTH = 200
MAX_DIGITS = 4000  # Python reads 4300 by default, the sign of a negative one included

PYDANTIC_MASK = "**********"
"""What pydantic writes for the secrets in a model."""

_TOO_DEEP = f"nesting deeper than {MAX_DEPTH} levels"
_TOO_LONG = 10**MAX_DIGITS
_LONGEST_PATH = 200
_ATOMS = (str, int, float)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong in a value, and where."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.problem} at `{self.path}`"


class _Place:
    """A value with the way that led to it; the path is spelled out only for the one that is at fault."""

    __slots__ = ("depth", "parent", "step", "value")

    depth: int

    def __init__(self, value: Any, parent: _Place | None, step: str) -> None:
        self.value = value
        self.parent = parent
        self.step = step
        self.depth = 1 if parent is None else parent.depth + 1

    def path(self) -> str:
        steps: list[str] = []
        place: _Place | None = self
        while place is not None:
            steps.append(place.step)
            place = place.parent
        path = "".join(reversed(steps))
        return path if len(path) <= _LONGEST_PATH else path[:_LONGEST_PATH] + "…"


def find_problem(value: Any, replace: Callable[[Any], Any]) -> Problem | None:
    """The first flaw of a value, or None. `replace` gives what stands for an object of an unknown type."""
    places = [_Place(value, None, "$")]
    while places:
        place = places.pop()
        inner: list[_Place] = []
        problem = _TOO_DEEP if place.depth > MAX_DEPTH + 1 else _look(place, inner, replace)
        if problem is not None:
            return Problem(place.path(), problem)
        places.extend(reversed(inner))
    return None


def find_pydantic_secret(value: Any, path: str = "$") -> Problem | None:
    """The first of pydantic's secrets in a value, which isn't written as it is, or None."""
    if hasattr(type(value), "get_secret_value"):
        return Problem(path, "a secret, which would be kept as asterisks: pass where it can be found,")
    if isinstance(value, dict) or hasattr(type(value), "model_fields"):
        named = value if isinstance(value, dict) else vars(value)
        inner = [(f".{name}", item) for name, item in named.items()]
    else:
        inner = list(_items(value))
    return next((found for step, item in inner if (found := find_pydantic_secret(item, path + step)) is not None), None)


def _look(place: _Place, inner: list[_Place], replace: Callable[[Any], Any]) -> str | None:
    """What is wrong with this value itself; the values inside it are added to `inner`."""
    value = place.value
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, Enum):
        inner.append(_Place(value.value, place.parent, place.step))
        return None
    if isinstance(value, _ATOMS):
        return _look_at_atom(value)
    if isinstance(value, dict):
        return _look_at_dict(place, inner)
    for step, item in _items(value):
        inner.append(_Place(item, place, step))
    if inner or _encodes(value):
        return None
    return _look_at_stranger(place, inner, replace)


def _look_at_atom(value: str | int | float) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{float(value)!r}, which JSON can't hold,"
    if isinstance(value, int):
        return None if -_TOO_LONG < value < _TOO_LONG else f"an integer of more than {MAX_DIGITS:,} digits"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"a lone surrogate ({value[error.start]!a}) in a string"
    return None


def _look_at_dict(place: _Place, inner: list[_Place]) -> str | None:
    for key, item in place.value.items():
        plain = key.value if isinstance(key, Enum) else key
        problem = _look_at_atom(plain) if isinstance(plain, _ATOMS) else None
        if problem is not None:
            return f"{problem} as a key"
        if not _encodes({key: None}):
            return f"a key of type {type(key).__name__} (keys must be strings or numbers)"
        inner.append(_Place(item, place, f".{key}"))
    return None


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{at}]", item) for at, item in enumerate(value))
        return
    if isinstance(value, type):
        return
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if names is None and hasattr(value, "__attrs_attrs__"):
        names = [attribute.name for attribute in value.__attrs_attrs__]
    for name in names or ():
        if hasattr(value, name):
            yield f".{name}", getattr(value, name)


def _look_at_stranger(place: _Place, inner: list[_Place], replace: Callable[[Any], Any]) -> str | None:
    try:
        inner.append(_Place(replace(place.value), place.parent, place.step))
    except Exception:
        if inspect.iscoroutine(place.value):
            return "a coroutine (is an await missing?)"
        return f"a value of type {type_name(type(place.value))}, which can't be written as JSON,"
    return None


def _encodes(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except Exception:
        return False
    return True
