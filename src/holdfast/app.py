"""`Holdfast`: the object users hold. It binds a registry of tasks, a store and the settings; the work is done below."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, overload
from uuid import UUID

from holdfast.client.handle import Run
from holdfast.engine.hooks import Hook, Hooks
from holdfast.errors import ConfigError
from holdfast.model.blocking_calls import reject_in_event_loop, run_in_thread
from holdfast.model.clock import MICROS_PER_SECOND, Clock, Duration, database_clock, to_micros
from holdfast.model.codec import MAX_PAYLOAD_BYTES
from holdfast.model.names import check_name, check_queue, import_name
from holdfast.model.payloads import COMPRESS_ABOVE_BYTES, WARN_ABOVE_BYTES, Codec, Payloads
from holdfast.model.retry import Retry
from holdfast.model.run import Page, RunInfo, RunState
from holdfast.policy.schedule_timing import CatchUp
from holdfast.task.conditions import Node
from holdfast.task.context import Context
from holdfast.task.graph import Graph
from holdfast.task.machine import Machine, State
from holdfast.task.options import RunIn, TaskSettings
from holdfast.task.registry import Registry, TaskDecorator, register_machine, register_task, remote_task
from holdfast.task.schedule_registry import Overlap, Poll, ScheduleRegistry
from holdfast.task.sync_context import SyncContext
from holdfast.task.task import Request, Takes0, Task, _AsyncDurable, _AsyncTask, _SyncDurable, _SyncTask
from holdfast.telemetry import Telemetry, log

if TYPE_CHECKING:
    from holdfast.database import Database
    from holdfast.engine.worker import Worker
    from holdfast.store import Store

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=State)
H = TypeVar("H", bound=Hook)
F = TypeVar("F", bound=Poll)

DEFAULT_URL = "sqlite:///holdfast.db"
MIN_LEASE_S = 0.5
MAX_CONCURRENCY = 10_000
TRIGGER_TIMEOUT_S = 60


class Holdfast:
    """An application's door to its durable work.

    `url`: `$HOLDFAST_URL` if it isn't given, else `sqlite:///holdfast.db` in the current folder. Nothing is read or
    written before the first use; then the tables are made or migrated, unless `migrate=False`. `include` names modules
    with tasks. `keep` is how long finished runs stay, for tasks that don't say, and events that nobody waits for.
    `name` tells the schedules of this app from those of others in the same database; else it is the module's.
    `telemetry`: "otel", "prometheus" or both, or what `$HOLDFAST_TELEMETRY` says; nothing by default.
    Payloads are compressed above so many bytes of JSON, warned of, and refused; `codec` has its way with all of them.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        schema: str = "holdfast",
        migrate: bool = True,
        include: Sequence[str] = (),
        keep: Duration = timedelta(days=30),
        clock: Clock = database_clock,
        name: str | None = None,
        telemetry: str | Sequence[str] | None = None,
        warn_above: int | None = WARN_ABOVE_BYTES,
        refuse_above: int = MAX_PAYLOAD_BYTES,
        compress_above: int | None = COMPRESS_ABOVE_BYTES,
        codec: Codec | None = None,
    ) -> None:
        from holdfast.client.client import Client  # here, with all that reaches a database: the import of Holdfast,
        from holdfast.store import Store  # for its types, doesn't wait for it

        payloads = Payloads(
            warn_above=warn_above,
            refuse_above=refuse_above,
            compress_above=compress_above,
            codec=codec,
            on_large=log.payload_large,
        )
        self.telemetry = Telemetry(telemetry)
        self.registry = Registry(include)
        self.url = url if url is not None else os.environ.get("HOLDFAST_URL") or DEFAULT_URL
        self.store = Store(self._open(schema), migrate=migrate, clock=clock, payloads=payloads)
        self._keep = to_micros(keep, "keep")
        self._client = Client(self.store, self.registry, self._keep, self.telemetry)
        self._hooks = Hooks()
        made_in = import_name(sys._getframe(1).f_globals.get("__name__"))
        self._schedule_registry = ScheduleRegistry(made_in if name is None else check_name(name, "the name of an app"))

    def _bind(self, store: Store, url: str) -> None:
        """Go on with another store: for the test kit, which points an app to a private one. Not while a worker or a
        call is under way."""
        self.store, self.url = store, url
        self._client.bind(store)

    def _open(self, schema: str) -> Database:
        """Where runs are kept. Does no I/O."""
        from holdfast.database import open_database

        return open_database(self.url, schema)

    # Tasks

    @overload
    def task(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> _AsyncDurable[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[Concatenate[SyncContext, P], R], /) -> _SyncDurable[P, R]: ...
    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> _AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R], /) -> _SyncTask[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: str = "default",
        priority: int = 0,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        run_in: RunIn | None = None,
        limits: Sequence[str] = (),
        max_crashes: int = 3,
        keep: Duration | None = None,
        memory: int | None = None,
    ) -> TaskDecorator: ...
    def task(self, *fn: Callable[..., Any], **settings: Any) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(queue=…, retry=…)`."""
        known = ("name", *TaskSettings.__annotations__)
        for unknown in settings.keys() - set(known):
            raise ConfigError(f"a task has no setting {unknown!r}; the settings are {', '.join(known)}")
        if fn:
            return register_task(*fn, enqueuer=self._client, registry=self.registry, **settings)
        return lambda fn: register_task(fn, enqueuer=self._client, registry=self.registry, **settings)

    def machine(
        self,
        name: str,
        *states: type[S],
        queue: str = "default",
        priority: int = 0,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        max_crashes: int = 3,
        keep: Duration | None = None,
        history: int | None = 1000,
    ) -> Machine[S]:
        """A state machine of these classes. `retry` and `timeout` are for states that don't say; `history` is how many
        entries of a run's history are kept, None for all."""
        return register_machine(
            name, states, enqueuer=self._client, registry=self.registry, history=history, queue=queue,
            priority=priority, retry=retry, timeout=timeout, deadline=deadline, max_crashes=max_crashes, keep=keep,
        )  # fmt: skip

    def limit(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        by: str | Callable[..., object] | None = None,
    ) -> None:
        """Declare a limit that tasks name in `limits=[…]`: across all workers at most `concurrency` of their runs are
        at work at once, and at most so many start in any period as `rate` says, like "100/min". `by`: one counter per
        value of an argument (its name or a dotted path), or of what a function of the arguments gives, at enqueue."""
        self.registry.limits.declare(name, concurrency, rate, by)

    def queue(self, name: str, *, fair: bool = False, weights: Mapping[str, int] | None = None) -> None:
        """Say how a queue is served. `fair`: its runs are claimed in turns of their tenants, so that one with a million
        runs doesn't keep one with ten waiting; `weights`: how many a tenant gets in a turn, 1 if it isn't named. It
        counts for runs made by code that says so."""
        self.registry.serve(name, fair, weights)

    def remote(self, name: str, *, queue: str = "default") -> Task[..., Any]:
        """A task whose code lives elsewhere: it can be enqueued here. Its arguments are checked where it runs."""
        return remote_task(name, enqueuer=self._client, queue=queue)

    # Schedules and triggers

    @overload
    def schedule(
        self,
        name: str,
        task: Takes0[Any] | Request[Any],
        /,
        *,
        cron: str,
        tz: str = "UTC",
        catch_up: CatchUp = "skip",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0,
        overlap: Overlap = "allow",
    ) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        task: Takes0[Any] | Request[Any],
        /,
        *,
        every: Duration,
        catch_up: CatchUp = "skip",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0,
        overlap: Overlap = "allow",
    ) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        task: Task[..., Any],
        /,
        *,
        args: tuple[Any, ...],
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        catch_up: CatchUp = "skip",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0,
        overlap: Overlap = "allow",
    ) -> None: ...
    def schedule(self, name: str, task: Any, /, **settings: Any) -> None:
        """Make a run of a task, or of a request, at each slot of a cron expression in the time zone `tz`, or at each
        `every`. Workers take it up when they start; docs/schedules.md tells what becomes of missed slots."""
        known = [
            option
            for option in inspect.signature(ScheduleRegistry.schedule).parameters
            if option not in ("self", "name")
        ]
        for unknown in settings.keys() - set(known):
            raise ConfigError(f"a schedule has no setting {unknown!r}; the settings are {', '.join(known[1:])}")
        self._schedule_registry.schedule(name, task, **settings)

    def trigger(self, name: str, *, every: Duration, timeout: Duration = TRIGGER_TIMEOUT_S) -> Callable[[F], F]:
        """Poll this function for requests, by one worker at a time: what it yields is enqueued once per key. It may be
        a generator, or return a list; `def` or `async def`."""

        def declare(fn: F) -> F:
            self._schedule_registry.trigger(name, fn, every, timeout)
            return fn

        return declare

    # Runs

    def enqueue_many(self, requests: Iterable[Request[R]]) -> list[Run[R]]:
        """Make a run of each request, all or none, in one transaction."""
        return self._client.enqueue(_checked_requests(requests), "enqueue_many")

    async def aenqueue_many(self, requests: Iterable[Request[R]]) -> list[Run[R]]:
        """Make a run of each request, all or none, in one transaction."""
        return await self._client.aenqueue(_checked_requests(requests))

    @overload
    def submit(self, graph: Graph, *, result: Node[R], connection: object = None) -> Run[R]: ...
    @overload
    def submit(self, graph: Graph, *, result: None = None, connection: object = None) -> Run[dict[str, Any]]: ...
    def submit(self, graph: Graph, *, result: Node[Any] | None = None, connection: object = None) -> Run[Any]:
        """Make a run of a graph and of each of its nodes, all or none. Its result is `{name: output}`, or the output of
        the node given as `result`. `connection`: inside a transaction of yours, as with `options(connection=…)`."""
        reject_in_event_loop("submit")
        return self._client.submit(graph, result, connection)

    @overload
    async def asubmit(self, graph: Graph, *, result: Node[R], connection: object = None) -> Run[R]: ...
    @overload
    async def asubmit(self, graph: Graph, *, result: None = None, connection: object = None) -> Run[dict[str, Any]]: ...
    async def asubmit(self, graph: Graph, *, result: Node[Any] | None = None, connection: object = None) -> Run[Any]:
        """Make a run of a graph and of each of its nodes, all or none."""
        return await self._client.asubmit(graph, result, connection)

    def emit(self, event: str, payload: Any = None, tenant: str | None = None) -> bool:
        """Let an event happen, for all who wait for it now or later. The first one of a name wins and is remembered;
        True when it was this one."""
        reject_in_event_loop("emit")
        return self._client.emit(event, payload, tenant)

    async def aemit(self, event: str, payload: Any = None, tenant: str | None = None) -> bool:
        """Let an event happen; True when it was the first one of its name."""
        return await run_in_thread(self._client.emit, event, payload, tenant)

    def get_run(self, run_id: UUID | str) -> Run[Any]:
        """The handle of a run; RunNotFound when there is none."""
        reject_in_event_loop("get_run")
        return self._client.find(run_id)

    async def aget_run(self, run_id: UUID | str) -> Run[Any]:
        """The handle of a run; RunNotFound when there is none."""
        return await run_in_thread(self._client.find, run_id)

    def runs(
        self,
        *,
        state: RunState | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """Runs, newest first, a page at a time: give the page's `after` for the next one."""
        reject_in_event_loop("runs")
        return self._client.runs(
            state=state, task=task, queue=queue, tenant=tenant, tag=tag, limit=limit, after=after
        )  # fmt: skip

    async def aruns(
        self,
        *,
        state: RunState | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """Runs, newest first, a page at a time: give the page's `after` for the next one."""
        return await run_in_thread(
            self._client.runs, state=state, task=task, queue=queue, tenant=tenant, tag=tag, limit=limit, after=after
        )

    def transaction(self) -> AbstractContextManager[Any]:
        """On SQLite: `with app.transaction() as connection:` is one transaction for your tables in the same file
        (`connection.execute`) and for the verbs called inside it on the same thread. It holds the only writer of all
        processes: after 5 s it is interrupted. On PostgreSQL give your own connection: `options(connection=…)`."""
        reject_in_event_loop("transaction", "call what needs it with asyncio.to_thread(…)")
        self.store.prepare()
        return self.store.database.transaction()

    # Working

    def worker(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int = 100,
        lease: Duration = 60,
        grace: Duration = 30,
        wait_for_database: bool = False,
    ) -> Worker:
        """Create a worker, for use in a `with` block, or with `run()` or `drain()`.

        `wait_for_database`: at the start, retry until the database can be reached. By default the worker raises
        StoreUnavailable at once.
        """
        from holdfast.engine.components import (  # those who only enqueue need none of it
            WorkerComponents,
            WorkerSettings,
        )
        from holdfast.engine.worker import Worker

        settings = WorkerSettings(
            queues=_checked_queues(queues),
            concurrency=_checked_concurrency(concurrency),
            lease=_checked_lease(lease),
            grace=to_micros(grace, "grace") / MICROS_PER_SECOND,
            keep_events=self._keep,
            wait_for_database=wait_for_database,
        )
        client = self._client
        crew = WorkerComponents(
            self.store, self.registry, self._hooks, settings, lambda id: client.info(UUID(id)), client,
            self._schedule_registry, self.telemetry,
        )  # fmt: skip
        return Worker(crew, self.registry)

    @property
    def resources(self) -> dict[str, Any]:
        """What start hooks made for tasks to use."""
        return self._hooks.resources

    def on_start(self, hook: H) -> H:
        """Run this function in each worker process before it works. What it yields is kept in `resources`."""
        self._hooks.on_start.append(hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Run this function in each worker process after its work."""
        self._hooks.on_stop.append(hook)
        return hook

    def on_failure(self, hook: Callable[[RunInfo[Any]], Any]) -> Callable[[RunInfo[Any]], Any]:
        """Call this function with a RunInfo whenever a worker ends a run as failed."""
        self._hooks.on_failure.append(hook)
        return hook

    # Closing

    def close(self) -> None:
        """Close the connections. The app can be used again; it opens new ones then."""
        reject_in_event_loop("close")
        self._client.close()

    async def aclose(self) -> None:
        """Close the connections. The app can be used again; it opens new ones then."""
        await run_in_thread(self._client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Holdfast {self.store.database.display_url}, {len(self.registry)} tasks>"


def _checked_requests(requests: Iterable[Request[R]]) -> list[Request[R]]:
    if not isinstance(requests, Iterable):
        raise ConfigError(f"enqueue_many takes a list of requests, not a {type(requests).__name__}")
    checked = list(requests)
    for at, request in enumerate(checked):
        if not isinstance(request, Request):
            raise ConfigError(
                f"enqueue_many takes requests: item {at} is a {type(request).__name__}; write task.request(…)"
            )
    return checked


def _checked_queues(queues: Sequence[str] | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    if isinstance(queues, str) or not queues:
        raise ConfigError(f"queues must be a list of names, or None for all, but is {queues!r}")
    return tuple(check_queue(queue, "a queue") for queue in queues)


def _checked_concurrency(concurrency: int) -> int:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MAX_CONCURRENCY:
        raise ConfigError(f"concurrency must be a number from 1 to {MAX_CONCURRENCY:,}, but is {concurrency!r}")
    return concurrency


def _checked_lease(lease: Duration) -> float:
    seconds = to_micros(lease, "lease") / MICROS_PER_SECOND
    if seconds < MIN_LEASE_S:
        raise ConfigError(f"lease must be at least {MIN_LEASE_S} s, but is {seconds:g}")
    return seconds
