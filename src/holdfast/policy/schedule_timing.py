"""When a schedule has its slots: cron expressions in a time zone, or a fixed interval. Pure: the time is always given.

A slot is a moment in microseconds. Cron expressions are read in local time, and each local time that matches has one
slot: where clocks are put back the first of the two moments, where they are put forward over it the first moment after
the gap. Local times that come to the same moment in that way share one slot.
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
from holdfast.model.names import check_name, quoted

LONGEST_EXPRESSION = 500
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
_NOT_EVERYWHERE = ("localtime", "posix", "right/")
_A_SECOND = timedelta(seconds=1)
_ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001


class Timing(msgspec.Struct, frozen=True):
    """The slots of a schedule, by `cron` in the zone `tz` or by `every`; those from `start` to `end`, both included.
    All times and durations are microseconds. Intervals are counted from `start`, else from 1970."""

    cron: str | None = None
    every: int | None = None
    tz: str = "UTC"
    start: int | None = None
    end: int | None = None

    def next_after(self, moment: int) -> int | None:
        """The first slot after a moment; None when there is none any more."""
        if self.start is not None:
            moment = max(moment, self.start - 1)
        slot = self._first_after(moment)
        return None if slot is None or (self.end is not None and slot > self.end) else slot

    def newest(self, after: int, until: int, most: int) -> list[int]:
        """The last slots after a moment and not after another, at most so many, in order."""
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
        """For people."""
        if self.every is not None:
            return f"every {_span(self.every)}"
        from cronsim import CronSim  # apps without schedules need none of it

        try:
            return CronSim(_plain(str(self.cron)), _ANY_DAY).explain()
        except Exception:  # what it can't put into words
            return str(self.cron)

    def _first_after(self, moment: int) -> int | None:
        if self.every is not None:
            base = self.start or 0
            return base + ((moment - base) // self.every + 1) * self.every
        zone = load_zone(self.tz)
        local = to_datetime(moment - moment % MICROS_PER_SECOND).astimezone(zone).replace(tzinfo=None, fold=0)
        for at in _local_times(str(self.cron), local):
            slot = moment_of(at, zone)
            if slot > moment:  # not in the second pass of an hour that comes twice, nor where a gap has ended
                return slot
        return None

    def _backwards(self, until: int) -> Iterator[int]:
        """The slots not after a moment, newest first."""
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

MISSED_AFTER = 60 * MICROS_PER_SECOND
"""A slot that nobody has looked at for so long was missed. Less than that is only late."""
MAX_MISSED_SLOTS = 1000
"""Of more missed slots than these the oldest are passed over, also with `all`."""
AT_ONCE = 100
"""So many are made in one transaction."""


class DueSlots(NamedTuple):
    """Slots to be made now, and the next one; None when there is none any more."""

    slots: list[int]
    next: int | None


def due_slots(timing: Timing, catch_up: CatchUp, next_at: int, now: int) -> DueSlots:
    """What is due of a schedule whose next slot was to be at `next_at`."""
    if catch_up == "all":
        slots = timing.newest(next_at - 1, now, MAX_MISSED_SLOTS)[:AT_ONCE]
        return DueSlots(slots, timing.next_after(slots[-1] if slots else now))
    slots = timing.newest(next_at - 1, now, 1)
    if catch_up == "skip":
        slots = [slot for slot in slots if now - slot <= MISSED_AFTER]
    return DueSlots(slots, timing.next_after(now))


def jitter_delay(jitter: int, name: str, slot: int) -> int:
    """How much later than its slot a run begins: chance, but the same whoever asks."""
    if jitter <= 0:
        return 0
    digest = hashlib.sha256(f"{name}\0{slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (jitter + 1)


def check_cron(cron: object, where: str) -> str:
    """The expression itself, if it has slots."""
    if not isinstance(cron, str):
        raise ConfigError(f"{where}: cron must be a str like '0 3 * * *', not {type(cron).__name__}")
    if len(cron) > LONGEST_EXPRESSION:
        raise ConfigError(
            f"{where}: cron may have {LONGEST_EXPRESSION} characters, but {quoted(cron)} has {len(cron):,}"
        )
    text = _plain(cron)
    if text.startswith("@"):
        raise ConfigError(f"{where}: there is no {quoted(cron.strip())}; there are {', '.join(NICKNAMES)}")
    from cronsim import CronSim, CronSimError

    try:
        found = next(CronSim(text, _ANY_DAY), None)
    except CronSimError as error:
        raise ConfigError(f"{where}: cron {quoted(cron)} {_fault(text, str(error))}") from None
    except Exception:  # what its parser didn't foresee
        raise ConfigError(f"{where}: cron {quoted(cron)} can't be read") from None
    if found is None:
        raise ConfigError(f"{where}: cron {quoted(cron)} never comes true: there is no such day")
    return " ".join(cron.split())


def check_zone(tz: object, where: str) -> str:
    """The name itself, if it is one of the IANA database."""
    name = check_name(tz, f"{where}: tz")
    try:
        if name.startswith(_NOT_EVERYWHERE) or not isinstance(load_zone(name), tzinfo):
            raise KeyError(name)
    except (KeyError, ValueError, OSError):
        close = _close_zones(name)
        hint = f"did you mean {' or '.join(close)}?" if close else "names look like Europe/London, Asia/Tokyo or UTC"
        raise ConfigError(f"{where}: there is no time zone {quoted(name)}; {hint}") from None
    return name


@lru_cache(maxsize=256)
def load_zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    return UTC if name == "UTC" else ZoneInfo(name)


def moment_of(local: datetime, zone: tzinfo) -> int:
    """The moment of a local time: the first where there are two, the end of the gap where there is none."""
    before, after = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    assert before is not None
    assert after is not None
    if before >= after:
        return _micros(local - before)
    low, high = local - after, local - before  # clocks are put forward in between
    while high - low > _A_SECOND:
        middle = low + (high - low) // 2
        if middle.replace(tzinfo=UTC).astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return _micros(high.replace(microsecond=0))


def _latest_local(moment: int, zone: tzinfo) -> datetime:
    """The last local time that can have its slot by then: beyond what clocks show while an hour comes again."""
    there = to_datetime(moment - moment % MICROS_PER_SECOND).astimezone(zone)
    offset = there.replace(fold=0).utcoffset()
    assert offset is not None
    return max(there.replace(tzinfo=None, fold=0), _EPOCH + timedelta(seconds=moment // MICROS_PER_SECOND) + offset)


def _local_times(cron: str, from_: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Local times that match, beyond the given one, until there are none."""
    from cronsim import CronSim

    try:
        yield from CronSim(_plain(cron), from_, reverse=reverse)
    except (OverflowError, ValueError):
        return  # the calendar is over


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _plain(cron: str) -> str:
    text = cron.strip().lower()
    return NICKNAMES.get(text, text)


def _fault(text: str, message: str) -> str:
    fields = text.split()
    if len(fields) not in (5, 6):
        return (
            f"has {len(fields)} fields: there are five (minute, hour, day of the month, month, day of the week),"
            " or six with seconds in front"
        )
    name = message.removeprefix("Bad ")
    if name not in FIELDS:
        return f"can't be read: {message}"
    value = fields[FIELDS.index(name) - (6 - len(fields))] if len(fields) == 6 or name != "second" else ""
    if name == "day-of-month" and _is_list_of_numbers(value):
        return f"never comes true: no such month has a day {quoted(value)}"
    return f"can't be read: {quoted(value)} is no {name}"


def _is_list_of_numbers(value: str) -> bool:
    numbers = value.replace("-", ",").split(",")
    return all(part.isdecimal() and 1 <= int(part) <= 31 for part in numbers)


def _close_zones(name: str) -> list[str]:
    import difflib
    from zoneinfo import available_timezones

    known = {zone.lower(): zone for zone in available_timezones() if not zone.startswith(_NOT_EVERYWHERE)}
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
