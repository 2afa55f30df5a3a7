"""Decide the nodes of a graph: each once everything it depends on is final, by counting.

Every function runs inside the transaction of its caller, which has locked the graph, so that no other transaction
decides its nodes. `policy/graph_rules.py` evaluates the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.database import Row
from holdfast.errors import ErrorInfo, PayloadAltered, PayloadError
from holdfast.model.codec import UnreadableText, decode
from holdfast.model.failure import error_from_json, error_to_json, truncate_end
from holdfast.model.payloads import STORED_IN_CLEAR, PayloadContext, Payloads, template_context
from holdfast.policy.graph_rules import (
    FailNode,
    NodeOutcome,
    RunNode,
    SkipNode,
    decide_node,
    rule_nodes,
    rule_references,
)
from holdfast.policy.retry_decision import payload_error_code
from holdfast.store.metadata import metadata_steps
from holdfast.store.module import (
    MAX_BATCH_ROWS,
    StatementCall,
    Tx,
    history_row,
    id_rows,
    in_batches,
    in_chunks,
    json_rows,
)
from holdfast.store.run_tree import EndedRun

MAX_BATCH_EDGES = 10 * MAX_BATCH_ROWS
"""Edges are small, so a statement takes more of them than of other rows."""
MAX_CAUSE_BYTES = 2000
"""How much of the message of a failed node the error of its graph repeats."""
CORRUPT_PLAN = "corrupt"


class DecidableNode(NamedTuple):
    """A node whose dependencies are all final. `cause`: which of them keeps it from running, without a rule."""

    id: str
    graph: str
    node: str
    kind: str | None
    tenant: str | None
    cause: str | None
    plan: dict[str, Any]


class GraphStart(NamedTuple):
    """A nested graph that is to start, with the rows of its nodes."""

    id: str
    rows: dict[str, Any]


class ReleaseResult(NamedTuple):
    """What a release leads to beyond the graph's own nodes: graphs that ended and nested graphs that start."""

    ended: list[EndedRun]
    starting: list[GraphStart]


class EndWithoutAttempt(NamedTuple):
    """How a run ends that no worker runs: a graph, a gate, or a node that is skipped or fails before it starts.

    `result` is the stored, packed payload.
    """

    id: str
    graph: str | None
    node: str | None
    state: str
    result: str | None = None
    error: str | None = None
    plan: str | None = None
    entry: dict[str, Any] | None = None

    def ended(self) -> EndedRun:
        cause = self.error if self.state == "skipped" else None
        return EndedRun(self.id, self.state, self.graph, node=self.node, cause=cause, unstarted=True)


def release_dependents(tx: Tx, ends: Sequence[EndedRun], unfinished: Collection[str] = ()) -> ReleaseResult:
    """Decide the nodes behind nodes that ended, and so on; end graphs without unfinished nodes.

    Graphs that have ended release nothing. `unfinished`: graphs that are locked and haven't.
    """
    if not ends:
        return ReleaseResult([], [])
    counted = _queue_graphs(tx, ends)
    nodes = _queue_nodes(tx, ends) if all(end.parent in unfinished for end in ends) else None
    pending = counted()
    if nodes is None:
        return _release(tx, [end for end in ends if end.parent in pending], pending)
    decided, starting = _decide_nodes(tx, nodes())
    released = _release(tx, decided, pending | _decrement_graphs(tx, decided))
    return ReleaseResult(released.ended, starting + released.starting)


def decide_ready_nodes(tx: Tx, graph: str, pending: int) -> ReleaseResult:
    """Decide the blocked nodes of a graph that wait for nothing, after it was retried or has grown.

    `pending`: how many of its nodes are unfinished.
    """
    nodes = [_decidable(row) for row in tx.execute("find_decidable_nodes", graph=graph)]
    ended, starting = _decide_nodes(tx, nodes)
    released = _release(tx, ended, {graph: pending} | _decrement_graphs(tx, ended))
    return ReleaseResult(released.ended, starting + released.starting)


def _release(tx: Tx, ends: Sequence[EndedRun], pending: dict[str, int]) -> ReleaseResult:
    starting: list[GraphStart] = []
    more: list[EndedRun] = []
    while ends:
        ends, started = _decide_nodes(tx, _decrement_nodes(tx, ends))
        starting += started
        more += ends
    pending |= _decrement_graphs(tx, more)
    return ReleaseResult([_end_graph(tx, graph) for graph, left in pending.items() if left == 0], starting)


def _decrement_graphs(tx: Tx, ends: Sequence[EndedRun]) -> dict[str, int]:
    """Count ended nodes; return how many nodes of each graph are unfinished, without graphs that have ended."""
    return _queue_graphs(tx, ends)() if ends else {}


