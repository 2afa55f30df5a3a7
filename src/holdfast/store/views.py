"""Reading: runs, one or a page of them, and what belongs to one: history, steps, waits, children, what it wrote."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.database import Row
from holdfast.model.run import RunState
from holdfast.store.family import chunks
from holdfast.store.part import Part, batch
from holdfast.store.rows import Claim

NODES_PAGE = 1000


class RunRow(NamedTuple):
    """A run's row as `run_info` and pages of runs give it."""

    id: str
    queue: str
    task: str
    state: RunState
    priority: int
    attempt: int
    crashes: int
    error: str | None
    result: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    session: str | None
    tenant: str | None
    tags: str | None
    due_at: int | None
    claimed_at: int | None
    held: str | None
    parent: str | None
    progress: str | None
    undoing: int
    kind: str | None
    node: str | None
    spawn_key: str | None
    place: int | None
    options: str | None
    seq: int

    @property
    def running(self) -> bool:
        """Whether an attempt is under way, also one that undoes."""
        return self.state == "running" or (self.undoing == 1 and self.session is not None)


class StepRow(NamedTuple):
    """A checkpoint as people see it."""

    n: int
    key: str
    kind: str
    value: str | None
    undo: int
    took: int | None
    at: int


class WaitRow(NamedTuple):
    """What a run waits for, or has just got."""

    key: str
    kind: str
    target: str | None
    pending: int | None
    due_at: int | None
    since: int
    outcome: str | None


class OpenRow(NamedTuple):
    """An unfinished run that was claimed at least once. `past`: it has something on record, or waits for something."""

    id: str
    task: str
    past: int


class OpenClaim(NamedTuple):
    """An unfinished run as a worker would get it."""

    task: str
    state: str
    claim: Claim


class MoreRow(NamedTuple):
    """What operators see of a run beyond that."""

    args: str
    options: str | None
    unique_name: str | None
    deadline: int | None
    expires_at: int | None
    ending: str | None
    generation: int
    parked_on: str | None


class NodeRow(NamedTuple):
    """A node of a graph at a glance."""

    seq: int
    id: str
    node: str
    kind: str | None
    task: str
    state: RunState
    attempt: int
    error: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    due_at: int | None
    held: str | None
    plan: str | None


class GateRow(NamedTuple):
    """A gate, and when it was last tried again or had the last of what it needs."""

    id: str
    graph: str
    node: str
    state: RunState
    created_at: int
    deadline: int | None
    plan: str
    retried_at: int | None
    released_at: int | None


