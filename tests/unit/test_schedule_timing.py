"""Slots of cron expressions and intervals, DST changes, and catching up on missed slots."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND, time_to_micros, to_datetime
from holdfast.policy.schedule_timing import (
    MAX_MISSED_SLOTS,
    NICKNAMES,
    Timing,
    check_cron,
    check_zone,
    due_slots,
    jitter_delay,
)

MINUTE = 60 * MICROS_PER_SECOND
HOUR = 60 * MINUTE
ZONES = (
    "Europe/London", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "America/Santiago", "Asia/Tokyo",
)  # fmt: skip


def at(text: str) -> int:
    """Return a UTC time in microseconds."""
    return time_to_micros(datetime.fromisoformat(text).replace(tzinfo=UTC))


def said(moment: int | None) -> str | None:
    return None if moment is None else f"{to_datetime(moment):%Y-%m-%d %H:%M:%S}"


def first(timing: Timing, after: str, count: int = 3) -> list[str | None]:
    found: list[str | None] = []
    moment = at(after)
    for _ in range(count):
        slot = timing.next_after(moment)
        found.append(said(slot))
        if slot is None:
            break
        moment = slot
    return found


def slots_of(timing: Timing, start: int, end: int):
    moment = start - 1
    while (slot := timing.next_after(moment)) is not None and slot < end:
        yield slot
        moment = slot


# Compared with an independent computation


STEP = timedelta(minutes=5)


class Year:
    """Walk a year in steps of five minutes; return each local time with its first occurrence."""

    def __init__(self, zone: str, year: int) -> None:
        self.start = datetime(year, 1, 1, tzinfo=UTC)
        self.end = datetime(year + 1, 1, 1, tzinfo=UTC)
        there = ZoneInfo(zone)
        self._first: dict[datetime, datetime] = {}
        moment = self.start - timedelta(days=2)
        while moment < self.end + timedelta(days=2):
            self._first.setdefault(moment.astimezone(there).replace(tzinfo=None, fold=0), moment)
            moment += STEP
        self.days = [self.start + timedelta(days=n) for n in range(-1, 367)]

    def slots(self, hours, minutes, day) -> list[int]:
        """Return the expected slots: each local time once, at its first occurrence or at the next existing time."""
        found = set()
        for each in self.days:
            if not day(each):
                continue
            for hour in hours:
                for minute in minutes:
                    local = each.replace(hour=hour, minute=minute, tzinfo=None)
                    while local not in self._first:
                        local += STEP
                    if self.start <= self._first[local] < self.end:
                        found.add(time_to_micros(self._first[local]))
        return sorted(found)


RULES = {
    "*/30 0-5 * * *": (range(6), [0, 30], lambda day: True),
    "30 1 * * *": ([1], [30], lambda day: True),
    "30 2 * * *": ([2], [30], lambda day: True),
    "0,20,40 0-3 * * SUN": (range(4), [0, 20, 40], lambda day: day.weekday() == 6),
    "15 0 31 * *": ([0], [15], lambda day: day.day == 31),
    "55 23 L * *": ([23], [55], lambda day: (day + timedelta(days=1)).day == 1),
    "0 12 29 2 *": ([12], [0], lambda day: (day.month, day.day) == (2, 29)),
    "5 2 13 * FRI": ([2], [5], lambda day: day.day == 13 or day.weekday() == 4),
}


@pytest.mark.parametrize("zone", ZONES)
def test_each_local_time_of_a_year_has_one_slot(zone):
    year = Year(zone, 2028)
    start, end = time_to_micros(year.start), time_to_micros(year.end)
    for cron, rule in RULES.items():
        timing = Timing(cron=cron, tz=zone)
        expected = year.slots(*rule)
        assert expected, cron
        assert list(slots_of(timing, start, end)) == expected, f"{cron}, forward"
        assert timing.newest(start - 1, end - 1, 10**6) == expected, f"{cron}, backward"


@pytest.mark.parametrize("zone", ZONES)
def test_backward_and_forward_iteration_agree(zone):
    timing = Timing(cron="0 */10 * * * *", tz=zone)
    for start in (at("2028-03-25 00:00"), at("2028-10-28 00:00"), at("2028-03-31 12:00"), at("2028-09-30 12:00")):
        slots = list(slots_of(timing, start, start + 60 * HOUR))
        for moment in range(start, start + 48 * HOUR, 23 * MINUTE + MICROS_PER_SECOND):
            until = [slot for slot in slots if slot <= moment]
            assert timing.newest(start - 1, moment, 5) == until[-5:]
            assert timing.next_after(moment) == slots[len(until)]


# DST changes with known dates


@pytest.mark.parametrize(
    ("zone", "cron", "after", "slots"),
    [
        # London: 2027-03-28 01:00 becomes 02:00; 2027-10-31 02:00 becomes 01:00
        ("Europe/London", "30 1 * * *", "2027-03-27 12:00", ["2027-03-28 01:00:00", "2027-03-29 00:30:00"]),
        ("Europe/London", "30 1 * * *", "2027-10-30 12:00", ["2027-10-31 00:30:00", "2027-11-01 01:30:00"]),
        ("Europe/London", "0,30 1 * * *", "2027-03-27 12:00", ["2027-03-28 01:00:00", "2027-03-29 00:00:00"]),
        ("Europe/London", "0 * * * *", "2027-10-31 00:00", ["2027-10-31 02:00:00", "2027-10-31 03:00:00"]),
        # New York: 2027-03-14 02:00 becomes 03:00; 2027-11-07 02:00 becomes 01:00
        ("America/New_York", "30 2 * * *", "2027-03-13 12:00", ["2027-03-14 07:00:00", "2027-03-15 06:30:00"]),
        ("America/New_York", "30 1 * * *", "2027-11-07 00:00", ["2027-11-07 05:30:00", "2027-11-08 06:30:00"]),
        # Lord Howe: by half an hour. 2027-10-03 02:00 becomes 02:30; 2027-04-04 02:00 becomes 01:30
        ("Australia/Lord_Howe", "15 2 * * *", "2027-10-02 00:00", ["2027-10-02 15:30:00", "2027-10-03 15:15:00"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2027-04-03 00:00", ["2027-04-03 14:45:00", "2027-04-04 15:15:00"]),
    ],
)
def test_skipped_and_repeated_local_times_have_one_slot(zone, cron, after, slots):
    assert first(Timing(cron=cron, tz=zone), after, 2) == slots


def test_no_slot_in_the_second_occurrence_of_an_hour():
    timing = Timing(cron="*/20 * * * * *", tz="Europe/London")
    assert said(timing.next_after(at("2027-10-31 01:17:05"))) == "2027-10-31 02:00:00"
    assert [said(slot) for slot in timing.newest(0, at("2027-10-31 01:17:05"), 1)] == ["2027-10-31 00:59:40"]


def test_leap_days_and_ends_of_months():
    leap = ["2096-02-29 00:00:00", "2104-02-29 00:00:00"]
    assert first(Timing(cron="0 0 29 2 *"), "2092-03-01 00:00", 2) == leap
    months = ["2027-01-31 00:00:00", "2027-03-31 00:00:00", "2027-05-31 00:00:00"]
    assert first(Timing(cron="0 0 31 * *"), "2027-01-01 00:00") == months
    ends = ["2027-01-31 00:00:00", "2027-02-28 00:00:00", "2027-03-31 00:00:00"]
    assert first(Timing(cron="0 0 L * *"), "2027-01-01 00:00") == ends


def test_seconds_names_and_nicknames():
    assert first(Timing(cron="15,45 * * * * *"), "2027-01-01 00:00", 2) == [
        "2027-01-01 00:00:15",
        "2027-01-01 00:00:45",
    ]
    assert first(Timing(cron="0 9 * jan-feb Mon-fri"), "2027-02-26 10:00", 1) == ["2028-01-03 09:00:00"]
    for nickname, plain in NICKNAMES.items():
        assert check_cron(nickname.upper(), "it") == nickname.upper()
        assert first(Timing(cron=nickname.upper()), "2027-01-01 00:00") == first(Timing(cron=plain), "2027-01-01 00:00")


def test_fractions_of_seconds_neither_repeat_nor_skip_a_slot():
    timing = Timing(cron="0 * * * *")
    noon = at("2027-01-01 12:00")
    assert timing.next_after(noon - 1) == noon
    assert timing.next_after(noon) == timing.next_after(noon + 1) == noon + HOUR
    assert timing.newest(0, noon - 1, 1) == [noon - HOUR]
    assert timing.newest(0, noon, 1) == timing.newest(0, noon + 1, 1) == [noon]


# Intervals, start and end


def test_intervals_count_from_1970_or_from_start():
    assert first(Timing(every=90 * MINUTE), "2027-01-01 00:10", 2) == ["2027-01-01 01:30:00", "2027-01-01 03:00:00"]
    timing = Timing(every=90 * MINUTE, start=at("2027-01-01 00:20"))
    assert first(timing, "2020-01-01 00:00", 2) == ["2027-01-01 00:20:00", "2027-01-01 01:50:00"]
    assert timing.newest(0, at("2027-01-01 02:00"), 5) == [at("2027-01-01 00:20"), at("2027-01-01 01:50")]


def test_start_and_end_are_inclusive_bounds():
    timing = Timing(cron="0 * * * *", start=at("2027-01-01 03:00"), end=at("2027-01-01 05:00"))
    slots = ["2027-01-01 03:00:00", "2027-01-01 04:00:00", "2027-01-01 05:00:00", None]
    assert first(timing, "2020-01-01 00:00", 9) == slots
    assert [said(slot) for slot in timing.newest(0, at("2030-01-01 00:00"), 9)] == slots[:3]
    assert timing.newest(0, at("2027-01-01 02:59"), 9) == []


# Rejected expressions


@pytest.mark.parametrize(
    ("cron", "says"),
    [
        ("0 0 30 2 *", "'0 0 30 2 \\*' never matches"),
        ("0 0 31 4,6,9,11 *", "never matches"),
        ("* * *", "has 3 fields: use five"),
        ("", "has 0 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("61 * * * *", "'61' is not a valid minute"),
        ("0 24 * * *", "'24' is not a valid hour"),
        ("60 * * * * *", "'60' is not a valid second"),
        ("0 0 * foo *", "'foo' is not a valid month"),
        ("0 0 * * fri-mon", "'fri-mon' is not a valid day-of-week"),
        ("*/0 * * * *", "'\\*/0' is not a valid minute"),
        ("0 0 * * 1#2/3", "not a valid day-of-week"),
        ("@reboot", "unknown nickname '@reboot'; use one of @hourly"),
        ("1" * 10_240, "500 characters: .* has 10,240"),
        ("1,1 " * 2560, "500 characters"),
        ("\ud800 * * * *", "is not a valid minute"),
        (5, "not int"),
        (None, "not NoneType"),
    ],
)
def test_invalid_expressions_are_rejected_with_the_reason(cron, says):
    with pytest.raises(ConfigError, match=f"schedule x: .*{says}") as caught:
        check_cron(cron, "schedule x")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("tz", "says"),
    [
        ("europe/london", "did you mean Europe/London"),
        ("New York", "did you mean America/New_York"),
        ("Europe", "unknown time zone 'Europe'"),
        ("../../etc/passwd", "names look like"),
        ("/etc/localtime", "unknown time zone"),
        ("localtime", "unknown time zone 'localtime'"),
        ("Mars/Olympus", "names look like Europe/London"),
        ("", "must not be empty"),
        ("x" * 10_240, "200 characters"),
        ("a\0b", "control character"),
        (None, "must be a str, not NoneType"),
    ],
)
def test_unknown_zones_are_rejected(tz, says):
    with pytest.raises(ConfigError, match=says):
        check_zone(tz, "schedule x")


def test_known_zones_are_accepted():
    assert [check_zone(zone, "it") for zone in (*ZONES, "UTC", "Etc/GMT+3")] == [*ZONES, "UTC", "Etc/GMT+3"]


# Jitter


def test_jitter_is_deterministic_and_uniform():
    delays = [jitter_delay(100, "nightly", slot) for slot in range(2000)]
    assert delays == [jitter_delay(100, "nightly", slot) for slot in range(2000)]
    assert set(delays) == set(range(101))
    assert delays != [jitter_delay(100, "weekly", slot) for slot in range(2000)]
    assert jitter_delay(0, "nightly", 5) == 0


# Catching up

TICK = Timing(every=MINUTE)


@pytest.mark.parametrize(
    ("catch_up", "late", "made"),
    [
        ("skip", 0, [0]),
        ("skip", 59, [0]),
        ("skip", 90, [1]),
        ("latest", 0, [0]),
        ("latest", 200, [3]),
        ("all", 0, [0]),
        ("all", 200, [0, 1, 2, 3]),
    ],
)
def test_catch_up_of_missed_slots(catch_up, late, made):
    slot = 1000 * MINUTE
    due = due_slots(TICK, catch_up, slot, slot + late * MICROS_PER_SECOND)
    assert [(each - slot) // MINUTE for each in due.slots] == made
    assert due.next == slot + (made[-1] + 1) * MINUTE


def test_a_slot_overdue_by_a_minute_is_missed():
    nightly = Timing(cron="0 3 * * *")
    slot = at("2027-01-01 03:00")
    assert due_slots(nightly, "skip", slot, slot + 60 * MICROS_PER_SECOND).slots == [slot]
    assert due_slots(nightly, "skip", slot, slot + 61 * MICROS_PER_SECOND) == ([], at("2027-01-02 03:00"))
    assert due_slots(nightly, "latest", slot, slot + 61 * MICROS_PER_SECOND).slots == [slot]


def test_catch_up_all_is_bounded_and_batched():
    slot, now = 1000 * MINUTE, 6000 * MINUTE
    made: list[int] = []
    next_at: int | None = slot
    while next_at is not None and next_at <= now:
        due = due_slots(TICK, "all", next_at, now)
        assert 0 < len(due.slots) <= 100
        made += due.slots
        next_at = due.next
    assert made == list(islice(range(now - (MAX_MISSED_SLOTS - 1) * MINUTE, now + 1, MINUTE), MAX_MISSED_SLOTS))
    assert next_at == now + MINUTE


def test_a_schedule_past_its_end_has_no_next_slot():
    timing = Timing(every=MINUTE, end=1001 * MINUTE)
    assert due_slots(timing, "all", 1000 * MINUTE, 5000 * MINUTE) == ([1000 * MINUTE, 1001 * MINUTE], None)
    assert due_slots(timing, "latest", 1000 * MINUTE, 5000 * MINUTE) == ([1001 * MINUTE], None)


@pytest.mark.parametrize(
    ("timing", "words"),
    [
        (Timing(every=30 * MICROS_PER_SECOND), "every 30 s"),
        (Timing(every=90 * MINUTE), "every 1 h 30 min"),
        (Timing(every=1_500_000), "every 1.5 s"),
        (Timing(cron="0 3 * * *"), "At 03:00 every day"),
        (Timing(cron="@monthly"), "At 00:00 on the first day of every month"),
    ],
)
def test_timing_is_described_in_words(timing, words):
    assert timing.in_words().lower() == words.lower()
