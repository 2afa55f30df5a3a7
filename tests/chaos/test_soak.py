"""What is a soak's good and bad end."""

from __future__ import annotations

import dataclasses

import pytest

from tests.chaos.soak import Sample, judge

FLAT = [Sample(5.0 * n, 60.0, 5.0, 20.0, 10_000, 10, 30.0) for n in range(30)]


def growing(**ends):
    """The same, growing evenly to so much."""
    first = dataclasses.asdict(FLAT[0])
    return [
        dataclasses.replace(sample, **{name: first[name] + (end - first[name]) * n / 29 for name, end in ends.items()})
        for n, sample in enumerate(FLAT)
    ]


def test_what_stays_the_same_is_good():
    assert judge(FLAT).wrong == []
    assert judge(growing(memory=61.0, latency=6.0, rows=10_500, megabytes=31.0)).wrong == []


@pytest.mark.parametrize(
    ("ends", "named"),
    [
        ({"memory": 70.0}, "memory"),
        ({"latency": 100.0}, "latency"),
        ({"rows": 40_000}, "rows"),
        ({"megabytes": 150.0}, "size"),
    ],
)
def test_what_grows_is_named(ends, named):
    [wrong] = judge(growing(**ends)).wrong
    assert named in wrong


def test_what_is_too_short_is_not_called_good():
    assert judge(FLAT[:2]).wrong == ["too short to judge: give more minutes"]
