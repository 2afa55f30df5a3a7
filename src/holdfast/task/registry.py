"""The tasks of an app by name, and how functions and state classes become tasks.

Importing the modules of `include` is the only side effect here.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.errors import ConfigError, DuplicateTask, TaskError, UnknownTask
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.model.codec import UnreadableText, decode_value, encode
from holdfast.model.interactive import has_source_file, is_defined_interactively, note
from holdfast.model.names import check_name, check_queue, dotted_name, quoted
from holdfast.task.annotations import named
from holdfast.task.context import Context
from holdfast.task.declared_budgets import DeclaredBudgets
from holdfast.task.declared_limits import DeclaredLimits
from holdfast.task.graph import Graph
from holdfast.task.machine import Machine, State
from holdfast.task.options import PLACES, Declaration, TaskSettings, check_declaration
from holdfast.task.signature import BatchSignature, Signature
from holdfast.task.sync_context import SyncContext
from holdfast.task.task import EnqueuerProtocol, RemoteTask, Task, _AsyncDurable, _AsyncTask, _SyncDurable, _SyncTask

MAX_WEIGHT = 1000
MIN_AGE_INTERVAL_US, MAX_AGE_INTERVAL_US = 1000, 24 * 3600 * MICROS_PER_SECOND


def task_name(fn: Callable[..., Any]) -> str:
    """Return `module.qualname`; in a script, the file's name is the module."""
    name = dotted_name(fn)
    if "<locals>" in name or "<lambda>" in name:
        raise TaskError(f"task {name}: nested functions and lambdas have no stable name; set one: @app.task(name=…)")
    return name


