"""Run a LangGraph graph inside a durable function: a step for each superstep, a gate for each interrupt.

The graph stops before each superstep, so that the superstep is a step of the run. Inside it, LangGraph stores what each
task has written as soon as it has finished, fenced by the claim of the run. A superstep that is repeated after a crash
finds these writes and executes only the other tasks. A recorded superstep isn't executed again, whatever happens to the
thread later.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast, overload

import msgspec
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.constants import START
from langgraph.errors import GraphRecursionError
from langgraph.pregel import Pregel
from langgraph.types import Command, StateSnapshot, StreamMode

from holdfast.engine.durable.executor import Executor
from holdfast.errors import TaskError
from holdfast.integrations.agents import ModelSpending, Price, TokenUsage
from holdfast.integrations.langgraph.json_values import load_output, pack_output, to_json
from holdfast.integrations.langgraph.saver import HoldfastSaver, continued_elsewhere
from holdfast.model.codec import canonical
from holdfast.model.names import MAX_NAME_CHARS, check_name
from holdfast.task.context import Context
from holdfast.task.scope import current_scope
from holdfast.task.sync_context import SyncContext

if TYPE_CHECKING:
    from holdfast.model.clock import Duration
    from holdfast.model.retry import Retry

Graph: TypeAlias = "Pregel[Any, Any, Any, Any]"
Chunk: TypeAlias = tuple[tuple[str, ...], str, Any]

DEFAULT_RECURSION_LIMIT = 10_000
INPUT = "input"
INTERRUPT = "__interrupt__"
METADATA = "__metadata__"
EDITED = ("update", "fork")
"""Sources of checkpoints made with `graph.update_state`, not the graph itself."""
MAX_SHOWN_NODES = 5


class PendingInterrupt(msgspec.Struct):
    """An interrupt that waits for an answer, and the gate at which it waits."""

    id: str
    gate: str
    node: str
    payload: Any


class ModelUsage(msgspec.Struct):
    """What a call of a model has used, as its message says. `id`: of the message."""

    id: str
    model: str
    input: int
    output: int
    cached: int

    @property
    def tokens(self) -> TokenUsage:
        return TokenUsage(self.input, self.output, self.cached)


class Position(msgspec.Struct):
    """Where the graph is after a superstep: the result of the step.

    `call`: identifies this call of `run_graph` in the checkpoints of the thread. `at`: the checkpoint from which the
    next superstep starts. `next`: its nodes, none if the graph has finished with `output`. `written`: digests of the
    updates of its tasks that have finished, while others are interrupted. `usage`: of the models that its tasks called.
    """

    call: str
    at: str
    next: list[str]
    interrupts: list[PendingInterrupt]
    written: list[str]
    output: Any = None
    usage: list[ModelUsage] = []


class StreamPart(NamedTuple):
    """What to write to the stream of the run, and the part of the step that it belongs to."""

    part: str
    data: dict[str, Any]


class UsageToCount(NamedTuple):
    """The usage of a model to count, once."""

    usage: ModelUsage


class Superstep(NamedTuple):
    """A superstep to execute: the first one takes the input, others continue after a previous one."""

    name: str
    after: Position | None
    answers: Mapping[str, Any]


@overload
def run_graph(
    ctx: Context,
    graph: Graph,
    input: Any,
    *,
    thread_id: str | None = None,
    config: RunnableConfig | None = None,
    context: Any = None,
    stream_mode: StreamMode | Sequence[StreamMode] = (),
    gates: Mapping[str, Any] | None = None,
    gate_timeout: Duration | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    limits: Sequence[str] | None = None,
    budget: str | None = None,
    prices: Mapping[str, Price] | None = None,
) -> Coroutine[Any, Any, Any]: ...
@overload
def run_graph(
    ctx: SyncContext,
    graph: Graph,
    input: Any,
    *,
    thread_id: str | None = None,
    config: RunnableConfig | None = None,
    context: Any = None,
    stream_mode: StreamMode | Sequence[StreamMode] = (),
    gates: Mapping[str, Any] | None = None,
    gate_timeout: Duration | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    limits: Sequence[str] | None = None,
    budget: str | None = None,
    prices: Mapping[str, Price] | None = None,
) -> Any: ...
def run_graph(
    ctx: Context | SyncContext,
    graph: Graph,
    input: Any,  # noqa: A002 - LangGraph's name
    *,
    thread_id: str | None = None,
    config: RunnableConfig | None = None,
    context: Any = None,
    stream_mode: StreamMode | Sequence[StreamMode] = (),
    gates: Mapping[str, Any] | None = None,
    gate_timeout: Duration | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    limits: Sequence[str] | None = None,
    budget: str | None = None,
    prices: Mapping[str, Price] | None = None,
) -> Any:
    """Run a compiled graph and return its output. Awaited with a `Context`, a plain call with a `SyncContext`.

    Each superstep is a step of the run. Its tasks that have finished aren't executed again after a crash. The
    checkpoints are stored in the app's database, whatever checkpointer the graph was compiled with.

    Args:
        ctx: The context of the durable function.
        graph: A compiled graph: `builder.compile()`, or a function with `@entrypoint`.
        input: The input of the graph. It needn't be JSON, but must be the same in every replay.
        thread_id: The thread. Defaults to one of this run, which is pruned with it.
        config: More configuration for LangGraph: `configurable`, `tags`, `callbacks`, `recursion_limit`.
        context: The static context of the graph.
        stream_mode: What to write to the stream of the run: `"updates"`, `"messages"`, `"custom"` and others.
        gates: The types of answers by the node that interrupts. Without a type, an answer is plain JSON.
        gate_timeout: How long an interrupt waits for its answer. None waits forever.
        retry: When to retry a superstep in which a node failed.
        timeout: The limit for one try of a superstep.
        limits: Limits of which each superstep takes a permit before it starts.
        budget: The budget that calls of models spend, by the usage that their messages report.
        prices: What models cost, by name or by how their names begin; `"*"` is for all others. Without it, the tokens
            themselves are spent.

    Raises:
        StepFailed: A node failed, and the retries of its superstep are exhausted.
        GateRejected: The gate of an interrupt was rejected.
        WaitTimeout: Nobody answered an interrupt in time.
        GraphRecursionError: The graph has executed more supersteps than `recursion_limit` of the config.

    Example:
        ```python
        @app.task
        async def answer(ctx: Context, question: str) -> str:
            state = await run_graph(ctx, agent, {"messages": [("user", question)]})
            return state["messages"][-1].content
        ```
    """
    if not isinstance(graph, Pregel):
        hint = ": call builder.compile() first" if hasattr(graph, "compile") else ""
        raise TaskError(f"run_graph takes a compiled graph, not {type(graph).__name__}{hint}")
    if not isinstance(ctx, Context | SyncContext):
        raise TaskError(f"run_graph takes the context of a durable function first, not {type(ctx).__name__}")
    thread = str(ctx.run_id) if thread_id is None else check_name(thread_id, "the thread_id of run_graph")
    modes: list[StreamMode] = [stream_mode] if isinstance(stream_mode, str) else list(stream_mode)
    call = _GraphCall(ctx, graph, input, thread, config or {}, context, modes)
    options = {"retry": retry, "timeout": timeout, "limits": limits}
    spending = ModelSpending(budget, prices)
    if isinstance(ctx, Context):
        return _run_async(ctx, call, options, gates or {}, gate_timeout, spending)
    return _run_sync(ctx, call, options, gates or {}, gate_timeout, spending)


async def _run_async(
    ctx: Context,
    call: _GraphCall,
    options: dict[str, Any],
    gates: Mapping[str, Any],
    gate_timeout: Duration | None,
    spending: ModelSpending,
) -> Any:
    import asyncio

    drive = _drive(call)
    request = next(drive)
    while True:
        if isinstance(request, Superstep):
            step = request

            async def superstep(_thread: str) -> Position:
                return await call.aexecute(step)  # noqa: B023 - awaited before the next round of the loop

            reply: Any = await ctx.options(name=step.name, **options).step(superstep, call.thread)
        elif isinstance(request, UsageToCount):
            await spending.spend(ctx, request.usage.model, request.usage.tokens)
            reply = None
        else:
            waits = (
                ctx.gate(each.gate, payload=each.payload, timeout=gate_timeout, type=gates.get(each.node))
                for each in request
            )
            reply = await asyncio.gather(*waits)
        try:
            request = drive.send(reply)
        except StopIteration as end:
            return end.value


def _run_sync(
    ctx: SyncContext,
    call: _GraphCall,
    options: dict[str, Any],
    gates: Mapping[str, Any],
    gate_timeout: Duration | None,
    spending: ModelSpending,
) -> Any:
    drive = _drive(call)
    request = next(drive)
    while True:
        if isinstance(request, Superstep):
            step = request

            def superstep(_thread: str) -> Position:
                return call.execute(step)  # noqa: B023 - called before the next round of the loop

            reply: Any = ctx.options(name=step.name, **options).step(superstep, call.thread)
        elif isinstance(request, UsageToCount):
            reply = None
            if spending.budget is not None:
                ctx.spend(spending.budget, spending.amount(request.usage.model, request.usage.tokens))
        else:
            reply = [
                ctx.gate(each.gate, payload=each.payload, timeout=gate_timeout, type=gates.get(each.node))
                for each in request
            ]
        try:
            request = drive.send(reply)
        except StopIteration as end:
            return end.value


def _drive(call: _GraphCall) -> Generator[Superstep | list[PendingInterrupt] | UsageToCount, Any, Any]:
    """Yield what to do next, superstep by superstep, and return the output of the graph."""
    position: Position = yield Superstep(_step_name([INPUT]), None, {})
    counted: set[str] = set()
    supersteps = 0
    while position.next:
        if supersteps == call.recursion_limit:
            raise GraphRecursionError(
                f"the graph has executed {supersteps:,} supersteps without reaching an end; raise recursion_limit in "
                "the config"
            )
        supersteps += 1
        answers: dict[str, Any] = {}
        if position.interrupts:
            decided = yield position.interrupts
            answers = {each.id: answer for each, answer in zip(position.interrupts, decided, strict=True)}
        position = yield Superstep(_step_name(position.next), position, answers)
        new = [each for each in position.usage if each.id not in counted]
        counted.update(each.id for each in new)
        for usage in new:
            yield UsageToCount(usage)
    return load_output(position.output, call.saver.serde)


def _step_name(nodes: Sequence[str]) -> str:
    shown = sorted(set(nodes))
    more = f"+{len(shown) - MAX_SHOWN_NODES} more" if len(shown) > MAX_SHOWN_NODES else ""
    return ("langgraph " + "+".join(shown[:MAX_SHOWN_NODES]) + more)[:MAX_NAME_CHARS]


class _GraphCall:
    """One call of `run_graph`."""

    def __init__(
        self,
        ctx: Context | SyncContext,
        graph: Graph,
        input: Any,  # noqa: A002
        thread: str,
        config: RunnableConfig,
        context: Any,
        modes: list[StreamMode],
    ) -> None:
        self.ctx = ctx
        self.input = input
        self.thread = thread
        self._config = config
        self._context = context
        self._modes = modes
        self._serde_of = graph.checkpointer if isinstance(graph.checkpointer, BaseCheckpointSaver) else None
        self._memory: BaseCheckpointSaver[Any] | None = None
        self._graph = graph
        self.reached: Position | None = None
        """Where the superstep that this attempt executed last has left the graph."""
        self.recursion_limit = config.get("recursion_limit") or (graph.config or {}).get(
            "recursion_limit", DEFAULT_RECURSION_LIMIT
        )

    @property
    def saver(self) -> BaseCheckpointSaver[Any]:
        """The checkpointer of the current attempt; in memory for contexts of `holdfast.testing`."""
        executor = self.ctx._executor
        if isinstance(executor, Executor):
            store, tenant, claim = executor.held_claim()
            return HoldfastSaver.for_run(store, tenant, claim, None if self._serde_of is None else self._serde_of.serde)
        self._memory = self._memory or self._serde_of or InMemorySaver()
        return self._memory

    def bound_graph(self) -> Graph:
        """Return the graph with the checkpointer of the current attempt."""
        graph = copy.copy(self._graph)
        graph.checkpointer = self.saver
        return graph

    def config_of(self, call: str) -> RunnableConfig:
        hidden = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")
        given = {name: value for name, value in self._config.get("configurable", {}).items() if name not in hidden}
        return {
            **self._config,
            "configurable": {**given, "thread_id": self.thread},
            "metadata": {**self._config.get("metadata", {}), "run_id": call},
        }

    # Supersteps

    async def aexecute(self, step: Superstep) -> Position:
        """Execute a superstep, unless an earlier try has done it, and return where the graph is."""
        ctx = cast(Context, self.ctx)
        execution = _Execution(self, step)
        with execution:
            graph, config = execution.graph, execution.config
            head = None if execution.follows_directly else await graph.aget_state(config)
            if head is None or execution.has_to_run(head):
                async for chunk in cast(AsyncIterator[Chunk], graph.astream(execution.given, config, **execution.how)):
                    if (written := execution.seen(*chunk)) is not None:
                        with execution.as_part(written):
                            await ctx.write(written.data)
                head = None if execution.has_reached_next else await graph.aget_state(config)
            else:
                at = execution.before(head)
                before = head if at is None else await graph.aget_state(at)
                for written in execution.repeated(before, head):
                    with execution.as_part(written):
                        await ctx.write(written.data)
            if execution.has_ended(head) and not execution.has_output:
                async for chunk in cast(AsyncIterator[Chunk], graph.astream(None, config, **execution.how)):
                    execution.seen(*chunk)
        return execution.position(head)

    def execute(self, step: Superstep) -> Position:
        """Do the same in the thread of a plain function."""
        ctx = cast(SyncContext, self.ctx)
        execution = _Execution(self, step)
        with execution:
            graph, config = execution.graph, execution.config
            head = None if execution.follows_directly else graph.get_state(config)
            if head is None or execution.has_to_run(head):
                for chunk in cast(Iterator[Chunk], graph.stream(execution.given, config, **execution.how)):
                    if (written := execution.seen(*chunk)) is not None:
                        with execution.as_part(written):
                            ctx.write(written.data)
                head = None if execution.has_reached_next else graph.get_state(config)
            else:
                at = execution.before(head)
                before = head if at is None else graph.get_state(at)
                for written in execution.repeated(before, head):
                    with execution.as_part(written):
                        ctx.write(written.data)
            if execution.has_ended(head) and not execution.has_output:
                for chunk in cast(Iterator[Chunk], graph.stream(None, config, **execution.how)):
                    execution.seen(*chunk)
        return execution.position(head)

    def stream_arguments(self) -> dict[str, Any]:
        """Return the arguments with which LangGraph executes one superstep."""
        modes = list(dict.fromkeys([*self._modes, "values", "updates", "checkpoints"]))
        return {
            "stream_mode": modes, "subgraphs": True, "interrupt_before": "*", "durability": "sync",
            "context": self._context,
        }  # fmt: skip

    def shows(self, mode: str) -> bool:
        return mode in self._modes


class _Execution:
    """One try of a superstep: what LangGraph gets, what it has streamed, and where it leaves the graph."""

    def __init__(self, call: _GraphCall, step: Superstep) -> None:
        self._call = call
        self._step = step
        scope = current_scope.get()
        key = "" if scope is None else f"{scope.run}~{scope.generation}/{scope.step}"
        self._key = key
        self._name = key if step.after is None else step.after.call
        self.config = call.config_of(self._name)
        self.graph = call.bound_graph()
        self.follows_directly = False
        """Whether this attempt has just executed the superstep before: then nothing of this one was executed."""
        if step.after is not None and step.after == call.reached and not step.answers:
            self.follows_directly = scope is None or scope.step_try == 1
        call.reached = None
        if self.follows_directly and step.after is not None and isinstance(self.graph.checkpointer, HoldfastSaver):
            self.graph.checkpointer.expect(step.after.at)
        self.how = call.stream_arguments()
        self.given = call.input if step.after is None else Command(resume=dict(step.answers)) if step.answers else None
        self._output: Any = None
        self.has_output = False
        self._values_seen = 0
        self._next: tuple[str, list[str]] | None = None
        self._usage: list[ModelUsage] = []
        self._written = list(step.after.written) if step.after is not None else []
        self._token: Any = None

    def __enter__(self) -> None:
        """Give each task of the superstep its own idempotency key."""
        scope = current_scope.get()
        if scope is not None:
            self._token = current_scope.set(msgspec.structs.replace(scope, part=_current_task))

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            current_scope.reset(self._token)

    def has_to_run(self, head: StateSnapshot) -> bool:
        """Return whether to execute tasks: not if an earlier try did it and crashed before its step was recorded.

        Raises TaskError if something else has continued the thread.
        """
        metadata = dict(head.metadata or {})
        is_own = metadata.get("run_id") == self._name
        if self._step.after is None:
            if is_own:  # an earlier try has stored the input
                self.given = None
            return not is_own or any(task.name == START for task in head.tasks)
        if head.config["configurable"].get("checkpoint_id") == self._step.after.at or metadata.get("source") in EDITED:
            open_ids = {each.id for each in head.interrupts}
            unanswered = open_ids - self._step.answers.keys()
            waiting = [
                task.result is not None or any(each.id in unanswered for each in task.interrupts) for task in head.tasks
            ]
            return not (unanswered and all(waiting))
        if is_own:
            return False
        raise continued_elsewhere(self._call.thread)

    @contextmanager
    def as_part(self, written: StreamPart) -> Iterator[None]:
        """Write as one part of the step, so that a repeated superstep replaces only what the repeated tasks write."""
        scope = current_scope.get()
        if scope is None:
            yield
            return
        token = current_scope.set(msgspec.structs.replace(scope, part=lambda: written.part))
        try:
            yield
        finally:
            current_scope.reset(token)

    def seen(self, ns: tuple[str, ...], mode: str, data: Any) -> StreamPart | None:
        """Note a chunk that LangGraph has streamed; return what to write to the run's stream, None for nothing."""
        if mode == "checkpoints" and not ns:
            self._next = data["config"]["configurable"]["checkpoint_id"], list(data["next"])
        if mode == "values" and not ns:
            self._values_seen += 1
            if not (isinstance(data, dict) and INTERRUPT in data):
                self._output, self.has_output = data, True
            if self._step.after is not None and self._values_seen == 1:
                return None  # the state before the superstep, which was written at the end of the previous one
        if mode == "updates" and isinstance(data, dict):
            is_repeated = METADATA in data  # by LangGraph: written by a task that had finished before
            data = {name: value for name, value in data.items() if name not in (METADATA, START)}
            if not data:
                return None
            if is_repeated and not ns and (digest := _digest(data)) in self._written:
                self._written.remove(digest)  # before the interrupt that was answered
                return None
            if not ns:
                self._usage += usage_of(data)
        if not self._call.shows(mode) or data == {INTERRUPT: ()}:
            return None
        return _chunk(ns, mode, data)

    def before(self, head: StateSnapshot) -> RunnableConfig | None:
        """Return the checkpoint before the superstep that an earlier try has executed; None if it is the head."""
        is_complete = self._step.after is None or head.config["configurable"]["checkpoint_id"] != self._step.after.at
        return head.parent_config if is_complete else None

    def repeated(self, before: StateSnapshot, head: StateSnapshot) -> Iterator[StreamPart]:
        """Yield the updates and values of a superstep that an earlier try has executed and may not have written."""
        for task in before.tasks:
            update = {task.name: task.result}
            if task.result is not None and task.name != START and _digest(update) not in self._written:
                self._usage += usage_of(update)
                if self._call.shows("updates"):
                    yield _chunk((), "updates", update)
        if self._call.shows("updates") and before is head:
            yield _chunk((), "updates", {INTERRUPT: head.interrupts})
        if self._call.shows("values"):
            yield _chunk((), "values", head.values)

    @property
    def has_reached_next(self) -> bool:
        """Whether LangGraph has streamed the checkpoint after the superstep: then no task waits for an answer."""
        return self._next is not None and (self._step.after is None or self._next[0] != self._step.after.at)

    def has_ended(self, head: StateSnapshot | None) -> bool:
        """Return whether no superstep follows. `head`: the last checkpoint, if LangGraph hasn't streamed it."""
        return not (head.tasks if head is not None else self._next and self._next[1])

    def position(self, head: StateSnapshot | None) -> Position:
        """Return where the graph is."""
        saver = cast(BaseCheckpointSaver[Any], self.graph.checkpointer)
        for n, each in enumerate(self._usage):
            each.id = each.id or f"{self._key} {n}"
        output = pack_output(self._output, saver.serde) if self.has_ended(head) else None
        if head is None:
            assert self._next is not None
            found = Position(self._name, *self._next, interrupts=[], written=[], output=output, usage=self._usage)
        else:
            found = Position(
                call=self._name,
                at=head.config["configurable"]["checkpoint_id"],
                next=list(head.next or [task.name for task in head.tasks]),
                interrupts=_pending(head),
                written=[_digest({task.name: task.result}) for task in head.tasks if task.result is not None],
                output=output,
                usage=self._usage,
            )
        self._call.reached = found
        return found


