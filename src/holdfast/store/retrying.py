"""How runs are tried again from outside, with the children that ended badly with them.

Everything here runs inside a transaction of its caller's, which has locked the runs and their parents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.store.family import call_of, chunks, ids, spawn_key
from holdfast.store.part import Do, batch, record
from holdfast.store.releasing import Released, decide_waiting


class Retried(NamedTuple):
    """A run that is to be tried again, or goes on undoing."""

    id: str
    records: int
    ending: str | None
    generation: int
    parent: str | None
    spawn_key: str | None
    place: int | None
    kind: str | None


def retry(do: Do, runs: Iterable[str], by: str | None = None) -> Released | None:
    """Retry locked runs, and below them the children that ended badly; None when they weren't, else what followed for
    graphs among them. `by`: who wants it."""
    retried = _reset(do, runs, by)
    if not retried:
        return None
    released = [reopen(do, run.id, by) for run in retried if run.kind == "graph"]
    return _together(released + _retry_children(do, retried, by))


def reopen(do: Do, graph: str, by: str | None = None) -> Released:
    """A locked graph is tried again: its nodes that failed, were cancelled or skipped wait for their turn once more,
    and those whose turn it is are decided."""
    nodes = [str(id) for (id,) in do("nodes_to_retry", graph=graph)]
    retried = [run for some in chunks(nodes) for run in _reset(do, some, by)]
    below = _retry_children(do, retried, by)
    for some in chunks(nodes):
        do("block_nodes", rows=ids(some))
    do("recount_nodes", graph=graph)
    ((pending,),) = do("reopen_graph", graph=graph)
    return _together([decide_waiting(do, graph, pending), *below])


def _together(released: Sequence[Released]) -> Released:
    return Released(
        [end for each in released for end in each.ended], [start for each in released for start in each.starting]
    )


def _reset(do: Do, runs: Iterable[str], by: str | None) -> list[Retried]:
    """Runs that ended badly are as new, but for what they have on record."""
    retried = [
        Retried(str(id), records, ending, generation, None if parent is None else str(parent), spawn_key, place, kind)
        for id, records, ending, generation, parent, spawn_key, place, kind, _ in do("retry_runs", rows=ids(runs))
    ]
    data = None if by is None else msgspec.json.encode({"by": by}).decode()
    do("add_history", rows=batch(record(run.id, run.records, "retried", 0, data=data) for run in retried))
    return retried


def _retry_children(do: Do, retried: Sequence[Retried], by: str | None) -> list[Released]:
    """What retried runs had undone is to be done again, and their children that ended badly are retried with them."""
    children = [run for run in retried if run.spawn_key is not None]
    if children:
        _wait_again(do, children)
        _keep_to_concurrency(do, [run for run in children if run.place is not None])
    anew = [run for run in retried if run.ending is None]  # the others go on undoing
    if anew:
        do("drop_undone", rows=ids(run.id for run in anew))
    tried = [retry(do, some, by) for some in chunks(_children_to_retry(do, [run for run in anew if run.kind is None]))]
    return [released for released in tried if released is not None]


def _children_to_retry(do: Do, parents: Sequence[Retried]) -> list[str]:
    """Children that failed or were cancelled since the last restart, and of whose end their parent has nothing on
    record."""
    if not parents:
        return []
    generations = {run.id: run.generation for run in parents}
    joined = {(str(run), key.rpartition("#")[0]) for run, key in do("joined_keys", rows=ids(generations))}
    found = []
    for id, parent, made_by in do("ended_children", rows=ids(generations)):
        generation, call = call_of(made_by)
        if generation == generations[str(parent)] and (str(parent), f"$join:{call}") not in joined:
            found.append(str(id))
    return found


def _wait_again(do: Do, children: Sequence[Retried]) -> None:
    """Who waited for these children waits for them again."""
    calls = {(str(run.parent), str(run.spawn_key)) for run in children}
    rows = [{"parent": parent, "generation": call_of(key)[0], "spawn_key": key} for parent, key in sorted(calls)]
    do("reopen_waits", rows=batch(rows))


def _keep_to_concurrency(do: Do, mapped: Sequence[Retried]) -> None:
    """Of the children of maps only so many become ready at once as their map says."""
    if not mapped:
        return
    found = do("map_checkpoints", rows=ids({str(run.parent) for run in mapped}))
    limits = {(str(run), spawn_key(generation, key)): limit_of(value) for run, generation, key, value in found}
    held_back = [run for run in mapped if limits.get((str(run.parent), str(run.spawn_key))) is not None]
    do("hold_back", rows=ids(run.id for run in held_back))
    for parent, key in sorted({(str(run.parent), str(run.spawn_key)) for run in held_back}):
        ((at_work,),) = do("children_at_work", parent=parent, spawn_key=key)
        room = (limits[parent, key] or 0) - at_work
        if room > 0:
            do("release_siblings", parent=parent, spawn_key=key, size=room)


def map_value(count: int, concurrency: int | None) -> str:
    """What is on record of a map: how many children, and how many of them are let go at once."""
    kept = {"children": count} if concurrency is None else {"children": count, "concurrency": concurrency}
    return msgspec.json.encode(kept).decode()


def limit_of(value: str) -> int | None:
    limit: int | None = msgspec.json.decode(value).get("concurrency")
    return limit
