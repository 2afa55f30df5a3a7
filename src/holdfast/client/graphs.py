"""Graphs for applications: submit them, append nodes, read nodes by name, complete gates."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.client.handle import Run
from holdfast.database.caller_connection import AsyncCallerConnection, CallerConnection, DjangoConnection
from holdfast.errors import ConfigError, GraphError
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.model.gate_links import DEFAULT_EXPIRY, GateLinkInfo, LinkRequest
from holdfast.model.ids import new_id
from holdfast.model.keep import KeepRules
from holdfast.model.names import MAX_KEY_CHARS, check_name
from holdfast.model.payloads import PayloadContext, template_context
from holdfast.model.run import GRAPH_QUEUE, RunInfo
from holdfast.store import NewRun
from holdfast.store.graphs import LinkedGate, gate_completed, gate_failed
from holdfast.store.hooks import HOOKS
from holdfast.store.rows import NewGraph, NewNode
from holdfast.store.run_reader import RunReader
from holdfast.task.conditions import Node
from holdfast.task.graph import NO_ARGUMENTS, Graph
from holdfast.task.graph_compiler import CompiledGraph, CompiledNode, compile_graph, graph_digests, result_name
from holdfast.task.options import Options
from holdfast.task.scope import refuse_in_body, reject_in_event_loop
from holdfast.task.task import NO_OPTIONS, Request

if TYPE_CHECKING:
    from holdfast.client.client import Client

Conclude: TypeAlias = Callable[[CallerConnection | None], bool]
"""Concludes a gate, in the transaction of the caller's connection if there is one."""
GATE = "gate"
LINK_POLL_INTERVAL_S = 0.05
INSTEAD_OF_SUBMIT = "use `await ctx.submit(graph)` for a child, or call it inside a step"


