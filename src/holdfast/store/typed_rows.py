"""Turn rows into named tuples, whatever another program stored in them.

SQLite stores any type in any column. A value of another type than the column's is replaced by one that code can work
with, so that one row doesn't break a page or a loop. PostgreSQL checks types itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

T = TypeVar("T", bound=NamedTuple)

MAX_KNOWN_SIGNATURES = 4096
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1


class RowReader(Generic[T]):
    """Creates named tuples of one class. A field `corrupt`, if the class has one, gets the names of replaced values."""

    def __init__(self, kind: type[T]) -> None:
        self._kind: Any = kind
        hints = get_type_hints(kind)
        self._marks = "corrupt" in hints
        self._names = [name for name in kind._fields if name != "corrupt"]
        self._defaults = [_default(hints[name]) for name in self._names]
        self._types = [(int, float) if hints[name] is float else _types(hints[name]) for name in self._names]
        self._valid: set[tuple[type, ...]] = set()

    def read(self, row: Sequence[Any]) -> T:
        """Return the row as a named tuple."""
        signature = tuple(map(type, row))
        if signature in self._valid:
            return self._kind(*row)  # type: ignore[no-any-return]
        wrong = [at for at, kind in enumerate(signature) if kind not in self._types[at]]
        if not wrong:
            if len(self._valid) < MAX_KNOWN_SIGNATURES:
                self._valid.add(signature)
            return self._kind(*row)  # type: ignore[no-any-return]
        values = list(row)
        for at in wrong:
            values[at] = _replace(values[at], self._types[at], self._defaults[at])
        marks = (tuple(self._names[at] for at in wrong),) if self._marks else ()
        return self._kind(*values, *marks)  # type: ignore[no-any-return]

    def read_all(self, rows: Iterable[Sequence[Any]]) -> list[T]:
        return [self.read(row) for row in rows]


def as_text(value: Any) -> str | None:
    """Return a column of text as text, also if another program stored something else."""
    return value.decode(errors="replace") if isinstance(value, bytes) else None if value is None else str(value)


def _types(hint: Any) -> tuple[type, ...]:
    """Return the types of a column's values. Literals and other strings count as `str`."""
    found: list[type] = []
    for kind in get_args(hint) or (hint,):
        if kind in (int, float, type(None)):
            found.append(kind)
        elif str not in found:
            found.append(str)
    return tuple(found)


def _default(hint: Any) -> Any:
    kinds = _types(hint)
    return None if type(None) in kinds else 0 if int in kinds else ""


def _replace(value: Any, kinds: tuple[type, ...], default: Any) -> Any:
    """Return a value of one of the types: text as such, a number if it is one, otherwise the default."""
    if str in kinds and value is not None:
        return as_text(value)
    if int in kinds and isinstance(value, float) and MIN_INTEGER <= value <= MAX_INTEGER:
        return int(value)
    return default
