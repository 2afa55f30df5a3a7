"""Fork a finished graph: a new run of it with the same nodes, arguments and conditions.

All nodes run again and gates open again, or only some nodes run and the others keep their outcomes. The new run is
built from the stored rows, so it doesn't need the code that built the graph. The structure of a finished graph doesn't
change, so it is read before the transaction that writes the fork. Outcomes are copied inside that transaction, which
fails if the graph was retried in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import ConfigError, GraphError, PayloadUnreadable, RunNotFound
from holdfast.model.ids import new_id_text
from holdfast.model.payloads import CANT_COPY, PayloadContext, Payloads, is_bound, template_context
from holdfast.model.run import FINAL_STATES, GRAPH_QUEUE
from holdfast.store.age_priority import stored_turn
from holdfast.store.enqueue import LaneKey, LaneStore, assign_turns
from holdfast.store.graph_progress import decide_ready_nodes, insert_nodes, read_plan, skip_cause_of
from holdfast.store.graphs import ParentGraph, node_rows
from holdfast.store.module import StoreContext, StoreModule, Tx, history_row, id_rows, in_batches, in_chunks, json_rows
from holdfast.store.propagation import propagate_ends
from holdfast.store.rows import NewGraph, NewNode, NewRun
from holdfast.store.run_actions import without_key
from holdfast.store.run_tree import LockedRun, lock_runs

MAX_SHOWN_NODES = 20
KEPT_STATES = ("done", "skipped")
NODE_COLUMNS = (
    "seq", "id", "node", "kind", "state", "error", "lane", "tenant", "priority", "deadline_in", "max_crashes", "args",
    "options", "tags", "keep", "keep_failed", "limits", "plan",
)  # fmt: skip
"""What `read_nodes_to_fork` returns."""


class StoredNode(msgspec.Struct):
    """A node as it is stored: in a row of its own, or in the plan of a nested graph that hasn't started."""

    id: str
    node: str
    lane: int
    args: str
    keep: int
    kind: str | None = None
    state: str | None = None
    error: str | None = None
    tenant: str | None = None
    priority: int = 0
    delay: int | None = None
    run_at: int | None = None
    deadline_in: int | None = None
    deadline_at: int | None = None
    max_crashes: int = 3
    options: str | None = None
    tags: str | None = None
    keep_failed: int | None = None
    limits: str | None = None
    metadata: str | None = None
    plan: dict[str, Any] = {}
    needs: list[str] = []
    nested: list[StoredNode] = []
    has_rows: bool = False
    """Whether the nodes of a nested graph have rows of their own."""


class NodeCopy(msgspec.Struct):
    """A node whose outcome a fork takes over, and the one that it is copied from."""

    id: str
    original: str
    state: str
    tenant: str | None


