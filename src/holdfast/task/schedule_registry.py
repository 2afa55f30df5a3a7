"""Schedules and triggers as authors declare them: checked at once, kept by name. No I/O; workers take it from here."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND, Duration, time_to_micros, to_micros
from holdfast.model.names import check_name, quoted
from holdfast.policy.schedule_timing import MIN_INTERVAL_MICROS, CatchUp, Timing, check_cron, check_zone
from holdfast.task.task import Request, Task

Overlap: TypeAlias = Literal["allow", "skip"]
Polled: TypeAlias = (
    "Iterable[Request[Any]] | AsyncIterable[Request[Any]] | Awaitable[Iterable[Request[Any]] | None] | None"
)
"""What the function of a trigger may give: requests, one by one or all at once, awaited or not."""
Poll: TypeAlias = Callable[[], Polled]

CATCH_UPS = ("skip", "latest", "all")
OVERLAPS = ("allow", "skip")


class Schedule(msgspec.Struct, frozen=True):
    """Makes a run of a request at each slot. Jitter is in microseconds."""

    name: str
    request: Request[Any]
    timing: Timing
    catch_up: CatchUp
    overlap: Overlap
    jitter: int


class Trigger(msgspec.Struct, frozen=True):
    """A function that is polled for requests. Durations are microseconds."""

    name: str
    fn: Poll
    every: int
    timeout: int


class ScheduleRegistry:
    """The schedules and triggers of one app, which share their names. `app` is the name that the app is known by."""

    def __init__(self, app: str) -> None:
        self.app = app
        self.schedules: dict[str, Schedule] = {}
        self.triggers: dict[str, Trigger] = {}

    def __bool__(self) -> bool:
        return bool(self.schedules or self.triggers)

    def schedule(
        self,
        name: str,
        task: Any,
        *,
        args: tuple[Any, ...] = (),
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        catch_up: CatchUp = "skip",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0,
        overlap: Overlap = "allow",
    ) -> None:
        """Declare a schedule; ConfigError says what can't be."""
        where = f"schedule {check_name(name, 'the name of a schedule')}"
        timing = _timing(where, cron, every, tz, start, end)
        new = Schedule(
            name,
            _request(where, task, args),
            timing,
            _one_of(CATCH_UPS, catch_up, f"{where}: catch_up"),
            _one_of(OVERLAPS, overlap, f"{where}: overlap"),
            _jitter(where, jitter, timing),
        )
        if name in self.triggers or self.schedules.get(name, new) != new:
            raise ConfigError(f"two schedules or triggers would have the name {quoted(name)}: give one of them another")
        self.schedules[name] = new

    def trigger(self, name: str, fn: Poll, every: Duration, timeout: Duration) -> None:
        """Declare a trigger; ConfigError says what can't be."""
        where = f"trigger {check_name(name, 'the name of a trigger')}"
        if isinstance(fn, Task) or not callable(fn):
            raise ConfigError(f"{where}: it must be a function that yields requests, not a {type(fn).__name__}")
        if needed := _needed(fn):
            raise ConfigError(f"{where}: its function is called without arguments, but needs {', '.join(needed)}")
        new = Trigger(name, fn, _interval(where, every), to_micros(timeout, f"{where}: timeout"))
        if new.timeout < MICROS_PER_SECOND:
            raise ConfigError(f"{where}: timeout must be at least 1 s, but is {timeout}")
        known = self.triggers.get(name)
        if name in self.schedules or (known is not None and _origin(known.fn) != _origin(fn)):
            raise ConfigError(f"two schedules or triggers would have the name {quoted(name)}: give one of them another")
        self.triggers[name] = new


def _timing(
    where: str, cron: str | None, every: Duration | None, tz: str, start: datetime | None, end: datetime | None
) -> Timing:
    if (cron is None) == (every is None):
        raise ConfigError(f"{where}: give cron='0 3 * * *' or every=60, one of the two")
    from_ = None if start is None else time_to_micros(start, f"{where}: start")
    until = None if end is None else time_to_micros(end, f"{where}: end")
    if from_ is not None and until is not None and until < from_:
        raise ConfigError(f"{where}: its end, {end}, is before its start, {start}")
    if every is not None:
        if tz != "UTC":
            raise ConfigError(f"{where}: tz is for cron; every= counts seconds, which are the same everywhere")
        return Timing(every=_interval(where, every), start=from_, end=until)
    timing = Timing(cron=check_cron(cron, where), tz=check_zone(tz, where), start=from_, end=until)
    if from_ is not None and timing.next_after(from_ - 1) is None:
        raise ConfigError(f"{where}: it has no slot between its start, {start}, and its end, {end}")
    return timing


def _interval(where: str, every: Duration) -> int:
    micros = to_micros(every, f"{where}: every")
    if micros < MIN_INTERVAL_MICROS:
        raise ConfigError(f"{where}: every must be at least 1 s, but is {every}")
    return micros


def _jitter(where: str, jitter: Duration, timing: Timing) -> int:
    micros = to_micros(jitter, f"{where}: jitter")
    if timing.every is not None and micros >= timing.every:
        raise ConfigError(f"{where}: jitter must be less than every, so that runs stay in order, but is {jitter}")
    return micros


def _request(where: str, task: Any, args: tuple[Any, ...]) -> Request[Any]:
    if not isinstance(args, tuple | list):
        raise ConfigError(f"{where}: args must be a tuple of the task's arguments, not a {type(args).__name__}")
    if isinstance(task, Task):
        request: Request[Any] = task.request(*args)
    elif isinstance(task, Request):
        request = task
        if args:
            raise ConfigError(f"{where}: a request has its arguments already: leave args out")
    else:
        raise ConfigError(f"{where}: what it runs must be a task or a request, not a {type(task).__name__}")
    asked = request.options
    refused = {"key": asked.key, "run_at": asked.run_at, "connection": asked.connection, "deadline": asked.deadline_at}
    for option, value in refused.items():
        if value is not None:
            reason = {"key": "each slot makes a run of its own", "run_at": "the slot says when"}.get(
                option, "it would be the same for every slot"
            )
            raise ConfigError(f"{where}: leave option {option} out: {reason}")
    return request


def _needed(fn: Poll) -> list[str]:
    """The arguments that a function can't be called without."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(fn).parameters.values()
    return [it.name for it in parameters if it.default is it.empty and it.kind in positional]


def _one_of(known: tuple[str, ...], value: Any, what: str) -> Any:
    if value not in known:
        raise ConfigError(f"{what} must be one of {', '.join(map(repr, known))}, but is {value!r}")
    return value


def _origin(fn: Any) -> tuple[str, int] | Any:
    """Where a function's code stands, whatever name its module was imported by."""
    code = getattr(fn, "__code__", None)
    return fn if code is None else (os.path.realpath(code.co_filename), code.co_firstlineno)