class Gate:
    """A gate of a graph or a durable function, from `run.gate(name)`: complete it or fail it from outside.

    Example:
        ```python
        run.gate("approve").complete(Decision(ok=True), by="ada")
        ```
    """

    __slots__ = ("_graphs", "_run", "name")

    def __init__(self, run: UUID, name: str, graphs: GraphClient) -> None:
        self._run = run
        self.name = name
        self._graphs = graphs

    def complete(self, output: Any = None, *, by: str | None = None, connection: object = None) -> bool:
        """Complete the gate. Nodes that depend on it then run.

        A gate that isn't open yet stores the output and completes as soon as it opens.

        Args:
            output: The gate's output. Must match the gate's `type`.
            by: Who completed it. Recorded in the history.
            connection: A connection of yours, to complete it in its transaction.

        Returns:
            False if the gate was already complete with the same output.

        Raises:
            KeyConflict: The gate was completed with a different output.
        """
        return self._graphs.calling("complete", connection, self._completion(output, by))

    async def acomplete(self, output: Any = None, *, by: str | None = None, connection: object = None) -> bool:
        """Complete the gate. The awaitable form of `complete`."""
        return await self._graphs.acalling("complete", connection, self._completion(output, by))

    def _completion(self, output: Any, by: str | None) -> Conclude:
        return lambda connection: self._graphs.complete(self._run, self.name, output, by, connection)

    def fail(self, error: str, *, by: str | None = None, connection: object = None) -> bool:
        """Fail the gate.

        Args:
            error: The error message of the gate's run.
            by: Who failed it. Recorded in the history.
            connection: A connection of yours, to fail it in its transaction.
        """
        return self._graphs.calling("fail", connection, self._failure(error, by))

    async def afail(self, error: str, *, by: str | None = None, connection: object = None) -> bool:
        """Fail the gate. The awaitable form of `fail`."""
        return await self._graphs.acalling("fail", connection, self._failure(error, by))

    def _failure(self, error: str, by: str | None) -> Conclude:
        return lambda connection: self._graphs.fail(self._run, self.name, error, by, connection)

    def link(
        self, *, expires: Duration = DEFAULT_EXPIRY, recipient: str | None = None, wait: Duration | None = None
    ) -> str:
        """Return a signed URL with which a person without a login decides the gate, once.

        In a browser it opens a form; a program sends the output as JSON. It works until the gate is decided, ends or is
        retried. Needs `Holdfast(secret=…, public_url=…)`, and a dashboard at that address.

        Args:
            expires: How long the link is valid. At most 366 days.
            recipient: For whom it is. Recorded in the history as who decided; without it, the form asks for a name.
            wait: How long to wait for a gate that isn't there yet, for a step that runs beside `ctx.gate`.

        Raises:
            RunFinished: The gate was decided or has ended.

        Example:
            ```python
            url = run.gate("refund").link(expires=timedelta(days=3), recipient="ada@example.org")
            ```
        """
        reject_in_event_loop("link")
        return self._graphs.link(self._run, self.name, expires, recipient, wait)

    async def alink(
        self, *, expires: Duration = DEFAULT_EXPIRY, recipient: str | None = None, wait: Duration | None = None
    ) -> str:
        """Return a signed URL with which a person decides the gate. The awaitable form of `link`."""
        return await run_in_thread(self._graphs.link, self._run, self.name, expires, recipient, wait)

    def links(self) -> list[GateLinkInfo]:
        """Return the links to this gate, the oldest first: for whom, whether they can be used, and their ids.

        The gate remembers at least the links that can be used, but no URLs.
        """
        reject_in_event_loop("links")
        return self._graphs.links(self._run, self.name)

    async def alinks(self) -> list[GateLinkInfo]:
        """Return the links to this gate. The awaitable form of `links`."""
        return await run_in_thread(self._graphs.links, self._run, self.name)

    def revoke_link(self, link: str, *, by: str | None = None) -> bool:
        """Revoke a link to this gate: nobody can use it any more. Other links stay.

        Args:
            link: Its id, from `links()`.
            by: Who revokes it. Recorded with the link.

        Returns:
            False if it couldn't be used anyway: it was used, revoked or expired, or the gate was decided.

        Example:
            ```python
            for link in run.gate("refund").links():
                if link.recipient == "ada@example.org":
                    run.gate("refund").revoke_link(link.id)
            ```
        """
        reject_in_event_loop("revoke_link")
        return self._graphs.revoke_links(self._run, self.name, link, by) > 0

    async def arevoke_link(self, link: str, *, by: str | None = None) -> bool:
        """Revoke a link to this gate. The awaitable form of `revoke_link`."""
        return await run_in_thread(self._graphs.revoke_links, self._run, self.name, link, by) > 0

    def revoke_links(self, *, by: str | None = None) -> int:
        """Revoke all links to this gate. New ones can be created.

        Returns:
            How many could still be used.
        """
        reject_in_event_loop("revoke_links")
        return self._graphs.revoke_links(self._run, self.name, None, by)

    async def arevoke_links(self, *, by: str | None = None) -> int:
        """Revoke all links to this gate. The awaitable form of `revoke_links`."""
        return await run_in_thread(self._graphs.revoke_links, self._run, self.name, None, by)

    def __repr__(self) -> str:
        return f"<gate {self.name} of run {self._run}>"


