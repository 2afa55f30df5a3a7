"""How the nodes of a graph are decided: each when all that it depends on is final, by counting.

Everything here runs inside a transaction of its caller's, which has locked the graph: nobody else decides its nodes.
What a rule says is judged by `policy/graph_rules.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.database import Row
from holdfast.errors import ErrorInfo, PayloadError
from holdfast.model.codec import decode
from holdfast.model.failure import error_from_json, error_to_json
from holdfast.model.payloads import Payloads
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
from holdfast.store.family import Ended, chunks
from holdfast.store.part import Do, batch, bounded, record


class Decidable(NamedTuple):
    """A node whose turn it is to be decided. `cause`: why it can't run, where all it needs should have ended well."""

    id: str
    graph: str
    node: str
    kind: str | None
    cause: str | None
    plan: dict[str, Any]


class Start(NamedTuple):
    """A graph within a graph that is to begin, with the rows of its nodes."""

    id: str
    rows: dict[str, Any]


class Released(NamedTuple):
    """What came of a release beyond the graph's own nodes: graphs that have ended, and graphs that are to begin."""

    ended: list[Ended]
    starting: list[Start]


class Finish(NamedTuple):
    """How a run ends that no worker is at. `result` is as it is stored: what can't be stored was refused when it was
    given, and stops nobody here."""

    id: str
    graph: str | None
    node: str | None
    state: str
    result: str | None = None
    error: str | None = None
    plan: str | None = None
    entry: dict[str, Any] | None = None

    def ended(self) -> Ended:
        cause = self.error if self.state == "skipped" else None
        return Ended(self.id, self.state, self.graph, node=self.node, cause=cause)


def release(do: Do, ends: Sequence[Ended]) -> Released:
    """Nodes have ended: those behind them are decided, and so on; graphs without an unfinished node end. Graphs that
    have ended themselves release nothing any more."""
    if not ends:
        return Released([], [])
    left = _count(do, ends)
    return _go_on(do, [end for end in ends if end.parent in left], left)


def decide_waiting(do: Do, graph: str, pending: int) -> Released:
    """Decide the nodes of a graph that wait for nothing: it is tried again, or has grown. `pending`: its unfinished
    nodes."""
    turns = [_decidable(row) for row in do("decidable_nodes", graph=graph)]
    ended, starting = _decide(do, turns)
    left = {graph: pending} | _count(do, ended)
    released = _go_on(do, ended, left)
    return Released(released.ended, starting + released.starting)


def _go_on(do: Do, ends: Sequence[Ended], left: dict[str, int]) -> Released:
    starting: list[Start] = []
    more: list[Ended] = []
    while ends:
        ends, begun = _decide(do, _count_down(do, ends))
        starting += begun
        more += ends
    left |= _count(do, more)
    return Released(_end_graphs(do, [graph for graph, pending in left.items() if pending == 0]), starting)


def _count(do: Do, ends: Sequence[Ended]) -> dict[str, int]:
    """Nodes have become final: how many of their graphs' others aren't yet. Graphs that have ended are left out."""
    if not ends:
        return {}
    counted = Counter(end.parent for end in ends)
    rows = do("count_nodes", rows=batch({"id": graph, "ended": ended} for graph, ended in counted.items()))
    return {str(graph): pending for graph, pending in rows}


def _count_down(do: Do, ends: Sequence[Ended]) -> list[Decidable]:
    turns = []
    for some in chunks(ends):
        rows = do(
            "count_down", rows=batch({"id": end.id, "cause": cause_of(end.state, end.node, end.cause)} for end in some)
        )
        turns += [_decidable(row) for row in rows if row[4] == 0]
    return turns


def _decidable(row: Sequence[Any]) -> Decidable:
    id, graph, node, kind, _, cause, plan = row
    return Decidable(str(id), str(graph), node, kind, cause, {} if plan is None else msgspec.json.decode(plan))