class GraphForks(StoreModule):
    """Creates forks of graphs."""

    def __init__(self, context: StoreContext, lanes: LaneStore) -> None:
        super().__init__(context)
        self._lanes = lanes

    def fork(
        self,
        id: str,
        fork: str,
        *,
        from_node: str | None = None,
        from_failed: bool = False,
        by: str | None = None,
        fair: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Create the run `fork` of the finished graph `id`.

        With `from_node`, this node and all nodes that depend on it run again; with `from_failed`, those that failed or
        were cancelled, and all that depend on them. The others keep their outcomes. A repeat after a lost response
        changes nothing. `fair`: the weights of tenants by fair queue.
        """
        if from_node is not None and from_failed:
            raise ConfigError("a graph is forked from a node or from its failed nodes, not from both")
        nodes = self._read_nodes(id)
        again = _nodes_to_run(id, nodes, from_node, from_failed)
        tasks = self._lanes.with_retired()
        originals: dict[str, str] = {}
        graph = NewGraph([self._copy(node, tasks, fair or {}, originals) for node in nodes])
        lanes = self._lanes.for_runs(graph.runs())

        def work(tx: Tx) -> None:
            original = lock_runs(tx, [id]).get(id)
            if original is None:
                raise RunNotFound.of(id)
            _check_forkable_graph(original)
            if lock_runs(tx, [fork]):
                return  # created before the response got lost
            assign_turns(tx, graph.runs(), original.tenant)
            kept = _insert(tx, original, fork, graph, lanes, nodes, again)
            copies = [NodeCopy(new, originals[new], state, tenant) for new, state, tenant in kept]
            _copy_outcomes(tx, id, copies)
            entry = {"from": id, "from_step": from_node, "from_failed": from_failed or None, "nodes": len(again)}
            entry = {name: value for name, value in {**entry, "by": by}.items() if value is not None}
            history = [history_row(fork, 1, "forked", 0, data=msgspec.json.encode(entry).decode())]
            for copy in copies:
                data = msgspec.json.encode({"from": copy.original}).decode()
                history.append(history_row(copy.id, 1, "forked", 0, data=data))
            for chunk in in_chunks(history):
                tx.execute("add_history", rows=json_rows(chunk))
            propagate_ends(tx, [], decide_ready_nodes(tx, fork, len(again)))

        self._transaction("client", work)

    # Reading

    def _read_nodes(self, graph: str) -> list[StoredNode]:
        """Read the nodes of a graph in the order in which they were added, with those of nested graphs."""
        rows: list[dict[str, Any]] = []
        after = ""
        while page := self._execute("read", "read_nodes_to_fork", graph=graph, after=after):
            rows += [dict(zip(NODE_COLUMNS, row, strict=True)) for row in page]
            after = rows[-1]["node"]
        rows.sort(key=lambda row: row["seq"])
        edges = [(str(needs), str(node)) for needs, node in self._execute("read", "list_edges", graph=graph)]
        metadata = self._metadata([str(row["id"]) for row in rows])
        nodes = [self._from_row(row, metadata) for row in rows]
        return _with_needs(nodes, edges)

    def _from_row(self, row: dict[str, Any], metadata: Mapping[str, str]) -> StoredNode:
        plan = {} if row["plan"] is None else read_plan(row["plan"])
        id = str(row["id"])
        known = {name: value for name, value in row.items() if name != "seq"}
        node = StoredNode(**{**known, "id": id, "plan": plan, "metadata": metadata.get(id)})
        node.delay, node.run_at = plan.get("delay"), plan.get("run_at")
        if node.kind == "graph":
            node.nested = self._read_nodes(id)
            node.has_rows = bool(node.nested)
            if not node.has_rows:
                node.nested = _planned_nodes(plan["graph"])
        return node

    def _metadata(self, runs: list[str]) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        for chunk in in_chunks(runs):
            for run, name, value in self._execute("read", "read_metadata_of", rows=id_rows(chunk)):
                found.setdefault(str(run), []).append(f"{msgspec.json.encode(name).decode()}:{value}")
        return {run: "{" + ",".join(parts) + "}" for run, parts in found.items()}

    # Building

    def _copy(
        self,
        node: StoredNode,
        tasks: Mapping[int, LaneKey],
        fair: Mapping[str, Mapping[str, int]],
        originals: dict[str, str],
    ) -> NewNode:
        """Return the node of the fork, and note in `originals` what it is a copy of."""
        payloads, id = self._context.payloads, new_id_text()
        originals[id] = node.id
        queue, task = tasks.get(node.lane, (GRAPH_QUEUE, node.node))
        plan = {name: value for name, value in node.plan.items() if name not in ("early", "graph", "links")}
        args = _copied_arguments(payloads, node, plan, id)
        run = NewRun(
            id=id, queue=queue, task=task, args=args, keep=node.keep, keep_failed=node.keep_failed,
            max_crashes=node.max_crashes, tenant=node.tenant, priority=node.priority, options=node.options,
            deadline_in=node.deadline_in, deadline_at=node.deadline_at, tags=node.tags, limits=node.limits,
            metadata=node.metadata, fair=fair.get(queue), turn=stored_turn(node.options),
        )  # fmt: skip
        if not node.needs:
            run.delay, run.run_at = node.delay, node.run_at
        nested = [self._copy(each, tasks, fair, originals) for each in node.nested]
        return NewNode(
            run, node.node, node.needs, msgspec.Raw(msgspec.json.encode(plan)) if plan else None,
            node.kind, NewGraph(nested) if node.kind == "graph" else None,  # type: ignore[arg-type]
        )  # fmt: skip


def _check_forkable_graph(run: LockedRun) -> None:
    if run.kind != "graph":
        raise GraphError(f"run {run.id} is not a graph")
    if run.node is not None:
        raise GraphError(f"run {run.id} is node {run.node} of graph run {run.parent}: fork that run")
    if run.state not in FINAL_STATES:
        raise GraphError(f"graph run {run.id} is unfinished ({run.state}): fork it when it has ended, or cancel it")


def _with_needs(nodes: list[StoredNode], edges: Iterable[tuple[str, str]]) -> list[StoredNode]:
    by_id = {node.id: node for node in nodes}
    for needed, dependent in edges:
        by_id[dependent].needs = [*by_id[dependent].needs, by_id[needed].node]
    return nodes


def _planned_nodes(rows: Mapping[str, Any]) -> list[StoredNode]:
    """Return the nodes of a nested graph that hasn't started, from its plan."""
    nodes = []
    for row in rows["nodes"]:
        known = {name: value for name, value in row.items() if name in StoredNode.__struct_fields__}
        node = StoredNode(**{**known, "state": None, "plan": dict(row.get("plan") or {})})
        if node.kind == "graph":
            node.nested = _planned_nodes(node.plan["graph"])
        nodes.append(node)
    return _with_needs(nodes, ((needs, node) for needs, node in rows["edges"]))


def _copied_arguments(payloads: Payloads, node: StoredNode, plan: dict[str, Any], id: str) -> str:
    """Return the stored arguments of a copied node; those in its plan are packed for the copy, too."""
    target = PayloadContext("args", node.tenant, id)
    template = plan.get("args")
    if template is not None:
        if isinstance(template, str):  # packed, because the codec binds it to the node
            text = payloads.unpack(template, template_context(node.tenant, node.id))
            plan["args"] = payloads.pack_copy(text, template_context(node.tenant, id))
        else:
            text = msgspec.json.encode(template).decode()
        return payloads.pack_copy(text, target)
    if is_bound(node.args) and not payloads.binds:
        raise PayloadUnreadable(CANT_COPY)
    if node.args == "{}" or not payloads.binds:
        return node.args
    return payloads.repack(node.args, PayloadContext("args", node.tenant, node.id), target)


def _nodes_to_run(id: str, nodes: list[StoredNode], from_node: str | None, from_failed: bool) -> set[str]:
    """Return the names of the nodes that run again."""
    names = {node.node for node in nodes}
    if from_node is None and not from_failed:
        return names
    if from_node is not None and from_node not in names:
        shown = ", ".join(sorted(names)[:MAX_SHOWN_NODES])
        raise GraphError(f"graph run {id} has no node {from_node!r}: its nodes are {shown}")
    again = {node.node for node in nodes if node.state not in KEPT_STATES}
    if from_failed and not again:
        raise GraphError(f"graph run {id} has no failed node: fork it without from_failed to run all nodes again")
    again |= set() if from_node is None else {from_node}
    dependents: dict[str, list[str]] = {}
    for node in nodes:
        for needed in node.needs:
            dependents.setdefault(needed, []).append(node.node)
    todo = list(again)
    while todo:
        new = [name for name in dependents.get(todo.pop(), ()) if name not in again]
        again.update(new)
        todo += new
    return again


def _insert(
    tx: Tx,
    original: LockedRun,
    fork: str,
    graph: NewGraph,
    lanes: Mapping[LaneKey, int],
    nodes: list[StoredNode],
    again: set[str],
) -> list[tuple[str, str, str | None]]:
    """Insert the fork with its nodes; return id, state and tenant of the nodes that keep their outcomes."""
    stored = {node.node: node for node in nodes}
    rows = node_rows(graph, lanes, ParentGraph(fork, fork, original.tenant))
    kept: list[tuple[str, str, str | None]] = []
    finished: list[dict[str, Any]] = []
    for row in rows["nodes"]:
        node = stored[row["node"]]
        if node.node not in again:
            kept += _keep(row, node, finished)
            continue
        ended = [stored[name] for name in node.needs if name not in again]
        if ended:
            row["pending"] = len(node.needs) - len(ended)
            causes = [skip_cause_of(str(each.state), each.node, each.error) for each in ended]
            row["cause"] = max((cause for cause in causes if cause is not None), default=None)
    kept_ids = {id for id, *_ in kept}
    rows["begun"] = [begun for begun in rows["begun"] if begun["nodes"][0]["parent"] not in kept_ids]
    if not tx.execute(
        "fork_graph", id=original.id, fork=fork, pending=len(again), options=without_key(original.options)
    ):
        raise GraphError(f"run {fork} exists")
    tx.execute("copy_metadata", id=original.id, fork=fork)
    insert_nodes(tx, rows)
    for nested in finished:
        insert_nodes(tx, nested)
    return kept


def _keep(
    row: dict[str, Any], node: StoredNode, finished: list[dict[str, Any]]
) -> Iterator[tuple[str, str, str | None]]:
    """Prepare the row of a node that keeps its outcome: it is blocked until the outcome is copied.

    Yield id, state and tenant, also of the nodes of a nested graph, whose rows are added to `finished`.
    """
    row["state"], row["pending"] = "blocked", 0
    yield row["id"], str(node.state), row.get("tenant")
    if not node.has_rows:
        return
    nested = row["plan"]["graph"]
    finished.append({**nested, "begun": []})
    for inner, stored in zip(nested["nodes"], node.nested, strict=True):
        yield from _keep(inner, stored, finished)


def _copy_outcomes(tx: Tx, graph: str, copies: list[NodeCopy]) -> None:
    """Copy results, errors and filled-in arguments. Payloads that are bound to their place are packed again."""
    binds = tx.payloads.binds
    for chunk in in_chunks(copies):
        stored: dict[str, tuple[str, str | None]] = {}
        if binds:
            ids = id_rows(copy.original for copy in chunk)
            results = {str(id): result for id, result in tx.execute("read_results", rows=ids)}
            stored = {str(id): (args, results[str(id)]) for id, args in tx.execute("read_arguments", rows=ids)}
        rows = []
        for copy in chunk:
            row: dict[str, Any] = {"id": copy.id, "original": copy.original, "state": copy.state}
            if binds:
                args, result = stored[copy.original]
                row |= {"args": _repacked(tx, copy, "args", args), "result": _repacked(tx, copy, "result", result)}
            rows.append(row)
        for batch in in_batches(rows, lambda row: len(row.get("args") or "") + len(row.get("result") or "")):
            if len(tx.execute("copy_node_outcomes", rows=json_rows(batch))) != len(batch):
                raise GraphError(f"graph run {graph} was retried meanwhile: try again")


def _repacked(tx: Tx, copy: NodeCopy, field: Any, text: str | None) -> str | None:
    if text is None or text == "{}":
        return text
    source, target = (PayloadContext(field, copy.tenant, run) for run in (copy.original, copy.id))
    return tx.payloads.repack(text, source, target)
