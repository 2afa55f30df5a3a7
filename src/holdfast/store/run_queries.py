"""Read runs and what belongs to them: history, steps, waits, children, nodes, chunks. Changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from holdfast.database import Row
from holdfast.model.failure import error_from_json, error_to_json
from holdfast.model.payloads import PayloadContext
from holdfast.model.run import GRAPH_QUEUE, Chunk, RunState, StreamReset
from holdfast.store.module import StoreModule, id_rows, in_chunks, json_rows
from holdfast.store.rows import Claim
from holdfast.store.typed_rows import RowReader, as_text

NODES_PAGE_ROWS = 1000
NODE_NAMES_PAGE_ROWS = 5000
MAX_NODE_ERROR_BYTES = 4 * 1024 * 1024
"""How much of the errors of a graph's nodes is read in full."""
MAX_SHORT_MESSAGE_CHARS = 200
MAX_OUTLINE_ROWS = 50_000
"""How many history entries or checkpoints of a run are listed for operators: the last ones."""


MAX_CHUNKS_BYTES = 1024 * 1024
"""A page of chunks ends with the first chunk beyond, counted as stored."""


class RunPosition(NamedTuple):
    """How far a run is. Each number only grows, except `records`, which begins again with each `generation`."""

    state: str
    generation: int
    records: int
    fence: int


class StreamEnd(NamedTuple):
    """How far the stream of a run has come: its last chunk, 0 for none. `values` grows when the run sets a value."""

    state: RunState
    last: int
    values: int


class RunRow(NamedTuple):
    """A row of the view `shown_runs`, which shows states as users know them, and its arguments if they are short.

    `args`: only their start, or None, if they are longer; `args_bytes` is their full size. `metadata`: the members of a
    JSON object, without its braces.
    """

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
    map_index: int | None
    options: str | None
    seq: int
    args: str | None
    args_bytes: int
    metadata: str | None
    corrupt: tuple[str, ...] = ()
    """Columns whose stored values have another type than the column, and were replaced."""

    @property
    def has_all_args(self) -> bool:
        """Whether `args` are complete."""
        return self.args is not None and len(self.args.encode()) == self.args_bytes

    @property
    def is_running(self) -> bool:
        """Whether an attempt is running, including one that undoes."""
        return self.state == "running" or (self.undoing == 1 and self.session is not None)


class StepRow(NamedTuple):
    """A checkpoint. `took`: microseconds. `generation`: negative if it is superseded. `value_bytes`: the stored size of
    the value, if it was listed without it."""

    n: int
    key: str
    kind: str
    value: str | None
    undo: int
    took: int | None
    at: int
    generation: int
    value_bytes: int | None = None


class HistoryOutlineRow(NamedTuple):
    """An entry of a run's history, without its data."""

    n: int
    at: int
    kind: str
    attempt: int
    session: str | None
    since: int | None
    data_bytes: int | None


class HistoryRow(NamedTuple):
    """An entry of a run's history. `since`: the start of the attempt that it ends."""

    n: int
    at: int
    kind: str
    attempt: int
    session: str | None
    since: int | None
    data: str | None


class WaitRow(NamedTuple):
    """A wait of a run, unresolved or just resolved."""

    key: str
    kind: str
    target: str | None
    pending: int | None
    due_at: int | None
    since: int
    outcome: str | None


class UnfinishedRow(NamedTuple):
    """An unfinished run that was claimed at least once. `has_history`: it has checkpoints or waits."""

    id: str
    task: str
    has_history: int


class UnfinishedClaim(NamedTuple):
    """An unfinished run as a worker would claim it."""

    task: str
    state: str
    claim: Claim


class RunDetailRow(NamedTuple):
    """What operators see of a run in addition to `RunRow`.

    `args` and `result`, as stored: None if they are too large; `args_bytes` and `result_bytes` are their sizes.
    """

    args: str | None
    args_bytes: int
    result: str | None
    result_bytes: int | None
    options: str | None
    unique_name: str | None
    deadline: int | None
    expires_at: int | None
    ending: str | None
    generation: int
    parked_on: str | None
    failed_undo: str | None
    """How a run ends once its compensations have run, if one of them failed."""
    debounce: str | None
    start_by: int | None
    paused_at: int | None
    limits: str | None
    corrupt: tuple[str, ...] = ()