def cause_of(state: str, node: str | None, cause: str | None) -> str | None:
    """Why those who need the success of a node are skipped; None when it had success. `cause`: why it was skipped
    itself. Of several the largest counts: by their codes failures come after conditions."""
    if state == "done":
        return None
    return cause if state == "skipped" else skip_cause(SkipNode(failure=True, node=node), state)


def skip_cause(skip: SkipNode, state: str = "failed", own: str | None = None) -> str:
    """Why a node is skipped, as it is kept: the failure of another one, or a condition of its own."""
    if skip.cause is not None:
        return skip.cause
    if skip.failure:
        what = "was cancelled" if state == "cancelled" else "failed"
        return error_to_json(ErrorInfo("failure", "Skipped", f"node {skip.node} {what}"))
    return error_to_json(ErrorInfo("condition", "Skipped", f"the condition of node {own} wasn't true"))


def _decide(do: Do, turns: Sequence[Decidable]) -> tuple[list[Ended], list[Start]]:
    """Release, skip or fail nodes whose turn has come: those that are final now, and graphs that begin."""
    if not turns:
        return [], []
    ends = _ends_needed(do, turns)
    going: list[dict[str, Any]] = []
    starting: list[Start] = []
    over: list[Finish] = []
    for turn in turns:
        decided = _decision(turn, ends.get(turn.graph, {}), do.payloads)
        if isinstance(decided, Finish):
            over.append(decided)
            continue
        if turn.kind == "graph":
            starting.append(Start(turn.id, turn.plan["graph"]))
        if turn.kind == "gate" and "early" in turn.plan:
            over.append(_early(turn))
            continue
        going.append(_release_row(turn, decided))
    for some in bounded(going, lambda row: len(row.get("args", ""))):
        do("release_nodes", rows=batch(some))
    return finish(do, over), starting