class Views(Part):
    """Reading, which changes nothing."""

    def run(self, id: str) -> RunRow | None:
        rows = self._one("read", "run_info", id=id)
        return RunRow._make(rows[0]) if rows else None

    def more(self, id: str) -> MoreRow | None:
        rows = self._one("read", "run_more", id=id)
        return MoreRow._make((self.plain(rows[0][0]), *rows[0][1:])) if rows else None

    def between(self, low: str, high: str, size: int) -> list[Row]:
        """The first runs whose ids lie between these, both included: id, task, state."""
        return self._one("read", "runs_between", low=low, high=high, size=size)

    def tops_between(self, low: str, high: str) -> list[str]:
        """The first two of them that are nobody's child."""
        return [str(id) for (id,) in self._one("read", "tops_between", low=low, high=high)]

    def end(self, id: str) -> Row | None:
        """State, result and error of a run, for whoever waits for its end."""
        rows = self._one("read", "run_end", id=id)
        return rows[0] if rows else None

    def ends(self, ids: Iterable[str]) -> dict[str, Row]:
        """The same of many, by id; those that don't exist are left out."""
        found: dict[str, Row] = {}
        for some in chunks([{"id": id} for id in ids]):
            found |= {str(row[0]): row[1:] for row in self._one("read", "run_ends", rows=batch(some))}
        return found

    def steps(self, id: str) -> list[StepRow]:
        """What a durable function has recorded, in order, since its last restart."""
        rows = self._one("read", "run_steps", id=id)
        return [StepRow._make((*row[:3], self.plain(row[3]), *row[4:])) for row in rows]

    def waits(self, id: str) -> list[WaitRow]:
        """What a run waits for."""
        return [WaitRow._make(row) for row in self._one("read", "run_waits", id=id)]

    def children(self, id: str, size: int) -> list[RunRow]:
        """The first children of a run."""
        return [RunRow._make(row) for row in self._one("read", "run_children", id=id, size=size)]

    def nodes(self, graph: str) -> list[RunRow]:
        """The nodes of a graph, in the order in which they were added."""
        found: list[RunRow] = []
        while True:
            after = found[-1].node if found else ""
            page = [RunRow._make(row) for row in self._one("read", "graph_nodes", graph=graph, after=after)]
            found += page
            if len(page) < NODES_PAGE:
                return sorted(found, key=lambda node: node.seq)

    def edges(self, graph: str) -> list[tuple[str, str]]:
        """Which nodes of a graph need which, by id: the one that is needed comes first."""
        return [(str(needs), str(node)) for needs, node in self._one("read", "graph_edges", graph=graph)]

    def overview(self, graph: str) -> list[NodeRow]:
        """The nodes of a graph at a glance, in the order in which they were added."""
        found: list[NodeRow] = []
        while True:
            after = found[-1].node if found else ""
            page = [NodeRow._make(row) for row in self._one("read", "graph_overview", graph=graph, after=after)]
            found += page
            if len(page) < NODES_PAGE:
                return sorted(found)

    def nodes_within(self, graph: str) -> dict[str, dict[str, int]]:
        """How many nodes the graphs within a graph have, by their ids and by state."""
        found: dict[str, dict[str, int]] = {}
        for id, state, count in self._one("read", "nodes_within", graph=graph):
            found.setdefault(str(id), {})[state] = count
        return found

    def needs(self, graph: str, node: str) -> list[Row]:
        """The nodes that a node needs: name, state."""
        return self._one("read", "node_needs", graph=graph, id=node)

    def node_id(self, graph: str, name: str) -> str | None:
        """The id of a node of a graph."""
        rows = self._one("read", "named_nodes", graph=graph, rows=batch([{"node": name}]))
        return str(rows[0][1]) if rows else None

    def gates(self, graph: str) -> list[GateRow]:
        """The gates of a graph and of the graphs within it."""
        return [GateRow._make(row) for row in self._one("read", "graph_gates", graph=graph)]

    def open_gates(self, tenant: str | None, size: int) -> list[Row]:
        """Gates that wait for somebody: id, name, graph, the graph's name, tenant, when made, deadline, plan."""
        return self._one("read", "open_gates", tenant=tenant, size=size)

    def pulse(self, id: str) -> list[Row]:
        """What changes about a run while it lives, and about its children: equal when nothing happened meanwhile."""
        return self._one("read", "run_pulse", id=id) + self._one("read", "children_pulse", id=id)

    def chunks(self, id: str, after: int) -> list[Row]:
        """What a run wrote for its followers: n, attempt, data; at most a page."""
        rows = self._one("read", "run_chunks", id=id, after=after)
        return [(n, attempt, self.plain(data)) for n, attempt, data in rows]

    def history(self, id: str) -> list[Row]:
        """The kept records of a run: n, at, kind, attempt, session, since, data."""
        return self._one("read", "run_history", id=id)

    def open_runs(self, task: str | None, size: int, after: str | None) -> list[OpenRow]:
        """Unfinished runs that were claimed at least once, the oldest first; at most a page."""
        rows = self._one("read", "open_runs", task=task, size=size, after=after)
        return [OpenRow(str(id), task, past) for id, task, past in rows]

    def open_claims(self, runs: Iterable[str]) -> dict[str, OpenClaim]:
        """Those of these runs that are unfinished, as a worker would get them; without their deadlines."""
        rows = self._one("read", "open_claims", rows=batch({"id": run} for run in runs))
        return {str(row[2]): OpenClaim(row[0], row[1], self._claim(row[2:])) for row in rows}

    def _claim(self, row: Row) -> Claim:
        claim = Claim(*row)
        parent = None if claim.parent is None else str(claim.parent)
        return replace(claim, id=str(claim.id), parent=parent, args=self.plain(claim.args) or "")

    def plain(self, text: str | None) -> str | None:
        """A stored payload as JSON."""
        return None if text is None else self._ground.payloads.unpack(text)
