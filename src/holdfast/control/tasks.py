"""The tasks that an app declares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.task.registry import Registry
from holdfast.task.task import Task


class TaskInfo(msgspec.Struct, frozen=True):
    """A task as declared. Durations are seconds."""

    name: str
    aliases: Sequence[str]
    queue: str
    priority: int
    run_in: str | None
    max_attempts: int
    timeout: float | None
    deadline: float | None
    defined: str | None
    """The file and line of its function."""
    limits: Sequence[str] = ()
    """The limits that its runs observe."""


class TaskControl:
    """Lists declared tasks."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def list(self) -> list[TaskInfo]:
        """List all tasks by name; imports the modules of the app's `include`."""
        self._registry.load()
        return sorted((_info(task) for task in self._registry), key=lambda info: info.name)


def _info(task: Task[..., Any]) -> TaskInfo:
    declared = task.declaration
    return TaskInfo(
        name=declared.name,
        aliases=declared.aliases,
        queue=declared.queue,
        priority=declared.priority,
        run_in=declared.executor or declared.run_in,
        max_attempts=declared.retry.max_attempts,
        timeout=None if declared.timeout is None else declared.timeout / MICROS_PER_SECOND,
        deadline=None if declared.deadline is None else declared.deadline / MICROS_PER_SECOND,
        defined=_location(task),
        limits=list(declared.limits),
    )


def _location(task: Task[..., Any]) -> str | None:
    code = getattr(task.origin, "__code__", None)
    if code is None:
        return None
    path = Path(code.co_filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{code.co_firstlineno}"
