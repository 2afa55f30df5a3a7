"""The table of a graph's nodes, one page at a time: those that need attention first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from starlette.datastructures import QueryParams

from holdfast.control.graphs import GraphControl, GraphInfo, NodeInfo
from holdfast.model.run import RUN_STATES
from holdfast.web.pages.graph_layout import WORST_FIRST
from holdfast.web.pages.render import link

PAGE_NODES = 20
MAX_FAILED_NODES = 5


@dataclass(frozen=True, slots=True)
class StateLink:
    """A link to the nodes in one state, or to all of them."""

    label: str
    count: int
    address: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class NodeTable:
    """One page of nodes. `first` and `last` are their positions among the `total` that match."""

    nodes: list[NodeInfo]
    first: int
    last: int
    total: int
    states: list[StateLink]
    group: str | None
    """The task whose nodes are shown, if not all are."""
    previous: str | None
    next: str | None
    failed: list[NodeInfo]
    """The first nodes that failed."""


def build_node_table(graph: GraphInfo, query: QueryParams, control: GraphControl) -> NodeTable:
    """Select and sort the nodes that a page's address asks for.

    If `graph` has only its first nodes, because they are very many, those of the page are read.
    """
    state = query.get("node_state", "") if query.get("node_state", "") in RUN_STATES else ""
    task, layer = query.get("node_task", ""), query.get("node_layer", "")
    counts: Mapping[str, int] = graph.counts
    nodes: list[NodeInfo] = []
    if graph.more_nodes:
        task = layer = ""  # there is no picture whose boxes lead to them
    else:
        nodes = [
            node for node in graph.nodes if task in ("", node.task) and layer in ("", str(node.layer))
        ]  # fmt: skip
        counts = Counter(node.state for node in nodes)
    wanted = [each for each in WORST_FIRST if counts.get(each) and state in ("", each)]
    total = sum(counts[each] for each in wanted)
    pages = max((total + PAGE_NODES - 1) // PAGE_NODES, 1)
    page = min(_number(query.get("node_page", "")), pages)

    def address(state: str, page: int) -> str:
        return _address(graph.id, node_state=state, node_task=task, node_layer=layer, node_page=_shown(page))

    first = (page - 1) * PAGE_NODES
    states = [StateLink("all", sum(counts.values()), address("", 1), not state)]
    states += [
        StateLink(each, counts[each], address(each, 1), each == state) for each in WORST_FIRST if counts.get(each)
    ]
    if graph.more_nodes:
        listed = control.page_by_state(graph.id, wanted, first, PAGE_NODES)
        failed = control.page_by_state(graph.id, ["failed"], 0, MAX_FAILED_NODES)
    else:
        matching = [node for node in nodes if node.state in wanted]
        matching.sort(key=lambda node: WORST_FIRST.index(node.state))  # stable: in the order in which they were added
        listed = matching[first : first + PAGE_NODES]
        failed = [node for node in graph.nodes if node.state == "failed"][:MAX_FAILED_NODES]
    return NodeTable(
        nodes=listed,
        first=first + 1,
        last=min(first + PAGE_NODES, total),
        total=total,
        states=states,
        group=task or None,
        previous=address(state, page - 1) if page > 1 else None,
        next=address(state, page + 1) if page < pages else None,
        failed=failed,
    )


def group_address(graph: UUID, task: str, layer: int) -> str:
    """Return the address of the table with the nodes that share one box of the picture."""
    return _address(graph, node_task=task, node_layer=str(layer))


def _address(graph: UUID, **query: str) -> str:
    return f"{link(f'/runs/{graph}', **query)}#nodes"


def _number(text: str) -> int:
    return max(int(text), 1) if text.isdecimal() and len(text) < 7 else 1


def _shown(page: int) -> str:
    return "" if page == 1 else str(page)
