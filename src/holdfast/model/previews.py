"""Short forms of stored arguments, for lists, tables and lines. Secrets are masked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from holdfast.errors import PayloadError
from holdfast.model.codec import display_value
from holdfast.model.secret import MASK, SECRET_KEY

UNREADABLE = "(unreadable)"
_SECRET = f'"{SECRET_KEY}"'


def listed_arguments(text: str | None, size: int, unpack: Callable[[str], str]) -> Any:
    """Return the arguments of a run in a list: plain JSON, or the start of their text if they are long.

    `text` is what the database returned of the stored arguments, which have `size` bytes: all of them, their start, or
    None if they are very long.
    """
    if text is not None and len(text.encode()) == size:
        return displayed_arguments(unpack(text))
    if text is None or text.startswith("~"):
        return f"({size:,} bytes)"
    start, found, _ = text.partition(_SECRET)
    return f'{start.rstrip().removesuffix("{")}"{MASK}"…' if found else f"{text}…"


def displayed_arguments(text: str) -> Any:
    """Return stored arguments as plain JSON with secrets masked, or a remark if they can't be decoded."""
    try:
        return display_value(text)
    except PayloadError:
        return UNREADABLE


def arguments_line(args: Any, max_chars: int) -> str:
    """Format arguments on one line: `order_id=42, items=["rope"]`, truncated."""
    if isinstance(args, dict):
        parts = [
            ", ".join(map(_json, value)) if name == "*" and isinstance(value, list) else f"{name}={_json(value)}"
            for name, value in args.items()
        ]
        line = ", ".join(parts)
    else:
        line = "" if args is None else args if isinstance(args, str) else _json(args)
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
