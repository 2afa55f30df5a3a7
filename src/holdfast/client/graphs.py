"""GraphClient for applications: made of what authors added, read by the names of their nodes, their gates concluded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import msgspec

from holdfast.database.caller_connection import AsyncCallerConnection, CallerConnection
from holdfast.errors import ConfigError, GraphError
from holdfast.model.blocking_calls import reject_in_event_loop, run_in_thread
from holdfast.model.ids import new_id
from holdfast.model.names import MAX_KEY_CHARS, check_name
from holdfast.model.run import GRAPH_QUEUE, RunInfo
from holdfast.store import NewRun, Store
from holdfast.store.graphs import gate_completed, gate_failed
from holdfast.store.rows import NewGraph, NewNode
from holdfast.store.run_reader import RunReader
from holdfast.task.conditions import Node
from holdfast.task.graph import Graph
from holdfast.task.graph_compiler import CompiledGraph, CompiledNode, compile_graph, graph_digests, result_name
from holdfast.task.scope import refuse_in_body
from holdfast.task.task import Request

GATE = "gate"
INSTEAD_OF_SUBMIT = "write `await ctx.submit(graph)` for a child, or call it inside a step"


class Gate:
    """A gate of a graph's run, by its name."""

    __slots__ = ("_graphs", "_run", "name")

    def __init__(self, run: UUID, name: str, graphs: GraphClient) -> None:
        self._run = run
        self.name = name
        self._graphs = graphs

    def complete(self, output: Any = None, *, by: str | None = None) -> bool:
        """Finish the gate with an output of its type; `by` says who did it. False when it was complete with the same
        output before; KeyConflict when with another. One that isn't open yet keeps it until it is."""
        reject_in_event_loop("complete")
        return self._graphs.complete(self._run, self.name, output, by)

    async def acomplete(self, output: Any = None, *, by: str | None = None) -> bool:
        """Finish the gate with an output of its type."""
        return await run_in_thread(self._graphs.complete, self._run, self.name, output, by)

    def fail(self, error: str, *, by: str | None = None) -> bool:
        """Let the gate fail, with a message; `by` says who did it."""
        reject_in_event_loop("fail")
        return self._graphs.fail(self._run, self.name, error, by)

    async def afail(self, error: str, *, by: str | None = None) -> bool:
        """Let the gate fail, with a message."""
        return await run_in_thread(self._graphs.fail, self._run, self.name, error, by)

    def __repr__(self) -> str:
        return f"<gate {self.name} of run {self._run}>"


class GraphClient:
    """The durable side of graphs. Blocking; the awaited verbs call it in a thread."""

    def __init__(
        self, store: Store, reader: RunReader, keep: int, new_run: Callable[[Request[Any], Iterable[str]], NewRun]
    ) -> None:
        self._store = store
        self._reader = reader
        self._keep = keep
        self._new_run = new_run

    # Making them

    def submit(
        self, graph: Graph, result: Node[Any] | None, connection: CallerConnection | AsyncCallerConnection | None
    ) -> UUID:
        run, new = self.checked(graph, result)
        if isinstance(connection, AsyncCallerConnection):
            raise ConfigError("the connection given as connection= is asynchronous: use `await app.asubmit(…)` with it")
        graphs = self._store.graphs
        return UUID(graphs.submit(run, new) if connection is None else graphs.submit_on(connection, run, new))

    async def asubmit(
        self, graph: Graph, result: Node[Any] | None, connection: CallerConnection | AsyncCallerConnection | None
    ) -> UUID:
        if connection is None:
            return await run_in_thread(self.submit, graph, result, None)
        if isinstance(connection, CallerConnection):
            raise ConfigError(
                "the connection given as connection= blocks: use submit() with it, or an async connection"
            )
        return UUID(await self._store.graphs.submit_on_async(connection, *self.checked(graph, result)))

    def checked(self, graph: Graph, result: Node[Any] | None) -> tuple[NewRun, NewGraph]:
        """The rows of a graph that a caller submits."""
        refuse_in_body("submit", INSTEAD_OF_SUBMIT)
        plan = compile_graph(graph)
        named = result_name(plan, result)
        run = self.graph_run(plan, named)
        if graph.key is not None:
            run.key = graph.key
            run.digest, run.old_digest = graph_digests(plan, named)
        return run, self.new_graph(plan)

    def graph_run(self, plan: CompiledGraph, result: str | None = None) -> NewRun:
        """The row of a graph itself."""
        run = self._row(plan.graph.name)
        run.tenant = plan.graph.tenant
        if result is not None:
            request = plan.graph.added[result].request
            kept = {"result": result, "task": None if request is None else request.task}
            run.options = msgspec.json.encode(kept).decode()
        return run

    def new_graph(self, plan: CompiledGraph) -> NewGraph:
        """The rows of its nodes."""
        return NewGraph([self._node(node) for node in plan.nodes])

    def append(self, id: UUID, graph: Graph, key: str) -> None:
        refuse_in_body("append", "call it inside a step")
        check_name(key, "the key of append", MAX_KEY_CHARS)
        plan = compile_graph(graph, appended=True)
        for what, value in (("key", graph.key), ("tenant", graph.tenant)):
            if value is not None:
                raise GraphError(f"graph {graph.name} is appended to a run, which has its own {what}: leave it out")
        new = self.new_graph(plan)
        self._store.graphs.append(str(id), key, graph_digests(plan, None), new, sorted(plan.outside))

    def _node(self, node: CompiledNode) -> NewNode:
        added = node.added
        if added.request is not None:
            run = self._new_run(added.request, {str(fill.at[0]) for fill in added.fills})
            if node.needs:
                run.delay = None  # counted from its release: see the plan
            return NewNode(run, added.name, node.needs, _packed(node.kept()))
        if node.graph is not None:
            run = self._row(node.graph.graph.name)
            return NewNode(run, added.name, node.needs, _packed(node.kept()), "graph", self.new_graph(node.graph))
        assert added.gate is not None
        run = self._row(GATE)
        run.deadline_in = added.gate.timeout
        return NewNode(run, added.name, node.needs, _packed(node.kept()), "gate")

    def _row(self, task: str) -> NewRun:
        return NewRun(id=str(new_id()), queue=GRAPH_QUEUE, task=task, args="{}", keep=self._keep)

    # Reading and concluding

    def nodes(self, id: UUID) -> dict[str, RunInfo[Any]]:
        """The nodes of a graph by their names."""
        self._reader.graph_row(id)
        return {str(row.node): self._reader.info_of(row) for row in self._store.queries.nodes(str(id))}

    def gate(self, id: UUID, name: str) -> Gate:
        return Gate(id, check_name(name, "the name of a gate"), self)

    def complete(self, id: UUID, name: str, output: Any, by: str | None) -> bool:
        refuse_in_body("complete", "call it inside a step")
        return self._store.graphs.conclude_gate(str(id), name, gate_completed(name, output, by))

    def fail(self, id: UUID, name: str, error: str, by: str | None) -> bool:
        refuse_in_body("fail", "call it inside a step")
        return self._store.graphs.conclude_gate(str(id), name, gate_failed(name, error, by))


def _packed(plan: dict[str, Any] | None) -> msgspec.Raw | None:
    """As JSON at once: thousands of nodes would have many times that in objects."""
    return None if plan is None else msgspec.Raw(msgspec.json.encode(plan))