def _queue_graphs(tx: Tx, ends: Sequence[EndedRun]) -> Callable[[], dict[str, int]]:
    """Queue what `_decrement_graphs` does; return a function that returns its result."""
    counted = Counter(end.parent for end in ends)
    found = tx.queue("decrement_graphs", rows=json_rows({"id": id, "ended": ended} for id, ended in counted.items()))
    return lambda: {str(graph): pending for graph, pending in found()}


def _decrement_nodes(tx: Tx, ends: Sequence[EndedRun]) -> list[DecidableNode]:
    """Count ended nodes at those that depend on them; return the nodes that wait for nothing more."""
    return _queue_nodes(tx, ends)()


def _queue_nodes(tx: Tx, ends: Sequence[EndedRun]) -> Callable[[], list[DecidableNode]]:
    """Queue what `_decrement_nodes` does; return a function that returns its result."""
    found = []
    for chunk in in_chunks(ends):
        causes = ({"id": end.id, "cause": skip_cause_of(end.state, end.node, end.cause)} for end in chunk)
        found.append(tx.queue("decrement_nodes", rows=json_rows(causes)))
    return lambda: [_decidable(row) for rows in found for row in rows() if row[4] == 0]


def _decidable(row: Sequence[Any]) -> DecidableNode:
    id, graph, node, kind, _, cause, plan, tenant = row
    return DecidableNode(str(id), str(graph), node, kind, tenant, cause, {} if plan is None else read_plan(plan))


def read_plan(text: str | None) -> dict[str, Any]:
    """Decode the plan of a node; a corrupt one has nothing but the key `corrupt`."""
    try:
        return msgspec.json.decode(text or "", type=dict[str, Any])
    except (msgspec.MsgspecError, TypeError):
        return {CORRUPT_PLAN: True}


def skip_cause_of(state: str, node: str | None, cause: str | None) -> str | None:
    """Return why nodes that need a node's success are skipped; None if it succeeded.

    `cause`: why the node itself was skipped. Of several causes the largest text counts: failures sort behind
    conditions.
    """
    if state == "done":
        return None
    return cause if state == "skipped" else _encode_skip(SkipNode(failure=True, node=node), state)


def _encode_skip(skip: SkipNode, state: str = "failed", own: str | None = None) -> str:
    """Encode why a node is skipped: the failure of another node, or its own condition."""
    if skip.cause is not None:
        return skip.cause
    if skip.failure:
        what = "was cancelled" if state == "cancelled" else "failed"
        return error_to_json(ErrorInfo("failure", "Skipped", f"node {skip.node} {what}"))
    return error_to_json(ErrorInfo("condition", "Skipped", f"the condition of node {own} wasn't true"))


def _decide_nodes(tx: Tx, nodes: Sequence[DecidableNode]) -> tuple[list[EndedRun], list[GraphStart]]:
    """Release, skip or fail nodes; return those that are final now and the nested graphs that start."""
    if not nodes:
        return [], []
    released: list[dict[str, Any]] = []
    starting: list[GraphStart] = []
    ends = [_failed(node, "corrupt_row", "its stored plan is corrupt") for node in nodes if not _is_sound(node)]
    nodes = [node for node in nodes if _is_sound(node)]
    outcomes = _read_ends(tx, nodes)
    for node in nodes:
        decided = _decision(node, outcomes.get(node.graph, {}), tx.payloads)
        if isinstance(decided, EndWithoutAttempt):
            ends.append(decided)
            continue
        if node.kind == "graph":
            starting.append(GraphStart(node.id, node.plan["graph"]))
        if node.kind == "gate" and "early" in node.plan:
            ends.append(_concluded_early(node))
            continue
        released.append(_release_row(node, decided))
    for batch in in_batches(released, lambda row: len(row.get("args", ""))):
        tx.queue("release_nodes", rows=json_rows(batch))
    tx.ready_runs += len(released)
    graphs = {node.id for node in nodes if node.kind == "graph"}
    _skip_nodes(tx, [end for end in ends if end.id in graphs])
    return end_without_attempt(tx, ends), starting


def _skip_nodes(tx: Tx, graphs: Sequence[EndWithoutAttempt]) -> None:
    """Skip the nodes of nested graphs that end without running. They exist only if the graph ran before a retry."""
    errors = {graph.id: graph.error for graph in graphs}
    if not errors:
        return
    found = [
        (kind, EndWithoutAttempt(str(id), str(graph), node, "skipped", error=errors[str(graph)]))
        for id, graph, node, kind in tx.execute("find_unfinished_nodes", rows=id_rows(sorted(errors)))
    ]
    _skip_nodes(tx, [end for kind, end in found if kind == "graph"])
    end_without_attempt(tx, [end for _, end in found])


