"""The declared schedules and triggers of an app. No I/O: workers store the schedules when they start."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND, Duration, time_to_micros, to_datetime, to_micros
from holdfast.model.interactive import is_interactive
from holdfast.model.names import check_name, quoted
from holdfast.policy.schedule_timing import MIN_INTERVAL_MICROS, CatchUp, Timing, check_cron, check_zone
from holdfast.task.task import Request, Task

Overlap: TypeAlias = Literal["allow", "skip", "buffer_one", "cancel_running"]
"""What a schedule does at a slot while its previous run is unfinished: create another run, create none, create one when
the previous run has ended, or cancel that and create one when its code has stopped."""
Polled: TypeAlias = (
    "Iterable[Request[Any]] | AsyncIterable[Request[Any]] | Awaitable[Iterable[Request[Any]] | None] | None"
)
"""What a trigger function may return: requests, as an iterable or a list, sync or async."""
Poll: TypeAlias = Callable[[], Polled]

CATCH_UPS = ("skip", "latest", "all")
OVERLAPS = ("allow", "skip", "buffer_one", "cancel_running")


class Schedule(msgspec.Struct, frozen=True):
    """Creates a run of a request at each slot. `jitter` is in microseconds."""

    name: str
    request: Request[Any]
    timing: Timing
    catch_up: CatchUp
    overlap: Overlap
    jitter: int


class Trigger(msgspec.Struct, frozen=True):
    """A function that is polled for requests. Durations are in microseconds."""

    name: str
    fn: Poll
    every: int
    timeout: int


class ScheduleRegistry:
    """The schedules and triggers of the app named `app`. They share one namespace."""

    def __init__(self, app: str) -> None:
        self.app = app
        self.schedules: dict[str, Schedule] = {}
        self.triggers: dict[str, Trigger] = {}

    def __bool__(self) -> bool:
        return bool(self.schedules or self.triggers)

    def schedule(
        self, name: str, task: Any, *, args: tuple[Any, ...] = (), **settings: Unpack[ScheduleSettings]
    ) -> None:
        """Declare a schedule. Raises ConfigError for invalid settings."""
        checked = checked_settings(name, settings)
        new = Schedule(name, checked_request(name, task, args), *checked)
        if not is_interactive() and (name in self.triggers or self.schedules.get(name, new) != new):
            raise ConfigError(f"two schedules or triggers have the name {quoted(name)}: rename one")
        self.triggers.pop(name, None)
        self.schedules[name] = new

    def trigger(self, name: str, fn: Poll, every: Duration, timeout: Duration) -> None:
        """Declare a trigger. Raises ConfigError for invalid settings."""
        where = f"trigger {check_name(name, 'the name of a trigger')}"
        if isinstance(fn, Task) or not callable(fn):
            raise ConfigError(f"{where} must be a function that yields requests, not {type(fn).__name__}")
        if needed := _needed(fn):
            raise ConfigError(f"{where}: its function is called without arguments but requires {', '.join(needed)}")
        new = Trigger(name, fn, _interval(where, every), to_micros(timeout, f"{where}: timeout"))
        if new.timeout < MICROS_PER_SECOND:
            raise ConfigError(f"{where}: timeout must be at least 1 s, not {timeout}")
        known = self.triggers.get(name)
        is_other = name in self.schedules or (known is not None and _origin(known.fn) != _origin(fn))
        if is_other and not is_interactive():
            raise ConfigError(f"two schedules or triggers have the name {quoted(name)}: rename one")
        self.schedules.pop(name, None)
        self.triggers[name] = new


class SlotSettings(TypedDict, total=False):
    """Which slots of a schedule create runs, and when."""

    catch_up: CatchUp
    start: datetime | None
    end: datetime | None
    jitter: Duration
    overlap: Overlap


class ScheduleSettings(SlotSettings, total=False):
    """When a schedule creates runs, as it is written in code."""

    cron: str | None
    every: Duration | None
    tz: str


class ScheduleTiming(NamedTuple):
    """Checked settings of a schedule. `jitter` is in microseconds."""

    timing: Timing
    catch_up: CatchUp
    overlap: Overlap
    jitter: int


def checked_settings(name: str, settings: ScheduleSettings) -> ScheduleTiming:
    """Check the settings of a schedule. Raises ConfigError if one is invalid or unknown."""
    where = f"schedule {check_name(name, 'the name of a schedule')}"
    for unknown in settings.keys() - ScheduleSettings.__annotations__.keys():
        known = ", ".join(["args", "cron", "every", "tz", *SlotSettings.__annotations__])
        raise ConfigError(f"{where}: unknown setting {unknown!r}; the settings are {known}")
    timing = _timing(
        where,
        settings.get("cron"),
        settings.get("every"),
        settings.get("tz", "UTC"),
        settings.get("start"),
        settings.get("end"),
    )
    return ScheduleTiming(
        timing,
        _one_of(CATCH_UPS, settings.get("catch_up", "skip"), f"{where}: catch_up"),
        _one_of(OVERLAPS, settings.get("overlap", "allow"), f"{where}: overlap"),
        _jitter(where, settings.get("jitter", 0), timing),
    )


def merged_settings(current: ScheduleTiming, given: ScheduleSettings) -> ScheduleSettings:
    """Return the settings of a schedule with some of them replaced."""
    timing = current.timing
    settings: ScheduleSettings = {
        "start": None if timing.start is None else to_datetime(timing.start),
        "end": None if timing.end is None else to_datetime(timing.end),
        "catch_up": current.catch_up,
        "overlap": current.overlap,
        "jitter": current.jitter / MICROS_PER_SECOND,
    }
    if given.get("cron") is None and given.get("every") is None:
        if timing.every is not None:
            settings["every"] = timing.every / MICROS_PER_SECOND
        else:
            settings["cron"] = timing.cron
    if given.get("every") is None and timing.every is None:
        settings["tz"] = timing.tz
    return {**settings, **given}


def checked_request(name: str, task: Any, args: tuple[Any, ...] = ()) -> Request[Any]:
    """Return the request of each slot. Raises ConfigError if the task or its options aren't possible."""
    return _request(f"schedule {check_name(name, 'the name of a schedule')}", task, args)


