"""Slots of schedules: cron expressions in a time zone, or a fixed interval; and catching up on missed slots.

A slot is a time in microseconds. Cron expressions use local time, and each matching local time has one slot. If it
occurs twice because clocks are set back, the slot is the first occurrence. If it doesn't occur because clocks are set
forward, the slot is the end of the gap. Local times with the same slot share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime
from holdfast.model.names import check_name, counted, quoted

MAX_EXPRESSION_CHARS = 500
MIN_INTERVAL_MICROS = 1 * MICROS_PER_SECOND
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIELDS = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local time, of no zone
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_NONSTANDARD_ZONES = ("localtime", "posix", "right/")
_A_SECOND = timedelta(seconds=1)
_ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001


class Timing(msgspec.Struct, frozen=True):
    """The slots of a schedule from `start` to `end` (inclusive), by `cron` in the zone `tz` or by the interval `every`.

    All times and durations are microseconds. Intervals count from `start`, or from 1970.
    """

    cron: str | None = None
    every: int | None = None
    tz: str = "UTC"
    start: int | None = None
    end: int | None = None

    def next_after(self, moment: int) -> int | None:
        """Return the first slot after a time, or None if there is none."""
        if self.start is not None:
            moment = max(moment, self.start - 1)
        slot = self._first_after(moment)
        return None if slot is None or (self.end is not None and slot > self.end) else slot

    def newest(self, after: int, until: int, most: int) -> list[int]:
        """Return the last `most` slots in (after, until], in order."""
        if self.start is not None:
            after = max(after, self.start - 1)
        if self.end is not None:
            until = min(until, self.end)
        found: list[int] = []
        for slot in self._backwards(until) if until > after else ():
            if slot <= after or len(found) == most:
                break
            found.append(slot)
        return found[::-1]

    def in_words(self) -> str:
        """Describe the timing for display."""
        if self.every is not None:
            return f"every {_span(self.every)}"
        from cronsim import CronSim  # imported here because apps without schedules don't need it

        try:
            return CronSim(_expanded(str(self.cron)), _ANY_DAY).explain()
        except Exception:  # an expression that CronSim can't describe
            return str(self.cron)

    def _first_after(self, moment: int) -> int | None:
        if self.every is not None:
            base = self.start or 0
            return base + ((moment - base) // self.every + 1) * self.every
        zone = load_zone(self.tz)
        local = to_datetime(moment - moment % MICROS_PER_SECOND).astimezone(zone).replace(tzinfo=None, fold=0)
        for at in _local_times(str(self.cron), local):
            slot = moment_of(at, zone)
            if slot > moment:  # skips the second occurrence of an hour, and times inside a gap
                return slot
        return None

    def _backwards(self, until: int) -> Iterator[int]:
        """Yield the slots up to a time, newest first."""
        if self.every is not None:
            base = self.start or 0
            slot = base + (until - base) // self.every * self.every
            while True:
                yield slot
                slot -= self.every
        zone = load_zone(self.tz)
        last = None
        for at in _local_times(str(self.cron), _latest_local(until, zone) + _A_SECOND, reverse=True):
            slot = moment_of(at, zone)
            if slot <= until and slot != last:
                yield slot
                last = slot


CatchUp: TypeAlias = Literal["skip", "latest", "all"]
"""What a schedule does with the slots that it missed."""

MISSED_AFTER_MICROS = 60 * MICROS_PER_SECOND
"""A slot counts as missed if it is overdue by more than this."""
MAX_MISSED_SLOTS = 1000
"""If more slots were missed, the oldest are skipped, also with `all`."""
MAX_SLOTS_PER_BATCH = 100
"""How many slots are created in one transaction."""


class DueSlots(NamedTuple):
    """Slots that are due now, and the next one, if any."""

    slots: list[int]
    next: int | None


def due_slots(timing: Timing, catch_up: CatchUp, next_at: int, now: int) -> DueSlots:
    """Return the due slots of a schedule whose next slot was at `next_at`."""
    if catch_up == "all":
        slots = timing.newest(next_at - 1, now, MAX_MISSED_SLOTS)[:MAX_SLOTS_PER_BATCH]
        return DueSlots(slots, timing.next_after(slots[-1] if slots else now))
    slots = timing.newest(next_at - 1, now, 1)
    if catch_up == "skip":
        slots = [slot for slot in slots if now - slot <= MISSED_AFTER_MICROS]
    return DueSlots(slots, timing.next_after(now))


def jitter_delay(jitter: int, name: str, slot: int) -> int:
    """Return the delay of a run after its slot: pseudo-random, but the same in every process."""
    if jitter <= 0:
        return 0
    digest = hashlib.sha256(f"{name}\0{slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (jitter + 1)


def check_cron(cron: object, where: str) -> str:
    """Return the normalized expression. Raise ConfigError if it is invalid or never matches."""
    if not isinstance(cron, str):
        raise ConfigError(f"{where}: cron must be a str such as '0 3 * * *', not {type(cron).__name__}")
    if len(cron) > MAX_EXPRESSION_CHARS:
        raise ConfigError(
            f"{where}: cron may have at most {MAX_EXPRESSION_CHARS} characters: {quoted(cron)} has {len(cron):,}"
        )
    text = _expanded(cron)
    if text.startswith("@"):
        raise ConfigError(f"{where}: unknown nickname {quoted(cron.strip())}; use one of {', '.join(NICKNAMES)}")
    from cronsim import CronSim, CronSimError

    try:
        found = next(CronSim(text, _ANY_DAY), None)
    except CronSimError as error:
        raise ConfigError(f"{where}: cron {quoted(cron)} {_problem(text, str(error))}") from None
    except Exception:  # CronSim's parser raises other errors for some input
        raise ConfigError(f"{where}: cron {quoted(cron)} is invalid") from None
    if found is None:
        raise ConfigError(f"{where}: cron {quoted(cron)} never matches: there is no such day")
    return " ".join(cron.split())


def check_zone(tz: object, where: str) -> str:
    """Return the name if it is in the IANA time zone database, else raise ConfigError."""
    name = check_name(tz, f"{where}: tz")
    try:
        if name.startswith(_NONSTANDARD_ZONES) or not isinstance(load_zone(name), tzinfo):
            raise KeyError(name)
    except (KeyError, ValueError, OSError):
        close = _close_zones(name)
        hint = f"did you mean {' or '.join(close)}?" if close else "names look like Europe/London, Asia/Tokyo or UTC"
        raise ConfigError(f"{where}: unknown time zone {quoted(name)}; {hint}") from None
    return name


@lru_cache(maxsize=256)
def load_zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    return UTC if name == "UTC" else ZoneInfo(name)


def moment_of(local: datetime, zone: tzinfo) -> int:
    """Return the time of a local time: its first occurrence, or the end of the gap if it doesn't occur."""
    before, after = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    assert before is not None
    assert after is not None
    if before >= after:
        return _micros(local - before)
    low, high = local - after, local - before  # clocks are set forward in between
    while high - low > _A_SECOND:
        middle = low + (high - low) // 2
        if middle.replace(tzinfo=UTC).astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return _micros(high.replace(microsecond=0))