def _release_row(node: DecidableNode, args: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": node.id, "state": "ready" if node.kind is None else "waiting"}
    if args is not None:
        row["args"] = args
    row.update((name, node.plan[name]) for name in ("delay", "run_at") if name in node.plan)
    if node.kind == "graph":
        row["pending"] = len(node.plan["graph"]["nodes"])
    return row


def _decision(
    node: DecidableNode, ends: Mapping[str, NodeOutcome], payloads: Payloads
) -> EndWithoutAttempt | str | None:
    """Return how a node ends without running, or its filled-in arguments, or None if it runs with those it has."""
    if node.cause is not None and "rule" not in node.plan:
        return EndWithoutAttempt(node.id, node.graph, node.node, "skipped", error=node.cause)
    try:
        plan = _readable_plan(node, payloads)
    except PayloadError as error:
        return _failed(node, "unreadable", f"its arguments: {error}")
    decided = decide_node(plan, ends)
    if isinstance(decided, SkipNode):
        state = ends[decided.node].state if decided.node is not None else "failed"
        return EndWithoutAttempt(
            node.id, node.graph, node.node, "skipped", error=_encode_skip(decided, state, node.node)
        )
    if isinstance(decided, FailNode):
        return _failed(node, "bad_output", decided.message)
    if not isinstance(decided, RunNode) or decided.args is None:
        return None
    try:
        text = msgspec.json.encode(decided.args).decode()
        return payloads.pack(text, PayloadContext("args", node.tenant, node.id), "its arguments")
    except PayloadError as error:
        return _failed(node, payload_error_code(error), str(error))


def _readable_plan(node: DecidableNode, payloads: Payloads) -> dict[str, Any]:
    """Return the plan of a node with its arguments, which are packed if a codec has bound them to the node."""
    if "args" not in node.plan:
        return node.plan
    args = node.plan["args"]
    if isinstance(args, str):
        text = payloads.unpack(args, template_context(node.tenant, node.id))
        return {**node.plan, "args": decode(text, dict[str, Any])}
    if payloads.rejects_plain:
        raise PayloadAltered(STORED_IN_CLEAR)
    return node.plan


def _failed(node: DecidableNode, code: str, message: str) -> EndWithoutAttempt:
    error = error_to_json(ErrorInfo(code, "GraphError", f"node {node.node}: {message}"))
    return EndWithoutAttempt(node.id, node.graph, node.node, "failed", error=error)


def _concluded_early(node: DecidableNode) -> EndWithoutAttempt:
    """Finish a gate that was completed or failed before it opened."""
    early = node.plan.pop("early")
    plan = msgspec.json.encode(node.plan).decode()
    entry = decision_entry(early["state"], early["by"]) if "by" in early else None  # earlier releases didn't store it
    return EndWithoutAttempt(
        node.id, node.graph, node.node, early["state"], early.get("result"), early.get("error"), plan, entry
    )


def decision_entry(state: str, by: str) -> dict[str, Any]:
    """Return the history entry of a gate that someone completed or failed."""
    return {"kind": "completed" if state == "done" else "failed", "by": by}


def _read_ends(tx: Tx, nodes: Sequence[DecidableNode]) -> dict[str, dict[str, NodeOutcome]]:
    """Read how the nodes ended that these plans refer to, by graph and name; with outputs only where used."""
    wanted: dict[tuple[str, str], bool] = {}
    for node in nodes:
        states, outputs = _wanted_by(node)
        for name in states:
            wanted.setdefault((node.graph, name), False)
        for name in outputs:
            wanted[node.graph, name] = True
    ends: dict[str, dict[str, NodeOutcome]] = {}
    rows = [{"graph": graph, "node": node, "wanted": int(wants)} for (graph, node), wants in wanted.items()]
    for chunk in in_chunks(rows):
        for graph, name, id, state, kind, error, options, tenant, result in tx.execute(
            "read_node_ends", rows=json_rows(chunk)
        ):
            context = PayloadContext("result", tenant, str(id))
            output = None if result is None else tx.payloads.unpack(result, context)
            if kind == "graph" and state == "done" and wanted[str(graph), name]:
                output = graph_output(tx, str(id), options)
            ends.setdefault(str(graph), {})[name] = NodeOutcome(state, output, error if state == "skipped" else None)
    return ends


def _wanted_by(node: DecidableNode) -> tuple[list[str], list[str]]:
    """Return the nodes whose states, and those whose outputs, the plan of a node refers to."""
    if not node.plan:
        return [], []
    rule = node.plan.get("rule")
    references = (*rule_references(rule), *node.plan.get("fills", ()))
    return list(rule_nodes(rule)), [reference["node"] for reference in references]


def _is_sound(node: DecidableNode) -> bool:
    """Return whether the plan of a node can be read; another program may have changed it."""
    try:
        _wanted_by(node)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return CORRUPT_PLAN not in node.plan and (node.kind != "graph" or "nodes" in node.plan.get("graph", ()))


def graph_output(tx: Tx, graph: str, options: str | None) -> str:
    """Return the result of a finished graph as JSON: the output of its result node, or of all nodes by name."""
    named: str | None = None if options is None else decode(options, dict[str, Any]).get("result")
    parts = []
    for node, id, kind, nested, tenant, result in tx.execute("read_graph_outputs", graph=graph, node=named):
        if kind == "graph":
            text = graph_output(tx, str(id), nested)
        else:
            text = tx.payloads.unpack(result, PayloadContext("result", tenant, str(id)))
        if isinstance(text, UnreadableText):
            return text
        if named is not None:
            return str(text)
        parts.append(f"{msgspec.json.encode(node).decode()}:{text}")
    return "null" if named is not None else "{" + ",".join(parts) + "}"


def child_result(tx: Tx, row: Row) -> Row:
    """Return id, map index, state, result, as JSON, and error of a child; that of a graph is read from its nodes."""
    id, map_index, state, result, error, kind, options, tenant = row
    if kind == "graph" and state == "done":
        result = graph_output(tx, str(id), options)
    elif result is not None:
        result = tx.payloads.unpack(result, PayloadContext("result", tenant, str(id)))
    return (id, map_index, state, result, error)


def end_without_attempt(tx: Tx, ends: Iterable[EndWithoutAttempt]) -> list[EndedRun]:
    """End runs that no worker is running, with their history. They, or their graph, are locked."""
    by_id = {each.id: each for each in ends}
    ended = []
    for batch in in_batches(by_id.values(), lambda each: len(each.result or "")):
        rows = [
            {"id": each.id, "state": each.state, "result": each.result, "error": each.error, "plan": each.plan}
            for each in batch
        ]
        history = []
        for id, n, *_ in tx.execute("end_without_attempt", rows=json_rows(rows)):
            each = by_id[str(id)]
            entry = dict(each.entry or {})
            kind = entry.pop("kind", each.state)
            history.append(history_row(each.id, n, kind, 0, data=_history_data(entry, each.error)))
            ended.append(each.ended())
        tx.queue("add_history", rows=json_rows(history))
    return ended


def _history_data(entry: dict[str, Any], error: str | None) -> str | None:
    if not entry:
        return error
    return msgspec.json.encode(entry if error is None else {**msgspec.json.decode(error), **entry}).decode()


def _end_graph(tx: Tx, graph: str) -> EndedRun:
    """End a graph without unfinished nodes: done, or failed if a node failed or was cancelled."""
    count, first = tx.execute("find_failed_nodes", graph=graph)[0]
    error = None
    if count:
        rows = json_rows([{"graph": graph, "node": first, "wanted": 0}])
        ((_, _, _, state, _, text, *_),) = tx.execute("read_node_ends", rows=rows)
        what = "was cancelled" if state == "cancelled" else "failed"
        cause = error_from_json(text) if text and state == "failed" else None
        why = "" if cause is None else f": {cause}"
        others = f" (and {count - 1:,} more)" if count > 1 else ""
        data = {"node": first}
        if cause is not None:
            message = truncate_end(cause.message, MAX_CAUSE_BYTES)
            data |= {"code": cause.code, "type": cause.type, "message": message}
        error = error_to_json(ErrorInfo("node", "GraphFailed", f"node {first} {what}{others}{why}", data=data))
    ((parent, spawn_key, map_index, node, options),) = tx.execute("read_graph_parent", id=graph)
    end_without_attempt(tx, [EndWithoutAttempt(graph, None, None, "failed" if count else "done", error=error)])
    parent = None if parent is None else str(parent)
    return EndedRun(graph, "failed" if count else "done", parent, spawn_key, map_index, node, options=options)


def insert_steps(rows: Mapping[str, Any]) -> Generator[StatementCall, list[Row], None]:
    """Yield the statements that insert nodes and edges, as `graphs.node_rows` describes them, in batches."""
    for batch in in_batches(map(_with_plan_text, rows["nodes"]), _row_size):
        yield "add_nodes", {"rows": json_rows(batch)}
    yield from metadata_steps((row["id"], row.get("metadata")) for row in rows["nodes"])
    # Sorted, so that the edges are appended to the index instead of spread over it.
    for edges in in_chunks(sorted(rows["edges"]), MAX_BATCH_EDGES):
        yield "add_edges", {"rows": json_rows({"needs": needs, "node": node} for needs, node in edges)}
    for nested in rows["begun"]:
        yield from insert_steps(nested)


def _with_plan_text(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "plan": msgspec.json.encode(row["plan"]).decode()} if "plan" in row else row


def _row_size(row: dict[str, Any]) -> int:
    return len(row["args"]) + len(row.get("plan", ""))


def insert_nodes(tx: Tx, rows: Mapping[str, Any]) -> None:
    """Insert nodes and edges."""
    for name, values in insert_steps(rows):
        tx.execute(name, **values)
