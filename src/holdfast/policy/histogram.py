"""Histograms of durations with exponential buckets: few buckets cover a millisecond to days, accurate to about 10%.

The store counts durations into the same buckets in SQL.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from holdfast.model.clock import MICROS_PER_SECOND

BUCKETS_PER_E_FOLD = 5
"""The bucket of a duration is floor(BUCKETS_PER_E_FOLD * ln(milliseconds + 1))."""
MICROS_PER_MILLISECOND = MICROS_PER_SECOND // 1000

Histogram: TypeAlias = dict[int, int]
"""Number of durations by bucket."""


def bucket_of(micros: int) -> int:
    """Return the bucket of a duration."""
    return math.floor(BUCKETS_PER_E_FOLD * math.log(max(micros, 0) / MICROS_PER_MILLISECOND + 1))


def bucket_midpoint_s(bucket: int) -> float:
    """Return a duration in the middle of a bucket, in seconds."""
    return math.expm1((bucket + 0.5) / BUCKETS_PER_E_FOLD) / 1000


def merge_histograms(histograms: Iterable[Mapping[int, int]]) -> Histogram:
    """Add up several histograms."""
    merged: Histogram = {}
    for histogram in histograms:
        for bucket, count in histogram.items():
            merged[bucket] = merged.get(bucket, 0) + count
    return merged


def percentile(histogram: Mapping[int, int], percent: float) -> float | None:
    """Return the duration in seconds that `percent` of all durations don't exceed; None if the histogram is empty."""
    total = sum(histogram.values())
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen * 100 >= total * percent:
            return bucket_midpoint_s(bucket)
    return None
