"""The nodes of a graph as rows: of runs, and of who needs whom. Nodes of graphs within it are kept in the rows of those
graphs until they begin.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from holdfast.database import Row
from holdfast.store.family import chunks
from holdfast.store.intake import Call, new_row
from holdfast.store.lanes import Pair
from holdfast.store.part import BATCH, Do, batch, bounded
from holdfast.store.rows import NewGraph, NewNode, NewRun

EDGES = 10 * BATCH
"""How many edges a statement takes: they are small."""


class Above:
    """The graph that nodes belong to, as far as their rows say it. `known`: the ids of nodes that are there already."""

    def __init__(self, id: str, root: str, tenant: str | None, known: Mapping[str, str] | None = None) -> None:
        self.id = id
        self.root = root
        self.tenant = tenant
        self.known = dict(known or {})


def graph_row(run: NewRun, lanes: Mapping[Pair, int], graph: NewGraph) -> dict[str, Any]:
    """The row of a graph itself."""
    return {**new_row(run, lanes), "state": "waiting", "kind": "graph", "pending": len(graph.nodes)}


def node_rows(graph: NewGraph, lanes: Mapping[Pair, int], above: Above) -> dict[str, Any]:
    """The rows of the nodes of a graph, the edges between them, and the same of graphs within it that begin with it."""
    ids = above.known | {node.name: node.run.id for node in graph.nodes}
    needed_by: dict[str, list[str]] = {id: [] for id in ids.values()}  # ids ascend, so the edges come in their order
    rows: dict[str, Any] = {"nodes": [], "edges": [], "begun": []}
    for node in graph.nodes:
        row = _node_row(node, lanes, above)
        within = None
        if node.graph is not None:
            within = node_rows(node.graph, lanes, Above(node.run.id, above.root, row.get("tenant")))
        if node.plan is not None:
            row["plan"] = (
                node.plan
            )  # a text only in the database: texts in texts would double with each graph within it
        if within is not None:
            row["plan"] = {**({} if node.plan is None else msgspec.json.decode(node.plan)), "graph": within}
        if within is not None and not node.needs:
            row["pending"] = len(within["nodes"])
            rows["begun"].append(within)
        rows["nodes"].append(row)
        for name in node.needs:
            needed_by[ids[name]].append(node.run.id)
    rows["edges"] = [[needs, node] for needs, nodes in needed_by.items() for node in nodes]
    return rows


def _node_row(node: NewNode, lanes: Mapping[Pair, int], above: Above) -> dict[str, Any]:
    row = new_row(node.run, lanes)
    if "tenant" not in row and above.tenant is not None:
        row["tenant"] = above.tenant
    if node.needs:
        row |= {"state": "blocked", "pending": len(node.needs)}
    else:
        row["state"] = "ready" if node.kind is None else "waiting"
    row |= {"root": above.root, "parent": above.id, "node": node.name}
    return row if node.kind is None else {**row, "kind": node.kind}


def insert(rows: Mapping[str, Any]) -> Generator[Call, list[Row], None]:
    """The statements that make nodes and edges, in batches."""
    for some in bounded(map(_with_text, rows["nodes"]), _size):
        yield "add_nodes", {"rows": batch(some)}
    for edges in chunks(sorted(rows["edges"]), EDGES):  # sorted already, mostly: appended, not spread over the table
        yield "add_edges", {"rows": batch({"needs": needs, "node": node} for needs, node in edges)}
    for within in rows["begun"]:
        yield from insert(within)


def _with_text(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "plan": msgspec.json.encode(row["plan"]).decode()} if "plan" in row else row


def _size(row: dict[str, Any]) -> int:
    return len(row["args"]) + len(row.get("plan", ""))


def add_rows(do: Do, rows: Mapping[str, Any]) -> None:
    """The same in a transaction of ours."""
    for name, values in insert(rows):
        do(name, **values)
