"""Values on the command line: durations like 90s or 7d, arguments that are JSON or text, and who does it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from holdfast.model.clock import MAX_DURATION_MICROS, MICROS_PER_SECOND

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class DurationType(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.1
    """A number of seconds, or a number with s, m, h or d behind it."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = _DURATION.fullmatch(value.strip())
        if found is None:
            self.fail(f"{value!r} is no duration: write it like 90, 90s, 15m, 2h or 7d", param, ctx)
        seconds = float(found[1]) * _SECONDS[(found[2] or "s").lower()]
        if seconds > MAX_DURATION_MICROS / MICROS_PER_SECOND:
            self.fail(f"{value!r} is too long; the longest is 200 years", param, ctx)
        return seconds


DURATION = DurationType()
by_option = click.option("--by", metavar="WHO", help="Who does it; kept in the history.  [default: user@host]")


class TimeType(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.1
    """A time: how long ago, like 2h, or ISO 8601, in UTC unless it says otherwise."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        if _DURATION.fullmatch(value.strip()):
            return ago_of(DURATION.convert(value, param, ctx))
        try:
            time = datetime.fromisoformat(value.strip())
        except ValueError:
            self.fail(f"{value!r} is no time: write it like 2h (ago), 2026-11-16 or 2026-11-16T09:30", param, ctx)
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


TIME = TimeType()


def ago_of(seconds: float) -> datetime:
    """The time so many seconds ago."""
    return datetime.now(UTC) - timedelta(seconds=seconds)


def argument(text: str) -> Any:
    """A JSON value where the text is one, else the text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text


def arguments(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A JSON array as arguments by position, or a JSON object as arguments by name."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise click.UsageError(f'--args is no JSON: {error}. Write it like --args \'{{"to": "ada"}}\'.') from None
    if isinstance(value, list):
        return tuple(value), {}
    if isinstance(value, dict):
        return (), value
    raise click.UsageError(f"--args must be a JSON object or array, but {text[:40]} is neither.")


def payload(text: str | None, what: str = "PAYLOAD") -> Any:
    """A JSON value, null where nothing was given. `what` is its name on the command line."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        shown = text if len(text) <= 40 else text[:39] + "…"
        hint = f"Text needs quotes of its own, like '\"{shown}\"'." if text.strip()[:1] not in tuple('{["') else ""
        raise click.UsageError(f"{what} is no JSON: {error}. {hint}".rstrip()) from None
