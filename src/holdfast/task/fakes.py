"""Fakes that tests put in the place of functions and tasks. `holdfast.testing` creates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from holdfast.task.task import Task


class FakeProtocol(Protocol):
    """Replaces certain functions and tasks. Each method is called for whatever is about to be used, so that the fake
    also knows what it did not replace."""

    def function_for(self, names: tuple[str, ...], fn: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return the replacement for the function of a step, transaction or compensation, or None."""

    def task_for(self, task: Task[..., Any]) -> Task[..., Any] | None:
        """Return the replacement for a task of which a run starts, or None."""

    def remote_task(self) -> Task[..., Any] | None:
        """Return a task to run although its code may be in another application, or None."""


active_fakes: list[FakeProtocol] = []
"""The fakes of the whole process, because user code runs in any thread. The last match wins."""


def fake_function(names: tuple[str, ...], fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the fake of a function that is used under these names, or the function itself."""
    found = [fake.function_for(names, fn) for fake in active_fakes]
    return next((instead for instead in reversed(found) if instead is not None), fn)


def fake_task(task: Task[..., Any]) -> Task[..., Any]:
    """Return the fake of a task, or the task itself."""
    found = [fake.task_for(task) for fake in active_fakes]
    return next((instead for instead in reversed(found) if instead is not None), task)


def fake_remote_tasks() -> dict[str, Task[..., Any]]:
    """Return, by name, the faked tasks whose code may be in another application."""
    return {task.name: task for fake in active_fakes if (task := fake.remote_task()) is not None}
