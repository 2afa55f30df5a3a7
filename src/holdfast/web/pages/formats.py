"""Format values as plain text: times, durations, numbers, JSON. Templates escape the results.

What stands in every row of a table is formatted as HTML here, because a macro takes several times as long.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup, escape

from holdfast.model.clock import format_ago, format_duration
from holdfast.model.previews import MAX_DECODED_BYTES, arguments_line

FOLD_CHARS = 400
"""Longer values are folded."""
MAX_CHARS = 200_000
"""Longer values are truncated."""
MAX_LINE_CHARS = 100
"""Arguments in tables are truncated to this."""
MAX_CHUNK_CHARS = 4000
"""Longer chunks are truncated on the page of a run."""


_RUN_ID = re.compile(r"([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})")


class JsonText(NamedTuple):
    """A value as indented JSON."""

    text: str
    is_long: bool
    size: int
    is_truncated: bool


def ago(at: datetime | None) -> str:
    """Format a time relative to now."""
    return "–" if at is None else format_ago(at)


def duration(seconds: float | None) -> str:
    """Format a duration in one unit or two."""
    return "–" if seconds is None else format_duration(seconds)


def utc(at: datetime) -> str:
    """Format a time in UTC to the millisecond."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC"


def json_text(value: Any) -> JsonText:
    """Format a value as indented JSON; a large one as it is."""
    data = msgspec.json.encode(value, enc_hook=str)  # A part of the value may be JSON that wasn't decoded.
    if len(data) > MAX_DECODED_BYTES:
        text = data[: 4 * MAX_CHARS].decode(errors="ignore")
        return JsonText(text[:MAX_CHARS], True, len(data), len(text) > MAX_CHARS)
    text = json.dumps(msgspec.json.decode(data), indent=2, ensure_ascii=False)
    return JsonText(text[:MAX_CHARS], len(text) > FOLD_CHARS, len(text), len(text) > MAX_CHARS)


def chunk_text(data: Any) -> str:
    """Format a chunk of a stream: a text as it is, other values as JSON on a line of their own. Long ones are cut."""
    text = data if isinstance(data, str) else msgspec.json.encode(data, enc_hook=str).decode() + "\n"
    return text if len(text) <= MAX_CHUNK_CHARS else f"{text[:MAX_CHUNK_CHARS]}…"


def short_json(value: Any, longest: int = 80) -> str:
    """Format a value as JSON on one short line."""
    data = msgspec.json.encode(value, enc_hook=str)
    if len(data) > MAX_DECODED_BYTES:
        return arguments_line(msgspec.Raw(data), longest)
    text = json.dumps(msgspec.json.decode(data), ensure_ascii=False)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def run_ids(text: str) -> list[tuple[str, str | None]]:
    """Split a text into pieces, each with the run id that it is, or None."""
    return [(piece, piece if at % 2 else None) for at, piece in enumerate(_RUN_ID.split(text)) if piece]


def number(value: float) -> str:
    """Format a number with thousands separators."""
    return f"{value:,.0f}"


def size(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 2**20:,.0f} MiB" if count >= 2**20 else f"{count / 1024:,.0f} KiB"


# In HTML


def when(at: datetime | None) -> Markup:
    """Format a time relative to now, with its exact value."""
    if at is None:
        return Markup('<span class="muted">–</span>')
    return Markup(f'<time datetime="{at.isoformat()}" title="{utc(at)}">{escape(ago(at))}</time>')


def state(name: str) -> Markup:
    """Format the state of a run."""
    name = escape(name)
    return Markup(f'<span class="state {name}"><span class="dot" aria-hidden="true"></span>{name}</span>')


def arguments(args: Any, title: str = "Arguments") -> Markup:
    """Format arguments or another payload on one line, if there are any."""
    if not args:
        return Markup("")
    return Markup(f'<span class="arguments" title="{title}">{escape(arguments_line(args, MAX_LINE_CHARS))}</span>')
