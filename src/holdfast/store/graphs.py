"""Graphs: create them with their nodes in one transaction, append nodes, complete gates.

`graph_progress.py` decides the nodes afterwards. The rows of a nested graph's nodes are stored in the plan of its own
row until it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast.database.caller_connection import AsyncCallerConnection, CallerConnection
from holdfast.errors import (
    BadArguments,
    ConfigError,
    ErrorInfo,
    GraphError,
    KeyConflict,
    PayloadError,
    RunFinished,
    RunNotFound,
)
from holdfast.model.codec import canonical_text, decode, encode
from holdfast.model.failure import error_from_json, error_to_json
from holdfast.model.gate_links import (
    MAX_LINKS,
    GateLinkInfo,
    LinkRequest,
    RememberedLink,
    remember_links,
    remembered_links,
)
from holdfast.model.names import actor_or_user
from holdfast.model.payloads import PayloadContext
from holdfast.model.run import FINAL_STATES
from holdfast.policy.json_schema import apply_defaults, find_mismatch
from holdfast.store.enqueue import (
    EnqueueSteps,
    EnqueueStore,
    LaneKey,
    LaneStore,
    assign_turns,
    key_scope,
    key_steps,
    new_run_row,
    turn_steps,
    unique_name,
)
from holdfast.store.graph_progress import (
    CORRUPT_PLAN,
    EndWithoutAttempt,
    decide_ready_nodes,
    decision_entry,
    end_without_attempt,
    graph_output,
    insert_nodes,
    insert_steps,
    read_plan,
    skip_cause_of,
)
from holdfast.store.module import StoreContext, StoreModule, Tx, history_row, id_rows, json_rows, run_steps
from holdfast.store.propagation import propagate_ends
from holdfast.store.rows import NewGraph, NewNode, NewRun
from holdfast.store.run_queries import GraphOutputRow
from holdfast.store.run_tree import EndedRun, LockedRun, lock_with_parents

MAX_SHOWN_GATES = 20
_FUNCTION_GATE = "$gate:"
"""How the key of a gate of a durable function begins, behind the function's generation."""


class NodeState(NamedTuple):
    """An existing node of a graph."""

    id: str
    state: str
    kind: str | None
    plan: str | None
    error: str | None
    unfinished: int


class LinkedGate(NamedTuple):
    """A gate as a link needs it. `opening`: its number of records, which grows with each decision, end and retry."""

    id: str
    name: str
    state: str
    opening: int
    tenant: str | None
    plan: dict[str, Any]
    deadline: int | None
    is_wanted: bool
    """Whether it isn't one that a durable function opened before it ended or restarted."""
    now: int

    @property
    def is_undecided(self) -> bool:
        return self.is_wanted and (self.state == "waiting" or (self.state == "blocked" and "early" not in self.plan))

    def is_usable(self, link: RememberedLink) -> bool:
        """Return whether a remembered link can decide the gate now."""
        return link.state(self.opening, self.is_undecided, self.now) == "usable"

    def accepts(self, link: str) -> bool:
        """Return whether the gate knows a link and it wasn't revoked."""
        return any(each.id == link and each.revoked_at is None for each in remembered_links(self.plan))


class ParentGraph:
    """What the rows of nodes say about their graph. `known`: ids of nodes that exist already, by name."""

    def __init__(self, id: str, root: str, tenant: str | None, known: Mapping[str, str] | None = None) -> None:
        self.id = id
        self.root = root
        self.tenant = tenant
        self.known = dict(known or {})


class GateOutcome(NamedTuple):
    """The outcome with which a caller concludes a gate: an output or an error, and who the caller is."""

    state: str
    result: str | None
    error: str | None
    by: str


def gate_completed(gate: str, output: Any, by: str | None) -> GateOutcome:
    """Complete a gate with an output; `by` defaults to the user of this process."""
    return GateOutcome("done", encode(output, f"the output of gate {gate}"), None, actor_or_user(by))


def gate_failed(gate: str, error: str, by: str | None) -> GateOutcome:
    """Fail a gate with a message."""
    if not isinstance(error, str):
        raise BadArguments(f"gate {gate}: fail takes a message, not a {type(error).__name__}")
    return GateOutcome("failed", None, error_to_json(ErrorInfo("gate", "GateFailed", error)), actor_or_user(by))