class Registry:
    """Tasks by name and alias. Modules in `include` are imported by `load`, or when a name is unknown."""

    def __init__(self, include: Sequence[str] = ()) -> None:
        if isinstance(include, str):
            raise ConfigError(f"include must be a list of modules, not a str: use include=[{quoted(include)}]")
        self._unimported = [check_name(module, "a module in include") for module in include]
        self.limits = DeclaredLimits()
        self.budgets = DeclaredBudgets()
        self.fair: dict[str, dict[str, int]] = {}
        """The fair queues, with their weights by tenant."""
        self.age_intervals: dict[str, int] = {}
        """The queues with `age_priority`, with the microseconds that count like one more priority."""
        self.executors: dict[str, Callable[[], Any]] = {}
        """The factories of executors by name."""
        self._tasks: dict[str, Task[..., Any]] = {}
        self._names: dict[str, tuple[str, ...]] = {}  # by the name of a task, that name and its aliases
        self._queues: set[str] = set()
        self._lock = threading.Lock()

    def register(self, task: Task[..., Any]) -> None:
        """Add a task.

        A function imported twice, as a script and as a module, replaces itself. A task defined in a notebook or at a
        prompt may replace another one: its cell was edited and run again.
        """
        names = (task.name, *task.declaration.aliases)
        with self._lock:
            for name in names:
                known = self._tasks.get(name)
                if known is None or _same_function(known, task):
                    continue
                if not is_defined_interactively(task.origin):
                    raise DuplicateTask(
                        f"two tasks have the name {name}: {_location(known)} and {_location(task)}; "
                        "set another name= for one of them"
                    )
                if _origin(known) != _origin(task):  # an unchanged machine has new classes of states
                    note(f"task {name} is redefined: attempts that start from now on execute the new code")
            for name in self._names.get(task.name, ()):  # aliases that it no longer has
                if name in self._tasks and self._tasks[name].name == task.name:
                    del self._tasks[name]
            self._names[task.name] = names
            for name in names:
                self._tasks[name] = task

    def serve(
        self, queue: str, fair: bool, weights: Mapping[str, int] | None, age_priority: Duration | None = None
    ) -> None:
        """Configure whether a queue is claimed round-robin by tenant, and whether priorities grow while runs wait."""
        where = f"queue {check_queue(queue, 'the name of a queue')}"
        for tenant, weight in (weights or {}).items():
            check_name(tenant, f"{where}: a tenant in weights")
            if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MAX_WEIGHT:
                raise ConfigError(f"{where}: the weight of {tenant} must be from 1 to {MAX_WEIGHT:,}, not {weight!r}")
        if weights and not fair:
            raise ConfigError(f"{where}: weights need fair=True")
        if fair and age_priority is not None:
            raise ConfigError(f"{where}: age_priority is not available with fair=True: remove one of them")
        interval = None if age_priority is None else _age_interval(age_priority, f"{where}: age_priority")
        self._queues.add(queue)
        if fair:
            self.fair[queue] = dict(weights or {})
        else:
            self.fair.pop(queue, None)
        if interval is None:
            self.age_intervals.pop(queue, None)
        else:
            self.age_intervals[queue] = interval

    def declare_executor(self, name: str, factory: Callable[[], Any]) -> None:
        """Declare what creates an executor. A module that is imported twice replaces its own."""
        if check_name(name, "the name of an executor") in PLACES:
            raise ConfigError(f"executor {quoted(name)}: the name is a value of run_in= already; choose another one")
        if not callable(factory):
            raise ConfigError(
                f"executor {name}: factory must be a function that returns an executor, not {type(factory).__name__}:"
                " write a lambda around it"
            )
        self.executors[name] = factory

    def has_queue(self, name: str) -> bool:
        """Return whether the app declares a queue, by itself or as the queue of a task."""
        return name in self._queues or any(task.declaration.queue == name for task in self.names().values())

    def get(self, name: str) -> Task[..., Any]:
        """Return the task with a name or alias."""
        if name not in self._tasks:
            self.load()
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(f"no task {quoted(name)} in this app; {self._hint(name)}") from None

    def encode_message(self, task: str, topic: str, payload: Any) -> str:
        """Encode a message for a task. Raises BadMessage if it doesn't have the declared type, where that is known."""
        text = encode(payload, f"the message on topic {topic!r}")
        with suppress(UnknownTask):
            self.get(task).check_message(topic, text)
        return text

    def encode_ask(self, task: str, name: str, payload: Any) -> str:
        """Encode an ask for a task. Raises BadMessage if the task doesn't declare it like this, where that is known."""
        text = encode(payload, f"the payload of ask {name!r}")
        with suppress(UnknownTask):
            self.get(task).check_ask(name, text)
        return text

    def decode_result(self, task: str, text: str) -> Any:
        """Decode a result as the task's return type, or as plain JSON if the task is unknown here."""
        if isinstance(text, UnreadableText):
            raise text.error
        try:
            return self.get(task).signature.decode_result(text)
        except UnknownTask:
            return decode_value(text)

    def load(self) -> None:
        """Import the modules of `include`. No lock is held: imports have their own."""
        for module in list(self._unimported):
            try:
                importlib.import_module(module)
            except Exception as error:
                raise ConfigError(f"include: importing {module} failed: {type(error).__name__}: {error}") from error
            if module in self._unimported:
                self._unimported.remove(module)

    def resolve(self) -> None:
        """Resolve the annotations of every task now. Raises TaskError if one can't be."""
        for task in self:
            if isinstance(task.signature, Signature):
                task.signature.resolve()

    def check_resources(self, resources: Mapping[str, Any]) -> None:
        """Raise ResourceMissing if a parameter of a task has no resource."""
        for task in self:
            for injection in getattr(task.signature, "injections", ()):
                injection.find(resources, f"task {task.name}")

    def names(self) -> dict[str, Task[..., Any]]:
        """Return every known name and alias with its task."""
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
        return "list its module in include=, or use app.remote(…) if its code is in another application"


def _age_interval(value: Duration, what: str) -> int:
    micros = to_micros(value, what)
    if not MIN_AGE_INTERVAL_US <= micros <= MAX_AGE_INTERVAL_US:
        raise ConfigError(f"{what} must be from 1 ms to 1 day, not {value}")
    return micros


def _same_function(known: Task[..., Any], task: Task[..., Any]) -> bool:
    same = _origin(known) is not None and _origin(known) == _origin(task)
    return known is task or (same and getattr(known, "states", ()) == getattr(task, "states", ()))


def _origin(task: Task[..., Any]) -> tuple[str, int, str] | None:
    """Return the source location of a task, which doesn't depend on the name its module was imported by."""
    code = getattr(task.origin, "__code__", None)
    if code is None or task.origin is None:
        return None
    return os.path.realpath(code.co_filename), code.co_firstlineno, task.origin.__qualname__


