"""The settings of a task (`Declaration`) and the options of one call (`Options`), checked where they are given.

`client/run_creator.py` combines the two when it creates a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast, get_args

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.batch import Batch, check_batch
from holdfast.model.clock import Duration, time_to_micros, to_micros
from holdfast.model.keep import Keep
from holdfast.model.labels import check_requires
from holdfast.model.metadata import check_metadata
from holdfast.model.names import MAX_KEY_CHARS, check_name, check_queue
from holdfast.model.retry import Retry
from holdfast.model.topics import Topic, Topics, check_topics
from holdfast.task.annotations import payload_type
from holdfast.task.hooks import HookTasks, declared_hooks

RunIn: TypeAlias = Literal["loop", "thread", "process"]
"""Where a task's function runs; one that runs in an executor is awaited in the loop."""
PLACES = get_args(RunIn)

IfTaken: TypeAlias = Literal["return", "queue", "replace", "cancel"]
"""What an enqueue does if an unfinished run has its unique name."""
_IF_TAKEN = get_args(IfTaken)

DEFAULT_RETRY = Retry()
MAX_PRIORITY = 1_000_000
MAX_CRASHES = 1_000_000
MIN_MEMORY_BYTES = 128 * 1024 * 1024  # With less, the interpreter doesn't start.
MAX_NAMES = 100  # Tags, limits or aliases.
LABELS_ARE_DECLARED = (
    "{0} is a setting of a task, not an option of a call, because workers claim by queue and task: declare another"
    " task with {0}=, or pass queue= with a queue that only those workers serve"
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one call; None where unset. Times and durations are in microseconds, metadata is JSON text."""

    queue: str | None = None
    priority: int | None = None
    delay: int | None = None
    run_at: int | None = None
    key: str | None = None
    unique: str | None = None
    if_taken: IfTaken | None = None
    debounce: str | None = None
    max_delay: int | None = None
    tenant: str | None = None
    retry: Retry | None = None
    timeout: int | None = None
    deadline: int | None = None
    deadline_at: int | None = None
    start_by: int | None = None
    start_by_at: int | None = None
    key_ttl: int | None = None
    tags: tuple[str, ...] | None = None
    limits: tuple[str, ...] | None = None
    metadata: str | None = None
    connection: object = None

    def merge(self, **given: Any) -> Options:
        """Return these options with changes. None resets an option."""
        changes: dict[str, Any] = {}
        for name, value in given.items():
            check = _CHECKS.get(name)
            if check is None:
                if name in ("requires", "prefers"):
                    raise ConfigError(LABELS_ARE_DECLARED.format(name))
                raise ConfigError(f"unknown option {name!r}; the options are {', '.join(_CHECKS)}")
            changes[name] = None if value is None else check(value, f"option {name}")
        if "deadline" in changes:
            changes |= _in_or_at("deadline", changes["deadline"])
        if "start_by" in changes:
            changes |= _in_or_at("start_by", changes["start_by"])
        merged = msgspec.structs.replace(self, **changes)
        if merged.delay is not None and merged.run_at is not None:
            raise ConfigError("options delay and run_at are mutually exclusive: remove one")
        _check_start_by(merged)
        _check_debounce(merged)
        if merged.key_ttl is not None and merged.key is None:
            raise ConfigError("option key_ttl needs key=: the key that expires")
        if merged.if_taken is not None and merged.unique is None:
            raise ConfigError("option if_taken needs unique=: the name that may be taken")
        return merged

    def canonical(self) -> dict[str, Any]:
        """Return the options as plain data for digests, without key, tenant and connection."""
        options = {name: value for name in _COMPARED if (value := getattr(self, name)) is not None}
        if self.retry is not None:
            options["retry"] = self.retry.identity()
        return options


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a task. `run_in` is None if its code is in another application."""

    name: str
    aliases: tuple[str, ...] = ()
    queue: str = "default"
    priority: int = 0
    retry: Retry = DEFAULT_RETRY
    timeout: int | None = None
    deadline: int | None = None
    run_in: RunIn | None = None
    executor: str | None = None
    """The executor that runs its function."""
    limits: tuple[str, ...] = ()
    max_crashes: int = 3
    keep: Keep | None = None
    memory: int | None = None
    receives: Mapping[str, Any] = {}
    asks: Mapping[str, Any] = {}
    hooks: Mapping[str, tuple[Any, ...]] = {}
    """Requests of the tasks to enqueue when a run ends, by event. Their argument is an example."""
    batch: Batch | None = None
    topics: tuple[Topic, ...] = ()
    """The messages of which each creates a run."""
    requires: Mapping[str, str] = {}
    """The labels that a worker needs to execute its runs."""
    prefers: Mapping[str, str] = {}
    """The labels of workers to which its runs are left for a while."""


class MachineSettings(TypedDict, total=False):
    """The settings that machines and tasks have in common."""

    aliases: Sequence[str]
    queue: str
    priority: int
    retry: Retry | None
    timeout: Duration | None
    deadline: Duration | None
    limits: Sequence[str]
    max_crashes: int
    keep: Keep | Duration | None
    requires: Mapping[str, str] | None
    prefers: Mapping[str, str] | None
    on_success: HookTasks | None
    on_failure: HookTasks | None
    on_end: HookTasks | None


class CommonTaskSettings(MachineSettings, total=False):
    """The settings that all tasks have in common, those with `batch=` included."""

    run_in: RunIn | str | None
    on: Topics | None


class TaskSettings(CommonTaskSettings, total=False):
    """The keyword arguments of `@app.task(…)` besides the name."""

    memory: int | None
    receives: Mapping[str, Any] | None
    asks: Mapping[str, Any] | None
    batch: Batch | None


class TaskDefaults:
    """Settings that several tasks share: `@app.task(defaults=…)`. What a task sets itself takes precedence.

    Example:
        ```python
        billing = TaskDefaults(queue="billing", retry=Retry(max_attempts=3), on_failure=alert)

        @app.task(defaults=billing, timeout=30)
        def charge(order: int) -> None: ...
        ```
    """

    __slots__ = ("settings",)

    def __init__(self, **settings: Unpack[TaskSettings]) -> None:
        check_known(settings, sorted(TaskSettings.__annotations__.keys() - {"aliases"}), "TaskDefaults")
        self.settings: TaskSettings = settings

    def __repr__(self) -> str:
        return f"TaskDefaults({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"


def check_known(settings: Mapping[str, object], known: Collection[str], what: str) -> None:
    """Raise ConfigError for a setting that doesn't exist."""
    for unknown in settings.keys() - set(known):
        raise ConfigError(f"{what}: unknown setting {unknown!r}; the settings are {', '.join(known)}")


def check_declaration(
    name: str,
    *,
    is_async: bool,
    executors: Collection[str] = (),
    aliases: Iterable[str] = (),
    queue: str = "default",
    priority: int = 0,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    deadline: Duration | None = None,
    run_in: RunIn | str | None = None,
    limits: Iterable[str] = (),
    max_crashes: int = 3,
    keep: Keep | Duration | None = None,
    memory: int | None = None,
    receives: Mapping[str, Any] | None = None,
    asks: Mapping[str, Any] | None = None,
    on_success: HookTasks | None = None,
    on_failure: HookTasks | None = None,
    on_end: HookTasks | None = None,
    batch: Batch | None = None,
    requires: Mapping[str, str] | None = None,
    prefers: Mapping[str, str] | None = None,
    on: Topics | None = None,
) -> Declaration:
    """Check every setting of a task. Messages name the task and the setting."""
    where = f"task {check_name(name, 'the name of a task')}"
    return Declaration(
        name=name,
        aliases=_names(aliases, f"{where}: aliases"),
        queue=check_queue(queue, f"{where}: queue"),
        priority=_priority(priority, f"{where}: priority"),
        retry=DEFAULT_RETRY if retry is None else _declared_retry(retry, run_in, f"{where}: retry"),
        timeout=None if timeout is None else positive_micros(timeout, f"{where}: timeout"),
        deadline=None if deadline is None else positive_micros(deadline, f"{where}: deadline"),
        run_in=_run_in(run_in, is_async, executors, where),
        executor=run_in if run_in in executors else None,
        limits=_names(limits, f"{where}: limits"),
        max_crashes=_crashes(max_crashes, f"{where}: max_crashes"),
        keep=None if keep is None else Keep.of(keep, f"{where}: keep"),
        memory=None if memory is None else _memory(memory, run_in, f"{where}: memory"),
        batch=None if batch is None else _batch(batch, run_in, f"{where}: batch"),
        receives={} if receives is None else _message_types(receives, f"{where}: receives", "topic"),
        asks={} if asks is None else _message_types(asks, f"{where}: asks", "ask"),
        topics=() if on is None else check_topics(on, f"{where}: on"),
        requires={} if requires is None else check_requires(requires, f"{where}: requires"),
        prefers={} if prefers is None else check_requires(prefers, f"{where}: prefers"),
        hooks=declared_hooks(where, on_success=on_success, on_failure=on_failure, on_end=on_end),
    )


def _message_types(value: Any, what: str, noun: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} must be a mapping of {noun}s to types, not {type(value).__name__}")
    return {
        check_name(name, f"a name of {noun}s in {what}"): payload_type(given, f"{what}[{name!r}]")
        for name, given in value.items()
    }


def _run_in(run_in: RunIn | str | None, is_async: bool, executors: Collection[str], where: str) -> RunIn:
    if run_in is None:
        return "loop" if is_async else "thread"
    if run_in in executors:
        if is_async:
            raise ConfigError(f"{where}: an async def can't run in the executor {run_in!r}; use a plain def")
        return "loop"
    if run_in not in PLACES:
        known = f" ({', '.join(sorted(executors))})" if executors else ""
        raise ConfigError(
            f'{where}: run_in must be "loop", "thread" or "process", or name an executor that app.executor has declared'
            f"{known}, not {run_in!r}"
        )
    if is_async and run_in != "loop":
        raise ConfigError(f'{where}: an async def runs in the "loop"; use a plain def to run it in a {run_in}')
    if not is_async and run_in == "loop":
        raise ConfigError(f'{where}: a plain def would block the event loop; use an async def, or run_in="thread"')
    return cast(RunIn, run_in)


def _declared_retry(value: Any, run_in: str | None, what: str) -> Retry:
    retry = check_retry(value, what)
    if retry.retry_if is not None and run_in == "process":
        raise ConfigError(f'{what}: retry_if can\'t be used with run_in="process", which has no code of the policy')
    return retry


def _batch(value: Any, run_in: str | None, what: str) -> Batch:
    if run_in == "process":
        raise ConfigError(f'{what} is not available with run_in="process": remove one of them')
    return check_batch(value, what)


def _memory(value: Any, run_in: str | None, what: str) -> int:
    if run_in != "process":
        raise ConfigError(f'{what} needs run_in="process": other tasks share the memory of the worker')
    if isinstance(value, bool) or not isinstance(value, int) or value < MIN_MEMORY_BYTES:
        raise ConfigError(f"{what} must be at least {MIN_MEMORY_BYTES:,} bytes, not {value!r}")
    return value


def _key(value: Any, what: str) -> str:
    return check_name(value, what, MAX_KEY_CHARS)


def _priority(value: Any, what: str) -> int:
    number = _int(value, what)
    if abs(number) > MAX_PRIORITY:
        raise ConfigError(f"{what} must be within ±{MAX_PRIORITY:,}, not {number}")
    return number


def _crashes(value: Any, what: str) -> int:
    number = _int(value, what)
    if not 0 <= number <= MAX_CRASHES:
        raise ConfigError(f"{what} must be from 0 to {MAX_CRASHES:,}, not {number}")
    return number


def _if_taken(value: Any, what: str) -> IfTaken:
    if value not in _IF_TAKEN:
        raise ConfigError(f"{what} must be one of {', '.join(map(repr, _IF_TAKEN))}, not {value!r}")
    return cast(IfTaken, value)


def _int(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{what} must be an int, not {type(value).__name__}")
    return int(value)


def check_retry(value: Any, what: str) -> Retry:
    if not isinstance(value, Retry):
        raise ConfigError(f"{what} must be a Retry, not {type(value).__name__}")
    return value


def check_stored_retry(value: Any, what: str) -> Retry:
    """Check a Retry that is stored with a run."""
    retry = check_retry(value, what)
    if retry.retry_if is not None:
        raise ConfigError(
            f"{what}: retry_if is code, which isn't stored with a run: declare it with @app.task(retry=…)"
        )
    return retry


def positive_micros(value: Any, what: str) -> int:
    micros = to_micros(value, what)
    if micros == 0:
        raise ConfigError(f"{what} must be greater than 0, not {value}")
    return micros


def check_limits(limits: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the names of limits, if they are valid."""
    return _names(limits, what)


def _names(value: Any, what: str) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"{what} must be a list or tuple of names, not {type(value).__name__}")
    names = tuple(dict.fromkeys(check_name(item, f"a name in {what}") for item in value))
    if len(names) > MAX_NAMES:
        raise ConfigError(f"{what} must have at most {MAX_NAMES} names, not {len(names):,}")
    return names


def _time_or_duration(value: Any, what: str) -> int | _Time:
    return _Time(time_to_micros(value, what)) if isinstance(value, datetime) else positive_micros(value, what)


class _Time(msgspec.Struct, frozen=True):
    at: int


def _in_or_at(option: str, value: int | _Time | None) -> dict[str, int | None]:
    if isinstance(value, _Time):
        return {option: None, f"{option}_at": value.at}
    return {option: value, f"{option}_at": None}


def _check_start_by(options: Options) -> None:
    """Refuse a run that could never start: it would be due after its `start_by`."""
    for due, start_by, name in (
        (options.delay, options.start_by, "delay"),
        (options.run_at, options.start_by_at, "run_at"),
    ):
        if due is not None and start_by is not None and start_by <= due:
            raise ConfigError(f"option start_by must be later than {name}: the run would be cancelled before it is due")


def _check_debounce(options: Options) -> None:
    if options.debounce is None:
        if options.max_delay is not None:
            raise ConfigError("option max_delay needs debounce=: without it, no call postpones the run")
        return
    if not options.delay:
        raise ConfigError("option debounce needs delay=: how long to wait for further calls")
    if options.max_delay is not None and options.max_delay < options.delay:
        raise ConfigError("option max_delay must not be less than delay")
    if options.unique is not None:
        raise ConfigError(
            'options debounce and unique are mutually exclusive: remove one; unique= with if_taken="replace" also runs '
            "the newest arguments"
        )


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "queue": check_queue,
    "priority": _priority,
    "delay": to_micros,
    "run_at": time_to_micros,
    "key": _key,
    "unique": _key,
    "if_taken": _if_taken,
    "debounce": _key,
    "max_delay": positive_micros,
    "tenant": check_name,
    "retry": check_stored_retry,
    "timeout": positive_micros,
    "deadline": _time_or_duration,
    "start_by": _time_or_duration,
    "key_ttl": positive_micros,
    "tags": _names,
    "limits": _names,
    "metadata": check_metadata,
    "connection": lambda value, _what: value,
}

_COMPARED = (
    "queue", "priority", "delay", "run_at", "unique", "timeout", "deadline", "deadline_at", "tags", "limits",
)  # fmt: skip