class GraphStore(StoreModule):
    """Runs whose nodes are runs."""

    def __init__(self, context: StoreContext, lanes: LaneStore, enqueuer: EnqueueStore) -> None:
        super().__init__(context)
        self._lanes = lanes
        self._enqueuer = enqueuer

    def submit(self, run: NewRun, graph: NewGraph) -> str:
        """Create a graph with all its nodes; return its id, or that of the run that has its key.

        Raises KeyConflict if the key was used for another graph.
        """
        lanes = self._lanes.for_runs([run, *graph.runs()])
        return self._transaction("client", lambda tx: run_steps(submit_steps(run, graph, lanes), tx.execute))[0]

    def submit_on(self, connection: CallerConnection, run: NewRun, graph: NewGraph) -> str:
        """Submit inside the transaction of the caller's connection."""
        return self._enqueuer.run_on(connection, [run, *graph.runs()], lambda lanes: submit_steps(run, graph, lanes))[0]

    async def submit_on_async(self, connection: AsyncCallerConnection, run: NewRun, graph: NewGraph) -> str:
        """Submit inside the transaction of the caller's async connection."""
        runs = [run, *graph.runs()]
        ids = await self._enqueuer.run_on_async(connection, runs, lambda lanes: submit_steps(run, graph, lanes))
        return ids[0]

    def append(
        self, id: str, key: str, digests: tuple[str, str | None], graph: NewGraph, outside: Collection[str]
    ) -> None:
        """Append nodes to an unfinished graph, once per key. `outside`: existing nodes that they depend on."""
        lanes = self._lanes.for_runs(graph.runs())

        def work(tx: Tx) -> None:
            if _was_appended(tx, id, key, digests):
                return
            run = _lock_graph(tx, id)
            if run.state in FINAL_STATES:
                raise RunFinished(f"graph run {id} is {run.state}: nodes can only be appended to an unfinished graph")
            if run.state == "blocked":
                raise GraphError(f"graph run {id} hasn't started yet: append to it once its dependencies are done")
            known = _find_nodes(tx, id, [*outside, *(node.name for node in graph.nodes)])
            _check_names(id, graph, outside, known)
            parent = ParentGraph(id, run.root or id, run.tenant, {name: known[name].id for name in outside})
            assign_turns(tx, graph.runs(), run.tenant)
            rows = node_rows(graph, lanes, parent)
            _discount_final_needs(graph, rows["nodes"], known)
            insert_nodes(tx, rows)
            n, pending = tx.execute("grow_graph", id=id, count=len(graph.nodes))[0]
            data = msgspec.json.encode({"key": key, "nodes": len(graph.nodes)}).decode()
            tx.execute("add_history", rows=json_rows([history_row(id, n, "appended", 0, data=data)]))
            propagate_ends(tx, [], decide_ready_nodes(tx, id, pending))

        self._transaction("client", work)

    def conclude_gate(
        self, id: str, name: str, outcome: GateOutcome, connection: CallerConnection | None = None
    ) -> bool:
        """Complete or fail a gate; False if it was concluded in the same way before.

        `connection`: whose transaction it is part of.
        """
        tries = count()

        def work(tx: Tx) -> bool:
            found = _find_nodes(tx, id, [name]).get(name) or _find_function_gate(tx, id, name)
            if found is None or found.kind != "gate":
                raise _no_gate(tx, id, name, found)
            gate = lock_with_parents(tx, [found.id])[found.id]
            was_this_call, ends = _conclude_gate(tx, gate, outcome, is_repeat=next(tries) > 0)
            propagate_ends(tx, ends)
            return was_this_call

        return self._write("client", work, connection)

    def add_link(self, id: str, name: str, request: LinkRequest) -> LinkedGate:
        """Let a gate remember a new link to it, and return the gate; RunFinished if it was decided."""

        def work(tx: Tx) -> LinkedGate:
            gate = _lock_linked_gate(tx, id, name)
            if not gate.is_undecided:
                raise RunFinished(f"gate {name} of run {id} was decided or has ended: no link to it can be used")
            links = [each for each in remembered_links(gate.plan) if each.id != request.id]
            usable = [each for each in links if gate.is_usable(each)]
            if len(usable) >= MAX_LINKS:
                raise ConfigError(f"gate {name} of run {id} has {MAX_LINKS} links that can be used: revoke some")
            if len(links) >= MAX_LINKS:
                links = usable
            _store_links(tx, gate, [*links, request.remembered(gate.opening, gate.now)])
            return gate

        return self._transaction("client", work)

    def links(self, id: str, name: str) -> list[GateLinkInfo]:
        """Return the links that a gate remembers, the oldest first."""

        def work(tx: Tx) -> LinkedGate:
            return _named_linked_gate(tx, id, name)

        return _link_infos(self._transaction("client", work))

    def links_of(self, gate: str) -> list[GateLinkInfo]:
        """Return the links that a gate remembers, by the id of its run."""
        found = self.linked_gate(gate)
        return [] if found is None else _link_infos(found)

    def revoke_links(self, id: str, name: str, link: str | None, by: str | None) -> int:
        """Revoke a link to a gate, or all of them; return how many could still be used."""
        who, written = actor_or_user(by), 0

        def work(tx: Tx) -> int:
            nonlocal written
            gate = _lock_linked_gate(tx, id, name)
            links = remembered_links(gate.plan)
            if link is not None and all(each.id != link for each in links):
                raise GraphError(f"gate {name} of run {id} has no link {link!r}: its links are listed with their ids")
            if written and any(each.revoked_at == written for each in links):  # the first try was committed
                return sum(each.revoked_at == written for each in links)
            revoked = [each for each in links if link in (None, each.id) and gate.is_usable(each)]
            written = gate.now
            for each in revoked:
                each.revoked_at, each.revoked_by = written, who
            if revoked:
                _store_links(tx, gate, links)
            return len(revoked)

        return self._transaction("client", work)

    def linked_gate(self, gate: str) -> LinkedGate | None:
        """Return a gate by the id of its run."""
        return _read_linked_gate(self._autocommit("read"), gate)

    def conclude_linked_gate(self, id: str, opening: int, link: str, outcome: GateOutcome) -> bool:
        """Complete or fail a gate by a link; False if it was decided, ended or retried since, or the link revoked."""
        tries = count()

        def work(tx: Tx) -> bool:
            is_repeat = next(tries) > 0  # its first try may have been committed
            gate = lock_with_parents(tx, [id]).get(id)
            found = None if gate is None else _read_linked_gate(tx, id)
            if gate is None or found is None:
                return False
            is_usable = found.is_undecided and found.opening == opening and found.accepts(link)
            if not is_usable and (found.is_undecided or not is_repeat):
                return False
            was_this_call, ends = _conclude_gate(tx, gate, outcome, link, is_repeat=is_repeat)
            propagate_ends(tx, ends)
            return was_this_call

        try:
            return self._transaction("client", work)
        except (KeyConflict, RunFinished):
            return False

    def function_gate(self, run: str, name: str) -> str | None:
        """Return the gate of this name that a durable function opened: an open one, or the last one."""
        found = _find_function_gate(self._autocommit("read"), run, name)
        return None if found is None else found.id

    def outputs(self, id: str, node: str | None, limit: int) -> list[GraphOutputRow]:
        """Return the finished nodes of a graph, or one of them, with the sizes of their results."""
        rows = self._execute("read", "list_graph_outputs", graph=id, node=node, limit=limit)
        return [GraphOutputRow(name, str(run), *rest) for name, run, *rest in rows]

    def result(self, id: str, options: str | None) -> tuple[str | None, str]:
        """Return the result of a finished graph as JSON, and the task whose result it is, if it is that of one node."""
        task = None if options is None else decode(options, dict[str, Any]).get("task")
        return task, graph_output(self._autocommit("read"), id, options)


