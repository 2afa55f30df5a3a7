"""`Secret`: a value that is visible to task code and stored in the database, but masked everywhere else.

It is stored as `{"$secret": value}`, so that payloads can be masked for display without the code that created them.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")

SECRET_KEY = "$secret"
MASK = "***"


class Secret(Generic[T]):
    """A value that is never displayed. Annotate arguments, fields and results with it: `Secret[str]`."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Return the value itself."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))


def mask_secrets(value: Any) -> Any:
    """Return a JSON value with every secret masked."""

    if isinstance(value, dict):
        if value.keys() == {SECRET_KEY}:
            return MASK
        return {key: mask_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [mask_secrets(item) for item in value]
    return value
