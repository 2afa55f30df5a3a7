"""Functions that stand in for those of steps, in tests. The step keeps its name and what it is known by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class StandIn(Protocol):
    """Something that stands in for certain functions."""

    def function_for(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any] | None:
        """What is called instead of a function that a step of that name has; None where it stands in for another."""


on_stage: list[StandIn] = []
"""Those of the whole process: steps run in any thread. The last one that fits is taken."""


def played(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function to call for a step."""
    for stand_in in reversed(on_stage):
        if (instead := stand_in.function_for(name, fn)) is not None:
            return instead
    return fn
