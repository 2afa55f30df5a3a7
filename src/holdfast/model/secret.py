"""`Secret`: a value that is itself in the author's code and in the database, and a mask everywhere else.

Stored it is `{"$secret": value}`, so that whoever shows a payload knows what to mask without the code that made it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")

SECRET_KEY = "$secret"
MASK = "***"


class Secret(Generic[T]):
    """A value that isn't shown. Annotate arguments, fields and results with it: `Secret[str]`."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """The value itself."""
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
    """A plain JSON value with a mask for each secret in it."""
    if isinstance(value, dict):
        if value.keys() == {SECRET_KEY}:
            return MASK
        return {key: mask_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [mask_secrets(item) for item in value]
    return value
