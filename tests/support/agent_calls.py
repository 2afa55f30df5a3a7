"""Record the calls of models and tools, to find any that is repeated although it was recorded."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from holdfast import Chunk, Holdfast, Run, idempotency_key
from holdfast.control import Control
from holdfast.task.scope import current_scope


class AgentCalls:
    """Every call by name, with its idempotency key; and those whose step was recorded before."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.made: list[tuple[str, str]] = []
        self.repeated: list[str] = []

    def clear(self) -> None:
        self.made.clear()
        self.repeated.clear()

    def note(self, name: str) -> None:
        """Note a call. Called in its step."""
        self.made.append((name, idempotency_key()))
        if is_recorded(self.app):
            self.repeated.append(name)

    @property
    def names(self) -> list[str]:
        """The names of the calls, each once however often it was tried."""
        return [name for name, _ in dict.fromkeys(self.made)]

    def tries(self) -> Counter[tuple[str, str]]:
        return Counter(self.made)


def is_recorded(app: Holdfast) -> bool:
    """Return whether the step that calls this was recorded before."""
    scope = current_scope.get()
    assert scope is not None
    assert scope.step is not None, "called outside a step"
    steps = Control(app.store, app.registry).runs.steps(UUID(scope.run))
    return any(step.key == scope.step and not step.superseded for step in steps)


def final_chunks(run: Run[Any]) -> list[Any]:
    """Return what a run wrote, without what its resets drop."""
    kept: list[Chunk] = []
    for chunk in run.stream():
        if chunk.reset:
            kept = [earlier for earlier in kept if not chunk.reset.drops(earlier)]
        kept.append(chunk)
    return [chunk.data for chunk in kept]