def submit_steps(run: NewRun, graph: NewGraph, lanes: dict[LaneKey, int]) -> EnqueueSteps:
    """Yield the statements of a submit; return the id of the run."""
    if run.key is not None:
        existing = yield from key_steps([run])
        if run.id in existing:
            return [existing[run.id]]
    if run.unique is not None:
        # No statement that inserts a graph waits for another one's unique name, so a lock on the name does.
        names = json_rows([{"unique_name": unique_name(run)}])
        yield "lock_unique_names", {"rows": names}
        if holders := (yield "find_unique_holders", {"rows": names}):
            holder = str(holders[0][0])
            if run.key is not None:
                yield "redirect_keys", {"rows": json_rows([{"scope": key_scope(run), "key": run.key, "run": holder}])}
            return [holder]
    yield from turn_steps(graph.runs(), run.tenant)
    yield from insert_steps({"nodes": [graph_row(run, lanes, graph)], "edges": [], "begun": []})
    yield from insert_steps(node_rows(graph, lanes, ParentGraph(run.id, run.id, run.tenant)))
    return [run.id]


def graph_row(run: NewRun, lanes: Mapping[LaneKey, int], graph: NewGraph) -> dict[str, Any]:
    """Build the row of the graph itself."""
    return {**new_run_row(run, lanes), "state": "waiting", "kind": "graph", "pending": len(graph.nodes)}


