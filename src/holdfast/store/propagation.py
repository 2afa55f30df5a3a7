"""Propagate ends and retries through a run's tree, in the same transaction.

When runs end, their parents are notified, dependent nodes are released, and children of failed runs are cancelled. When
runs are retried, the children and nodes that failed with them are retried too. Every function runs inside the
transaction of its caller, which has locked the runs and the ancestors that they affect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.database import Row
from holdfast.store.graph_progress import (
    GraphStart,
    ReleaseResult,
    decide_ready_nodes,
    insert_nodes,
    release_dependents,
)
from holdfast.store.hooks import enqueue_hooks
from holdfast.store.module import Tx, history_row, id_rows, in_chunks, json_rows
from holdfast.store.rewind import rewind_runs, take_back
from holdfast.store.run_tree import (
    EndedRun,
    cancel_children,
    format_spawn_key,
    lock_runs,
    notify_parents,
    parse_spawn_key,
)


def propagate_ends(
    tx: Tx,
    ends: Sequence[EndedRun],
    released: ReleaseResult | None = None,
    running: Collection[str] = (),
    unfinished: Collection[str] = (),
) -> list[EndedRun]:
    """Carry out all that follows from ended runs, or from released nodes; return the other runs that end with them.

    `running`: parents of ended runs that are locked and running. `unfinished`: locked graphs that wait for nodes.
    """
    pending = list(ends)
    starting: list[GraphStart] = []
    following_ends: list[EndedRun] = []
    if released is not None:
        pending += released.ended
        starting += released.starting
    while pending or starting:
        final = [end for end in pending if end.is_final]
        notify_parents(tx, final, running)
        following = release_dependents(tx, [end for end in final if end.node is not None], unfinished)
        started = [_start_graph(tx, start) for start in starting]
        unsuccessful = [end.id for end in pending if not end.is_success]
        pending = [end for each in (following, *started) for end in each.ended]
        pending += cancel_children(tx, unsuccessful)
        following_ends += pending
        unfinished = ()  # some of them may have ended with their nodes
        starting = [start for each in (following, *started) for start in each.starting]
    enqueue_hooks(tx, _with_options(tx, [*ends, *(released.ended if released is not None else ()), *following_ends]))
    return following_ends


def _with_options(tx: Tx, ends: Iterable[EndedRun]) -> list[EndedRun]:
    """Return those of the ends that may have hooks. The options of nodes that failed unstarted weren't read before."""
    known = [end for end in ends if end.is_final]
    unread = {end.id: end for end in known if end.unstarted and end.state == "failed" and end.node is not None}
    if unread:
        rows = tx.execute("read_options_of_ended", rows=id_rows(sorted(unread)))
        known += [unread[str(id)]._replace(options=options) for id, options in rows]
    return known


def failed_runs(ends: Iterable[EndedRun]) -> list[str]:
    """Return the ids of those that failed."""
    return [end.id for end in ends if end.state == "failed"]


def _start_graph(tx: Tx, start: GraphStart) -> ReleaseResult:
    """Start a nested graph: create its nodes, or retry them if they exist."""
    if tx.execute("has_nodes", graph=start.id):
        return reopen_graph(tx, start.id)
    insert_nodes(tx, start.rows)
    return ReleaseResult([], [])


class RetriedRun(NamedTuple):
    """A run that is ready again, or continues to undo."""

    id: str
    records: int
    ending: str | None
    generation: int
    parent: str | None
    spawn_key: str | None
    map_index: int | None
    kind: str | None


def retry_runs(tx: Tx, runs: Iterable[str], by: str | None = None) -> ReleaseResult | None:
    """Retry locked runs and the failed children below them, for the operator `by`.

    Return what followed for graphs among them, or None if no run could be retried.
    """
    retried = _reset_runs(tx, runs, by)
    if not retried:
        return None
    released = [reopen_graph(tx, run.id, by) for run in retried if run.kind == "graph"]
    return _merge(released + _retry_children(tx, retried, by))


