"""Durations and relative times as the command line and the dashboard show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli import output
from holdfast.model.clock import format_ago, format_duration
from holdfast.web.pages import formats

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DURATIONS = {
    0: "0 ms", 0.0042: "4 ms", 0.75: "750 ms", 1: "1.0 s", 3.14: "3.1 s", 42.9: "42 s", 60: "1 min", 61: "1 min 1 s",
    599: "9 min 59 s", 750: "12 min", 3_600: "1 h", 7_500: "2 h 5 min", 90_000: "1 d 1 h", 40 * 86_400: "40 d",
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "text"), DURATIONS.items())
def test_durations_have_one_or_two_units(seconds, text):
    assert format_duration(seconds) == output.format_duration(seconds) == formats.duration(seconds) == text
    later = NOON + timedelta(seconds=seconds)
    assert format_ago(NOON, later) == (f"{text} ago" if seconds >= 1 else "now")
    assert format_ago(later, NOON) == (f"in {text}" if seconds >= 1 else "now")


def test_a_missing_or_negative_duration():
    assert (output.format_duration(None), formats.duration(None)) == ("-", "–")
    assert (output.format_ago(None), formats.ago(None)) == ("-", "–")
    assert format_duration(-1) == "0 ms"
