"""The base class of all benchmarks, and the cases that they consist of."""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from benchmarks.databases import Backend

Metrics: TypeAlias = dict[str, float]
"""The values of one repetition by metric. A benchmark with a single metric uses an empty name."""

HOLDFAST = "holdfast"


class MeasurementFailed(Exception):
    """A repetition gave no valid result; the message says why."""


class MetricKey(NamedTuple):
    """Identifies a metric in a report."""

    database: str
    subject: str
    metric: str


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure: a subject (Holdfast or a peer) on a database, for one variant of the benchmark.

    Cases of the same variant run back to back, so that they can be compared. `details` are copied into the report.
    """

    database: str
    subject: str
    measure: Callable[[], Metrics]
    variant: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return ", ".join(word for word in (self.subject, self.variant, self.database) if word)


class Benchmark(ABC):
    """A benchmark, listed in `suite`."""

    name: ClassVar[str]
    purpose: ClassVar[str]
    unit: ClassVar[str]
    count: ClassVar[int]
    """The number of jobs per repetition, unless `--count` is given."""
    quick_count: ClassVar[int]
    has_peers: ClassVar[bool] = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027 - optional
        """Add the options of this benchmark."""

    @abstractmethod
    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        """Return the settings that the results depend on."""

    @abstractmethod
    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:
        """Return the cases to measure. Register cleanup of what they share with `stack`."""

    def unit_of(self, metric: str) -> str:  # noqa: ARG002 - most benchmarks have one unit
        return self.unit

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        """Return pairs whose ratio is reported: by default, Holdfast's metrics over those of each peer."""
        others = list(dict.fromkeys(key.subject for key in keys if key.subject != HOLDFAST))
        pairs = [(key, key._replace(subject=other)) for key in keys if key.subject == HOLDFAST for other in others]
        return [pair for pair in pairs if pair[1] in set(keys)]


def compare_with(keys: Sequence[MetricKey], base: str) -> list[tuple[MetricKey, MetricKey]]:
    """Pair every subject with the subject `base`."""
    pairs = [(key, key._replace(subject=base)) for key in keys if key.subject != base]
    return [pair for pair in pairs if pair[1] in set(keys)]


def check_count(what: str, found: int, expected: int) -> None:
    """Reject the repetition unless all of the work was done."""
    if found != expected:
        raise MeasurementFailed(f"{what}: {found:,}, expected {expected:,}")


def parse_numbers(text: str) -> list[int]:
    """Parse an option with several numbers, such as 1,2."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, not {text!r}") from None
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"every number must be at least 1, but one is {min(numbers)}")
    return list(dict.fromkeys(numbers))


def log(message: str) -> None:
    """Report progress on standard error."""
    print(message, file=sys.stderr, flush=True)
