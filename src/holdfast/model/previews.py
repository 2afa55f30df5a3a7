"""Stored payloads as values to display, with secrets masked: short forms for lists, whole ones within a budget.

Payloads compress well: 10 KB in the database may be 2 MB of JSON, and 70 MB of Python objects. So no reader unpacks or
decodes more than the bounds here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.errors import PayloadError
from holdfast.model.codec import display_value, is_encoded, json_for_display, may_have_secrets
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.secret import MASK, SECRET_KEY

K = TypeVar("K")

UNREADABLE = "(unreadable)"
MAX_SHOWN_BYTES = 8 * 1024 * 1024
"""How many bytes of JSON one response contains of all payloads together."""
MAX_STORED_BYTES = MAX_SHOWN_BYTES * 3 // 2
"""How many bytes of stored payloads one response needs for that; base64 adds a third."""
MAX_DECODED_BYTES = 256 * 1024
"""How many of them are decoded. Beyond, the JSON text is copied as it is."""
MAX_LISTED_BYTES = 16 * 1024
"""Arguments in lists are unpacked only up to this size."""
_SECRET = f'"{SECRET_KEY}"'


class PayloadView:
    """Turns stored payloads into values to display, within what one response may contain.

    A payload that doesn't fit is replaced by a remark with its size. A large one is `msgspec.Raw`: JSON that responses
    copy.
    """

    def __init__(self, payloads: Payloads, max_bytes: int = MAX_SHOWN_BYTES) -> None:
        self._payloads = payloads
        self._left = max_bytes
        self._left_to_read = MAX_STORED_BYTES
        self._left_to_decode = MAX_DECODED_BYTES

    def choose(self, payloads: Iterable[tuple[K, int | None]]) -> list[K]:
        """Return the payloads that may be read from the database, given their stored sizes; those of None are null."""
        chosen = []
        for key, size in payloads:
            if size is not None and size <= self._left_to_read:
                self._left_to_read -= size
                chosen.append(key)
        return chosen

    def value(self, stored: str | None, context: PayloadContext | None, size: int | None = None) -> Any:
        """Return a payload; PayloadError if it can't be decoded.

        `context`: None for a value that is never packed. `size`: its stored bytes, if only those were read.
        """
        if stored is None:
            return None if size is None else omitted(size)
        text = self._payloads.unpack_within(stored, context, self._left)
        if text is None:
            return omitted(len(stored.encode(errors="replace")))
        count = len(text.encode(errors="replace"))
        self._left -= count
        if count <= self._left_to_decode or is_encoded(text):
            self._left_to_decode -= min(count, self._left_to_decode)
            return display_value(text)
        if may_have_secrets(text):
            return omitted(count, "it has secrets and is too large to mask them")
        return json_for_display(text)

    def arguments(self, stored: str | None, context: PayloadContext | None, size: int | None = None) -> Any:
        """Return arguments likewise, or a remark if they can't be decoded."""
        try:
            return self.value(stored, context, size)
        except PayloadError:
            return UNREADABLE


def omitted(size: int, why: str = "") -> str:
    """Return the remark instead of a payload that isn't shown."""
    return f"(omitted: {size:,} bytes{'; ' + why if why else ''})"


def listed_arguments(text: str | None, size: int, payloads: Payloads, context: PayloadContext) -> Any:
    """Return the arguments of a run in a list: plain JSON, or the start of their text if they are long.

    `text` is what the database returned of the stored arguments, which have `size` bytes: all of them, their start, or
    None if they are very long.
    """
    if text is not None and len(text.encode()) == size:
        unpacked = payloads.unpack_within(text, context, MAX_LISTED_BYTES)
        return f"({size:,} bytes, compressed)" if unpacked is None else displayed_arguments(unpacked)
    if text is None or text.startswith("~"):
        return f"({size:,} bytes)"
    start, found, _ = text.partition(_SECRET)
    if not found and may_have_secrets(text):
        return f"({size:,} bytes)"
    return f'{start.rstrip().removesuffix("{")}"{MASK}"…' if found else f"{text}…"


def displayed_arguments(text: str) -> Any:
    """Return stored arguments as plain JSON with secrets masked, or a remark if they can't be decoded."""
    try:
        return display_value(text)
    except PayloadError:
        return UNREADABLE


def arguments_line(args: Any, max_chars: int) -> str:
    """Format arguments on one line: `order_id=42, items=["rope"]`, truncated."""
    if isinstance(args, msgspec.Raw):
        line = bytes(args)[: 4 * max_chars].decode(errors="ignore")
    elif isinstance(args, dict):
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
