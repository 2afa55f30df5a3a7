"""Option types (durations, times, JSON values) and the options that filter runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.completion import complete_queues, complete_runs
from holdfast.model.clock import MAX_DURATION_MICROS, MICROS_PER_SECOND, parse_duration
from holdfast.model.metadata import parse_metadata
from holdfast.model.run import RUN_STATES

if TYPE_CHECKING:
    from holdfast.control import Control
    from holdfast.model.filters import FilterOptions


class DurationType(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.1
    """A duration: a number of seconds, or a number with the unit s, m, h or d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        seconds = parse_duration(value)
        if seconds is None:
            self.fail(f"{value!r} is not a duration: use 90, 90s, 15m, 2h or 7d.", param, ctx)
        if seconds > MAX_DURATION_MICROS / MICROS_PER_SECOND:
            self.fail(f"{value!r} is too long; the maximum is 200 years.", param, ctx)
        return seconds


DURATION = DurationType()
by_option = click.option("--by", metavar="WHO", help="Operator name for the history.  [default: user@host]")


class TimeType(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.1
    """A time: an age such as 2h, or ISO 8601, in UTC unless it has an offset."""

    name = "time"
    direction, sign = "ago", 1
    """Whether a duration such as 2h is subtracted from the current time or added to it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        if parse_duration(value) is not None:
            return seconds_ago(self.sign * DURATION.convert(value, param, ctx))
        try:
            time = datetime.fromisoformat(value.strip())
        except ValueError:
            self.fail(
                f"{value!r} is not a time: use 2h ({self.direction}), 2026-11-16 or 2026-11-16T09:30.", param, ctx
            )
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


class FutureTimeType(TimeType):
    """A time: a duration from now such as 2h, or ISO 8601, in UTC unless it has an offset."""

    direction, sign = "from now", -1


TIME = TimeType()
FUTURE_TIME = FutureTimeType()


def seconds_ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def argument(text: str) -> Any:
    """Parse JSON; other text stays text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text


def arguments(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Parse a JSON array as positional arguments, or a JSON object as named arguments."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise click.UsageError(f'--args is not valid JSON: {error}. Example: --args \'{{"to": "ada"}}\'.') from None
    if isinstance(value, list):
        return tuple(value), {}
    if isinstance(value, dict):
        return (), value
    raise click.UsageError(f"--args must be a JSON object or array, but {text[:40]} is neither.")


def payload(text: str | None, what: str = "PAYLOAD") -> Any:
    """Parse a JSON payload; None if it is missing. `what` is its name on the command line."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        shown = text if len(text) <= 40 else text[:39] + "…"
        hint = f"Quote text as JSON: '\"{shown}\"'." if text.strip()[:1] not in tuple('{["') else ""
        raise click.UsageError(f"{what} is not valid JSON: {error}. {hint}".rstrip()) from None


NAMES = {
    "state": "state", "task": "task", "queue": "queue", "tenant": "tenant", "tag": "tag", "error": "error",
    "since": "created_from", "until": "created_to", "finished_since": "finished_from", "finished_until": "finished_to",
    "key": "key", "metadata": "metadata", "id": "id_prefix", "parent": "parent", "family": "family",
    "paused": "paused", "top_level": "top_level", "search": "search",
}  # fmt: skip
"""The options and their names in a filter."""

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--state", type=click.Choice(RUN_STATES), multiple=True, metavar="STATE",
        help=f"Only runs in this state; repeatable: {', '.join(RUN_STATES)}.",
    ),
    click.option("--task", metavar="NAME", help="Only runs of this task."),
    click.option("--queue", metavar="NAME", help="Only runs of this queue.", shell_complete=complete_queues),
    click.option("--tenant", metavar="NAME", help="Only runs of this tenant."),
    click.option("--tag", metavar="NAME", help="Only runs with this tag."),
    click.option("--error", metavar="TEXT", help="Only runs whose error contains this text."),
    click.option("--key", metavar="KEY", help="Only runs created with this idempotency key."),
    click.option(
        "--metadata", metavar="NAME=VALUE", multiple=True,
        help="Only runs with this metadata; repeatable. VALUE is JSON, or else text.",
    ),
    click.option("--since", type=TIME, metavar="TIME", help="Only runs created since then: 2h (ago) or 2026-11-16."),
    click.option("--until", type=TIME, metavar="TIME", help="Only runs created before then."),
    click.option("--finished-since", type=TIME, metavar="TIME", help="Only runs that finished since then."),
    click.option("--finished-until", type=TIME, metavar="TIME", help="Only runs that finished before then."),
    click.option("--id", metavar="PREFIX", help="Only runs whose id starts with this."),
    click.option("--parent", metavar="RUN", help="Only its children or nodes.", shell_complete=complete_runs),
    click.option("--family", metavar="RUN", help="Only the run and its descendants.", shell_complete=complete_runs),
    click.option("--paused", is_flag=True, help="Only runs that are paused themselves."),
    click.option("--top-level", is_flag=True, help="No children and no nodes of graphs."),
)  # fmt: skip
_search_option = click.option(
    "--search", metavar="TEXT", help="Only runs with this text in key, tags, arguments or error."
)


def narrowing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the filter options to a command that searches for a text."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all filter options to a command."""
    return narrowing_options(_search_option(command))


def build_filter(control: Control, flags: dict[str, Any]) -> FilterOptions:
    """Build a filter from the options; runs are found by id prefix."""
    filters: dict[str, Any] = {name: flags[flag] for flag, name in NAMES.items() if flags.get(flag)}
    if "metadata" in filters:
        filters["metadata"] = parse_metadata(filters["metadata"])
    for name in ("parent", "family"):
        if name in filters:
            filters[name] = control.runs.find(filters[name])
    return filters  # type: ignore[return-value] # the names come from NAMES
