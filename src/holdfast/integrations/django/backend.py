"""A backend for Django's task interface: `django.tasks` of Django 6, or its backport `django-tasks`.

    TASKS = {"default": {"BACKEND": "holdfast.integrations.django.backend.HoldfastBackend"}}

Each Django task is registered as a Holdfast task of the same name when it is declared. If runs are stored in Django's
database, they are enqueued inside the current transaction.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC
from functools import cached_property
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections
from django.utils.module_loading import import_string

try:
    from django.tasks import TaskContext, TaskResult, signals
    from django.tasks import base as interface
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.exceptions import TaskResultDoesNotExist
except ImportError:  # before Django 6
    from django_tasks import TaskContext, TaskResult, signals
    from django_tasks import base as interface
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.exceptions import TaskResultDoesNotExist

from holdfast.control import Control
from holdfast.errors import HoldfastError, PayloadError, RunNotFound
from holdfast.integrations.django.conf import the_app
from holdfast.integrations.django.results import new_result, result_of
from holdfast.model.codec import encode
from holdfast.model.retry import Retry
from holdfast.model.run import RunInfo
from holdfast.task.scope import current_scope

OPTIONS = ("RETRY", "TIMEOUT", "DEADLINE", "LIMITS")
"""The keys of `OPTIONS`, which apply to everything that is enqueued through the backend."""


class HoldfastBackend(BaseTaskBackend):  # type: ignore[misc]  # Django is untyped here
    """Enqueues Django tasks for `manage.py holdfast worker`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._app = the_app()
        self._run_options = {name.lower(): value for name, value in self.options.items()}

    @cached_property
    def _control(self) -> Control:
        return Control(self._app.store, self._app.registry)

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Report invalid `OPTIONS` as a system check."""
        error = self._options_error()
        return [] if error is None else [checks.Error(error, id="holdfast.E003")]

    def _options_error(self) -> str | None:
        for unknown in self.options.keys() - set(OPTIONS):
            return f"TASKS: {self.alias}: OPTIONS has {unknown!r}; HoldfastBackend takes {', '.join(OPTIONS)}"
        try:
            self._app.remote("task").options(**self._run_options)
        except HoldfastError as error:
            return f"TASKS: {self.alias}: OPTIONS: {error}"
        return None

    # Declaration

    def validate_task(self, task: Any) -> None:
        """Register the task. Django calls this when a task is declared or changed with `using`."""
        super().validate_task(task)
        if task.module_path not in self._app.registry:
            self._declare(task)

    def _declare(self, task: Any) -> None:
        run = self._async_function(task) if inspect.iscoroutinefunction(task.func) else self._function(task)
        once = Retry(max_attempts=1)  # As in Django's own backends, unless OPTIONS says otherwise.
        self._app.task(name=task.module_path, queue=task.queue_name, priority=task.priority, retry=once)(run)

    def _function(self, task: Any) -> Callable[..., Any]:
        def run(args: list[Any], kwargs: dict[str, Any]) -> Any:
            result = self._start(task, args, kwargs)
            value = task.func(*self._context(task, result), *args, **kwargs)
            return self._finish(result, value)

        return run

    def _async_function(self, task: Any) -> Callable[..., Any]:
        async def run(args: list[Any], kwargs: dict[str, Any]) -> Any:
            await sync_to_async(close_old_connections)()  # Django's async code has its own thread.
            result = await sync_to_async(self._start)(task, args, kwargs)
            value = await task.func(*self._context(task, result), *args, **kwargs)
            value = await sync_to_async(self._finish)(result, value)
            await sync_to_async(close_old_connections)()
            return value

        return run

    # Enqueue

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> TaskResult:
        if (error := self._options_error()) is not None:
            raise ImproperlyConfigured(error)
        self.validate_task(task)
        result = new_result(task, args, kwargs, self.alias)  # Converts the arguments to JSON types.
        holdfast_task = self._app.registry.get(task.module_path)
        options: dict[str, Any] = {**self._run_options, "queue": task.queue_name, "priority": task.priority}
        if task.run_after is not None:
            after = task.run_after
            options["run_at"] = after if after.tzinfo else after.astimezone(UTC)
        if (connection := self._open_transaction()) is not None:
            options["connection"] = connection
        run = holdfast_task.options(**options).enqueue(result.args, result.kwargs)
        object.__setattr__(result, "id", str(run.id))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _open_transaction(self) -> Any:
        """Return Django's connection if a transaction is open on it."""
        alias = getattr(self._app, "alias", None)
        if alias is None or not connections[alias].in_atomic_block:
            return None
        return connections[alias]

    # Results

    def get_result(self, result_id: str) -> TaskResult:
        with suppress(RunNotFound, ValueError, ImportError):
            details = self._control.runs.details(UUID(result_id))
            task = import_string(details.info.task)
            if isinstance(task, interface.Task):
                return result_of(details.info, details.history, details.args, task, self.alias)
        raise TaskResultDoesNotExist(result_id)

    # Execution

    def _start(self, task: Any, args: list[Any], kwargs: dict[str, Any]) -> TaskResult:
        now = current_scope.get()
        assert now is not None, "only a worker runs tasks"
        id, runs = UUID(now.run), self._control.runs
        result = result_of(runs.info(id), runs.history(id), {"args": args, "kwargs": kwargs}, task, self.alias)
        signals.task_started.send(type(self), task_result=result)
        return result

    def _context(self, task: Any, result: TaskResult) -> list[TaskContext]:
        return [TaskContext(task_result=result)] if task.takes_context else []

    def _finish(self, result: TaskResult, value: Any) -> Any:
        """Send the signal before the result is recorded, so that an error of a receiver fails the attempt.

        A value that can't be stored fails the run, so it isn't reported as a success.
        """
        if self._can_be_stored(value):
            object.__setattr__(result, "status", interface.TaskResultStatus.SUCCESSFUL)
            object.__setattr__(result, "_return_value", value)
            signals.task_finished.send(type(self), task_result=result)
        return value

    def _can_be_stored(self, value: Any) -> bool:
        try:
            self._app.store.payloads.check_size(encode(value, "the result"), "the result")
        except PayloadError:
            return False
        return True


def send_failed(info: RunInfo[Any]) -> None:
    """Send Django's signal for a failed run of a Django task."""
    with suppress(ImportError):
        task = import_string(info.task)
        if isinstance(task, interface.Task) and isinstance(backend := task.get_backend(), HoldfastBackend):
            signals.task_finished.send(type(backend), task_result=backend.get_result(str(info.id)))