def _location(task: Task[..., Any]) -> str:
    code = getattr(task.origin, "__code__", None)
    if code is None or task.origin is None:
        return repr(task)
    return f"{task.origin.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


# Turning functions and state classes into tasks

P = ParamSpec("P")
S = TypeVar("S", bound=State)
R = TypeVar("R")
A = TypeVar("A")

_Parameter = inspect.Parameter


class TaskDecorator(Protocol):
    """The type of `@app.task(…)`. The order of the overloads matters."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> _AsyncDurable[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[Concatenate[SyncContext, P], R], /) -> _SyncDurable[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> _AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> _SyncTask[P, R]: ...


class BatchDecorator(Protocol):
    """The type of `@app.task(batch=…)`: the function takes a list, and a run has one item."""

    @overload
    def __call__(self, fn: Callable[[list[A]], Coroutine[Any, Any, list[R]]], /) -> Task[[A], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], Coroutine[Any, Any, list[R] | None]], /) -> Task[[A], R | None]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], list[R]], /) -> Task[[A], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], list[R] | None], /) -> Task[[A], R | None]: ...


def register_task(
    fn: Callable[..., Any],
    *,
    enqueuer: EnqueuerProtocol,
    registry: Registry,
    name: str | None = None,
    **settings: Unpack[TaskSettings],
) -> Task[..., Any]:
    """Register a function as a task. If its first parameter is a context, it is a durable function."""
    _check_function(fn)
    is_async = inspect.iscoroutinefunction(fn)
    durable = _takes_context(fn, is_async)
    run_in = settings.get("run_in")
    if durable and run_in == "process":
        raise ConfigError(
            f'{fn.__qualname__} is a durable function and can\'t have run_in="process": move the CPU-bound part to a '
            'job with run_in="process", and ctx.call it'
        )
    if durable and run_in in registry.executors:
        raise ConfigError(
            f"{fn.__qualname__} is a durable function, which can't run in the executor {run_in!r}: run its steps there,"
            f" with ctx.options(run_in={run_in!r}).step(…)"
        )
    for setting, verb in (("receives", "receives no messages"), ("asks", "answers no asks")):
        if settings.get(setting) and not durable:
            raise ConfigError(f"{fn.__qualname__} is a job, which {verb}: remove {setting}=, or add a Context")
    named = task_name(fn) if name is None else name
    declaration = check_declaration(named, is_async=is_async, executors=registry.executors, **settings)
    if declaration.run_in == "process" and "<" in fn.__qualname__:
        raise TaskError(
            f'task {declaration.name}: run_in="process" needs an importable function: move it to the module'
        )
    if declaration.run_in == "process" and not has_source_file(fn):
        raise TaskError(
            f'task {declaration.name}: run_in="process" executes the function in another process, which can\'t import'
            " it from a notebook, a prompt or standard input: move it to a .py file and import it from there"
        )
    if declaration.batch is not None and durable:
        raise ConfigError(f"{fn.__qualname__} is a durable function and can't have batch=: enqueue a job for each item")
    signature = (
        Signature(fn, declaration.name, durable=durable)
        if declaration.batch is None
        else BatchSignature(fn, declaration.name)
    )
    if declaration.topics and not signature.takes_one_argument:
        raise ConfigError(
            f"task {declaration.name}: with on=, the function must take the payload of the message as its only argument"
        )
    if signature.injections and (declaration.run_in == "process" or declaration.executor is not None):
        raise ConfigError(
            f'task {declaration.name}: {signature.injections[0].parameter} can\'t be injected with run_in="{run_in}": '
            "the resources are in the worker's process. Open what it needs in the function"
        )
    task = _KINDS[durable, is_async](declaration, signature, enqueuer, fn)
    registry.register(task)
    return task


_KINDS: dict[tuple[bool, bool], type[Task[..., Any]]] = {
    (False, False): _SyncTask,
    (False, True): _AsyncTask,
    (True, False): _SyncDurable,
    (True, True): _AsyncDurable,
}


def register_graph_task(fn: Callable[..., Graph], enqueuer: EnqueuerProtocol, registry: Registry) -> Task[..., Any]:
    """Register a durable function that calls `fn` for its slot, submits the graph that it returns and waits for it.

    It has the name of `fn`, which may have one parameter, the time of the slot.
    """
    _check_function(fn)
    name = task_name(fn)
    parameters = inspect.signature(fn).parameters.values()
    required = [each.name for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    if inspect.iscoroutinefunction(fn) or len(required) > 1:
        raise ConfigError(
            f"{name} must be a plain function that returns a Graph, with at most one parameter: the time of the slot"
        )

    async def submit(ctx: Context) -> Any:
        graph = fn(ctx.scheduled_for) if required else fn()
        if not isinstance(graph, Graph):
            raise ConfigError(f"{name} must return a Graph, not {type(graph).__name__}")
        return await ctx.join(await ctx.submit(graph))

    submit.__name__, submit.__qualname__, submit.__module__ = fn.__name__, fn.__qualname__, fn.__module__
    declaration = check_declaration(name, is_async=True)
    task = _AsyncDurable(declaration, Signature(submit, name, durable=True), enqueuer, submit)
    registry.register(task)
    return task


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def register_machine(
    name: str,
    states: tuple[type[S], ...],
    *,
    enqueuer: EnqueuerProtocol,
    registry: Registry,
    history: int | None,
    **settings: Unpack[TaskSettings],
) -> Machine[S]:
    """Register a machine."""
    declaration = check_declaration(check_name(name, "the name of a machine"), is_async=True, **settings)
    if history is not None and (isinstance(history, bool) or not isinstance(history, int) or history < 1):
        raise ConfigError(f"machine {name}: history must be a number of entries, at least 1, or None, not {history!r}")
    machine = Machine(declaration, states, enqueuer, history)
    registry.register(machine)
    return machine


def remote_task(name: str, *, enqueuer: EnqueuerProtocol, queue: str = "default") -> RemoteTask:
    """Return a task whose code is in another application. It isn't registered: this app can't run it."""
    checked = check_declaration(name, is_async=False, queue=queue)
    return RemoteTask(Declaration(name=checked.name, queue=checked.queue), enqueuer)


def _check_function(fn: Any) -> None:
    name = getattr(fn, "__qualname__", None) or repr(fn)
    if isinstance(fn, Task):
        raise TaskError(f"{fn.name} is already a task; to register it twice, register its function: task.fn")
    if inspect.ismethod(fn):
        raise TaskError(f"{name} is a bound method, and its object can't be stored; use a plain function")
    if not inspect.isfunction(fn):
        hint = "; wrap it in a def" if isinstance(fn, functools.partial) or callable(fn) else ""
        raise TaskError(f"a task must be a function, but {name} is a {type(fn).__name__}{hint}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TaskError(f"{name} is a generator function: return a list instead")
    _check_is_no_method(fn, name)


def _takes_context(fn: Callable[..., Any], is_async: bool) -> bool:
    """Return whether the first parameter is a context. Raises if it is the wrong kind or not the first."""
    durable = False
    for at, parameter in enumerate(inspect.signature(fn).parameters.values()):
        kind = named(fn, parameter.annotation)
        if kind is Context or kind is SyncContext:
            _check_context(fn.__qualname__, at, parameter, kind, is_async)
            durable = True
    return durable


def _check_context(name: str, at: int, parameter: inspect.Parameter, kind: type, is_async: bool) -> None:
    if at > 0 or parameter.kind not in (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD):
        raise TaskError(
            f"{name}: the {kind.__name__} must be the first parameter, not {parameter}: move it to the front"
        )
    if kind is Context and not is_async:
        raise TaskError(
            f"{name} is a plain def and can't await: use async def, or annotate {parameter.name} as SyncContext"
        )
    if kind is SyncContext and is_async:
        raise TaskError(
            f"{name} is an async def, and a SyncContext would block its loop: annotate {parameter.name} as Context"
        )


def _check_is_no_method(fn: Any, name: str) -> None:
    owner = fn.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(fn).parameters), None)
    if owner and not owner.endswith("<locals>") and first in ("self", "cls"):
        raise TaskError(
            f"{name} is a method, and a task has no object to pass as {first}: move it out of the class, or remove "
            f"{first} and put @staticmethod above @app.task"
        )
