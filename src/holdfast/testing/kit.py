"""`Kit`: an app on a private store with a virtual clock, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

from holdfast.app import Holdfast
from holdfast.client.handle import Run
from holdfast.control import Control
from holdfast.control.open import IN_MEMORY
from holdfast.control.runs import RunDetails
from holdfast.control.steps import StepInfo
from holdfast.database import open_database
from holdfast.engine.loops.scheduler import Scheduler
from holdfast.engine.worker import Worker
from holdfast.errors import ConfigError
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.clock import Duration, to_datetime, to_micros
from holdfast.model.codec import canonical_text
from holdfast.model.names import counted
from holdfast.model.payloads import PayloadContext
from holdfast.model.virtual_clock import VirtualClock
from holdfast.store import Store
from holdfast.task.task import Request, Task
from holdfast.telemetry import log
from holdfast.testing.crash_injection import CrashingStore, CrashInjector, active_injectors

P = ParamSpec("P")
R = TypeVar("R")

DRAIN_TIMEOUT_S = 30.0
"""Real time. A drain that takes longer hangs."""
MAX_LISTED_RUNS = 10
MAX_LEFT_RUNS = 100


class LeftRun(NamedTuple):
    """A ready run that a drain left, and why."""

    run: Run[Any]
    reason: str


class Drained(int):
    """The number of attempts that a drain finished.

    Attributes:
        left: The ready runs that it left, oldest first, each with its `run` and the `reason`.
    """

    left: list[LeftRun]

    def __new__(cls, ended: int, left: list[LeftRun]) -> Self:
        drained = super().__new__(cls, ended)
        drained.left = left
        return drained


class Kit:
    """Runs an app on a private store with a virtual clock, inside a `with` block.

    The pytest fixture `kit` provides one. After the block the app has its own store back.

    Example:
        ```python
        def test_reminder(kit):
            run = remind.enqueue("ada@example.org")
            kit.drain()
            kit.clock.advance(timedelta(days=1))
            kit.drain()
            assert run.info().state == "done"
        ```

    Args:
        app: The app under test. Defaults to a new one.
        url: The database. Defaults to SQLite in memory.
        now: The initial time of the clock.

    Attributes:
        app: The app.
        clock: The virtual clock. It stands still until it is advanced.
    """

    def __init__(self, app: Holdfast | None = None, *, url: str = IN_MEMORY, now: datetime | None = None) -> None:
        if app is not None and not isinstance(app, Holdfast):
            raise ConfigError(f"Kit takes a Holdfast app, not {type(app).__name__}")
        self.app = Holdfast(url, name="kit") if app is None else app
        self.clock = VirtualClock(now)
        crashes = active_injectors[-1] if active_injectors else CrashInjector()
        self._url = url
        own = self.app.store
        database = open_database(url, own.database.dialect.schema)
        self._store = CrashingStore(database, self.clock, own.payloads, crashes)
        self._store.schedules.catch_up = "all"  # as if a worker had been running while the clock moved
        self.clock.before_advance = self._declare_schedules
        self._control = Control(self._store, self.app.registry)
        self._before: tuple[Store, str] | None = None

    def __enter__(self) -> Self:
        if self._before is not None:
            raise ConfigError("this kit is already in use: create another one")
        self._before = self.app.store, self.app.url
        self.app._bind(self._store, self._url)
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        assert self._before is not None
        self.app._bind(*self._before)
        self._before = None
        self._store.close()

    # Running

    def drain(self, timeout: Duration = DRAIN_TIMEOUT_S, *, strict: bool = False) -> Drained:
        """Run until no run is running, and none is ready that could start.

        Runs that wait for a time, an event or a message stay: advance the clock, emit or send, and drain again. Ready
        runs stay if a limit is full, if their queue is paused, or if the app has no such task. They are reported: in
        the log, in `left` of the returned number, or with `strict` as an error.

        Args:
            timeout: Raise ResultTimeout after this much real time.
            strict: Raise AssertionError if ready runs are left.

        Returns:
            The number of finished attempts, an `int` with the attribute `left`.
        """
        return self._report(self._worker().drain(timeout), strict)

    async def adrain(self, timeout: Duration = DRAIN_TIMEOUT_S, *, strict: bool = False) -> Drained:
        """Run until no run could start, with async tasks on the current event loop. See `drain`."""
        ended = await self._worker().adrain(timeout)
        return await run_in_thread(self._report, ended, strict)

    def _report(self, ended: int, strict: bool) -> Drained:
        drained = Drained(ended, self._left())
        if drained.left:
            lines = [f"{left.run.task} {left.run.id}: {left.reason}" for left in drained.left[:MAX_LISTED_RUNS]]
            more = len(drained.left) - MAX_LISTED_RUNS
            lines += [f"… and {more} more"] if more > 0 else []
            if strict:
                what = counted(len(drained.left), "ready run")
                raise AssertionError(f"drain left {what}:\n  " + "\n  ".join(lines))
            log.drain_left_runs(len(drained.left), lines)
        return drained

    def _left(self) -> list[LeftRun]:
        """Return the ready runs, oldest first, with the reason why none of them was started."""
        left: list[LeftRun] = []
        for info in reversed(self._control.runs.page(state="ready", limit=MAX_LEFT_RUNS)):
            if info.task in self.app.registry:
                reason = "; ".join(map(str, self._control.whys.why(info.id).reasons))
            else:
                reason = "no task of this name in the app: import its module, or fake it"
            left.append(LeftRun(Run(info.id, info.task, self.app._client), reason))
        return left

    def _declare_schedules(self) -> None:
        """Store the schedules before the clock moves, so that their slots count from the time before."""
        if self._before is None:
            return
        self.app.registry.load()
        registry = self.app._schedule_registry
        if registry.schedules:
            self._store.prepare()
            Scheduler(self._store, registry, self.app._client, lambda: None).declare()

    def _worker(self) -> Worker:
        if self._before is None:
            raise ConfigError("drain() works only inside the kit's with block: write `with Kit(app) as kit:`")
        return self.app.worker()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a transaction on the kit's database, to create your own tables and to read what is in them.

        The connection is the one that functions of `ctx.transaction` get: psycopg's on PostgreSQL, and one with
        `execute` and `executemany` on SQLite. It is committed at the end of the block.

        Example:
            ```python
            @pytest.fixture
            def tables(kit):
                with kit.transaction() as connection:
                    connection.execute("create table orders (customer text, amount integer)")
            ```
        """
        if self._before is None:
            raise ConfigError("transaction() works only inside the kit's with block: write `with Kit(app) as kit:`")
        self._store.prepare()
        database = self._store.database
        with database.task_transaction(database.connection("transaction-kit")) as connection:
            yield connection

    @contextmanager
    def override(self, **resources: Any) -> Iterator[None]:
        """Replace resources by name inside a `with` block: in `app.resources`, and where `inject()` asks for them.

        An `@app.on_start` function of that name isn't called, so that a test needs no database, for example.

        Example:
            ```python
            with kit.override(db=FakePool()):
                charge.enqueue(42)
                kit.drain()
            ```

        Raises:
            ConfigError: At the drain, if no `on_start` function provides a resource of that name.
        """
        hooks = self.app._hooks
        before, known = dict(hooks.overrides), dict(hooks.resources)
        hooks.overrides.update(resources)
        hooks.resources.update(resources)
        try:
            yield
        finally:
            hooks.overrides.clear()
            hooks.overrides.update(before)
            for name in resources:
                hooks.resources.pop(name, None)
                if name in known:
                    hooks.resources[name] = known[name]

    # Inspecting. These methods block briefly, in async tests too.

    def steps(self, run: Run[Any]) -> list[StepInfo]:
        """Return the recorded operations of a run in order: steps, waits, values and children."""
        return self._control.runs.steps(run.id)

    def enqueued(self, task: Task[P, R], *args: Any, **kwargs: Any) -> list[Run[R]]:
        """Return the runs of a task, oldest first.

        With arguments or options, only the runs that have them:
        `kit.enqueued(send.options(queue="mail"), "ada@example.org")`.
        """
        return [Run(found.info.id, found.info.task, self.app._client) for found in self._found(task, args, kwargs)]

    def assert_enqueued(self, task: Task[P, R], *args: Any, **kwargs: Any) -> Run[R]:
        """Return the first matching run, or fail the test. Takes the arguments of `enqueued`."""
        __tracebackhide__ = True
        found = self.enqueued(task, *args, **kwargs)
        if not found:
            raise AssertionError(self._nothing_like(task, args, kwargs))
        return found[0]

    def _found(self, task: Task[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[RunDetails]:
        options = _requested_options(task)
        found = [run for run in self._all(task.name) if all(_OPTIONS[name](run) == options[name] for name in options)]
        if not args and not kwargs:
            return found
        request = task.request(*args, **kwargs)
        wanted = _arguments(request, request.args)
        return [run for run in found if _arguments(request, self._kept(run)) == wanted]

    def _kept(self, run: RunDetails) -> str:
        """Return the stored arguments, in which secrets aren't masked."""
        id = str(run.info.id)
        context = PayloadContext("args", run.info.tenant, id)
        return self._store.payloads.unpack(self._store.queries.arguments(id), context)

    def _all(self, task: str) -> list[RunDetails]:
        found: list[RunDetails] = []
        after: str | None = None
        while True:
            page = self._control.runs.page(task=task, limit=100, after=after)
            found += [self._control.runs.details(info.id) for info in page]
            after = page.after
            if after is None:
                return found[::-1]

    def _nothing_like(self, task: Task[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        call = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        options = ", ".join(f"{name}={value!r}" for name, value in _requested_options(task).items())
        wanted = f"no run of {task.name}" + (f" with ({call})" if call else "")
        wanted += f" and {options}" if options else ""
        others = self._all(task.name)
        if not others:
            return f"{wanted} was enqueued, and no other run of this task either"
        lines = [_shown(details) for details in others[:MAX_LISTED_RUNS]]
        more = f"\n  … and {len(others) - MAX_LISTED_RUNS} more" if len(others) > MAX_LISTED_RUNS else ""
        return f"{wanted} was enqueued; its runs are:\n  " + "\n  ".join(lines) + more


def _shown(run: RunDetails) -> str:
    info = run.info
    due = "" if run.due_at is None else f", due {run.due_at.isoformat()}"
    tenant = "" if info.tenant is None else f", tenant {info.tenant}"
    return f"{run.args} in queue {info.queue}, priority {info.priority}{tenant}{due}: {info.state}"


_OPTIONS: dict[str, Callable[[RunDetails], Any]] = {
    "queue": lambda run: run.info.queue,
    "priority": lambda run: run.info.priority,
    "tenant": lambda run: run.info.tenant,
    "tags": lambda run: tuple(run.info.tags),
    "unique": lambda run: run.unique,
    "delay": lambda run: None if run.due_at is None else to_micros(run.due_at - run.info.created_at),
    "run_at": lambda run: run.due_at,
}
"""The options that runs can be matched by, and how to read them."""


def _requested_options(task: Task[Any, Any]) -> dict[str, Any]:
    options = task.request_options
    given = {name: getattr(options, name) for name in options.__struct_fields__}
    requested = {name: value for name, value in given.items() if value is not None}
    if unknown := requested.keys() - _OPTIONS.keys():
        raise ConfigError(f"runs can't be matched by {', '.join(sorted(unknown))}; only by {', '.join(_OPTIONS)}")
    if "run_at" in requested:
        requested["run_at"] = to_datetime(requested["run_at"])
    return requested


def _arguments(request: Request[Any], text: str) -> str:
    """Return stored arguments as canonical text with defaults, for comparison."""
    return canonical_text(request.signature.with_defaults(text))