def restart_run(tx: Tx, run: str, args: str, by: str | None = None, limits: str | None = None) -> ReleaseResult | None:
    """Retry a locked run with other arguments, as they are stored: it starts over in a new generation.

    What it recorded is superseded, its children stay as they ended, and messages that it received are received again.
    `limits`: the permits that it needs from now on, None for the same. Return None if it couldn't be retried.
    """
    retried = _retried_runs(tx.execute("retry_runs", rows=id_rows([run])))
    if not retried:
        return None
    ((generation,),) = tx.execute("replace_arguments", id=run, args=args, limits=limits)
    take_back(tx, {run: (generation - 1, 0)})
    data: dict[str, Any] = {"changed": ["args"], "starts_over": True} | ({} if by is None else {"by": by})
    entry = history_row(run, retried[0].records, "retried", 0, data=msgspec.json.encode(data).decode())
    tx.execute("add_history", rows=json_rows([entry]))
    _retry_waits(tx, retried)
    return ReleaseResult([], [])


def reopen_graph(tx: Tx, graph: str, by: str | None = None) -> ReleaseResult:
    """Retry a locked graph: block the nodes that run again, and decide those that can start.

    These are the nodes that failed or were cancelled, and all that depend on them: those were skipped, or saw another
    outcome than they will see now. A dependent node that is done starts over.
    """
    below = _block_nodes(tx, [str(id) for (id,) in tx.execute("find_nodes_to_retry", graph=graph)], by)
    tx.execute("recount_nodes", graph=graph)
    ((pending,),) = tx.execute("reopen_graph", graph=graph)
    return _merge([decide_ready_nodes(tx, graph, pending), *below])


def _block_nodes(tx: Tx, nodes: Sequence[str], by: str | None) -> list[ReleaseResult]:
    """Block nodes until they are decided again; of a nested graph that is done, all nodes too."""
    below: list[ReleaseResult] = []
    for chunk in in_chunks(nodes):
        done = [run.id for run in lock_runs(tx, chunk).values() if run.state == "done"]
        restarted = _restart_nodes(tx, done, by) if done else []
        below += _retry_children(tx, _reset_runs(tx, chunk, by), by)
        tx.execute("block_nodes", rows=id_rows(chunk))
        graphs = [run.id for run in restarted if run.kind == "graph"]
        if graphs:
            nested = [str(id) for (id,) in tx.execute("find_nodes_of_graphs", rows=id_rows(graphs))]
            below += _block_nodes(tx, nested, by)
    return below


def _restart_nodes(tx: Tx, nodes: Sequence[str], by: str | None) -> list[RetriedRun]:
    """Let done nodes start over. What they recorded stays visible, but doesn't count any more."""
    restarted = _retried_runs(tx.execute("restart_nodes", rows=id_rows(nodes)))
    tx.execute("forget_unread_asks", rows=id_rows(run.id for run in restarted))
    take_back(tx, {run.id: (run.generation - 1, 0) for run in restarted})
    data = {"starts_over": True} | ({} if by is None else {"by": by})
    entries = [
        history_row(run.id, run.records, "retried", 0, data=msgspec.json.encode(data).decode()) for run in restarted
    ]
    tx.execute("add_history", rows=json_rows(entries))
    return restarted


def _merge(released: Sequence[ReleaseResult]) -> ReleaseResult:
    return ReleaseResult(
        [end for each in released for end in each.ended], [start for each in released for start in each.starting]
    )


def _reset_runs(tx: Tx, runs: Iterable[str], by: str | None) -> list[RetriedRun]:
    """Return failed runs to ready with new budgets; those whose compensations ran also go back (`rewind.py`)."""
    retried = _retried_runs(tx.execute("retry_runs", rows=id_rows(runs)))
    tx.execute("forget_unread_asks", rows=id_rows(run.id for run in retried))
    rewound = rewind_runs(tx, [run.id for run in retried if run.ending is None])  # the others continue to undo
    tx.execute("add_history", rows=json_rows(_retried_row(run, by, rewound.get(run.id)) for run in retried))
    return retried