def _timing(
    where: str, cron: str | None, every: Duration | None, tz: str, start: datetime | None, end: datetime | None
) -> Timing:
    if (cron is None) == (every is None):
        raise ConfigError(f"{where}: set exactly one of cron='0 3 * * *' and every=60")
    from_ = None if start is None else time_to_micros(start, f"{where}: start")
    until = None if end is None else time_to_micros(end, f"{where}: end")
    if from_ is not None and until is not None and until < from_:
        raise ConfigError(f"{where}: its end, {end}, is before its start, {start}")
    if every is not None:
        if tz != "UTC":
            raise ConfigError(f"{where}: tz= applies to cron= only; remove it")
        return Timing(every=_interval(where, every), start=from_, end=until)
    timing = Timing(cron=check_cron(cron, where), tz=check_zone(tz, where), start=from_, end=until)
    if from_ is not None and timing.next_after(from_ - 1) is None:
        raise ConfigError(f"{where} has no slot between its start, {start}, and its end, {end}")
    return timing


def _interval(where: str, every: Duration) -> int:
    micros = to_micros(every, f"{where}: every")
    if micros < MIN_INTERVAL_MICROS:
        raise ConfigError(f"{where}: every must be at least 1 s, not {every}")
    return micros


def _jitter(where: str, jitter: Duration, timing: Timing) -> int:
    micros = to_micros(jitter, f"{where}: jitter")
    if timing.every is not None and micros >= timing.every:
        raise ConfigError(f"{where}: jitter must be less than every, so that runs stay in order, not {jitter}")
    return micros


def _request(where: str, task: Any, args: tuple[Any, ...]) -> Request[Any]:
    if not isinstance(args, tuple | list):
        raise ConfigError(f"{where}: args must be a tuple of the task's arguments, not {type(args).__name__}")
    if isinstance(task, Task):
        request: Request[Any] = task.request(*args)
    elif isinstance(task, Request):
        request = task
        if args:
            raise ConfigError(f"{where}: a request has its arguments already: remove args=")
    else:
        graph = "; declare a function that returns a graph in code: app.schedule(…)" if inspect.isfunction(task) else ""
        raise ConfigError(f"{where} needs a task or a request, not {type(task).__name__}{graph}")
    given = request.options
    refused = {
        "key": given.key, "debounce": given.debounce, "run_at": given.run_at, "connection": given.connection,
        "deadline": given.deadline_at, "start_by": given.start_by_at,
    }  # fmt: skip
    for option, value in refused.items():
        if value is not None:
            own_run = "each slot creates its own run"
            reason = {"key": own_run, "debounce": own_run, "run_at": "the slot decides when"}.get(
                option, "it would be the same for every slot"
            )
            raise ConfigError(f"{where}: remove option {option}: {reason}")
    return request


def _needed(fn: Poll) -> list[str]:
    """Return the required parameters of a function."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(fn).parameters.values()
    return [it.name for it in parameters if it.default is it.empty and it.kind in positional]


def _one_of(known: tuple[str, ...], value: Any, what: str) -> Any:
    if value not in known:
        raise ConfigError(f"{what} must be one of {', '.join(map(repr, known))}, not {value!r}")
    return value


def _origin(fn: Any) -> tuple[str, int] | Any:
    """Return the source location of a function, which doesn't depend on the name its module was imported by."""
    code = getattr(fn, "__code__", None)
    return fn if code is None else (os.path.realpath(code.co_filename), code.co_firstlineno)
