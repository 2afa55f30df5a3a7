"""Values as people read them: times, spans, sizes, JSON. Everything here gives plain text, which templates escape."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
LONG_VALUE = 400
"""A value whose text is longer is folded."""
LONGEST_VALUE = 200_000
"""Of a text that is longer only the beginning is shown."""


class JsonText(NamedTuple):
    """A value as text, and whether it is to be folded."""

    text: str
    long: bool
    size: int
    cut: bool


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """How long ago, or how soon, something is."""
    if at is None:
        return "–"
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def span(seconds: float | None) -> str:
    """A duration in its largest unit, or two of them."""
    if seconds is None:
        return "–"
    seconds = max(float(seconds), 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for at, (size, unit) in enumerate(UNITS):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            if at + 1 < len(UNITS) and rest >= UNITS[at + 1][0]:
                return f"{whole} {unit} {rest // UNITS[at + 1][0]} {UNITS[at + 1][1]}"
            return f"{whole} {unit}"
    raise AssertionError(seconds)


def exact(at: datetime) -> str:
    """A time to the millisecond, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC"


def shown(value: Any) -> JsonText:
    """A value as indented JSON."""
    text = json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=2, ensure_ascii=False)
    return JsonText(text[:LONGEST_VALUE], len(text) > LONG_VALUE, len(text), len(text) > LONGEST_VALUE)


def brief(value: Any, longest: int = 80) -> str:
    """A value in one short line."""
    text = json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def many(number: float) -> str:
    """A number with its thousands apart."""
    return f"{number:,.0f}"