class NodeRow(NamedTuple):
    """A node in the overview of a graph."""

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
    """A gate. `opened_at`: when it opened, if it is open.

    `decision`, `decided_at` and `decision_data`: the history entry of its last decision, which a retry may have reset.
    """

    id: str
    graph: str
    node: str
    state: RunState
    opened_at: int
    deadline: int | None
    plan: str
    decision: str | None
    decided_at: int | None
    decision_data: str | None


class GraphOutputRow(NamedTuple):
    """A finished node of a graph. `result_bytes`: the stored size of its result."""

    name: str
    id: str
    kind: str | None
    options: str | None
    tenant: str | None
    result_bytes: int | None


class DependencyRow(NamedTuple):
    """A node that another one depends on. `args_bytes`, `result_bytes`: stored sizes."""

    id: str
    node: str
    kind: str | None
    task: str
    state: RunState
    args_bytes: int
    result_bytes: int | None
    error: str | None
    options: str | None
    tenant: str | None


class OpenGateRow(NamedTuple):
    """A gate that waits for a decision. `task`: the name of its graph.

    `args`: its stored arguments, of which `args_bytes` is the size, or their start if they are long.
    """

    id: str
    node: str
    graph: str
    task: str
    tenant: str | None
    created_at: int
    deadline: int | None
    plan: str
    opened_at: int
    records: int
    args: str | None
    args_bytes: int
    now: int


N = TypeVar("N", RunRow, NodeRow)

RUN_ROWS = RowReader(RunRow)
_DETAIL_ROWS = RowReader(RunDetailRow)
_HISTORY_ROWS = RowReader(HistoryRow)
_OUTLINE_ROWS = RowReader(HistoryOutlineRow)
_STEP_ROWS = RowReader(StepRow)
_WAIT_ROWS = RowReader(WaitRow)
_NODE_ROWS = RowReader(NodeRow)
_GATE_ROWS = RowReader(GateRow)
_OPEN_GATE_ROWS = RowReader(OpenGateRow)


PayloadStatement: TypeAlias = Literal["read_arguments", "read_results"]


class _BoundedErrors:
    """Shortens the errors of nodes once all of them together are long."""

    def __init__(self) -> None:
        self._left = MAX_NODE_ERROR_BYTES

    def __call__(self, row: NodeRow) -> NodeRow:
        if row.error is None or self._left > 0:
            self._left -= len(row.error or "")
            return row
        error = error_from_json(row.error)
        short = dataclasses.replace(error, message=error.message[:MAX_SHORT_MESSAGE_CHARS], traceback=None, data=None)
        return row._replace(error=error_to_json(short))


