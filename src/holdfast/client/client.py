"""Between requests and rows: makes runs of requests, and reads runs back with the types of their tasks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.client.completion_listener import CompletionListener
from holdfast.client.enqueue_batcher import EnqueueBatcher, can_batch
from holdfast.client.graphs import GraphClient
from holdfast.client.handle import Run
from holdfast.client.result_waiter import MAX_POLL_INTERVAL_S, PollBackoff, ResultWaiter
from holdfast.database import Row
from holdfast.database.caller_connection import FOREIGN_SQLITE, AsyncCallerConnection, CallerConnection, wrap_connection
from holdfast.errors import ConfigError, ErrorInfo, RunCancelled, RunFailed, RunNotFound, StoreUnavailable
from holdfast.model.blocking_calls import reject_in_event_loop, run_in_thread
from holdfast.model.clock import Duration
from holdfast.model.codec import decode, encode
from holdfast.model.failure import cancellation_json, error_from_json
from holdfast.model.filters import PageOptions
from holdfast.model.history import Entry
from holdfast.model.ids import new_id, new_id_text
from holdfast.model.names import MAX_KEY_CHARS, check_name
from holdfast.model.run import FINAL_STATES, Chunk, Page, RunInfo
from holdfast.store import NewRun, Store
from holdfast.store.limits import counter_key
from holdfast.store.rows import NewGraph
from holdfast.store.run_reader import RunReader, run_id
from holdfast.task.conditions import Node
from holdfast.task.declared_limits import DeclaredLimit
from holdfast.task.graph import Graph
from holdfast.task.graph_compiler import CompiledGraph
from holdfast.task.options import Options
from holdfast.task.registry import Registry
from holdfast.task.scope import refuse_in_body
from holdfast.task.task import Request
from holdfast.telemetry import Telemetry

if TYPE_CHECKING:
    from holdfast.telemetry.otel import Tracing

INSTEAD_OF_ENQUEUE = (
    "write `await ctx.enqueue(task, …)` for an independent run, `ctx.spawn` for a child, or call it inside a step"
)


class Client:
    """The durable side of handles and tasks. Blocking; the awaited verbs call it in a thread."""

    def __init__(self, store: Store, registry: Registry, keep: int, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._registry = registry
        self._keep = keep
        self._use(store)

    def bind(self, store: Store) -> None:
        """Go on with this store, for tasks and handles too. Not while calls are under way."""
        self._results.close()
        self._use(store)

    def close(self) -> None:
        """Close the connections. They are opened again when they are needed."""
        try:
            self._results.close()
        finally:
            self.store.close()

    def _use(self, store: Store) -> None:
        self.store = store
        self._declared: set[DeclaredLimit] = set()
        self._reader = RunReader(store, self.decode_result)
        self.graphs = GraphClient(store, self._reader, self._keep, self.new_run)
        self._batcher = EnqueueBatcher(self._add)
        self._results = ResultWaiter(store.queries.outcomes, CompletionListener(store))

    # Making runs

    def enqueue(self, requests: Sequence[Request[Any]], /, verb: str = "enqueue") -> list[Run[Any]]:
        refuse_in_body(verb, INSTEAD_OF_ENQUEUE)
        reject_in_event_loop(verb)
        return self.make(requests)

    async def aenqueue(self, requests: Sequence[Request[Any]], /) -> list[Run[Any]]:
        refuse_in_body("aenqueue", INSTEAD_OF_ENQUEUE)
        if not self._telemetry.on:
            return await self._amake(requests)
        with self._enqueuing(requests):
            return await self._amake(requests)

    async def _amake(self, requests: Sequence[Request[Any]]) -> list[Run[Any]]:
        borrowed = self._borrowed(requests)
        if borrowed is None:
            new = self._new_runs(requests)
            ids = await (self._batcher.add(new) if can_batch(new) else run_in_thread(self._add, new))
            return self._handles(ids, requests)
        if isinstance(borrowed, CallerConnection):
            raise ConfigError(
                "the connection given as connection= blocks: use enqueue() with it, or an async connection"
            )
        await run_in_thread(self.declare_limits)
        ids = await self.store.enqueuer.enqueue_on_async(borrowed, self._new_runs(requests))
        return self._handles(ids, requests)

    def make(self, requests: Sequence[Request[Any]]) -> list[Run[Any]]:
        """The runs of requests, made in a transaction of our own or in the caller's."""
        if not self._telemetry.on:
            return self._make(requests)
        with self._enqueuing(requests):
            return self._make(requests)

    @contextmanager
    def _enqueuing(self, requests: Sequence[Request[Any]]) -> Iterator[None]:
        """Tell telemetry of runs that are made: counted when they are, and in a span that they belong to."""
        counts = Counter(request.task for request in requests)
        tracing = self._telemetry.tracing
        task = next(iter(counts)) if len(counts) == 1 else "several tasks"
        with nullcontext() if tracing is None else tracing.enqueue(task, len(requests)):
            yield
        for task, count in counts.items():
            self._telemetry.measure("holdfast.runs.enqueued", count, task=task)

    def trace(self) -> str | None:
        """The trace context of the code that asks, as it is kept with what it makes."""
        kept = None if self._telemetry.tracing is None else self._telemetry.tracing.current_context()
        return None if kept is None else msgspec.json.encode(kept).decode()

    def pack(self, text: str, what: str) -> str:
        return self.store.payloads.pack(text, what)

    def unpack(self, text: str) -> str:
        return self.store.payloads.unpack(text)

    def _make(self, requests: Sequence[Request[Any]]) -> list[Run[Any]]:
        borrowed = self._borrowed(requests)
        if isinstance(borrowed, AsyncCallerConnection):
            raise ConfigError("the connection given as connection= is asynchronous: use `await …aenqueue(…)` with it")
        new = self._new_runs(requests)
        if borrowed is None:
            return self._handles(self._add(new), requests)
        self.declare_limits()
        return self._handles(self.store.enqueuer.enqueue_on(borrowed, new), requests)

    def _add(self, new: Sequence[NewRun]) -> list[str]:
        self.declare_limits()
        return self.store.enqueuer.enqueue(new)

    def _handles(self, ids: list[str], requests: Sequence[Request[Any]]) -> list[Run[Any]]:
        return [Run(id, request.task, self) for id, request in zip(ids, requests, strict=True)]

    def submit(self, graph: Graph, result: Node[Any] | None, connection: object) -> Run[Any]:
        """The run of a graph, made in a transaction of our own or in the caller's."""
        self.declare_limits()
        with self._submitting(graph):
            return self.handle(self.graphs.submit(graph, result, self.borrowed(connection)), graph.name)

    async def asubmit(self, graph: Graph, result: Node[Any] | None, connection: object) -> Run[Any]:
        await run_in_thread(self.declare_limits)
        with self._submitting(graph):
            return self.handle(await self.graphs.asubmit(graph, result, self.borrowed(connection)), graph.name)

    def _submitting(self, graph: Graph) -> AbstractContextManager[None]:
        tracing = self._telemetry.tracing
        return nullcontext() if tracing is None else tracing.enqueue(graph.name, 1)

    def _borrowed(self, requests: Sequence[Request[Any]]) -> CallerConnection | AsyncCallerConnection | None:
        """The caller's connection, if one was given: the same for all requests of a call."""
        given = [request.options.connection for request in requests]
        if any(connection is not given[0] for connection in given):
            raise ConfigError("the requests of one call must all have the same connection=, or none")
        return self.borrowed(given[0]) if given else None

    def borrowed(self, connection: object) -> CallerConnection | AsyncCallerConnection | None:
        """A caller's connection as the store takes it."""
        if connection is None:
            return None
        if self.store.database.dialect.name == "sqlite":
            raise ConfigError(FOREIGN_SQLITE)
        return wrap_connection(connection)

    def handle(self, id: UUID, task: str) -> Run[Any]:
        return Run(id, task, self)

    def _new_runs(self, requests: Sequence[Request[Any]]) -> list[NewRun]:
        """The rows of requests. Those that ask the same of one task, as a bulk does, differ only in their arguments."""
        made: list[NewRun] = []
        like: Request[Any] | None = None
        for request in requests:
            if like is not None and request.declaration is like.declaration and request.options is like.options:
                args = self.store.payloads.pack(request.args, "the arguments of task", request.declaration.name)
                made.append(replace(made[-1], id=new_id_text(), args=args))
            else:
                made.append(self.new_run(request))
                like = request if made[-1].key is None and made[-1].limits is None else None
        return made

    def new_run(self, request: Request[Any], waiting: Iterable[str] = ()) -> NewRun:
        """The row of a request, with an id of its own. `waiting`: parameters that are filled in later."""
        declared, asked = request.declaration, request.options
        deadline_in = declared.deadline if asked.deadline is None and asked.deadline_at is None else asked.deadline
        digest, old_digest = (None, None) if asked.key is None else request.digests()
        return NewRun(
            id=new_id_text(),
            queue=asked.queue or declared.queue,
            task=declared.name,
            args=self.store.payloads.pack(request.args, "the arguments of task", declared.name),
            keep=self._keep if declared.keep is None else declared.keep,
            max_crashes=declared.max_crashes,
            tenant=asked.tenant,
            priority=declared.priority if asked.priority is None else asked.priority,
            delay=asked.delay,
            run_at=asked.run_at,
            deadline_in=deadline_in,
            deadline_at=asked.deadline_at,
            unique=asked.unique,
            key=asked.key,
            digest=digest,
            old_digest=old_digest,
            options=_kept_options(asked, self._telemetry.tracing),
            tags=None if asked.tags is None else msgspec.json.encode(asked.tags).decode(),
            limits=self._places(request, waiting),
            fair=self._registry.fair.get(asked.queue or declared.queue),
        )

    def _places(self, request: Request[Any], waiting: Iterable[str]) -> str | None:
        """The counters that a run needs permits of, as its row has them."""
        if not (request.declaration.limits or request.options.limits):
            return None
        counters = self._registry.limits.counters(request, waiting)
        return msgspec.json.encode([counter_key(name, key) for name, key in counters]).decode()

    def declare_limits(self) -> None:
        """Let the database know of limits that no worker has declared yet, once."""
        new = [limit for limit in self._registry.limits if limit not in self._declared]
        if new:
            self.store.limits.declare(((limit.name, limit.concurrency, limit.rate) for limit in new), overwrite=False)
            if not self.store.database.in_user_transaction():  # which may be taken back
                self._declared.update(new)

    def new_child_graph(self, plan: CompiledGraph, result: str | None) -> tuple[NewRun, NewGraph]:
        """The rows of a graph that a durable function makes, with ids of their own."""
        return self.graphs.graph_run(plan, result), self.graphs.new_graph(plan)

    # Reading runs

    def info(self, id: UUID) -> RunInfo[Any]:
        return self._reader.info(id)

    def find(self, id: UUID | str) -> Run[Any]:
        """The handle of a run that is known by its id only."""
        found = run_id(id)
        return Run(found, self.info(found).task, self)

    def runs(self, **asked: Unpack[PageOptions]) -> Page:
        return self._reader.full_page(**asked)

    def history(self, id: UUID) -> list[Entry]:
        return self._reader.history(id)

    def decode_result(self, task: str, text: str) -> Any:
        return self._registry.decode_result(task, self.store.payloads.unpack(text))

    # Waiting for the end

    def result(self, id: UUID, task: str, timeout: Duration | None) -> Any:
        with self._results.sleeping(id, timeout) as sleeper:
            while True:
                try:
                    end = self.look(id, task)
                except StoreUnavailable as error:
                    sleeper.sleep_after_failure(error)
                    continue
                if isinstance(end, Finished):
                    return end.result
                self.store.database.reject_wait_in_transaction(f"run {id}")
                sleeper.sleep(end)

    async def aresult(self, id: UUID, task: str, timeout: Duration | None) -> Any:
        row = await self._results.wait(id, timeout)
        end = await run_in_thread(self._seen, id, task, row)
        assert isinstance(end, Finished)
        return end.result

    def ended(self) -> None:
        self._results.hurry()

    def look(self, id: UUID, task: str) -> Finished | str:
        """The result, if the run has one by now, else its state; raises when it ended otherwise."""
        return self._seen(id, task, self.store.queries.outcome(str(id)))

    def _seen(self, id: UUID, task: str, row: Row | None) -> Finished | str:
        if row is None:
            raise RunNotFound.of(id)
        state, result, error, kind, options = row
        if state not in FINAL_STATES:
            return str(state)
        if state == "done" and kind == "graph":
            return Finished(self._reader.graph_result(str(id), options))
        if state == "done":
            return Finished(self.decode_result(task, result))
        info = error_from_json(error) if error else ErrorInfo("error", state, "")
        if state == "cancelled":
            raise RunCancelled(id, info.message or None)
        raise RunFailed(id, info)

    # Changing runs

    def cancel(self, id: UUID, reason: str | None) -> bool:
        return self.store.actions.cancel(str(id), cancellation_json(reason))

    def retry(self, id: UUID) -> None:
        self.store.actions.retry(str(id))

    def fork(self, id: UUID, task: str, from_step: str | None, args: tuple[Any, ...] | None) -> Run[Any]:
        refuse_in_body("fork", "call it inside a step")
        if args is not None and not isinstance(args, tuple | list):
            raise ConfigError(f"fork: args must be a tuple of the task's arguments, not a {type(args).__name__}")
        text = None if args is None else self._registry.get(task).signature.encode(tuple(args), {})
        if from_step is not None:
            check_name(from_step, "from_step", MAX_KEY_CHARS)
        self.store.actions.fork(str(id), str(fork := new_id()), from_step, text)
        return self.handle(fork, task)

    def send(self, id: UUID, topic: str, payload: Any) -> None:
        refuse_in_body("send", "call it inside a step, like `ctx.step(run.send, topic, payload)`")
        text = encode(payload, f"the message on topic {topic!r}")
        self.store.actions.send(str(id), check_name(topic, "a topic"), text)

    def emit(self, event: str, payload: Any, tenant: str | None) -> bool:
        name = check_name(event, "the name of an event")
        text = encode(payload, f"the payload of event {event!r}")
        tenant = None if tenant is None else check_name(tenant, "tenant")
        if self._telemetry.tracing is None:
            return self.store.events.emit(tenant, name, text)
        with self._telemetry.tracing.emit(name):
            return self.store.events.emit(tenant, name, text, self.trace())

    # VirtualTimeFollower what a run writes

    def stream(self, id: UUID, after: int) -> Iterator[Chunk]:
        looks = PollBackoff(id, None)
        while True:
            chunks, over = self.look_at_chunks(id, after)
            yield from chunks
            if over:
                return
            if chunks:
                after = chunks[-1].seq
                looks = PollBackoff(id, None)
            else:
                self.store.database.reject_wait_in_transaction(f"run {id}")
                time.sleep(looks.pause("", MAX_POLL_INTERVAL_S))

    async def astream(self, id: UUID, after: int) -> AsyncIterator[Chunk]:
        import asyncio

        looks = PollBackoff(id, None)
        while True:
            chunks, over = await run_in_thread(self.look_at_chunks, id, after)
            for chunk in chunks:
                yield chunk
            if over:
                return
            if chunks:
                after = chunks[-1].seq
                looks = PollBackoff(id, None)
            else:
                await asyncio.sleep(looks.pause("", MAX_POLL_INTERVAL_S))

    def look_at_chunks(self, id: UUID, after: int) -> tuple[list[Chunk], bool]:
        """The next of what a run wrote, and whether that was all there will be. The state is looked at first: what a
        run wrote before its end is there when its end is."""
        row = self.store.queries.outcome(str(id))
        if row is None:
            raise RunNotFound.of(id)
        rows = self.store.queries.chunks(str(id), after)
        return [Chunk(n, attempt, decode(data)) for n, attempt, data in rows], row[0] in FINAL_STATES and not rows


class Finished(NamedTuple):
    """A run that ended well."""

    result: Any


def _kept_options(asked: Options, tracing: Tracing | None) -> str | None:
    """What the worker needs to know of the request beyond the row's own columns, and the trace that it is part of."""
    kept: dict[str, Any] = {}
    if tracing is not None and (context := tracing.current_context()) is not None:
        kept["trace"] = context
    if asked.retry is not None:
        kept["retry"] = asked.retry.to_json()
    if asked.timeout is not None:
        kept["timeout"] = asked.timeout
    return msgspec.json.encode(kept).decode() if kept else None
