"""Values on the command line: durations like 90s or 7d, arguments that are JSON or text, and who does it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.completion import complete_queues, complete_runs
from holdfast.model.clock import MAX_DURATION_MICROS, MICROS_PER_SECOND
from holdfast.model.run import RUN_STATES

if TYPE_CHECKING:
    from holdfast.control import Control
    from holdfast.model.filters import FilterOptions


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


NAMES = {
    "state": "state", "task": "task", "queue": "queue", "tenant": "tenant", "tag": "tag", "error": "error",
    "since": "created_from", "until": "created_to", "finished_since": "finished_from", "finished_until": "finished_to",
    "id": "id_prefix", "parent": "parent", "family": "family",
}  # fmt: skip
"""Options, and what they are called in a filter."""

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--state", type=click.Choice(RUN_STATES), multiple=True, metavar="STATE",
        help=f"Only runs in this state, or in one of several: {', '.join(RUN_STATES)}.",
    ),
    click.option("--task", metavar="NAME", help="Only runs of this task."),
    click.option("--queue", metavar="NAME", help="Only runs of this queue.", shell_complete=complete_queues),
    click.option("--tenant", metavar="NAME", help="Only runs of this tenant."),
    click.option("--tag", metavar="NAME", help="Only runs with this tag."),
    click.option("--error", metavar="TEXT", help="Only runs with this text in their error."),
    click.option("--since", type=TIME, metavar="TIME", help="Only runs made since then, like 2h (ago) or 2026-11-16."),
    click.option("--until", type=TIME, metavar="TIME", help="Only runs made before then."),
    click.option("--finished-since", type=TIME, metavar="TIME", help="Only runs that ended since then."),
    click.option("--finished-until", type=TIME, metavar="TIME", help="Only runs that ended before then."),
    click.option("--id", metavar="PREFIX", help="Only runs whose ids begin so."),
    click.option("--parent", metavar="RUN", help="Only its children, or nodes.", shell_complete=complete_runs),
    click.option("--family", metavar="RUN", help="Only it and all below it.", shell_complete=complete_runs),
)  # fmt: skip


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options of a filter."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def filters_of(control: Control, flags: dict[str, Any]) -> FilterOptions:
    """What was given, as `control` takes it; runs are found by the beginning of their ids."""
    asked: dict[str, Any] = {name: flags[flag] for flag, name in NAMES.items() if flags.get(flag)}
    for name in ("parent", "family"):
        if name in asked:
            asked[name] = control.runs.find(asked[name])
    return asked  # type: ignore[return-value] # mypy can't see which names these are