def _latest_local(moment: int, zone: tzinfo) -> datetime:
    """Return the last local time whose slot may be up to `moment`, also while an hour occurs a second time."""
    there = to_datetime(moment - moment % MICROS_PER_SECOND).astimezone(zone)
    offset = there.replace(fold=0).utcoffset()
    assert offset is not None
    return max(there.replace(tzinfo=None, fold=0), _EPOCH + timedelta(seconds=moment // MICROS_PER_SECOND) + offset)


def _local_times(cron: str, from_: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Yield the matching local times after (or before) the given one."""
    from cronsim import CronSim

    try:
        yield from CronSim(_expanded(cron), from_, reverse=reverse)
    except (OverflowError, ValueError):
        return  # the end of the calendar


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _expanded(cron: str) -> str:
    text = cron.strip().lower()
    return NICKNAMES.get(text, text)


def _problem(text: str, message: str) -> str:
    fields = text.split()
    if len(fields) not in (5, 6):
        return (
            f"has {counted(len(fields), 'field')}: use five (minute, hour, day of the month, month, day of the week),"
            " or six starting with seconds"
        )
    name = message.removeprefix("Bad ")
    if name not in FIELDS:
        return f"is invalid: {message}"
    value = fields[FIELDS.index(name) - (6 - len(fields))] if len(fields) == 6 or name != "second" else ""
    if name == "day-of-month" and _is_list_of_numbers(value):
        return f"never matches: no such month has a day {quoted(value)}"
    return f"is invalid: {quoted(value)} is not a valid {name}"


def _is_list_of_numbers(value: str) -> bool:
    numbers = value.replace("-", ",").split(",")
    return all(part.isdecimal() and 1 <= int(part) <= 31 for part in numbers)


def _close_zones(name: str) -> list[str]:
    import difflib
    from zoneinfo import available_timezones

    known = {zone.lower(): zone for zone in available_timezones() if not zone.startswith(_NONSTANDARD_ZONES)}
    wanted = name.strip().replace(" ", "_").lower()
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.7)
    close += [zone for zone in known if zone.rpartition("/")[2] == wanted and zone not in close]
    return [known[zone] for zone in close[:3]]


def _span(micros: int) -> str:
    whole, parts = micros, []
    for unit, size in _UNITS:
        count, whole = divmod(whole, size * MICROS_PER_SECOND)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) if not whole else f"{micros / MICROS_PER_SECOND:g} s"
