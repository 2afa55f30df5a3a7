"""Durable hooks as users declare them: tasks that are enqueued when a run of another task ends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from holdfast.errors import ConfigError, ErrorInfo, TaskError
from holdfast.model.run import RunEnd


@runtime_checkable
class HookTask(Protocol):
    """A task that can be enqueued when a run ends: it takes one argument, a `RunEnd`."""

    name: str

    def request(self, end: RunEnd, /) -> Any: ...


HookTasks: TypeAlias = HookTask | Sequence[HookTask]
"""A task, or several."""

_START = datetime.fromtimestamp(0, UTC)
_EXAMPLE = RunEnd(
    id=UUID(int=0), task="task", queue="default", state="failed", attempt=1, created_at=_START, finished_at=_START,
    error=ErrorInfo("error", "ValueError", ""),
)  # fmt: skip
_REFUSED = ("key", "unique", "debounce", "run_at", "connection")


def declared_hooks(where: str, **given: Any) -> dict[str, tuple[Any, ...]]:
    """Return the requests of the hooks that are given, by event."""
    return {event: hook_requests(tasks, f"{where}: {event}") for event, tasks in given.items() if tasks is not None}


def hook_requests(given: Any, what: str) -> tuple[Any, ...]:
    """Return a request of each task, with an example as its argument: that checks whether it accepts a `RunEnd`."""
    requests = []
    for task in given if isinstance(given, list | tuple) else (given,):
        if not isinstance(task, HookTask):
            raise ConfigError(f"{what} must be a task or a list of tasks, not {type(task).__name__}")
        try:
            request = task.request(_EXAMPLE)
        except TaskError as error:
            raise ConfigError(f"{what}: task {task.name} must accept a RunEnd as its only argument: {error}") from error
        for option in _REFUSED:
            if getattr(request.options, option) is not None:
                raise ConfigError(f"{what}: task {task.name} can't have the option {option}: each end enqueues a run")
        requests.append(request)
    return tuple(requests)
