"""Which fields of a run contain a text: its key, its tags, its arguments or its error.

The database finds candidates by comparing the stored JSON with a pattern; here they are checked by their values, as
they are displayed. So the name of a field, an escape or a traceback is no match, and neither is a masked secret: a
search must not tell more than a page does.

SQLite folds the case of ASCII letters only, PostgreSQL that of letters that its locale knows. So a pattern has a
wildcard for every other letter, and Unicode's case folding decides here, the same for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

MAX_SEARCHED_ARGS_BYTES = 8 * 1024
"""Longer arguments aren't searched, and neither are arguments that are compressed or encoded by a codec."""
MAX_DEPTH = 20
MAX_SHOWN_FIELDS = 3

_NAMED = re.compile(r"([^\W\d]\w{0,99})=(.+)", re.DOTALL)


class TextSearch:
    """A text to search for. `order_id=42` also searches for an argument of this name with this value.

    Texts match a part of a text, in any case; numbers and `true`, `false` and `null` match as a whole.
    """

    def __init__(self, text: str) -> None:
        self._text = text.casefold()
        named = _NAMED.fullmatch(text)
        self._name: str | None = named[1] if named else None
        self._value = named[2].strip('"').casefold() if named else ""
        self.pattern = like_pattern(_json(text))
        """A `like` pattern that the stored JSON of each match fits."""
        self.named_pattern = f'%{_like(_json(named[1]))}":%{_like(_json(named[2].strip(chr(34))))}%' if named else None

    def matches(self, args: Any, key: str | None, tags: Sequence[str], error: Sequence[str]) -> tuple[str, ...]:
        """Return the fields that match: `key`, `tag`, `argument NAME`, `error`. `args`: with secrets masked."""
        found = ["key"] if self._contains(key) else []
        found += ["tag"] if any(map(self._contains, tags)) else []
        found += ["error"] if any(map(self._contains, error)) else []
        arguments = list(dict.fromkeys(f"argument {name}".strip() for name in self._arguments(args, "", 0)))
        return (*found, *arguments[:MAX_SHOWN_FIELDS])

    def _contains(self, text: str | None) -> bool:
        return text is not None and self._text in text.casefold()

    def _arguments(self, value: Any, name: str, depth: int) -> Iterator[str]:
        """Yield the names of matching arguments; of nested values, the innermost name."""
        if isinstance(value, dict | list):
            if depth < MAX_DEPTH:
                parts = value.items() if isinstance(value, dict) else ((name, item) for item in value)
                for own, item in parts:
                    yield from self._arguments(item, "" if own == "*" else own, depth + 1)
        elif _fits(value, self._text) or (name == self._name and _fits(value, self._value)):
            yield name


def _fits(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return text in value.casefold()
    return msgspec.json.encode(value).decode() == text


def _json(text: str) -> str:
    """Return a text as it is inside a JSON string."""
    return msgspec.json.encode(text).decode()[1:-1]


def like_pattern(text: str) -> str:
    """Return a `like` pattern, escaped by `!`, that fits each text which contains this one in any case."""
    return f"%{_like(text)}%"


def folds_in_database(text: str) -> bool:
    """Return whether the texts that fit the pattern are exactly those that contain this one, in any case."""
    return not any(map(_is_letter_with_case, text))


def _like(text: str) -> str:
    return "".join("!" + c if c in "!%_" else "%" if _is_letter_with_case(c) else c for c in text)


def _is_letter_with_case(c: str) -> bool:
    """Return whether a character has a case that a database may not know."""
    return not c.isascii() and not c == c.lower() == c.upper() == c.casefold()
