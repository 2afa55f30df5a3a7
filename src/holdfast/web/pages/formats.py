"""Format values as plain text: times, durations, numbers, JSON. Templates escape the results."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
FOLD_CHARS = 400
"""Longer values are folded."""
MAX_CHARS = 200_000
"""Longer values are truncated."""


class JsonText(NamedTuple):
    """A value as indented JSON."""

    text: str
    is_long: bool
    size: int
    is_truncated: bool


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """Format a time relative to now."""
    if at is None:
        return "–"
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def duration(seconds: float | None) -> str:
    """Format a duration in one unit or two."""
    if seconds is None:
        return "–"
    seconds = max(float(seconds), 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    at = next(at for at, (size, _) in enumerate(UNITS) if seconds >= size)
    (size, unit), smaller = UNITS[at], UNITS[at + 1 : at + 2]
    whole, rest = divmod(int(seconds), size)
    if smaller and rest >= smaller[0][0]:
        return f"{whole} {unit} {rest // smaller[0][0]} {smaller[0][1]}"
    return f"{whole} {unit}"


def utc(at: datetime) -> str:
    """Format a time in UTC to the millisecond."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC"


def json_text(value: Any) -> JsonText:
    """Format a value as indented JSON."""
    text = json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=2, ensure_ascii=False)
    return JsonText(text[:MAX_CHARS], len(text) > FOLD_CHARS, len(text), len(text) > MAX_CHARS)


def short_json(value: Any, longest: int = 80) -> str:
    """Format a value as JSON on one short line."""
    text = json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def number(value: float) -> str:
    """Format a number with thousands separators."""
    return f"{value:,.0f}"
