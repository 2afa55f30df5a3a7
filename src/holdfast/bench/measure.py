"""What every measure is made of: cases, each of which can be taken again and again, and what is compared with what."""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from holdfast.bench.hosts import Host

Figures: TypeAlias = dict[str, float]
"""What one repetition gave, by name; a measure with a single figure calls it by the empty name."""

OURS = "holdfast"


class Failed(Exception):
    """A measurement that gave no figure, and why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the result: on which database, of what, and how to take it once."""

    database: str
    subject: str
    take: Callable[[], Figures]


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

    def compared(self, subjects: Sequence[str]) -> list[tuple[str, str]]:
        """Which subject's median is divided by which: ours by each of the others."""
        return [(OURS, other) for other in subjects if other != OURS]


def check(what: str, found: int, expected: int) -> None:
    """A figure counts only if all of the work was done."""
    if found != expected:
        raise Failed(f"{what}: {found:,} where {expected:,} were expected")


def note(text: str) -> None:
    """Progress, for the person who waits."""
    print(text, file=sys.stderr, flush=True)