def node_rows(graph: NewGraph, lanes: Mapping[LaneKey, int], parent: ParentGraph) -> dict[str, Any]:
    """Build the rows of nodes and edges, and, as `begun`, those of nested graphs that start at once."""
    ids = parent.known | {node.name: node.run.id for node in graph.nodes}
    needed_by: dict[str, list[str]] = {id: [] for id in ids.values()}  # ids ascend, so the edges come in their order
    rows: dict[str, Any] = {"nodes": [], "edges": [], "begun": []}
    for node in graph.nodes:
        row = _node_row(node, lanes, parent)
        if node.plan is not None:
            # Encoded only when inserted: JSON text inside JSON text would grow exponentially with each nesting.
            row["plan"] = node.plan
        if node.graph is not None:
            nested = node_rows(node.graph, lanes, ParentGraph(node.run.id, parent.root, row.get("tenant")))
            row["plan"] = {**({} if node.plan is None else msgspec.json.decode(node.plan)), "graph": nested}
            if not node.needs:
                row["pending"] = len(nested["nodes"])
                rows["begun"].append(nested)
        rows["nodes"].append(row)
        for name in node.needs:
            needed_by[ids[name]].append(node.run.id)
    rows["edges"] = [[needs, node] for needs, nodes in needed_by.items() for node in nodes]
    return rows


def _node_row(node: NewNode, lanes: Mapping[LaneKey, int], parent: ParentGraph) -> dict[str, Any]:
    row = new_run_row(node.run, lanes)
    if "tenant" not in row and parent.tenant is not None:
        row["tenant"] = parent.tenant
    if node.needs:
        row |= {"state": "blocked", "pending": len(node.needs)}
    else:
        row["state"] = "ready" if node.kind is None else "waiting"
    row |= {"root": parent.root, "parent": parent.id, "node": node.name}
    return row if node.kind is None else {**row, "kind": node.kind}


def _was_appended(tx: Tx, id: str, key: str, digests: tuple[str, str | None]) -> bool:
    """Take the key of nodes to append; return whether they were appended before."""
    scope = msgspec.json.encode(["append", id]).decode()
    rows = json_rows([{"scope": scope, "key": key, "digest": digests[0], "run": id}])
    if tx.execute("add_keys", rows=rows):
        return False
    if tx.execute("find_keys", rows=rows)[0][2] not in digests:
        raise KeyConflict(f"key {key!r} was used to append other nodes to run {id}: use another key", UUID(id))
    return True


def _lock_graph(tx: Tx, id: str) -> LockedRun:
    found = lock_with_parents(tx, [id])
    if not found:
        raise RunNotFound.of(id)
    run = found[id]
    if run.kind != "graph":
        node = f", but node {run.node} of graph run {run.parent}" if run.node else ""
        raise GraphError(f"run {id} is not a graph{node}")
    return run


def _find_nodes(tx: Tx, graph: str, names: Sequence[str]) -> dict[str, NodeState]:
    if not names:
        return {}
    rows = tx.execute("find_nodes", graph=graph, rows=json_rows({"node": name} for name in names))
    return {name: NodeState(str(id), *rest) for name, id, *rest in rows}


def _find_function_gate(tx: Tx, run: str, name: str) -> NodeState | None:
    rows = tx.execute("find_function_gate", run=run, label=f":{_FUNCTION_GATE}{name}#")
    return NodeState(str(rows[0][0]), *rows[0][1:]) if rows else None


def _read_linked_gate(tx: Tx, gate: str) -> LinkedGate | None:
    rows = tx.execute("read_linked_gate", id=gate)
    if not rows:
        return None
    id, name, state, opening, tenant, plan, deadline, spawn_key, generation, finished_at, now = rows[0]
    started, _, key = (spawn_key or "").partition(":")
    is_wanted = not key.startswith(_FUNCTION_GATE) or (finished_at is None and started == str(generation))
    return LinkedGate(str(id), name, state, opening, tenant, read_plan(plan), deadline, is_wanted, now)