def _release_row(turn: Decidable, args: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": turn.id, "state": "ready" if turn.kind is None else "waiting"}
    if args is not None:
        row["args"] = args
    row.update((name, turn.plan[name]) for name in ("delay", "run_at") if name in turn.plan)
    if turn.kind == "graph":
        row["pending"] = len(turn.plan["graph"]["nodes"])
    return row


def _decision(turn: Decidable, ends: Mapping[str, NodeOutcome], payloads: Payloads) -> Finish | str | None:
    """How a node ends without having run; or the text of its arguments where they were filled in."""
    if turn.cause is not None and "rule" not in turn.plan:
        return Finish(turn.id, turn.graph, turn.node, "skipped", error=turn.cause)
    decided = decide_node(turn.plan, ends)
    if isinstance(decided, SkipNode):
        state = ends[decided.node].state if decided.node is not None else "failed"
        return Finish(turn.id, turn.graph, turn.node, "skipped", error=skip_cause(decided, state, turn.node))
    if isinstance(decided, FailNode):
        return _failed(turn, "bad_output", decided.message)
    if not isinstance(decided, RunNode) or decided.args is None:
        return None
    try:
        return payloads.pack(msgspec.json.encode(decided.args).decode(), "its arguments")
    except PayloadError as error:
        return _failed(turn, payload_error_code(error), str(error))


def _failed(turn: Decidable, code: str, message: str) -> Finish:
    error = error_to_json(ErrorInfo(code, "GraphError", f"node {turn.node}: {message}"))
    return Finish(turn.id, turn.graph, turn.node, "failed", error=error)


def _early(turn: Decidable) -> Finish:
    """A gate that was completed or failed before it opened."""
    early = turn.plan.pop("early")
    plan = msgspec.json.encode(turn.plan).decode()
    return Finish(turn.id, turn.graph, turn.node, early["state"], early.get("result"), early.get("error"), plan)


def _ends_needed(do: Do, turns: Sequence[Decidable]) -> dict[str, dict[str, NodeOutcome]]:
    """How the nodes ended that these plans speak of, by graph and name; with outputs where they are looked at."""
    wanted: dict[tuple[str, str], bool] = {}
    for turn in turns:
        if not turn.plan:
            continue
        rule = turn.plan.get("rule")
        for name in rule_nodes(rule):
            wanted.setdefault((turn.graph, name), False)
        for reference in (*rule_references(rule), *turn.plan.get("fills", ())):
            wanted[turn.graph, reference["node"]] = True
    ends: dict[str, dict[str, NodeOutcome]] = {}
    rows = [{"graph": graph, "node": node, "wanted": int(wants)} for (graph, node), wants in wanted.items()]
    for some in chunks(rows):
        for graph, node, id, state, kind, error, options, result in do("node_ends", rows=batch(some)):
            output = None if result is None else do.payloads.unpack(result)
            if kind == "graph" and state == "done" and wanted[str(graph), node]:
                output = graph_output(do, str(id), options)
            ends.setdefault(str(graph), {})[node] = NodeOutcome(state, output, error if state == "skipped" else None)
    return ends


def graph_output(do: Do, graph: str, options: str | None) -> str:
    """The result of a graph that is done, as JSON text: of the node that was named for it, or of all by name."""
    named = result_node(options)
    parts = []
    for node, id, kind, nested, result in do("graph_outputs", graph=graph, node=named):
        text = graph_output(do, str(id), nested) if kind == "graph" else do.payloads.unpack(result)
        if named is not None:
            return str(text)
        parts.append(f"{msgspec.json.encode(node).decode()}:{text}")
    return "null" if named is not None else "{" + ",".join(parts) + "}"


def child_end(do: Do, row: Row) -> Row:
    """How a child ended, from a row of id, place, state, result, error, kind and options, which graphs need for their
    results: the first five."""
    id, place, state, result, error, kind, options = row
    if kind == "graph" and state == "done":
        result = graph_output(do, str(id), options)
    return (id, place, state, result, error)


def result_node(options: str | None) -> str | None:
    """The node whose output is the result of a graph, from the graph's options."""
    named: str | None = None if options is None else decode(options, dict[str, Any]).get("result")
    return named


def finish(do: Do, finishes: Iterable[Finish]) -> list[Ended]:
    """End runs that no worker is at, with their records. They are locked, or their graph is."""
    by_id = {each.id: each for each in finishes}
    ended = []
    for some in bounded(by_id.values(), lambda each: len(each.result or "")):
        rows = [
            {"id": each.id, "state": each.state, "result": each.result, "error": each.error, "plan": each.plan}
            for each in some
        ]
        records = []
        for id, n, *_ in do("finish_runs", rows=batch(rows)):
            each = by_id[str(id)]
            entry = dict(each.entry or {})
            kind = entry.pop("kind", each.state)
            records.append(record(each.id, n, kind, 0, data=_data(entry, each.error)))
            ended.append(each.ended())
        do("add_history", rows=batch(records))
    return ended


def _data(entry: dict[str, Any], error: str | None) -> str | None:
    """What an entry of the history says: the error, and whatever else is to be told."""
    if not entry:
        return error
    return msgspec.json.encode(entry if error is None else {**msgspec.json.decode(error), **entry}).decode()


def _end_graphs(do: Do, graphs: Sequence[str]) -> list[Ended]:
    """Graphs without an unfinished node are done, or failed where one of their nodes did."""
    return [_end_graph(do, graph) for graph in graphs]


def _end_graph(do: Do, graph: str) -> Ended:
    count, first = do("bad_nodes", graph=graph)[0]
    error = None
    if count:
        ((_, _, _, state, _, text, _, _),) = do("node_ends", rows=batch([{"graph": graph, "node": first, "wanted": 0}]))
        what = "was cancelled" if state == "cancelled" else "failed"
        why = f": {error_from_json(text)}" if text and state == "failed" else ""
        others = f" (and {count - 1:,} more)" if count > 1 else ""
        error = error_to_json(ErrorInfo("node", "GraphFailed", f"node {first} {what}{others}{why}"))
    ((parent, spawn_key, place, node),) = do("graph_place", id=graph)
    finish(do, [Finish(graph, None, None, "failed" if count else "done", error=error)])
    parent = None if parent is None else str(parent)
    return Ended(graph, "failed" if count else "done", parent, spawn_key, place, node)