class RunQueries(StoreModule):
    """Queries for runs by id."""

    def run(self, id: str, *, with_result: bool = False) -> RunRow | None:
        """Return a run, without its result unless it is wanted."""
        rows = self._execute("read", "read_run_with_result" if with_result else "read_run", id=id)
        if rows:
            return RUN_ROWS.read(rows[0])
        rows = self._execute("read", "read_run_without_lane", id=id)
        if not rows:
            return None
        *row, has_name = rows[0]
        found = RUN_ROWS.read(row)
        return found if has_name else found._replace(corrupt=("lane",))

    def details(self, id: str, max_bytes: int = 0) -> RunDetailRow | None:
        """Return what operators see of a run in addition; arguments and result if they have at most `max_bytes`."""
        rows = self._execute("read", "read_run_details", id=id, bytes=max_bytes)
        return _DETAIL_ROWS.read(rows[0]) if rows else None

    def unique_holder(self, unique_name: str) -> str | None:
        """Return the unfinished run that has a stored unique name."""
        rows = self._execute("read", "find_unique_holders", rows=json_rows([{"unique_name": unique_name}]))
        return str(rows[0][0]) if rows else None

    def arguments(self, id: str) -> str:
        """Return the arguments of a run as JSON text, however large they are."""
        return self.payloads_of("read_arguments", [id]).get(id) or "null"

    def payloads_of(self, statement: PayloadStatement, runs: Iterable[str]) -> dict[str, str | None]:
        """Return stored payloads of runs."""
        return {str(id): text for id, text in self._execute("read", statement, rows=id_rows(runs))}

    def find_in_range(self, low: str, high: str, size: int) -> list[Row]:
        """Return id, task and state of the first runs whose ids are between these, both included."""
        return self._execute("read", "find_runs_in_id_range", low=low, high=high, size=size)

    def find_roots_in_range(self, low: str, high: str) -> list[str]:
        """Return the ids of the first two such runs without a parent."""
        return [str(id) for (id,) in self._execute("read", "find_roots_in_id_range", low=low, high=high)]

    def history(self, id: str) -> list[HistoryRow]:
        """Return the history rows of a run."""
        return _HISTORY_ROWS.read_all(self._execute("read", "list_history", id=id))

    def history_outline(self, id: str) -> list[HistoryOutlineRow]:
        """Return the last history rows of a run without their data, in order."""
        rows = self._execute("read", "list_history_outline", id=id, limit=MAX_OUTLINE_ROWS)
        return _OUTLINE_ROWS.read_all(reversed(rows))

    def history_data(self, id: str, numbers: Iterable[int]) -> dict[int, str | None]:
        """Return the data of history rows of a run."""
        rows = json_rows({"n": n} for n in numbers)
        return {int(n): data for n, data in self._execute("read", "read_history_data", id=id, rows=rows)}

    def failed_tries(self, id: str, since: int, limit: int) -> list[HistoryRow]:
        """Return the history rows about failed tries of steps since then, the last first."""
        return _HISTORY_ROWS.read_all(self._execute("read", "list_failed_tries", id=id, since=since, limit=limit))

    def step_keys(self, id: str, since: int) -> list[str]:
        """Return the keys of the checkpoints that were recorded since then."""
        return [key for (key,) in self._execute("read", "list_step_keys", id=id, since=since)]

    def steps(self, id: str) -> list[StepRow]:
        """Return the checkpoints of a run since its last restart, in order, with values as they are stored."""
        return _STEP_ROWS.read_all(self._execute("read", "list_steps", id=id))

    def step_outline(self, id: str) -> list[StepRow]:
        """Return the last ones of them without values and, in order of time, checkpoints that are superseded: their
        operations run again."""
        rows = self._execute("read", "list_step_outline", id=id, limit=MAX_OUTLINE_ROWS)
        steps = _STEP_ROWS.read_all(reversed(rows))
        return sorted(steps, key=attrgetter("at", "n")) if any(step.generation < 0 for step in steps) else steps

    def step_values(self, id: str, steps: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str | None]:
        """Return the stored values of checkpoints of a run, by number and generation."""
        rows = json_rows({"n": n, "generation": generation} for n, generation in steps)
        found = self._execute("read", "read_step_values", id=id, rows=rows)
        return {(int(n), int(generation)): as_text(value) for n, generation, value in found}

    def waits(self, id: str) -> list[WaitRow]:
        """Return what a run waits for."""
        return _WAIT_ROWS.read_all(self._execute("read", "list_waits", id=id))

    def children(self, id: str, size: int) -> list[RunRow]:
        """Return the first children of a run."""
        return RUN_ROWS.read_all(self._execute("read", "list_children", id=id, size=size))

    def unfinished_children(self, id: str, spawn_key: str, size: int) -> list[Row]:
        """Return id, task, state and tenant of the first unfinished children of one call, active ones first."""
        return self._execute("read", "list_unfinished_children", id=id, spawn_key=spawn_key, size=size)

    def failed_children(self, id: str) -> list[tuple[str, str]]:
        """Return the first children of a run that failed or were cancelled: id and spawn key."""
        return [(str(child), key) for child, key in self._execute("read", "list_failed_children", id=id)]

    def chunks(self, id: str, tenant: str | None, after: int, max_bytes: int = MAX_CHUNKS_BYTES) -> list[Chunk]:
        """Return a page of what a run wrote for its followers; the data is JSON text."""
        rows = self._execute("read", "list_chunks", id=id, after=after, bytes=max_bytes)
        context, unpack = PayloadContext("chunk", tenant, id), self._context.payloads.unpack
        return [
            Chunk(
                n,
                attempt,
                unpack(data, context),
                step,
                step_try or 1,
                None if resets is None else StreamReset(kept, n, None if resets == "run" else step, resets == "run"),
            )
            for n, attempt, data, step, step_try, resets, kept in rows
        ]

    def stream_ends(self, ids: Iterable[str]) -> dict[str, StreamEnd]:
        """Return how far the streams of runs have come, by id."""
        found: dict[str, StreamEnd] = {}
        for chunk in in_chunks(list(ids)):
            rows = self._execute("read", "read_stream_ends", rows=id_rows(chunk))
            found |= {str(id): StreamEnd(state, last or 0, values or 0) for id, state, last, values in rows}
        return found

    def tenants(self, limit: int) -> list[str]:
        """Return the first tenants that have a finished run, by name."""
        return [str(tenant) for (tenant,) in self._execute("read", "list_tenants", size=limit)]

    def set_aside_messages(self, id: str) -> list[Row]:
        """Return the messages of a run that were set aside: n, topic, stored size of the payload, sent_at."""
        return self._execute("read", "list_set_aside", id=id)

    def message_payloads(self, id: str, numbers: Iterable[int]) -> dict[int, str]:
        """Return the stored payloads of messages of a run."""
        rows = json_rows({"n": n} for n in numbers)
        return {int(n): str(text) for n, text in self._execute("read", "read_message_payloads", id=id, rows=rows)}

    def change_marker(self, id: str) -> list[Row]:
        """Return values that differ whenever something about a run or its children has changed."""
        return self._execute("read", "read_change_marker", id=id) + self._execute(
            "read", "count_children_by_state", id=id
        )

    # Graphs

    def nodes(self, graph: str) -> list[RunRow]:
        """Return the nodes of a graph, in the order in which they were added."""
        return sorted(self._node_pages("list_nodes", graph, RUN_ROWS), key=lambda node: node.seq)

    def node_overview(self, graph: str) -> list[NodeRow]:
        """Return the nodes of a graph without results, in the order in which they were added.

        If very many nodes failed, the errors of later ones have no traceback and a short message.
        """
        return sorted(self._node_pages("list_node_overview", graph, _NODE_ROWS, _BoundedErrors()))

    def node_names(self, graph: str) -> list[tuple[int, str, str]]:
        """Return seq, id and name of the nodes of a graph, in the order in which they were added."""
        found: list[tuple[int, str, str]] = []
        while True:
            page = self._execute("read", "list_node_names", graph=graph, after=found[-1][2] if found else "")
            found += [(seq, str(id), node) for seq, id, node in page]
            if len(page) < NODE_NAMES_PAGE_ROWS:
                return sorted(found)

    def unfinished_nodes(self, graph: str) -> set[str]:
        """Return the names of the unfinished nodes of a graph."""
        found: set[str] = set()
        after = ""
        while True:
            page = self._execute("read", "list_unfinished_node_names", graph=graph, after=after)
            found.update(row[0] for row in page)
            if len(page) < NODE_NAMES_PAGE_ROWS:
                return found
            after = page[-1][0]

    def some_nodes(self, ids: Iterable[str]) -> list[NodeRow]:
        """Return nodes by id, as `node_overview` does."""
        rows = self._execute("read", "read_node_overview", rows=id_rows(ids))
        return sorted(map(_BoundedErrors(), _NODE_ROWS.read_all(rows)))

    def count_nodes(self, graph: str) -> dict[str, int]:
        """Return the number of nodes of a graph by state."""
        return {state: int(count) for state, count in self._execute("read", "count_nodes", graph=graph)}

    def nodes_in_state(self, graph: str, state: str, start: int, size: int) -> list[str]:
        """Return the ids of some nodes in one state, in the order in which they were added."""
        rows = self._execute("read", "list_node_ids_in_state", graph=graph, state=state, start=start, size=size)
        return [str(id) for (id,) in rows]

    def _node_pages(
        self, statement: str, graph: str, reader: RowReader[N], convert: Callable[[N], N] | None = None
    ) -> list[N]:
        found: list[N] = []
        while True:
            after = found[-1].node if found else ""
            page = reader.read_all(self._execute("read", statement, graph=graph, after=after))
            found += page if convert is None else map(convert, page)
            if len(page) < NODES_PAGE_ROWS:
                return found

    def states_of(self, runs: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return task and state of runs by id, without those that were pruned."""
        rows = self._execute("read", "read_run_states", rows=id_rows(runs)) if runs else []
        return {str(id): (task, state) for id, task, state in rows}

    def positions(self, runs: Sequence[str]) -> dict[str, RunPosition]:
        """Return how far runs are by id, without those that don't exist."""
        rows = self._execute("read", "read_run_positions", rows=id_rows(runs)) if runs else []
        return {str(id): RunPosition(*position) for id, *position in rows}

    def edges(self, graph: str) -> list[tuple[str, str]]:
        """Return the edges of a graph by id: the node that is needed, and the node that needs it."""
        return [(str(needs), str(node)) for needs, node in self._execute("read", "list_edges", graph=graph)]

    def count_nested_nodes(self, graph: str) -> dict[str, dict[str, int]]:
        """Count the nodes of graphs nested in a graph, by graph id and by state."""
        found: dict[str, dict[str, int]] = {}
        for id, state, count in self._execute("read", "count_nested_nodes", graph=graph):
            found.setdefault(str(id), {})[state] = count
        return found

    def dependencies(self, graph: str, node: str) -> list[Row]:
        """Return name and state of the nodes that a node depends on."""
        return self._execute("read", "list_dependencies", graph=graph, id=node)

    def dependency_outcomes(self, graph: str, node: str, size: int) -> list[DependencyRow]:
        """Return the first nodes that a node depends on, with their errors and the sizes of their payloads."""
        rows = self._execute("read", "list_dependency_outcomes", graph=graph, id=node, size=size)
        return [DependencyRow._make(row) for row in rows]

    def dependents(self, node: str, size: int) -> list[Row]:
        """Return id, name, kind, task and state of the first nodes that depend on a node."""
        return self._execute("read", "list_dependents", id=node, size=size)

    def node_id(self, graph: str, name: str) -> str | None:
        """Return the id of a node by name."""
        rows = self._execute("read", "find_nodes", graph=graph, rows=json_rows([{"node": name}]))
        return str(rows[0][1]) if rows else None

    def gates(self, graph: str) -> list[GateRow]:
        """Return the gates of a graph and of the graphs nested in it."""
        return _GATE_ROWS.read_all(self._execute("read", "list_gates", graph=graph))

    def open_gates(self, tenant: str | None, size: int) -> list[OpenGateRow]:
        """Return open gates, the oldest first."""
        return _OPEN_GATE_ROWS.read_all(self._execute("read", "list_open_gates", tenant=tenant, size=size))

    # Unfinished runs, for `holdfast check`

    def unfinished_runs(self, task: str | None, size: int, after: str | None) -> list[UnfinishedRow]:
        """Return a page of unfinished runs that were claimed at least once, the oldest first."""
        rows = self._execute("read", "list_unfinished_runs", task=task, size=size, after=after)
        return [UnfinishedRow(str(id), task, has_history) for id, task, has_history in rows]

    def count_unfinished(self) -> dict[str, int]:
        """Return the number of unfinished runs by task."""
        rows = self._execute("read", "count_unfinished_by_task", graphs=GRAPH_QUEUE)
        return {task: int(runs) for task, runs in rows}

    def unfinished_claims(self, runs: Iterable[str]) -> dict[str, UnfinishedClaim]:
        """Return those of these runs that are unfinished, as a worker would claim them, without deadlines."""
        rows = self._execute("read", "read_unfinished_claims", rows=id_rows(runs))
        return {str(row[2]): UnfinishedClaim(row[0], row[1], self._claim(row[2:])) for row in rows}

    def _claim(self, row: Row) -> Claim:
        claim = Claim(*row)
        parent = None if claim.parent is None else str(claim.parent)
        args = self._context.payloads.unpack(claim.args, PayloadContext("args", claim.tenant, str(claim.id)))
        return replace(claim, id=str(claim.id), parent=parent, args=args)
