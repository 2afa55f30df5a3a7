"""The verdict of a soak test."""

from __future__ import annotations

import dataclasses

import pytest

from tests.chaos.soak import Sample, judge

FLAT = [Sample(5.0 * n, 60.0, 5.0, 20.0, 10_000, 10, 30.0) for n in range(30)]


def growing(**ends):
    """Return samples that grow evenly to these values."""
    first = dataclasses.asdict(FLAT[0])
    return [
        dataclasses.replace(sample, **{name: first[name] + (end - first[name]) * n / 29 for name, end in ends.items()})
        for n, sample in enumerate(FLAT)
    ]


def test_constant_metrics_pass():
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
def test_a_growing_metric_is_reported(ends, named):
    [wrong] = judge(growing(**ends)).wrong
    assert named in wrong


def test_a_short_run_does_not_pass():
    assert judge(FLAT[:2]).wrong == ["too short to judge: use more --minutes"]
