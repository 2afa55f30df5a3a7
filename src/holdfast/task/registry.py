"""The tasks of an app by name, and the modules that declare them. Importing is the only side effect here."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError, DuplicateTask, TaskError, UnknownTask
from holdfast.model.codec import decode
from holdfast.model.names import check_name, check_queue, dotted_name, quoted
from holdfast.task.limits import Limits
from holdfast.task.signature import Signature
from holdfast.task.task import Task

MOST_WEIGHT = 1000


def task_name(fn: Callable[..., Any]) -> str:
    """`module.qualname`, in a script by its file's name. Functions that can't be found by it need `name=`."""
    name = dotted_name(fn)
    if "<locals>" in name or "<lambda>" in name:
        raise TaskError(
            f"task {name}: functions inside functions and lambdas have no lasting name; give one: @app.task(name=…)"
        )
    return name


class Registry:
    """Tasks by name and alias. `include` names modules that are imported when a name isn't known, or by `load`."""

    def __init__(self, include: Sequence[str] = ()) -> None:
        if isinstance(include, str):
            raise ConfigError(f"include must be a list of modules, not a str: write include=[{quoted(include)}]")
        self._waiting = [check_name(module, "a module in include") for module in include]
        self.limits = Limits()
        self.fair: dict[str, dict[str, int]] = {}
        """Fair queues, with the weights of tenants."""
        self._tasks: dict[str, Task[..., Any]] = {}
        self._lock = threading.Lock()

    def register(self, task: Task[..., Any]) -> None:
        """Add a task. The same function imported twice (as a script and as a module) takes its own place."""
        names = (task.name, *task.declaration.aliases)
        with self._lock:
            for name in names:
                known = self._tasks.get(name)
                if known is not None and not _same_function(known, task):
                    raise DuplicateTask(
                        f"two tasks would have the name {name}: {_place(known)} and {_place(task)}; "
                        "give one of them another name="
                    )
            stale = [name for name, known in self._tasks.items() if known.name == task.name]
            for name in stale:
                del self._tasks[name]
            for name in names:
                self._tasks[name] = task

    def serve(self, queue: str, fair: bool, weights: Mapping[str, int] | None) -> None:
        """How a queue is served: in turns of tenants, or as runs arrive."""
        where = f"queue {check_queue(queue, 'the name of a queue')}"
        for tenant, weight in (weights or {}).items():
            check_name(tenant, f"{where}: a tenant in weights")
            if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MOST_WEIGHT:
                raise ConfigError(
                    f"{where}: the weight of {tenant} must be from 1 to {MOST_WEIGHT:,}, but is {weight!r}"
                )
        if weights and not fair:
            raise ConfigError(f"{where}: weights need fair=True")
        if fair:
            self.fair[queue] = dict(weights or {})
        else:
            self.fair.pop(queue, None)

    def get(self, name: str) -> Task[..., Any]:
        """The task of a name or alias."""
        if name not in self._tasks:
            self.load()
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(f"no task {quoted(name)} in this app; {self._hint(name)}") from None

    def decode_result(self, task: str, text: str) -> Any:
        """A kept result, typed by the task's code where that is known, else plain JSON."""
        try:
            return self.get(task).signature.decode_result(text)
        except UnknownTask:
            return decode(text)

    def load(self) -> None:
        """Import the modules of `include` that weren't yet. No lock is held: imports have their own."""
        for module in list(self._waiting):
            try:
                importlib.import_module(module)
            except Exception as error:
                raise ConfigError(
                    f"include: the module {module} can't be imported: {type(error).__name__}: {error}"
                ) from error
            if module in self._waiting:
                self._waiting.remove(module)

    def resolve(self) -> None:
        """Resolve the annotations of every task now; TaskError for those that can't be."""
        for task in self:
            if isinstance(task.signature, Signature):
                task.signature.resolve()

    def names(self) -> dict[str, Task[..., Any]]:
        """Every name and alias known so far, with its task."""
        with self._lock:
            return dict(self._tasks)

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter([task for name, task in self.names().items() if name == task.name])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def _hint(self, name: str) -> str:
        import difflib

        close = difflib.get_close_matches(name, self._tasks, n=3, cutoff=0.6)
        close += [known for known in self._tasks if known.rpartition(".")[2] == name and known not in close][:3]
        if close:
            return f"did you mean {' or '.join(close)}?"
        return "name its module in include=, or use app.remote(…) if its code lives elsewhere"


def _same_function(known: Task[..., Any], task: Task[..., Any]) -> bool:
    same = _origin(known) is not None and _origin(known) == _origin(task)
    return known is task or (same and getattr(known, "states", ()) == getattr(task, "states", ()))


def _origin(task: Task[..., Any]) -> tuple[str, int, str] | None:
    """Where the function's code stands, whatever name its module was imported by."""
    code = getattr(task.origin, "__code__", None)
    if code is None or task.origin is None:
        return None
    return os.path.realpath(code.co_filename), code.co_firstlineno, task.origin.__qualname__


def _place(task: Task[..., Any]) -> str:
    code = getattr(task.origin, "__code__", None)
    if code is None or task.origin is None:
        return repr(task)
    return f"{task.origin.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
