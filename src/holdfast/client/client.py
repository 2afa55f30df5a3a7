"""`Client`: everything that an application does with its store, shared by the app, its tasks and its run handles.

Blocking; the `a…` methods of the public API call it in a thread. Creating runs is in `run_creator.py`, graphs in
`graphs.py`, results in `results.py`, streams in `streams.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal, TypeVar, Unpack
from uuid import UUID

import msgspec

from holdfast.client.caller_transaction import blocking, call_with
from holdfast.client.graphs import GraphClient
from holdfast.client.handle import Run
from holdfast.client.interaction import RunInteraction
from holdfast.client.results import RunResults
from holdfast.client.run_creator import RunCreator
from holdfast.client.streams import RunStreams
from holdfast.client.topics import TopicClient, declared_subscriptions
from holdfast.database.caller_connection import CallerConnection
from holdfast.errors import ConfigError
from holdfast.model.budget import from_units
from holdfast.model.codec import encode
from holdfast.model.explanation import Reason
from holdfast.model.failure import cancellation_json
from holdfast.model.filters import PageOptions
from holdfast.model.history import HistoryEntry
from holdfast.model.ids import new_id
from holdfast.model.keep import KeepRules
from holdfast.model.names import MAX_KEY_CHARS, actor_or_user, check_actor, check_name, check_queue
from holdfast.model.payloads import PayloadContext
from holdfast.model.run import Page, RunInfo
from holdfast.model.run_logs import LogPage
from holdfast.model.search_results import SearchResults
from holdfast.model.signed_tokens import LinkSettings
from holdfast.store import NewRun, Store
from holdfast.store.rows import NewGraph
from holdfast.store.run_actions import run_changes
from holdfast.store.run_reader import run_id
from holdfast.store.run_search import RunSearch
from holdfast.store.topics import DeclaredSubscription
from holdfast.task.graph_compiler import CompiledGraph
from holdfast.task.operations import Step
from holdfast.task.options import Options
from holdfast.task.registry import Registry
from holdfast.task.scope import refuse_in_body, reject_in_event_loop
from holdfast.task.task import Request
from holdfast.telemetry import Telemetry

T = TypeVar("T")


class Client:
    """An application's access to its store. Also serves the engine as `ClientServices`."""

    def __init__(
        self, store: Store, registry: Registry, keep: KeepRules, telemetry: Telemetry, links: LinkSettings
    ) -> None:
        self.links = links
        self._telemetry = telemetry
        self._registry = registry
        self._keep = keep
        self.creator = RunCreator(self, registry, keep, telemetry)
        self.new_run = self.creator.new_run
        self.app_name = ""
        self.explain: Callable[[UUID], list[Reason]]
        """Explains why a run isn't running; set by the app, because `control` knows it."""
        self._use(store)

    def _use(self, store: Store) -> None:
        self.store = store
        self.creator.bind(store)
        self.results = RunResults(store, self._registry)
        self.graphs = GraphClient(self, self.results.reader, self._keep)
        self.streams = RunStreams(store, self.results.waiter)
        self.topics = TopicClient(store, self._registry, self.subscriptions)
        self.interaction = RunInteraction(store, self._registry, self.streams.followers)
        self.decode_result = self.results.decode_result
        self.wake_result_waiters = self.results.waiter.on_local_ends
        self.wake_followers = self.streams.followers.on_local_writes

    def subscriptions(self) -> tuple[str, list[DeclaredSubscription]]:
        """Return the name of the app, and the tasks of its code that subscribe to topics."""
        return self.app_name, declared_subscriptions(self._registry, self.new_run)

    def bind(self, store: Store) -> None:
        """Switch to another store, for existing tasks and handles too. Not while calls are in progress."""
        self._stop_listening()
        self._use(store)

    def close(self) -> None:
        """Close all connections. The next use opens new ones."""
        try:
            self._stop_listening()
        finally:
            self.store.close()

    def _stop_listening(self) -> None:
        self.results.waiter.close()
        self.streams.followers.close()

    # Services for the engine

    def new_child(self, request: Request[Any], tenant: str | None) -> NewRun:
        """Build the row of a child of a run of this tenant."""
        return self.new_run(request, inherited_tenant=tenant)

    has_limits = True

    def step_permits(self, step: Step) -> str | None:
        """Return the permits that a step needs."""
        return self.creator.step_permits(step)

    def check_budget(self, name: str) -> None:
        """Raise ConfigError unless the application declares this budget."""
        self._registry.budgets.check(name)

    def new_child_graph(self, graph: CompiledGraph, result: str | None, tenant: str | None) -> tuple[NewRun, NewGraph]:
        """Build the rows of a graph that a durable function of a run of this tenant submits."""
        run = self.graphs.graph_run(graph, result)
        return run, self.graphs.new_graph(graph, tenant if run.tenant is None else run.tenant)

    def pack(self, text: str, context: PayloadContext, what: str) -> str:
        return self.store.payloads.pack(text, context, what)

    def unpack(self, text: str, context: PayloadContext) -> str:
        return self.store.payloads.unpack(text, context)

    def trace(self) -> str | None:
        """Return the current trace context as it is stored, or None."""
        context = None if self._telemetry.tracing is None else self._telemetry.tracing.current_context()
        return None if context is None else msgspec.json.encode(context).decode()

    def handle(self, id: UUID, task: str, *, created: bool = True) -> Run[Any]:
        return Run(id, task, self, created)

    # Reading runs

    def info(self, id: UUID) -> RunInfo[Any]:
        return self.results.reader.info(id)

    def find(self, id: UUID | str) -> Run[Any]:
        """Return the handle of a run by its id alone. Raises RunNotFound."""
        found = run_id(id)
        return Run(found, self.info(found).task, self)

    def spent(self, id: UUID) -> dict[str, Decimal]:
        """Return what a run has spent, by budget."""
        found = self.store.budgets.spending([str(id)]).get(str(id), {})
        return {budget: from_units(units) for budget, units in found.items()}

    def runs(self, **options: Unpack[PageOptions]) -> Page:
        return self.results.reader.full_page(**options)

    def find_runs(self, text: str, limit: int, after: str | None, seconds: float) -> SearchResults:
        return RunSearch(self.store).search(text, limit=limit, after=after, seconds=seconds)

    def history(self, id: UUID) -> list[HistoryEntry]:
        return self.results.reader.history(id)

    def logs(self, id: UUID, level: str | None, search: str | None, after: int, limit: int | None) -> LogPage:
        return self.results.reader.logs(id, level, search, after, limit)

    # Changing runs

    def cancel(
        self, id: UUID, reason: str | None, by: str | None = None, connection: CallerConnection | None = None
    ) -> bool:
        return self.store.actions.cancel(str(id), cancellation_json(reason, check_actor(by)), connection)

    def retry(
        self,
        id: UUID,
        task: str,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> bool:
        refuse_in_body("retry", "call it inside a step")
        text = self._arguments("retry", task, args, kwargs)
        limits = None if text is None else self._limits(id, task, args, kwargs)
        return self.store.actions.retry(str(id), check_actor(by), text, limits)

    def pause(self, id: UUID, by: str | None = None) -> bool:
        return self.store.pauses.pause_run(str(id), check_actor(by))

    def resume(self, id: UUID, by: str | None = None) -> bool:
        return self.store.pauses.resume_run(str(id), check_actor(by))

    def pause_all(self, task: str | None, queue: str | None, tenant: str | None, by: str | None) -> bool:
        kind, name = _one_pause(task, queue, tenant)
        if kind == "queue":
            return bool(self.store.queues.pause([name]))
        return bool(self.store.pauses.pause(kind, [name], actor_or_user(by)))

    def resume_all(self, task: str | None, queue: str | None, tenant: str | None) -> bool:
        kind, name = _one_pause(task, queue, tenant)
        return bool(self.store.queues.resume([name]) if kind == "queue" else self.store.pauses.resume(kind, [name]))

    def update(
        self, id: UUID, task: str, changes: Mapping[str, Any], args: tuple[Any, ...] | None, by: str | None
    ) -> None:
        refuse_in_body("update", "call it inside a step")
        text = self._arguments("update", task, args, None)
        limits = None if text is None else self._limits(id, task, args, None)
        given = run_changes(Options().merge(**changes), text, limits)
        self.store.actions.update(str(id), given, check_actor(by))

    def _arguments(
        self, verb: str, task: str, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None
    ) -> str | None:
        """Encode new arguments of a run; None without any."""
        if args is not None and not isinstance(args, tuple | list):
            raise ConfigError(f"{verb}: args must be a tuple of the task's arguments, not {type(args).__name__}")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise ConfigError(f"{verb}: kwargs must be a mapping of the task's arguments, not {type(kwargs).__name__}")
        if args is None and kwargs is None:
            return None
        return self._registry.get(task).signature.encode(tuple(args or ()), dict(kwargs or {}))

    def _limits(
        self, id: UUID, task: str, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None
    ) -> str | None:
        """Return the permits that a run needs with other arguments; None if it has no limits."""
        names = self.store.actions.limit_names(str(id))
        if not names:
            return None
        request = self._registry.get(task).options(limits=names).request(*(args or ()), **(kwargs or {}))
        return self.creator.limit_counters(request)

    def fork(
        self,
        id: UUID,
        task: str,
        from_step: str | None,
        args: tuple[Any, ...] | None,
        kwargs: Mapping[str, Any] | None = None,
        by: str | None = None,
        *,
        from_failed: bool = False,
    ) -> Run[Any]:
        refuse_in_body("fork", "call it inside a step")
        if from_step is not None:
            check_name(from_step, "from_step", MAX_KEY_CHARS)
        fork = new_id()
        if self.results.reader.row(id).kind == "graph":
            if args is not None or kwargs is not None:
                raise ConfigError(f"fork: run {id} is a graph, which has no arguments")
            self.store.graph_forks.fork(
                str(id), str(fork), from_node=from_step, from_failed=from_failed, by=check_actor(by),
                fair=self._registry.fair,
            )  # fmt: skip
            return self.handle(fork, task)
        if from_failed:
            raise ConfigError(f"fork: run {id} is not a graph: from_failed applies to graphs, use retry to continue it")
        text = self._arguments("fork", task, args, kwargs)
        self.store.actions.fork(str(id), str(fork), from_step, text, check_actor(by))
        return self.handle(fork, task)

    def send(
        self,
        id: UUID,
        task: str,
        topic: str,
        payload: Any,
        by: str | None = None,
        connection: CallerConnection | None = None,
    ) -> None:
        refuse_in_body("send", 'call it inside a step: `ctx.step(run.send, topic, payload, name="send")`')
        text = self._registry.encode_message(task, check_name(topic, "a topic"), payload)
        self.store.actions.send(str(id), topic, text, check_actor(by), connection)

    def emit(self, event: str, payload: Any, tenant: str | None, connection: CallerConnection | None = None) -> bool:
        refuse_in_body("emit", "use ctx.emit, or call it inside a step")
        name = check_name(event, "the name of an event")
        text = encode(payload, f"the payload of event {event!r}")
        tenant = None if tenant is None else check_name(tenant, "tenant")
        if self._telemetry.tracing is None:
            return self.store.events.emit(tenant, name, text, None, connection)
        with self._telemetry.tracing.emit(name):
            return self.store.events.emit(tenant, name, text, self.trace(), connection)

    # In the caller's transaction

    def calling(self, verb: str, connection: object, call: Callable[[CallerConnection | None], T]) -> T:
        """Make a blocking call, in the transaction of the caller's connection if one is given."""
        reject_in_event_loop(verb)
        return call(blocking(self.store, connection, verb))

    async def acalling(self, verb: str, connection: object, call: Callable[[CallerConnection | None], T]) -> T:
        """Make a blocking call from a coroutine, in the transaction of the caller's connection if one is given."""
        return await call_with(self.store, connection, verb, call)


def _one_pause(
    task: str | None, queue: str | None, tenant: str | None
) -> tuple[Literal["task", "queue", "tenant"], str]:
    """Return what is paused or resumed, and its name. Raises ConfigError unless exactly one is given."""
    if sum(name is not None for name in (task, queue, tenant)) != 1:
        raise ConfigError("pause and resume take exactly one of task=, queue= and tenant=")
    if queue is not None:
        return "queue", check_queue(queue, "queue")
    if task is not None and not isinstance(task, str):
        raise ConfigError(f"task must be the name of a task, such as charge.name, not {type(task).__name__}")
    return ("task", check_name(task, "task")) if task is not None else ("tenant", check_name(tenant, "tenant"))
