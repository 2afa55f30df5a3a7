"""Convert runs to the `TaskResult` of Django's task interface."""

from __future__ import annotations

from typing import Any

try:
    from django.tasks.base import TaskError, TaskResult, TaskResultStatus
except ImportError:  # before Django 6
    from django_tasks.base import TaskError, TaskResult, TaskResultStatus

from django.utils import timezone

from holdfast.model.history import Entry
from holdfast.model.run import RunInfo, RunState

_RUNNING = {"running", "waiting", "undoing"}
_OURS = "holdfast.errors.RunFailed"
"""The class of errors without an exception: timeouts, crashes and cancellations."""


def new_result(task: Any, args: Any, kwargs: Any, backend: str) -> TaskResult:
    """Return the result of a run to be enqueued. Django raises here if the arguments aren't JSON."""
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=timezone.now(),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def result_of(info: RunInfo[Any], history: list[Entry], call: dict[str, Any], task: Any, backend: str) -> TaskResult:
    """Return the result of an existing run."""
    starts = [entry for entry in history if entry.kind == "started"]
    result = TaskResult(
        task=task.using(priority=info.priority, queue_name=info.queue),
        id=str(info.id),
        status=_status(info.state),
        enqueued_at=info.created_at,
        started_at=starts[0].at if starts else None,
        finished_at=info.finished_at,
        last_attempted_at=starts[-1].at if starts else None,
        args=call["args"],
        kwargs=call["kwargs"],
        backend=backend,
        errors=[_error(entry) for entry in history if isinstance(entry.data.get("error"), dict)],
        worker_ids=[entry.worker for entry in starts],
    )
    object.__setattr__(result, "_return_value", info.result)  # As Django's own backends do.
    return result


def _status(state: RunState) -> TaskResultStatus:
    if state == "done":
        return TaskResultStatus.SUCCESSFUL
    if state in ("failed", "cancelled", "skipped"):
        return TaskResultStatus.FAILED
    return TaskResultStatus.RUNNING if state in _RUNNING else TaskResultStatus.READY


def _error(entry: Entry) -> TaskError:
    error = entry.data["error"]
    kind = str(error.get("type", ""))
    if error.get("code") not in ("error", "fatal"):
        kind = _OURS
    path = kind if "." in kind else f"builtins.{kind}"
    return TaskError(exception_class_path=path, traceback=error.get("traceback") or str(error.get("message", "")))