class GraphClient:
    """Submits, appends to and reads graphs. Blocking."""

    def __init__(self, client: Client, reader: RunReader, keep: KeepRules) -> None:
        self._client = client
        self._creator = client.creator
        self._store = client.store
        self._reader = reader
        self._keep = keep
        self.calling = client.calling
        self.acalling = client.acalling

    # Submit and append

    def submit(self, graph: Graph, result: Node[Any] | None, connection: object) -> Run[Any]:
        """Create the run of a graph and its nodes in one transaction: a new one or the caller's."""
        self._creator.declare_limits()
        with self._creator.span(graph.name, None, 1) as created:
            borrowed = self._creator.borrow(connection)
            run, nodes = self._rows(graph, result)
            if isinstance(borrowed, AsyncCallerConnection):
                raise ConfigError("connection= is an async connection: use `await app.asubmit(…)` with it")
            graphs = self._store.graphs
            id = graphs.submit(run, nodes) if borrowed is None else graphs.submit_on(borrowed, run, nodes)
            submitted: Run[Any] = Run(id, graph.name, self._client, id == run.id)
            created([submitted])
            return submitted

    async def asubmit(self, graph: Graph, result: Node[Any] | None, connection: object) -> Run[Any]:
        if connection is None:
            return await run_in_thread(self.submit, graph, result, None)
        borrowed = self._creator.borrow(connection)
        if isinstance(borrowed, DjangoConnection):
            return await borrowed.in_its_thread(self.submit, graph, result, connection)
        await run_in_thread(self._creator.declare_limits)
        with self._creator.span(graph.name, None, 1) as created:
            if not isinstance(borrowed, AsyncCallerConnection):
                raise ConfigError("connection= is a blocking connection: use submit() with it, or pass an async one")
            run, nodes = self._rows(graph, result)
            id = await self._store.graphs.submit_on_async(borrowed, run, nodes)
            submitted: Run[Any] = Run(id, graph.name, self._client, id == run.id)
            created([submitted])
            return submitted

    def _rows(self, graph: Graph, result: Node[Any] | None) -> tuple[NewRun, NewGraph]:
        refuse_in_body("submit", INSTEAD_OF_SUBMIT)
        compiled = compile_graph(graph)
        named = result_name(compiled, result)
        run = self.graph_run(compiled, named)
        if graph.key is not None:
            run.key = graph.key
            _add_options(run, {"key": graph.key})
            run.digest, run.old_digest = graph_digests(compiled, named)
        return run, self.new_graph(compiled, run.tenant)

    def graph_run(self, graph: CompiledGraph, result: str | None = None) -> NewRun:
        """Build the row of the graph itself."""
        run = self._graph_row(graph.graph, graph.graph.tenant)
        run.tenant = graph.graph.tenant
        run.unique = graph.graph.options.unique
        if result is not None:
            request = graph.graph.added[result].request
            _add_options(run, {"result": result, "task": None if request is None else request.task})
        return run

    def _graph_row(self, graph: Graph, tenant: str | None) -> NewRun:
        options = graph.options
        run = self._row(graph.name, tenant)
        run.deadline_in, run.deadline_at = options.deadline, options.deadline_at
        run.priority = options.priority or 0
        run.tags = None if options.tags is None else msgspec.json.encode(options.tags).decode()
        run.metadata = options.metadata
        if graph.hooks:
            _add_options(run, {HOOKS: self._creator.hook_templates(graph.hooks)})
        return run

    def new_graph(self, graph: CompiledGraph, tenant: str | None, inherited: Options = NO_OPTIONS) -> NewGraph:
        """Build the rows of the graph's nodes.

        `tenant`: that of nodes without one of their own. `inherited`: the priority and retry of graphs around it.
        """
        own = graph.graph.options
        defaults = Options(
            priority=inherited.priority if own.priority is None else own.priority,
            retry=inherited.retry if own.retry is None else own.retry,
        )
        return NewGraph([self._node(node, tenant, defaults) for node in graph.nodes])

    def append(self, id: UUID, graph: Graph, key: str) -> None:
        refuse_in_body("append", "call it inside a step")
        check_name(key, "the key of append", MAX_KEY_CHARS)
        compiled = compile_graph(graph, appended=True)
        own = graph.options
        for what, value in (
            ("key", graph.key), ("tenant", graph.tenant), ("unique name", own.unique), ("tags", own.tags),
            ("deadline", own.deadline or own.deadline_at), ("metadata", own.metadata), ("hook", graph.hooks or None),
        ):  # fmt: skip
            if value is not None:
                raise GraphError(f"append: graph {graph.name} has a {what}; remove it, the run has its own")
        nodes = self.new_graph(compiled, self._tenant_of(id))
        self._store.graphs.append(str(id), key, graph_digests(compiled, None), nodes, sorted(compiled.outside))

    def _tenant_of(self, id: UUID) -> str | None:
        """Return the tenant of a graph, which its appended nodes inherit, if their payloads are bound to it."""
        row = self._store.queries.run(str(id)) if self._store.payloads.binds else None
        return None if row is None else row.tenant

    def _node(self, node: CompiledNode, tenant: str | None, defaults: Options) -> NewNode:
        spec = node.spec
        if spec.request is not None:
            request, pending = _with_defaults(spec.request, defaults), {str(fill.at[0]) for fill in spec.fills}
            run = self._creator.new_run(request, pending, spec.name, tenant)
            if node.needs:
                run.delay = None  # The delay starts when the node is released; see `CompiledNode.stored`.
            return NewNode(run, spec.name, node.needs, _packed(self._plan(node, run, tenant)))
        if node.graph is not None:
            run = self._graph_row(node.graph.graph, tenant)
            nested = self.new_graph(node.graph, tenant, defaults)
            return NewNode(run, spec.name, node.needs, _packed(node.stored()), "graph", nested)
        assert spec.gate is not None
        run = self._row(GATE, tenant)
        run.deadline_in = spec.gate.timeout
        if spec.gate.args != NO_ARGUMENTS:
            context = PayloadContext("args", tenant, run.id)
            run.args = self._store.payloads.pack(spec.gate.args, context, "the payload of gate", spec.name)
        return NewNode(run, spec.name, node.needs, _packed(self._plan(node, run, tenant)), "gate")

    def _plan(self, node: CompiledNode, run: NewRun, tenant: str | None) -> dict[str, Any] | None:
        """Return what is stored to decide a task or gate. Its arguments are packed if the codec binds them to it."""
        plan, payloads = node.stored(), self._store.payloads
        if plan is not None and "args" in plan and payloads.binds:
            context = template_context(tenant if run.tenant is None else run.tenant, run.id)
            plan["args"] = payloads.pack(node.args, context, "the arguments of", run.task)
        return plan

    def _row(self, task: str, tenant: str | None) -> NewRun:
        keep = self._keep.of_run(tenant)
        return NewRun(
            str(new_id()), GRAPH_QUEUE, task, args="{}", keep=keep.done_micros, keep_failed=keep.stored_failed_micros
        )

    # Nodes and gates

    def nodes(self, id: UUID) -> dict[str, RunInfo[Any]]:
        """Return the nodes of a graph by name."""
        self._reader.graph_row(id)
        return {str(row.node): self._reader.info_of(row) for row in self._store.queries.nodes(str(id))}

    def gate(self, id: UUID, name: str) -> Gate:
        return Gate(id, check_name(name, "the name of a gate"), self)

    def gates(self, id: UUID) -> list[Gate]:
        self._reader.row(id)
        rows = self._store.queries.gates(str(id))
        return [Gate(UUID(str(row.graph)), row.node, self) for row in rows if row.state == "waiting"]

    def complete(self, id: UUID, name: str, output: Any, by: str | None, connection: CallerConnection | None) -> bool:
        refuse_in_body("complete", "call it inside a step")
        return self._store.graphs.conclude_gate(str(id), name, gate_completed(name, output, by), connection)

    def fail(self, id: UUID, name: str, error: str, by: str | None, connection: CallerConnection | None) -> bool:
        refuse_in_body("fail", "call it inside a step")
        return self._store.graphs.conclude_gate(str(id), name, gate_failed(name, error, by), connection)

    def link(self, id: UUID, name: str, expires: Duration, recipient: str | None, wait: Duration | None) -> str:
        refuse_in_body("link", "call it inside a step")
        request, links = LinkRequest.of(expires, recipient), self._client.links
        links.require()
        wait_s = 0.0 if wait is None else to_micros(wait, "wait") / MICROS_PER_SECOND
        gate = self._add_link(id, name, request, wait_s)
        return request.link(links, gate.id, gate.opening, gate.now).url

    def links(self, id: UUID, name: str) -> list[GateLinkInfo]:
        return self._store.graphs.links(str(id), name)

    def revoke_links(self, id: UUID, name: str, link: str | None, by: str | None) -> int:
        refuse_in_body("revoke_link", "call it inside a step")
        return self._store.graphs.revoke_links(str(id), name, link, by)

    def _add_link(self, id: UUID, name: str, request: LinkRequest, wait_s: float) -> LinkedGate:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return self._store.graphs.add_link(str(id), name, request)
            except GraphError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(LINK_POLL_INTERVAL_S)


def _add_options(run: NewRun, more: dict[str, Any]) -> None:
    """Add to the stored options of a run."""
    options = {} if run.options is None else msgspec.json.decode(run.options)
    run.options = msgspec.json.encode({**options, **more}).decode()


def _with_defaults(request: Request[Any], defaults: Options) -> Request[Any]:
    """Return the request of a node with the priority and retry of its graph, unless it has its own."""
    if defaults is NO_OPTIONS or defaults == NO_OPTIONS:
        return request
    own = request.options
    options = replace(
        own,
        priority=defaults.priority if own.priority is None else own.priority,
        retry=defaults.retry if own.retry is None else own.retry,
    )
    return replace(request, options=options)


def _packed(rule: dict[str, Any] | None) -> msgspec.Raw | None:
    """Encode at once: as Python objects, the rules of thousands of nodes would take many times the memory."""
    return None if rule is None else msgspec.Raw(msgspec.json.encode(rule))
