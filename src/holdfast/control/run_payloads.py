"""Arguments and results of runs as operators see them, within what one response may contain."""

from __future__ import annotations

from typing import Any

from holdfast.errors import PayloadError
from holdfast.model.codec import decode
from holdfast.model.payloads import PayloadContext
from holdfast.model.previews import MAX_STORED_BYTES, PayloadView, omitted
from holdfast.store import Store
from holdfast.store.run_queries import GraphOutputRow, PayloadStatement, RunDetailRow, RunRow

MAX_RESULT_NODES = 5000
"""The result of a graph with more nodes isn't shown."""


class RunPayloads:
    """Reads payloads for one response; all share its budget."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._nodes_left = MAX_RESULT_NODES
        self.view = PayloadView(store.payloads)

    def details(self, id: str) -> RunDetailRow | None:
        """Read the details of a run with its arguments and result, unless they are too large."""
        return self._store.queries.details(id, MAX_STORED_BYTES)

    def result(self, row: RunRow, details: RunDetailRow) -> Any:
        """Return the result of a run. PayloadError if it can't be decoded."""
        if row.kind == "graph" and row.state == "done":
            return self.graph_result(row.id, row.options)
        context = PayloadContext("result", row.tenant, row.id)
        return self.view.value(details.result, context, details.result_bytes)

    def graph_result(self, id: str, options: str | None) -> Any:
        """Return the result of a finished graph: that of its result node, or of all nodes by name."""
        named: str | None = None if options is None else decode(options, dict[str, Any]).get("result")
        nodes = self._store.graphs.outputs(id, named, self._nodes_left + 1)
        self._nodes_left -= len(nodes)
        if self._nodes_left < 0:
            return f"(omitted: the results of more than {MAX_RESULT_NODES:,} nodes)"
        texts = self.stored("read_results", [(node.id, node.result_bytes) for node in nodes])
        found = {
            node.name: self.graph_result(node.id, node.options)
            if node.kind == "graph"
            else self._readable(texts.get(node.id), node)
            for node in nodes
        }
        return found if named is None else found.get(named)

    def stored(self, statement: PayloadStatement, runs: list[tuple[str, int | None]]) -> dict[str, str | None]:
        """Read stored payloads of runs, given their sizes, as far as the budget allows."""
        chosen = self.view.choose(runs)
        return self._store.queries.payloads_of(statement, chosen) if chosen else {}

    def _readable(self, stored: str | None, node: GraphOutputRow) -> Any:
        try:
            return self.view.value(stored, PayloadContext("result", node.tenant, node.id), node.result_bytes)
        except PayloadError:
            return omitted(node.result_bytes or 0, "it can't be decoded")