def _retried_runs(rows: Sequence[Row]) -> list[RetriedRun]:
    return [
        RetriedRun(str(id), records, ending, generation, None if parent is None else str(parent), *rest)
        for id, records, ending, generation, parent, *rest, _ in rows
    ]


def _retried_row(run: RetriedRun, by: str | None, from_step: str | None) -> dict[str, Any]:
    data = {name: value for name, value in (("by", by), ("from_step", from_step)) if value is not None}
    return history_row(run.id, run.records, "retried", 0, data=msgspec.json.encode(data).decode() if data else None)


def _retry_children(tx: Tx, retried: Sequence[RetriedRun], by: str | None) -> list[ReleaseResult]:
    """Retry the failed children of retried runs."""
    _retry_waits(tx, retried)
    failed = _find_failed_children(tx, [run for run in retried if run.kind is None and run.ending is None])
    released = [retry_runs(tx, chunk, by) for chunk in in_chunks(failed)]
    return [each for each in released if each is not None]


def _retry_waits(tx: Tx, retried: Sequence[RetriedRun]) -> None:
    """Let the parents of retried children wait for them again, within the concurrency of their maps."""
    children = [run for run in retried if run.spawn_key is not None]
    if children:
        _reopen_waits(tx, children)
        _apply_map_concurrency(tx, [run for run in children if run.map_index is not None])


def _find_failed_children(tx: Tx, parents: Sequence[RetriedRun]) -> list[str]:
    """Return children that failed or were cancelled since the last restart and that their parent hasn't joined."""
    if not parents:
        return []
    generations = {run.id: run.generation for run in parents}
    rows = id_rows(generations)
    joined = {(str(run), key.rpartition("#")[0]) for run, key in tx.execute("find_joined_calls", rows=rows)}
    found = []
    for id, parent, created_by in tx.execute("lock_failed_children", rows=rows):
        generation, call = parse_spawn_key(created_by)
        if generation == generations[str(parent)] and (str(parent), f"$join:{call}") not in joined:
            found.append(str(id))
    return found


def _reopen_waits(tx: Tx, children: Sequence[RetriedRun]) -> None:
    """Let parents that waited for these children wait for them again."""
    calls = {(str(run.parent), str(run.spawn_key)) for run in children}
    rows = [
        {"parent": parent, "generation": parse_spawn_key(key)[0], "spawn_key": key} for parent, key in sorted(calls)
    ]
    tx.execute("reopen_child_waits", rows=json_rows(rows))


def _apply_map_concurrency(tx: Tx, mapped: Sequence[RetriedRun]) -> None:
    """Block retried children of maps again, except for as many as the map's concurrency allows."""
    if not mapped:
        return
    found = tx.execute("read_map_checkpoints", rows=id_rows({str(run.parent) for run in mapped}))
    limits = {
        (str(run), format_spawn_key(generation, key)): map_concurrency(value) for run, generation, key, value in found
    }
    bounded = [run for run in mapped if limits.get((str(run.parent), str(run.spawn_key))) is not None]
    tx.execute("block_map_children", rows=id_rows(run.id for run in bounded))
    for parent, key in sorted({(str(run.parent), str(run.spawn_key)) for run in bounded}):
        ((active,),) = tx.execute("count_active_children", parent=parent, spawn_key=key)
        free = (limits[parent, key] or 0) - active
        if free > 0:
            tx.execute("release_map_children", parent=parent, spawn_key=key, size=free)


def encode_map_value(count: int, concurrency: int | None) -> str:
    """Encode the checkpoint of a map: how many children it has, and how many of them may be active at once."""
    value = {"children": count} if concurrency is None else {"children": count, "concurrency": concurrency}
    return msgspec.json.encode(value).decode()


def map_concurrency(value: str) -> int | None:
    """Return the concurrency from the checkpoint of a map."""
    concurrency: int | None = msgspec.json.decode(value).get("concurrency")
    return concurrency
