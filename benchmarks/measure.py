"""What every measure is made of: cases, each of which can be taken again and again, and what is compared with what."""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from benchmarks.hosts import Host

Figures: TypeAlias = dict[str, float]
"""What one repetition gave, by name; a measure with a single figure calls it by the empty name."""

OURS = "holdfast"


class Failed(Exception):
    """A measurement that gave no figure, and why."""


class Place(NamedTuple):
    """Where a figure stands in the result."""

    database: str
    subject: str
    figure: str


@dataclass(frozen=True, slots=True)
class Case:
    """What can be taken once: on which database, of whom, and which part of the measure. Those of one part go back to
    back. The details are for the report."""

    database: str
    subject: str
    take: Callable[[], Figures]
    part: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return ", ".join(word for word in (self.subject, self.part, self.database) if word)


class Measure(ABC):
    """One thing that can be measured."""

    name: ClassVar[str]
    purpose: ClassVar[str]
    unit: ClassVar[str]
    count: ClassVar[int]
    """How many jobs a repetition has, unless `--count` says otherwise."""
    quick_count: ClassVar[int]
    has_peers: ClassVar[bool] = False

    def arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027 - there may be none
        """Options of this measure's own."""

    @abstractmethod
    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        """What the figures depend on, for the report."""

    @abstractmethod
    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:
        """Prepare what is prepared once; what the stack gets is undone at the end."""

    def unit_of(self, figure: str) -> str:  # noqa: ARG002 - most measures have one unit
        return self.unit

    def compared(self, places: Sequence[Place]) -> list[tuple[Place, Place]]:
        """Which median is divided by which: ours by the same figure of each of the others."""
        known = set(places)
        others = list(dict.fromkeys(place.subject for place in places if place.subject != OURS))
        pairs = [
            (place, place._replace(subject=other)) for place in places if place.subject == OURS for other in others
        ]
        return [(top, bottom) for top, bottom in pairs if bottom in known]


def against(places: Sequence[Place], base: str) -> list[tuple[Place, Place]]:
    """Every subject against one of them."""
    known = set(places)
    pairs = [(place, place._replace(subject=base)) for place in places if place.subject != base]
    return [(top, bottom) for top, bottom in pairs if bottom in known]


def check(what: str, found: int, expected: int) -> None:
    """A figure counts only if all of the work was done."""
    if found != expected:
        raise Failed(f"{what}: {found:,} where {expected:,} were expected")


def whole_numbers(text: str) -> list[int]:
    """The type of an option that takes several numbers, such as 1,2."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"give numbers with commas between them, not {text!r}") from None
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"every number must be at least 1, but one is {min(numbers)}")
    return list(dict.fromkeys(numbers))


def note(text: str) -> None:
    """Progress, for the person who waits."""
    print(text, file=sys.stderr, flush=True)
