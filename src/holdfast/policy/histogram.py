"""Durations as histograms: counts by steps that grow with the duration, so that few steps reach from a millisecond to
days, and percentiles that are right to about a tenth. The store counts by the same steps in SQL."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from holdfast.model.clock import MICROS_PER_SECOND

STEPS = 5
"""Steps to each e-fold of a duration: the step of a duration is STEPS * ln(milliseconds + 1), rounded down."""
MILLISECOND = MICROS_PER_SECOND // 1000

Histogram: TypeAlias = dict[int, int]
"""How many durations there are by step."""


def bucket_of(micros: int) -> int:
    """The step that a duration belongs to."""
    return math.floor(STEPS * math.log(max(micros, 0) / MILLISECOND + 1))


def bucket_midpoint_s(step: int) -> float:
    """A duration in the middle of a step, in seconds."""
    return math.expm1((step + 0.5) / STEPS) / 1000


def merge_histograms(some: Iterable[Mapping[int, int]]) -> Histogram:
    """One histogram of several."""
    found: Histogram = {}
    for each in some:
        for step, count in each.items():
            found[step] = found.get(step, 0) + count
    return found


def percentile(histogram: Mapping[int, int], percent: float) -> float | None:
    """The duration, in seconds, that so many percent of the durations don't exceed; None where there are none."""
    total = sum(histogram.values())
    seen = 0
    for step in sorted(histogram):
        seen += histogram[step]
        if seen * 100 >= total * percent:
            return bucket_midpoint_s(step)
    return None