def _pending(head: StateSnapshot) -> list[PendingInterrupt]:
    """Return the interrupts that wait for an answer, in the order of their tasks."""
    open_ids = {each.id for each in head.interrupts}
    found: list[PendingInterrupt] = []
    names: dict[str, int] = {}
    for task in head.tasks:
        for each in task.interrupts:
            if each.id in open_ids:
                names[task.name] = count = names.get(task.name, 0) + 1
                gate = task.name if count == 1 else f"{task.name}-{count}"
                found.append(PendingInterrupt(each.id, gate, task.name, to_json(each.value)))
    return found


def _chunk(ns: tuple[str, ...], mode: str, data: Any) -> StreamPart:
    node = ""
    if mode == "updates" and isinstance(data, dict):
        node = next(iter(data), "")
    elif mode == "messages":
        node = data[1].get("langgraph_checkpoint_ns", "")
    return StreamPart("/".join((*ns, mode, node)), {"mode": mode, "ns": list(ns), "data": to_json(data)})


def usage_of(update: Any, depth: int = 4) -> list[ModelUsage]:
    """Return the usage that messages of models in an update report."""
    if isinstance(update, AIMessage):
        used = update.usage_metadata
        if not used:
            return []
        model = str(update.response_metadata.get("model_name") or update.response_metadata.get("model") or "")
        cached = (used.get("input_token_details") or {}).get("cache_read") or 0
        return [ModelUsage(update.id or "", model, used["input_tokens"], used["output_tokens"], cached)]
    if depth <= 0 or not isinstance(update, dict | list | tuple):
        return []
    parts = update.values() if isinstance(update, dict) else update
    return [each for part in parts for each in usage_of(part, depth - 1)]


def _digest(update: Any) -> str:
    return hashlib.sha256(canonical(to_json(update)).encode()).hexdigest()[:16]


def _current_task() -> str | None:
    """Return what identifies the LangGraph task that runs: its namespace, which has its id."""
    try:
        configurable = get_config().get("configurable", {})
    except RuntimeError:  # not inside a node
        return None
    return configurable.get("checkpoint_ns") or None
