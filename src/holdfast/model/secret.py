"""`Secret`: a value that is visible to task code and stored in the database, but masked everywhere else.

It is stored as `{"$secret": value}`, so that payloads can be masked for display without the code that created them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SECRET_KEY = "$secret"
MASK = "***"

_on_reveal: Callable[[Any], None] | None = None


def on_reveal(callback: Callable[[Any], None] | None) -> None:
    """Call this with each value that code reveals. For log lines, in which revealed values are masked."""
    global _on_reveal
    _on_reveal = callback


class Secret(Generic[T]):
    """A value that is never displayed. Annotate arguments, fields and results with it: `Secret[str]`."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Return the value itself."""
        if _on_reveal is not None:
            _on_reveal(self._value)
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))


def unmasked_secrets(value: Any) -> Any:
    """Return a decoded value in which every stored form of a secret is a `Secret`."""
    if isinstance(value, dict):
        if value.keys() == {SECRET_KEY}:
            return Secret(value[SECRET_KEY])
        return {key: unmasked_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(unmasked_secrets(item) for item in value)
    for name in _field_names(value):
        item = getattr(value, name, None)
        if isinstance(item, dict | list | tuple) or _field_names(item):
            object.__setattr__(value, name, unmasked_secrets(item))
    return value


def _field_names(value: Any) -> Iterable[str]:
    """Return the fields of a dataclass or a struct."""
    kind = type(value)
    return getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None) or ()


def mask_secrets(value: Any) -> Any:
    """Return a JSON value with every secret masked."""

    if isinstance(value, dict):
        if value.keys() == {SECRET_KEY}:
            return MASK
        return {key: mask_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [mask_secrets(item) for item in value]
    return value