def _named_linked_gate(tx: Tx, run: str, name: str) -> LinkedGate:
    found = _find_nodes(tx, run, [name]).get(name) or _find_function_gate(tx, run, name)
    gate = None if found is None else _read_linked_gate(tx, found.id)
    if gate is None:
        raise _no_gate(tx, run, name, found)
    return gate


def _lock_linked_gate(tx: Tx, run: str, name: str) -> LinkedGate:
    """Return the gate of this name, locked."""
    id = _named_linked_gate(tx, run, name).id
    gate = _read_linked_gate(tx, id) if id in lock_with_parents(tx, [id]) else None
    if gate is None:
        raise RunNotFound.of(run)
    if CORRUPT_PLAN in gate.plan:
        raise GraphError(f"what is stored of gate {name} of run {run} is corrupt: it can have no links")
    return gate


def _store_links(tx: Tx, gate: LinkedGate, links: Sequence[RememberedLink]) -> None:
    remember_links(gate.plan, links)
    tx.execute("store_links", id=gate.id, plan=msgspec.json.encode(gate.plan).decode())


def _plan_after_use(plan: dict[str, Any], link: str | None, now: int) -> str | None:
    """Return the plan of a gate with the link that concluded it marked as used; None if no link did."""
    links = remembered_links(plan)
    used = [each for each in links if each.id == link]
    if not used:
        return None
    used[0].used_at = now
    remember_links(plan, links)
    return msgspec.json.encode(plan).decode()


def _link_infos(gate: LinkedGate) -> list[GateLinkInfo]:
    return [each.info(each.state(gate.opening, gate.is_undecided, gate.now)) for each in remembered_links(gate.plan)]


def _check_names(id: str, graph: NewGraph, outside: Collection[str], known: dict[str, NodeState]) -> None:
    missing = sorted(name for name in outside if name not in known)
    if missing:
        raise GraphError(f"graph run {id} has no node {missing[0]!r}, which appended nodes need")
    twice = [node.name for node in graph.nodes if node.name in known]
    if twice:
        raise GraphError(f"graph run {id} has a node {twice[0]!r} already: give the appended one another name")


def _discount_final_needs(graph: NewGraph, rows: Sequence[dict[str, Any]], known: dict[str, NodeState]) -> None:
    """Don't let appended nodes wait for existing nodes that have ended."""
    for node, row in zip(graph.nodes, rows, strict=True):
        ended = [(name, known[name]) for name in node.needs if name in known and not known[name].unfinished]
        row["pending"] = row.get("pending", 0) - len(ended) if node.needs else row.get("pending")
        causes = [skip_cause_of(end.state, name, end.error) for name, end in ended]
        row["cause"] = max((cause for cause in causes if cause is not None), default=None)


# Gates: nodes that only a call from outside, or their timeout, finishes


def expire_gates(tx: Tx, gates: Sequence[str]) -> list[EndedRun]:
    """Finish locked gates that are past their deadline, as their `on_timeout` says."""
    if not gates:
        return []
    ends = []
    for id, graph, node, lifetime, plan, tenant in tx.execute("find_overdue_gates", rows=id_rows(gates)):
        outcome = str(read_plan(plan).get("on_timeout"))
        within = f" within {lifetime / 1_000_000:g} s" if isinstance(lifetime, int) else " in time"
        message = f"gate {node} was not completed{within}"
        state = {"skip": "skipped", "complete": "done"}.get(outcome, "failed")
        code = "timeout" if state == "failed" else "condition"
        result: str | None = None
        error: str | None = error_to_json(ErrorInfo(code, "GateTimeout", message))
        if outcome == "complete":
            try:
                context = PayloadContext("result", tenant, str(id))
                result, error = tx.payloads.pack("null", context, f"the output of {node}"), None
            except PayloadError as unstorable:  # The tenant's key was deleted, for example.
                state, error = "failed", error_to_json(ErrorInfo("unreadable", "GateTimeout", str(unstorable)))
        entry = {"kind": "timed_out"}
        ends.append(EndWithoutAttempt(str(id), str(graph), node, state, result, error, entry=entry))
    return end_without_attempt(tx, ends)


