"""The tasks of an app's code, for operators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.task.registry import Registry
from holdfast.task.task import Task


class TaskInfo(msgspec.Struct, frozen=True):
    """One task as its author declared it. Times are seconds."""

    name: str
    aliases: Sequence[str]
    queue: str
    priority: int
    run_in: str | None
    max_attempts: int
    timeout: float | None
    deadline: float | None
    defined: str | None
    """File and line."""


class TaskControl:
    """What the code says."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def list(self) -> list[TaskInfo]:
        """Every task, by name; imports the modules of the app's `include`."""
        self._registry.load()
        return sorted((_info(task) for task in self._registry), key=lambda info: info.name)


def _info(task: Task[..., Any]) -> TaskInfo:
    said = task.declaration
    return TaskInfo(
        name=said.name,
        aliases=said.aliases,
        queue=said.queue,
        priority=said.priority,
        run_in=said.run_in,
        max_attempts=said.retry.max_attempts,
        timeout=None if said.timeout is None else said.timeout / MICROS_PER_SECOND,
        deadline=None if said.deadline is None else said.deadline / MICROS_PER_SECOND,
        defined=_place(task),
    )


def _place(task: Task[..., Any]) -> str | None:
    code = getattr(task.origin, "__code__", None)
    if code is None:
        return None
    path = Path(code.co_filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{code.co_firstlineno}"
