"""Turn requests into rows and insert them, in a transaction of our own or in the caller's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.client.caller_transaction import borrow
from holdfast.client.enqueue_batcher import EnqueueBatcher, can_batch
from holdfast.client.handle import Run
from holdfast.database.caller_connection import AsyncCallerConnection, CallerConnection, DjangoConnection
from holdfast.errors import ConfigError, CostExceedsLimit
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.ids import new_id_text
from holdfast.model.keep import KeepRules
from holdfast.model.payloads import PayloadContext
from holdfast.store import NewRun, Store
from holdfast.store.age_priority import AGE, Age
from holdfast.store.hooks import HOOKS
from holdfast.store.limits import encode_permits
from holdfast.task.declared_budgets import DeclaredBudget
from holdfast.task.declared_limits import DeclaredLimit, NeededPermit
from holdfast.task.options import Declaration, Options
from holdfast.task.registry import Registry
from holdfast.task.scope import refuse_in_body, reject_in_event_loop
from holdfast.task.signature import POSITIONAL
from holdfast.task.task import Request
from holdfast.telemetry import Telemetry
from holdfast.telemetry.metrics import NAMES

if TYPE_CHECKING:
    from holdfast.client.client import Client
    from holdfast.task.operations import Step
    from holdfast.telemetry.otel import Tracing

Created: TypeAlias = Callable[[Sequence[Run[Any]]], None]
"""Takes the runs that were created in a span."""

INSTEAD_OF_ENQUEUE = (
    "use `await ctx.enqueue(task, …)` for an independent run or `ctx.spawn` for a child, or call it inside a step"
)


class RunCreator:
    """Creates runs for tasks and for the app. Implements `task.EnqueuerProtocol`."""

    def __init__(self, client: Client, registry: Registry, keep: KeepRules, telemetry: Telemetry) -> None:
        self._client = client
        self._registry = registry
        self._keep = keep
        self._telemetry = telemetry

    def bind(self, store: Store) -> None:
        """Insert into this store from now on."""
        self._store = store
        self._declared: set[DeclaredLimit | DeclaredBudget] = set()
        self._batcher = EnqueueBatcher(self._insert)

    # Enqueue

    def enqueue_many(self, requests: Iterable[Request[Any]]) -> list[Run[Any]]:
        """Create runs of any tasks, after checking that they are requests."""
        return self.enqueue(_checked_requests(requests), "enqueue_many")

    async def aenqueue_many(self, requests: Iterable[Request[Any]]) -> list[Run[Any]]:
        return await self.aenqueue(_checked_requests(requests))

    def enqueue(self, requests: Sequence[Request[Any]], /, verb: str = "enqueue") -> list[Run[Any]]:
        refuse_in_body(verb, INSTEAD_OF_ENQUEUE)
        reject_in_event_loop(verb)
        if not self._telemetry.on:
            return self._enqueue(requests)
        with self._measured(requests) as created:
            runs = self._enqueue(requests)
            created(runs)
            return runs

    async def aenqueue(self, requests: Sequence[Request[Any]], /) -> list[Run[Any]]:
        refuse_in_body("aenqueue", INSTEAD_OF_ENQUEUE)
        if not self._telemetry.on:
            return await self._aenqueue(requests)
        with self._measured(requests) as created:
            runs = await self._aenqueue(requests)
            created(runs)
            return runs

    def _enqueue(self, requests: Sequence[Request[Any]]) -> list[Run[Any]]:
        borrowed = self._shared_connection(requests)
        if isinstance(borrowed, AsyncCallerConnection):
            raise ConfigError("connection= is an async connection: use `await …aenqueue(…)` with it")
        new = self._new_runs(requests)
        if borrowed is None:
            return self._handles(self._insert(new), new, requests)
        self.declare_limits()
        return self._handles(self._store.enqueuer.enqueue_on(borrowed, new), new, requests)

    async def _aenqueue(self, requests: Sequence[Request[Any]]) -> list[Run[Any]]:
        borrowed = self._shared_connection(requests)
        if borrowed is None:
            new = self._new_runs(requests)
            ids = await (self._batcher.add(new) if can_batch(new) else run_in_thread(self._insert, new))
            return self._handles(ids, new, requests)
        if isinstance(borrowed, DjangoConnection):
            return await borrowed.in_its_thread(self._enqueue, requests)
        if isinstance(borrowed, CallerConnection):
            raise ConfigError("connection= is a blocking connection: use enqueue() with it, or pass an async one")
        await run_in_thread(self.declare_limits)
        new = self._new_runs(requests)
        return self._handles(await self._store.enqueuer.enqueue_on_async(borrowed, new), new, requests)

    @contextmanager
    def _measured(self, requests: Sequence[Request[Any]]) -> Iterator[Created]:
        """Trace the enqueue as one span, and count the runs if it succeeds."""
        counts = Counter((request.task, request.options.queue or request.declaration.queue) for request in requests)
        tasks, queues = {task for task, _ in counts}, {queue for _, queue in counts}
        task = tasks.pop() if len(tasks) == 1 else "several tasks"
        queue = queues.pop() if len(queues) == 1 else None
        with self.span(task, queue, len(requests)) as created:
            yield created
        for names, count in counts.items():
            self._telemetry.measure("holdfast.runs.enqueued", count, NAMES.bound(names))

    @contextmanager
    def span(self, task: str, queue: str | None, runs: int) -> Iterator[Created]:
        """Trace the creation of runs, if tracing is on; yield a function that takes the created runs."""
        tracing = self._telemetry.tracing
        if tracing is None:
            yield lambda _: None
            return
        with tracing.enqueue(task, queue, runs) as set_run:
            yield lambda created: set_run(str(created[0].id)) if len(created) == 1 else None

    def _insert(self, new: Sequence[NewRun]) -> list[str]:
        self.declare_limits()
        return self._store.enqueuer.enqueue(new)

    def _handles(self, ids: list[str], new: Sequence[NewRun], requests: Sequence[Request[Any]]) -> list[Run[Any]]:
        client = self._client
        return [
            Run(id, request.task, client, id == row.id) for id, row, request in zip(ids, new, requests, strict=True)
        ]

    # The caller's connection

    def _shared_connection(self, requests: Sequence[Request[Any]]) -> CallerConnection | AsyncCallerConnection | None:
        given = [request.options.connection for request in requests]
        if any(connection is not given[0] for connection in given):
            raise ConfigError("all requests of one call must have the same connection=, or none")
        return self.borrow(given[0]) if given else None

    def borrow(self, connection: object) -> CallerConnection | AsyncCallerConnection | None:
        """Wrap the caller's connection for the store."""
        return borrow(self._store, connection)

    # Rows

    def _new_runs(self, requests: Sequence[Request[Any]]) -> list[NewRun]:
        """Build the rows of requests. In a bulk, rows of one task and the same options differ only in id and args."""
        rows: list[NewRun] = []
        like: Request[Any] | None = None
        for request in requests:
            if like is not None and request.declaration is like.declaration and request.options is like.options:
                id = new_id_text()
                rows.append(replace(rows[-1], id=id, args=self._arguments(request, id, request.options.tenant)))
            else:
                rows.append(self.new_run(request))
                like = request if rows[-1].key is None and rows[-1].limits is None else None
        return rows

    def _arguments(self, request: Request[Any], run: str, tenant: str | None) -> str:
        payloads, text = self._store.payloads, request.args
        if len(text) <= payloads.plain_below:
            return text
        return payloads.pack(text, PayloadContext("args", tenant, run), "the arguments of task", request.task)

    def new_run(
        self,
        request: Request[Any],
        pending: Iterable[str] = (),
        node: str | None = None,
        inherited_tenant: str | None = None,
        *,
        pack: bool = True,
    ) -> NewRun:
        """Build the row of a request, with a new id.

        `pending` names parameters whose values come later; `node` is its name in a graph. `inherited_tenant`: that of
        its parent or graph, which the store gives it if it has none of its own. `pack=False` leaves the arguments as
        they are, to be packed for another id.
        """
        declared, options = request.declaration, request.options
        id = new_id_text()
        queue = options.queue or declared.queue
        priority = declared.priority if options.priority is None else options.priority
        interval = self._registry.age_intervals.get(queue)
        age = None if interval is None else Age.of(priority, interval)
        tenant = inherited_tenant if options.tenant is None else options.tenant
        deadline_in = (
            declared.deadline if options.deadline is None and options.deadline_at is None else options.deadline
        )
        rules = self._keep
        keep = rules.of_run(tenant, declared.keep) if rules.by_tenant else declared.keep or rules.default
        digest, old_digest = (None, None) if options.key is None else request.digests()
        return NewRun(
            id=id,
            queue=queue,
            task=declared.name,
            args=self._arguments(request, id, tenant) if pack else request.args,
            keep=keep.done_micros,
            keep_failed=keep.stored_failed_micros,
            max_crashes=declared.max_crashes,
            tenant=options.tenant,
            priority=priority if age is None else 0,
            turn=0 if age is None else -age.shift,
            delay=options.delay,
            run_at=options.run_at,
            deadline_in=deadline_in,
            deadline_at=options.deadline_at,
            unique=options.unique,
            if_taken=options.if_taken or "return",
            start_in=options.start_by,
            start_by_at=options.start_by_at,
            key_ttl=options.key_ttl,
            debounce=options.debounce,
            max_delay=options.max_delay,
            key=options.key,
            digest=digest,
            old_digest=old_digest,
            options=_stored_options(options, self._telemetry.tracing, node, self._hooks(declared), age),
            tags=None if options.tags is None else msgspec.json.encode(options.tags).decode(),
            limits=self.limit_counters(request, pending),
            fair=self._registry.fair.get(queue),
            metadata=options.metadata,
        )

    def _hooks(self, declared: Declaration) -> dict[str, list[dict[str, Any]]] | None:
        """Return the templates of the runs that follow the end of a run."""
        return self.hook_templates(declared.hooks) if declared.hooks else None

    def hook_templates(self, hooks: Mapping[str, tuple[Request[Any], ...]]) -> dict[str, list[dict[str, Any]]]:
        """Return the templates of the runs that follow the end of a run or a graph, by event."""
        return {event: [self._hook(request) for request in requests] for event, requests in hooks.items()}

    def _hook(self, request: Request[Any]) -> dict[str, Any]:
        (argument,) = msgspec.json.decode(request.args)
        run = msgspec.to_builtins(self.new_run(request, (argument,), pack=False))
        stored = {name: value for name, value in run.items() if value is not None}
        return {"run": stored | {"args": ""}} | ({} if argument == POSITIONAL else {"argument": argument})

    def limit_counters(self, request: Request[Any], pending: Iterable[str] = ()) -> str | None:
        """Return the permits that a run needs as it stores them; None if it needs none."""
        if not (request.declaration.limits or request.options.limits):
            return None
        return self.encode_permits(self._registry.limits.permits(request, pending), f"task {request.task}")

    def step_permits(self, step: Step) -> str | None:
        """Return the permits that a step needs as it stores them; None if it needs none."""
        if not step.limits:
            return None
        call = step.args, step.kwargs
        permits = self._registry.limits.step_permits(step.name, step.fn, call, step.limits, step.cost)
        return encode_permits((limit.name, key, cost) for limit, key, cost in permits)

    def encode_permits(self, permits: Sequence[NeededPermit], where: str) -> str:
        """Return permits as a run or step stores them; refuse a cost above all that its limit allows."""
        for limit, _, cost in permits:
            if cost is not None and limit.rate is not None and cost > limit.rate.starts:
                self._check_fits_rate(limit.name, limit.rate.starts, cost, where)
        return encode_permits((limit.name, key, cost) for limit, key, cost in permits)

    def _check_fits_rate(self, name: str, declared: int, cost: int, where: str) -> None:
        """Refuse a cost above the declared rate, unless a higher one was set at run time."""
        found = self._store.limits.find(name)
        rate = declared if found is None else found.rate
        if rate is not None and cost > rate:
            raise CostExceedsLimit(
                f"{where} has a cost of {cost:,}, and limit {name} allows {rate:,} per period: it would never start. "
                "Split it, or raise the limit"
            )

    def declare_limits(self) -> None:
        """Store the declared limits and budgets that the database doesn't know yet, because no worker has started."""
        new = [limit for limit in list(self._registry.limits.by_name.values()) if limit not in self._declared]
        if new:
            rows = ((limit.name, limit.concurrency, limit.rate, limit.cost is not None) for limit in new)
            self._store.limits.declare(rows, overwrite=False)
            if not self._store.database.in_user_transaction():  # The caller may roll back.
                self._declared.update(new)
        budgets = [budget for budget in list(self._registry.budgets.by_name.values()) if budget not in self._declared]
        if budgets:
            self._store.budgets.declare(budgets, overwrite=False)
            if not self._store.database.in_user_transaction():
                self._declared.update(budgets)


def _stored_options(
    options: Options, tracing: Tracing | None, node: str | None, hooks: dict[str, Any] | None, age: Age | None
) -> str | None:
    """Encode the options that have no column of their own, the key for display, and what spans of the run need."""
    stored: dict[str, Any] = {} if options.key is None else {"key": options.key}
    if hooks is not None:
        stored[HOOKS] = hooks
    if age is not None:
        stored[AGE] = age
    if tracing is not None:
        if (context := tracing.current_context()) is not None:
            stored["trace"] = context
        if node is not None:
            stored["node"] = node
    if options.retry is not None:
        stored["retry"] = options.retry.to_json()
    if options.timeout is not None:
        stored["timeout"] = options.timeout
    return msgspec.json.encode(stored).decode() if stored else None


def _checked_requests(requests: Iterable[Request[Any]]) -> list[Request[Any]]:
    if not isinstance(requests, Iterable):
        raise ConfigError(f"enqueue_many takes a list of requests, not {type(requests).__name__}")
    checked = list(requests)
    for at, request in enumerate(checked):
        if not isinstance(request, Request):
            raise ConfigError(
                f"enqueue_many: item {at} must be a request, not {type(request).__name__}; use task.request(…)"
            )
    return checked