def _conclude_gate(
    tx: Tx, gate: LockedRun, outcome: GateOutcome, link: str | None = None, *, is_repeat: bool
) -> tuple[bool, list[EndedRun]]:
    """Complete or fail a locked gate; return whether it was this call, and the end.

    A gate that isn't open yet keeps the outcome until it is. `is_repeat`: the transaction is retried, and its first try
    may have been committed.
    """
    ((state, result, error, text, now),) = tx.execute("read_gate", id=gate.id)
    plan = read_plan(text)
    outcome = _checked_outcome(gate, plan, outcome)
    context = PayloadContext("result", gate.tenant, gate.id)
    packed = None if outcome.result is None else tx.payloads.pack(outcome.result, context, f"the output of {gate.node}")
    early = plan.get("early")
    after_use = _plan_after_use(plan, link, now)
    if state == "blocked" and early is None:
        plan["early"] = {"state": outcome.state, "result": packed, "error": outcome.error, "by": outcome.by}
        ((n,),) = tx.execute("store_plan", id=gate.id, plan=msgspec.json.encode(plan).decode())
        data = msgspec.json.encode({"by": outcome.by, "outcome": outcome.state}).decode()
        tx.execute("add_history", rows=json_rows([history_row(gate.id, n, "concluded_early", 0, data=data)]))
        return True, []
    if state == "waiting":
        entry = decision_entry(outcome.state, outcome.by)
        end = EndWithoutAttempt(
            gate.id, gate.parent, gate.node, outcome.state, packed, outcome.error, after_use, entry=entry
        )
        return True, end_without_attempt(tx, [end])
    if early is not None and state == "blocked":
        state, result, error = early["state"], early["result"], early["error"]
    _refuse_other_outcome(gate, outcome, state, None if result is None else tx.payloads.unpack(result, context), error)
    return is_repeat, []


def _checked_outcome(gate: LockedRun, plan: dict[str, Any], outcome: GateOutcome) -> GateOutcome:
    schema = plan.get("schema")
    if outcome.result is None or schema is None:
        return outcome
    output = checked_output(gate.node, gate.parent, schema, msgspec.json.decode(outcome.result))
    return outcome._replace(result=msgspec.json.encode(output).decode())


def checked_output(gate: str | None, graph: object, schema: Mapping[str, Any] | None, output: Any) -> Any:
    """Check an output against the gate's type, and return it with the type's defaults filled in."""
    if schema is None:
        return output
    fault = find_mismatch(output, schema)
    if fault is not None:
        raise BadArguments(f"gate {gate} of run {graph}: {fault}")
    return apply_defaults(output, schema)


def _refuse_other_outcome(
    gate: LockedRun, outcome: GateOutcome, state: str, result: str | None, error: str | None
) -> None:
    """Raise unless the gate was concluded with the same outcome."""
    if state in ("skipped", "cancelled"):
        raise RunFinished(f"gate {gate.node} of run {gate.parent} is {state}: it can no longer be completed")
    if (
        state == "done"
        and outcome.state == "done"
        and canonical_text(result or "null") == canonical_text(outcome.result or "null")
    ):
        return
    if state == outcome.state == "failed" and _is_same_error(error, outcome.error):
        return
    how = "completed with another output" if outcome.state == "done" else "completed"
    if state == "failed":
        how = f"failed: {error_from_json(error or '').message}"
    raise KeyConflict(f"gate {gate.node} of run {gate.parent} was {how}", UUID(gate.id))


def _is_same_error(one: str | None, other: str | None) -> bool:
    first, second = error_from_json(one or ""), error_from_json(other or "")
    return (first.code, first.message) == (second.code, second.message)


def _no_gate(tx: Tx, id: str, name: str, found: NodeState | None) -> GraphError:
    """Explain why there is no gate of that name to conclude."""
    if found is not None:
        return GraphError(f"node {name!r} of run {id} is not a gate")
    if tx.execute("is_function", id=id):
        return GraphError(
            f"run {id} is not a graph and has opened no gate {name!r}: a durable function opens one with ctx.gate"
        )
    if _lock_graph(tx, id).state == "blocked":
        return GraphError(f"graph run {id} hasn't started yet: it has no gates until it starts")
    gates = [(node, str(graph)) for _, graph, node, *_ in tx.execute("list_gates", graph=id)]
    nested = [graph for node, graph in gates if node == name]
    if nested:
        return GraphError(f"gate {name!r} belongs to graph run {nested[0]}, nested in graph run {id}: name that run")
    own = [node for node, graph in gates if graph == id]
    known = f"its gates are {', '.join(own[:MAX_SHOWN_GATES])}" if own else "it has none"
    return GraphError(f"graph run {id} has no gate {name!r}: {known}")
