"""`Holdfast`: the application object. It ties the tasks, the store and the settings together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.client.handle import Run
from holdfast.engine.hooks import Hook, Hooks
from holdfast.engine.middleware import Middleware, check_middleware
from holdfast.errors import ConfigError
from holdfast.model.batch import Batch
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.clock import Clock, Duration, database_clock, to_micros
from holdfast.model.codec import MAX_PAYLOAD_BYTES
from holdfast.model.explanation import Reason
from holdfast.model.filters import RunsOptions, RunSort, page_options
from holdfast.model.keep import DEFAULT_KEEP_AUDIT, Keep, KeepRules
from holdfast.model.names import check_name, counted, import_name
from holdfast.model.payloads import COMPRESS_ABOVE_BYTES, WARN_ABOVE_BYTES, Codec, ContextCodec, Payloads
from holdfast.model.run import Page, RunInfo, RunState
from holdfast.model.run_logs import LogLevel, Logs
from holdfast.model.search_results import SearchResults
from holdfast.model.signed_tokens import LinkSettings
from holdfast.model.topics import Published
from holdfast.task.conditions import Node
from holdfast.task.context import Context
from holdfast.task.declarations import Declarations
from holdfast.task.graph import Graph
from holdfast.task.machine import Machine, State
from holdfast.task.options import CommonTaskSettings, MachineSettings, TaskDefaults, TaskSettings, check_known
from holdfast.task.registry import (
    BatchDecorator,
    Registry,
    TaskDecorator,
    register_graph_task,
    register_machine,
    register_task,
    remote_task,
)
from holdfast.task.schedule_registry import Poll, ScheduleRegistry, ScheduleSettings, SlotSettings
from holdfast.task.scope import reject_in_event_loop
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
M = TypeVar("M", bound=Middleware)
F = TypeVar("F", bound=Poll)

DEFAULT_KEEP = Keep()
DEFAULT_URL = "sqlite:///holdfast.db"
TRIGGER_TIMEOUT_S = 60


class Holdfast(Declarations):
    """An application: its tasks, its database and its settings.

    Creating one does no I/O. The first use connects, and creates or migrates the tables.

    Example:
        ```python
        app = Holdfast("postgresql://localhost/shop")

        @app.task(queue="billing")
        def charge(order_id: int) -> str: ...

        charge.enqueue(42)
        ```

    Args:
        url: The database: `sqlite:///path` or `postgresql://…`. Defaults to `$HOLDFAST_URL`, then to
            `sqlite:///holdfast.db` in the current directory.
        schema: The PostgreSQL schema of Holdfast's tables.
        migrate: Whether the first use creates or migrates the tables. Set it to False if `holdfast migrate` does.
        include: Modules that declare tasks. A worker imports them at its start.
        keep: How long finished runs are kept, unless their task has its own `keep`: a `Keep`, or one duration for all.
        keep_by_tenant: The same for the runs of some tenants. It takes precedence over `keep` of the app and of tasks.
        keep_events: How long messages of topics are kept, and an emitted event if no run waits for it. Afterwards it
            can be emitted again, and a run that waits for it waits for that. Defaults to the longer duration of `keep`.
        keep_audit: How long entries of the audit log are kept. Defaults to a year.
        keep_keys: How long idempotency keys are kept, at least until their run has finished. Defaults to forever.
        clock: The source of time. For tests.
        name: Distinguishes this app's schedules from those of other apps in the same database. Defaults to the name of
            the module that creates the app.
        telemetry: `"otel"`, `"prometheus"` or both. Defaults to `$HOLDFAST_TELEMETRY`.
        warn_above: Log a warning for payloads of more than this many bytes of JSON. None never warns.
        refuse_above: Reject payloads of more than this many bytes of JSON with `TooLarge`.
        compress_above: Compress payloads of more than this many bytes of JSON. None never compresses.
        codec: Transforms every payload before it is stored and after it is read, for example to encrypt it:
            `holdfast.integrations.encryption.Encryption`.
        logs: Keep what runs log with the `logging` module: a level such as `"info"`, or `Logs`. Defaults to
            `$HOLDFAST_LOGS`, then to nothing.
        secret: Signs links: a text of at least 32 random characters, or several to replace one; the first signs, all
            verify. Defaults to `$HOLDFAST_SECRET`, with a comma between several.
        public_url: The address at which people reach the dashboard, for links. Defaults to `$HOLDFAST_PUBLIC_URL`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        schema: str = "holdfast",
        migrate: bool = True,
        include: Sequence[str] = (),
        keep: Keep | Duration = DEFAULT_KEEP,
        keep_by_tenant: Mapping[str, Keep | Duration] | None = None,
        keep_events: Duration | None = None,
        keep_audit: Duration = DEFAULT_KEEP_AUDIT,
        keep_keys: Duration | None = None,
        clock: Clock = database_clock,
        name: str | None = None,
        telemetry: str | Sequence[str] | None = None,
        warn_above: int | None = WARN_ABOVE_BYTES,
        refuse_above: int = MAX_PAYLOAD_BYTES,
        compress_above: int | None = COMPRESS_ABOVE_BYTES,
        codec: Codec | ContextCodec | None = None,
        logs: LogLevel | Logs | None = None,
        secret: str | Sequence[str] | None = None,
        public_url: str | None = None,
    ) -> None:
        # Imported here so that `import holdfast` doesn't load the database layer.
        from holdfast.client.budgets import Budgets
        from holdfast.client.client import Client
        from holdfast.client.events import Events
        from holdfast.client.limits import Limits
        from holdfast.client.schedules import Schedules
        from holdfast.store import Store

        payloads = Payloads(
            warn_above=warn_above, refuse_above=refuse_above, compress_above=compress_above, codec=codec,
            on_large=log.payload_large,
        )  # fmt: skip
        self.telemetry = Telemetry(telemetry)
        self.links = LinkSettings(secret, public_url)
        """The secrets and the public URL of signed links."""
        self.registry = Registry(include)
        self.url = url if url is not None else os.environ.get("HOLDFAST_URL") or DEFAULT_URL
        self.store = Store(self._open(schema), migrate=migrate, clock=clock, payloads=payloads)
        self._keep = Keep.of(keep, "keep")
        by_tenant = {
            check_name(tenant, "a tenant in keep_by_tenant"): Keep.of(each, f"keep_by_tenant[{tenant!r}]")
            for tenant, each in (keep_by_tenant or {}).items()
        }
        self._keep_events = self._keep.longest_micros if keep_events is None else to_micros(keep_events, "keep_events")
        self._keep_audit = to_micros(keep_audit, "keep_audit")
        self._keep_keys = None if keep_keys is None else to_micros(keep_keys, "keep_keys")
        self._client = Client(self.store, self.registry, KeepRules(self._keep, by_tenant), self.telemetry, self.links)
        self._logs = Logs.of(os.environ.get("HOLDFAST_LOGS") if logs is None else logs)
        self._hooks = Hooks()
        created_in = import_name(sys._getframe(1).f_globals.get("__name__"))
        self._client.explain = self._explain
        self._client.app_name = created_in if name is None else check_name(name, "the name of an app")
        self._schedule_registry = ScheduleRegistry(self._client.app_name)
        self.schedules = Schedules(self._client, self._schedule_registry, self.registry)
        """Create, change and inspect schedules at run time."""
        self.limits = Limits(self._client)
        """Inspect limits, and change what they allow at run time."""
        self.budgets = Budgets(self._client)
        """Inspect budgets, and change what they allow at run time."""
        self.events = Events(self._client)
        """Delete the emits of events."""

    def _bind(self, store: Store, url: str) -> None:
        """Switch to another store, for the test kit. Not while a worker or a call is in progress."""
        self.store, self.url = store, url
        self._client.bind(store)

    def _explain(self, run: UUID) -> list[Reason]:
        from holdfast.control.explainer import Explainer

        return Explainer(self.store).why(run).reasons

    def _open(self, schema: str) -> Database:
        """Return the database, without connecting. Subclasses override it."""
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
        memory: int | None = None,
        receives: Mapping[str, Any] | None = None,
        asks: Mapping[str, Any] | None = None,
        defaults: TaskDefaults | None = None,
        **settings: Unpack[CommonTaskSettings],
    ) -> TaskDecorator: ...
    @overload
    def task(
        self,
        *,
        batch: Batch,
        name: str | None = None,
        defaults: TaskDefaults | None = None,
        **settings: Unpack[CommonTaskSettings],
    ) -> BatchDecorator: ...
    def task(self, *fn: Callable[..., Any], **settings: Any) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(queue=…, retry=…)`.

        A function whose first parameter is annotated as `Context` or `SyncContext` becomes a durable function; any
        other function is a job.

        Args:
            name: The task's name. Defaults to `module.function`.
            aliases: Former names under which stored runs may still exist.
            queue: The queue of its runs. Defaults to `"default"`.
            priority: Runs with a higher priority are claimed first. Defaults to 0.
            retry: When to retry a failed attempt. Defaults to `Retry()`.
            timeout: The limit for one attempt.
            deadline: The limit for the whole run, from its creation.
            run_in: `"loop"` (async functions), `"thread"` (plain functions), `"process"` (CPU-bound plain functions) or
                the name of an executor declared with `app.executor` (plain functions).
            limits: Names of limits declared with `app.limit`.
            max_crashes: How often the run may crash its worker before it fails. Defaults to 3.
            keep: How long finished runs are kept: a `Keep`, or one duration for all.
            memory: The memory limit in bytes of a task with `run_in="process"`.
            receives: The types of the messages that a durable function receives, by topic. `ctx.receive` uses them, and
                `run.send` refuses other messages.
            asks: The types of the payloads of the asks that a durable function answers, by name. `run.ask` refuses
                other asks.
            requires: The labels that a worker needs to execute its runs, such as `{"gpu": "a100"}`; `"*"`: any value.
            prefers: The labels of workers that get its runs first. Others execute runs that have waited for a second.
            on_success: Tasks to enqueue in the transaction in which a run becomes done. They take a `RunEnd`.
            on_failure: The same when a run fails.
            on_end: The same when a run is done, failed or cancelled.
            defaults: Settings that the task shares with others. What is given here takes precedence.
            on: Topics whose messages each create a run, with the payload as its argument: a topic, a `Topic` with
                conditions, or a list of them.
            batch: Collect runs into one call: the function takes a list with the argument of each run.
        """
        check_known(settings, ("name", "defaults", *TaskSettings.__annotations__), "@app.task")
        if (defaults := settings.pop("defaults", None)) is not None:
            if not isinstance(defaults, TaskDefaults):
                raise ConfigError(f"@app.task: defaults must be a TaskDefaults, not {type(defaults).__name__}")
            settings = {**defaults.settings, **settings}
        if fn:
            return register_task(*fn, enqueuer=self._client.creator, registry=self.registry, **settings)
        return lambda fn: register_task(fn, enqueuer=self._client.creator, registry=self.registry, **settings)

    def machine(
        self, name: str, *states: type[S], history: int | None = 1000, **settings: Unpack[MachineSettings]
    ) -> Machine[S]:
        """Register a state machine.

        Args:
            name: The machine's name.
            *states: The classes of its states, subclasses of `State`.
            retry: When to retry a failed attempt, for states without a `retry` of their own.
            timeout: The limit for one attempt, for states without a `timeout` of their own.
            history: How many transitions of a run its history keeps. None keeps all.
            **settings: The other settings are those of `task`, except `run_in`, `memory`, `receives`, `asks` and
                `batch`.

        Example:
            ```python
            subscription = app.machine("subscription", Trial, Paying, Overdue)
            subscription.enqueue(Trial(customer="ada"))
            ```
        """
        check_known(settings, MachineSettings.__annotations__, "app.machine")
        enqueuer = self._client.creator
        return register_machine(name, states, enqueuer=enqueuer, registry=self.registry, history=history, **settings)

    def remote(self, name: str, *, queue: str = "default") -> Task[..., Any]:
        """Return a task whose code is in another application. Its arguments are checked where it runs."""
        return remote_task(name, enqueuer=self._client.creator, queue=queue)

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
        **settings: Unpack[SlotSettings],
    ) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        task: Takes0[Any] | Request[Any],
        /,
        *,
        every: Duration,
        **settings: Unpack[SlotSettings],
    ) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        task: Task[..., Any],
        /,
        *,
        args: tuple[Any, ...],
        **settings: Unpack[ScheduleSettings],
    ) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        graph: Callable[[], Graph] | Callable[[datetime], Graph],
        /,
        **settings: Unpack[ScheduleSettings],
    ) -> None: ...
    def schedule(self, name: str, task: Any, /, **settings: Any) -> None:
        """Declare a schedule, which creates a run at every slot. Workers store it when they start.

        Args:
            name: The schedule's name, unique in the app.
            task: A task; a request (`task.request(…)`) with arguments and options; or a function that returns a
                `Graph`. The function is called for each slot, with the slot's time if it has a parameter, and a
                durable function of the same name submits the graph.
            args: The arguments, if `task` is a task.
            cron: A cron expression, like `"0 3 * * *"`. Give either `cron` or `every`.
            every: An interval of at least one second.
            tz: The time zone of the cron expression. Defaults to UTC.
            catch_up: What happens to slots missed while no worker ran: `"skip"` (the default), `"latest"` or `"all"`.
            start: No slot before this time.
            end: No slot after this time.
            jitter: Delay each run by a random time up to this duration.
            overlap: What happens while the previous run is unfinished: `"allow"` (the default) creates another run,
                `"skip"` none, `"buffer_one"` one when the previous run has ended, and `"cancel_running"` cancels that
                run first.
        """
        if not isinstance(task, Task | Request) and callable(task):
            task = register_graph_task(task, self._client.creator, self.registry)
        self._schedule_registry.schedule(name, task, **settings)

    def trigger(self, name: str, *, every: Duration, timeout: Duration = TRIGGER_TIMEOUT_S) -> Callable[[F], F]:
        """Declare a trigger: a function that one worker at a time polls for requests to enqueue.

        The function yields or returns requests; it may be a `def` or an `async def`. Give each request a `key` so that
        repeated polls enqueue it once.

        Args:
            name: The trigger's name, unique in the app.
            every: The interval between polls.
            timeout: The limit for one poll.

        Example:
            ```python
            @app.trigger("inbox", every=60)
            def new_files() -> Iterator[Request[None]]:
                for path in Path("inbox").iterdir():
                    yield load.options(key=path.name).request(str(path))
            ```
        """

        def declare(fn: F) -> F:
            self._schedule_registry.trigger(name, fn, every, timeout)
            return fn

        return declare

    # Runs

    def enqueue_many(self, requests: Iterable[Request[R]]) -> list[Run[R]]:
        """Enqueue requests of any tasks in one transaction.

        Example:
            ```python
            app.enqueue_many([send.request("ada@example.org"), charge.options(key="42").request(42)])
            ```
        """
        return self._client.creator.enqueue_many(requests)

    async def aenqueue_many(self, requests: Iterable[Request[R]]) -> list[Run[R]]:
        """Enqueue requests in one transaction. The awaitable form of `enqueue_many`."""
        return await self._client.creator.aenqueue_many(requests)

    @overload
    def submit(self, graph: Graph, *, result: Node[R], connection: object = None) -> Run[R]: ...
    @overload
    def submit(self, graph: Graph, *, result: None = None, connection: object = None) -> Run[dict[str, Any]]: ...
    def submit(self, graph: Graph, *, result: Node[Any] | None = None, connection: object = None) -> Run[Any]:
        """Create a run of a graph and of each of its nodes, in one transaction.

        Args:
            graph: The graph to run.
            result: The node whose output is the run's result. Defaults to a dict of all outputs by node name.
            connection: A PostgreSQL connection of yours, to submit inside its transaction.
        """
        reject_in_event_loop("submit")
        return self._client.graphs.submit(graph, result, connection)

    @overload
    async def asubmit(self, graph: Graph, *, result: Node[R], connection: object = None) -> Run[R]: ...
    @overload
    async def asubmit(self, graph: Graph, *, result: None = None, connection: object = None) -> Run[dict[str, Any]]: ...
    async def asubmit(self, graph: Graph, *, result: Node[Any] | None = None, connection: object = None) -> Run[Any]:
        """Create a run of a graph. The awaitable form of `submit`."""
        return await self._client.graphs.asubmit(graph, result, connection)

    def emit(self, event: str, payload: Any = None, tenant: str | None = None, connection: object = None) -> bool:
        """Emit an event, for every durable function that waits for it now or later.

        An event is immutable: the first emit of a name wins, and later ones have no effect.

        Args:
            event: The event's name.
            payload: Any JSON-serializable value.
            tenant: Emit it for the runs of this tenant. None emits it for runs without a tenant.
            connection: A connection of yours, to emit it in its transaction.

        Returns:
            True if this call was the first.
        """
        client = self._client
        return client.calling("emit", connection, lambda given: client.emit(event, payload, tenant, given))

    async def aemit(
        self, event: str, payload: Any = None, tenant: str | None = None, connection: object = None
    ) -> bool:
        """Emit an event. The awaitable form of `emit`."""
        client = self._client
        return await client.acalling("emit", connection, lambda given: client.emit(event, payload, tenant, given))

    def publish(
        self,
        topic: str,
        payload: Any = None,
        *,
        key: str | None = None,
        tenant: str | None = None,
        connection: object = None,
    ) -> Published:
        """Publish a message to a topic: to each task that subscribes, and to each function that waits for it.

        Each task with `@app.task(on=…)` that the message fits gets a run, created in the same transaction. A topic
        needs no declaration and no subscriber.

        Args:
            topic: The topic, such as `"orders.paid"`: segments with dots between them.
            payload: Any JSON-serializable value. It becomes the argument of the tasks' runs.
            key: Makes the call idempotent: a message with the same key on the same topic is published once.
            tenant: The tenant of the runs. Functions receive only messages of their own tenant.
            connection: A connection of yours, to publish in its transaction.

        Returns:
            The id of the message, and to how many tasks and functions it went.

        Raises:
            KeyConflict: The key was used for a message with another payload.
        """
        client = self._client
        return client.calling(
            "publish", connection, lambda given: client.topics.publish(topic, payload, key, tenant, given)
        )

    async def apublish(
        self,
        topic: str,
        payload: Any = None,
        *,
        key: str | None = None,
        tenant: str | None = None,
        connection: object = None,
    ) -> Published:
        """Publish a message to a topic. The awaitable form of `publish`."""
        client = self._client
        return await client.acalling(
            "publish", connection, lambda given: client.topics.publish(topic, payload, key, tenant, given)
        )

    def get_run(self, run_id: UUID | str) -> Run[Any]:
        """Return the handle of a run. Raises RunNotFound if it does not exist."""
        reject_in_event_loop("get_run")
        return self._client.find(run_id)

    async def aget_run(self, run_id: UUID | str) -> Run[Any]:
        """Return the handle of a run. The awaitable form of `get_run`."""
        return await run_in_thread(self._client.find, run_id)

    def runs(
        self, *, state: RunState | None = None, task: str | None = None, queue: str | None = None,
        tenant: str | None = None, tag: str | None = None, key: str | None = None,
        metadata: Mapping[str, Any] | None = None, error: str | None = None, created_after: datetime | None = None,
        created_before: datetime | None = None, finished_after: datetime | None = None,
        finished_before: datetime | None = None, paused: bool = False, top_level: bool = False,
        search: str | None = None, sort: RunSort = "-created", limit: int = 100, after: str | None = None,
    ) -> Page:  # fmt: skip
        """List runs, newest first unless sorted otherwise, one page at a time, without their results.

        Args:
            state: Only runs in this state.
            task: Only runs of this task.
            queue: Only runs of this queue.
            tenant: Only runs of this tenant.
            tag: Only runs with this tag.
            key: Only runs that were created with this idempotency key.
            metadata: Only runs with these names and values, set with `options(metadata=…)` or `ctx.annotate`.
            error: Only runs whose error has this text in its code, type or message.
            created_after: Only runs that were created at this time or later.
            created_before: Only runs that were created before this time.
            finished_after: Only runs that finished at this time or later.
            finished_before: Only runs that finished before this time.
            paused: Only runs that were paused with `run.pause()` and haven't been resumed.
            top_level: Only runs that no other run created: no children and no nodes of graphs.
            search: Only runs with this text in the key, a tag, an argument or the error, or with `order_id=42` as an
                argument. Without an index: after two seconds, the page is `partial`.
            sort: The order; a minus means the last first. `finished` lists only finished runs, `due` scheduled ones.
            limit: The page size.
            after: The `after` of the previous page.
        """
        reject_in_event_loop("runs")
        options = RunsOptions(
            state=state, task=task, queue=queue, tenant=tenant, tag=tag, key=key, metadata=metadata, error=error,
            created_after=created_after, created_before=created_before, finished_after=finished_after, after=after,
            finished_before=finished_before, paused=paused, top_level=top_level, search=search, sort=sort, limit=limit,
        )  # fmt: skip
        return self._client.runs(**page_options(options))

    async def aruns(self, **filters: Unpack[RunsOptions]) -> Page:
        """List runs, newest first. The awaitable form of `runs`."""
        return await run_in_thread(lambda: self._client.runs(**page_options(filters)))

    def find(self, text: str, limit: int = 50, after: str | None = None, seconds: float = 2.0) -> SearchResults:
        """Find runs by anything that you know of them.

        Args:
            text: The beginning of a run id, a key, a tag, a metadata value (`42` or `order=42`), a part of a task's
                name, or a text in an argument, an error, a key or a tag. Texts are searched in the newest runs only.
            limit: How many runs are returned at most, in addition to exact matches.
            after: The `after` of the previous result: continues to search arguments and errors.
            seconds: How long to search for more than the newest 20,000 runs.
        """
        reject_in_event_loop("find")
        return self._client.find_runs(text, limit, after, seconds)

    async def afind(self, text: str, limit: int = 50, after: str | None = None, seconds: float = 2.0) -> SearchResults:
        """Find runs by anything that you know of them. The awaitable form of `find`."""
        return await run_in_thread(self._client.find_runs, text, limit, after, seconds)

    def pause(
        self, *, task: str | None = None, queue: str | None = None, tenant: str | None = None, by: str | None = None
    ) -> bool:
        """Pause a task, a queue or a tenant: workers stop claiming its runs within a second.

        Running runs continue, and new runs may be enqueued. `run.pause` pauses a single run.

        Args:
            task: The name of a task.
            queue: The name of a queue.
            tenant: The name of a tenant.
            by: Who pauses a task or tenant. Defaults to the user of this process.

        Returns:
            False if it was paused already.
        """
        reject_in_event_loop("pause")
        return self._client.pause_all(task, queue, tenant, by)

    async def apause(
        self, *, task: str | None = None, queue: str | None = None, tenant: str | None = None, by: str | None = None
    ) -> bool:
        """Pause a task, a queue or a tenant. The awaitable form of `pause`."""
        return await run_in_thread(self._client.pause_all, task, queue, tenant, by)

    def resume(self, *, task: str | None = None, queue: str | None = None, tenant: str | None = None) -> bool:
        """Resume a paused task, queue or tenant. False if it wasn't paused."""
        reject_in_event_loop("resume")
        return self._client.resume_all(task, queue, tenant)

    async def aresume(self, *, task: str | None = None, queue: str | None = None, tenant: str | None = None) -> bool:
        """Resume a paused task, queue or tenant. The awaitable form of `resume`."""
        return await run_in_thread(self._client.resume_all, task, queue, tenant)

    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction on the SQLite file, shared by your tables and Holdfast's.

        Enqueues and other calls inside the `with` block, on the same thread, are part of the transaction. It holds the
        file's only write lock and is interrupted after 5 seconds. On PostgreSQL, pass your own connection instead:
        `task.options(connection=…)`.

        Example:
            ```python
            with app.transaction() as connection:
                connection.execute("insert into orders values (?)", (42,))
                charge.enqueue(42)
            ```
        """
        reject_in_event_loop("transaction", "call it in a thread with asyncio.to_thread(…)")
        return self.store.user_transaction()

    # Workers

    def worker(
        self,
        queues: Sequence[str] | Mapping[str, int | None] | None = None,
        concurrency: int | None = None,
        lease: Duration = 60,
        grace: Duration = 25,
        wait_for_database: bool = False,
        threads: int = 40,
        max_resident: int = 1000,
        max_resident_bytes: int = 64 * 1024 * 1024,
        labels: Mapping[str, str] | None = None,
    ) -> Worker:
        """Create a worker. Use it in a `with` block, or call its `run()` or `drain()`.

        Args:
            queues: The queues to serve. None serves all. A mapping gives queues slots of their own, such as
                `{"mail": 20, "reports": 5}`: runs of one queue never use the slots of another. Queues with None share
                `concurrency` slots.
            concurrency: How many runs execute at the same time, of queues without slots of their own. Defaults to 100.
            lease: After this time without a heartbeat other workers take over the runs.
            grace: How long running tasks may continue after a stop is requested.
            wait_for_database: Whether to retry at the start until the database is available. By default the worker
                raises StoreUnavailable at once.
            threads: How many of the runs may be `def` tasks, which execute in threads.
            max_resident: How many suspended `async def` functions stay in memory, where they resume without a replay.
                0 turns it off.
            max_resident_bytes: How much memory they may take, as estimated from their payloads.
            labels: What this worker has, such as `{"gpu": "a100"}`, for tasks with `requires` or `prefers`.
        """
        # Imported here because processes that only enqueue don't need the engine.
        from holdfast.engine.components import WorkerComponents, WorkerSettings
        from holdfast.engine.worker import Worker

        settings = WorkerSettings.checked(
            queues=queues, concurrency=concurrency, labels=labels, threads=threads, lease=lease, grace=grace,
            keep_events=self._keep_events, keep_audit=self._keep_audit, keep_keys=self._keep_keys,
            wait_for_database=wait_for_database, max_resident=max_resident, max_resident_bytes=max_resident_bytes,
            logs=self._logs,
        )  # fmt: skip
        client = self._client
        components = WorkerComponents(
            self.store, self.registry, self._hooks, settings, lambda id: client.info(UUID(id)), client,
            self._schedule_registry, self.telemetry,
        )  # fmt: skip
        return Worker(components, self.registry)

    @property
    def resources(self) -> dict[str, Any]:
        """What `on_start` hooks yielded: the items of a mapping, any other value under the name of the hook."""
        return self._hooks.resources

    def on_start(self, hook: H) -> H:
        """Run this function when a worker process starts. What it yields is available in `resources`."""
        self._hooks.add(self._hooks.on_start, hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Run this function when a worker process stops."""
        self._hooks.add(self._hooks.on_stop, hook)
        return hook

    def on_failure(self, hook: Callable[[RunInfo[Any]], Any]) -> Callable[[RunInfo[Any]], Any]:
        """Call this function with the `RunInfo` of every run that fails permanently."""
        self._hooks.add(self._hooks.on_failure, hook)
        return hook

    def middleware(self, fn: M) -> M:
        """Call this function around every attempt and every step that a worker of this process executes.

        It takes a `Call` and returns what `await call()` returns, or `call()` in a plain `def`. The first middleware is
        the outermost. Recorded steps aren't executed again in a replay, so they aren't wrapped either; the body of a
        durable function is, in each attempt. Tasks with `run_in="process"` aren't wrapped.

        Example:
            ```python
            @app.middleware
            async def timed(call: Call) -> Any:
                started = time.monotonic()
                try:
                    return await call()
                finally:
                    print(call.task, call.step, time.monotonic() - started)
            ```
        """
        self._hooks.add(self._hooks.middleware, check_middleware(fn))
        return fn

    # Closing

    def close(self) -> None:
        """Close all connections. The next use opens new ones."""
        reject_in_event_loop("close")
        self._client.close()

    async def aclose(self) -> None:
        """Close all connections. The awaitable form of `close`."""
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
        return f"<Holdfast {self.store.database.display_url}, {counted(len(self.registry), 'task')}>"
