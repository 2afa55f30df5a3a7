"""Find the part of a value that can't be stored as JSON, for error messages.

This is slow and exact; `codec.py` calls it only if its fast checks found something suspicious.
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
from holdfast.model.secret import Secret

MAX_DEPTH = 200
MAX_DIGITS = 4000  # Python parses at most 4300 by default, including a sign

PYDANTIC_MASK = "**********"
"""What pydantic writes in place of a model's secrets."""

_TOO_DEEP = f"nesting deeper than {MAX_DEPTH} levels"
_INTEGER_LIMIT = 10**MAX_DIGITS
_MAX_PATH_CHARS = 200
_ATOMS = (str, int, float)


class AmbiguousKeys(TypeError):
    """A model has a dict with keys that JSON writes alike. The message describes the model."""


@dataclass(frozen=True, slots=True)
class EncodingProblem:
    """A problem in a value, and its path."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.problem} at `{self.path}`"


class _Node:
    """A value with its parent. The path is built only for the value that has a problem."""

    __slots__ = ("depth", "parent", "step", "value")

    depth: int

    def __init__(self, value: Any, parent: _Node | None, step: str) -> None:
        self.value = value
        self.parent = parent
        self.step = step
        self.depth = 1 if parent is None else parent.depth + 1

    def path(self) -> str:
        steps: list[str] = []
        node: _Node | None = self
        while node is not None:
            steps.append(node.step)
            node = node.parent
        path = "".join(reversed(steps))
        return path if len(path) <= _MAX_PATH_CHARS else path[:_MAX_PATH_CHARS] + "…"


def find_problem(value: Any, replace: Callable[[Any], Any]) -> EncodingProblem | None:
    """Return the first problem of a value, or None. `replace` converts objects of types that msgspec doesn't know."""
    nodes = [_Node(value, None, "$")]
    while nodes:
        node = nodes.pop()
        inner: list[_Node] = []
        problem = _TOO_DEEP if node.depth > MAX_DEPTH + 1 else _check(node, inner, replace)
        if problem is not None:
            return EncodingProblem(node.path(), problem)
        nodes.extend(reversed(inner))
    return None


def find_pydantic_secret(value: Any, path: str = "$") -> EncodingProblem | None:
    """Return the first pydantic secret in a value, which would be stored masked, or None."""
    if hasattr(type(value), "get_secret_value"):
        return EncodingProblem(
            path, "a pydantic secret, which would be stored as asterisks (pass a reference to it instead),"
        )
    if isinstance(value, dict) or hasattr(type(value), "model_fields"):
        named = value if isinstance(value, dict) else vars(value)
        inner = [(f".{name}", item) for name, item in named.items()]
    else:
        inner = list(_items(value))
    return next((found for step, item in inner if (found := find_pydantic_secret(item, path + step)) is not None), None)


def _check(node: _Node, inner: list[_Node], replace: Callable[[Any], Any]) -> str | None:
    """Return the problem of this value itself; append the values inside it to `inner`."""

    value = node.value
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, Secret):  # The path and the problem inside it may contain parts of its value.
        return None if find_problem(value.reveal(), replace) is None else "a secret whose value JSON can't hold"
    if isinstance(value, Enum):
        inner.append(_Node(value.value, node.parent, node.step))
        return None
    if isinstance(value, _ATOMS):
        return _check_atom(value)
    if isinstance(value, dict):
        return _check_dict(node, inner)
    for step, item in _items(value):
        inner.append(_Node(item, node, step))
    if inner or _encodes(value):
        return None
    return _check_unknown(node, inner, replace)


def _check_atom(value: str | int | float) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{float(value)!r}, which JSON can't hold,"
    if isinstance(value, int):
        return None if -_INTEGER_LIMIT < value < _INTEGER_LIMIT else f"an integer of more than {MAX_DIGITS:,} digits"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"a lone surrogate ({value[error.start]!a}) in a string"
    return None


def _check_dict(node: _Node, inner: list[_Node]) -> str | None:
    written: dict[bytes, Any] = {}
    for key, item in node.value.items():
        plain = key.value if isinstance(key, Enum) else key
        problem = _check_atom(plain) if isinstance(plain, _ATOMS) else None
        if problem is not None:
            return f"{problem} as a key"
        if not _encodes({key: None}):
            return f"a key of type {type(key).__name__} (keys must be strings or numbers)"
        if (text := msgspec.json.encode({key: None})) in written:
            return f"the keys {_short(written[text])} and {_short(key)}, which JSON writes alike,"
        written[text] = key
        inner.append(_Node(item, node, f".{key}"))
    return None


def _short(key: Any) -> str:
    return repr(key)[:60]


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


def _check_unknown(node: _Node, inner: list[_Node], replace: Callable[[Any], Any]) -> str | None:
    try:
        inner.append(_Node(replace(node.value), node.parent, node.step))
    except AmbiguousKeys as error:
        return str(error)
    except Exception:
        if inspect.iscoroutine(node.value):
            return "a coroutine (is an await missing?)"
        return f"a value of type {type_name(type(node.value))}, which can't be written as JSON,"
    return None


def _encodes(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except Exception:
        return False
    return True
