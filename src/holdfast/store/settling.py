"""What follows from the end of runs, in the same transaction: parents are told, nodes released, children ended.

The transaction is the caller's, which has locked the runs and those above them (`family.above`).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.family import Ended, cancel_children, tell_parents
from holdfast.store.graph_rows import add_rows
from holdfast.store.part import Do
from holdfast.store.releasing import Released, Start, release
from holdfast.store.retrying import reopen


def settle(do: Do, ends: Sequence[Ended], released: Released | None = None) -> list[str]:
    """Runs have ended, or begun to undo; or nodes were released: see to all that follows. The ids of graphs that failed
    by it."""
    pending = list(ends)
    starting: list[Start] = []
    failed: list[str] = []
    if released is not None:
        pending += released.ended
        starting += released.starting
    while pending or starting:
        final = [end for end in pending if end.final]
        tell_parents(do, final)
        following = release(do, [end for end in final if end.node is not None])
        begun = [_begin(do, start) for start in starting]
        badly = [end.id for end in pending if not end.good]
        pending = [end for each in (following, *begun) for end in each.ended]
        failed += [end.id for end in pending if end.state == "failed"]
        pending += cancel_children(do, badly)
        starting = [start for each in (following, *begun) for start in each.starting]
    return failed


def _begin(do: Do, start: Start) -> Released:
    """A graph within a graph begins: its nodes are made; or, where they were made before, tried again."""
    if do("has_nodes", graph=start.id):
        return reopen(do, start.id)
    add_rows(do, start.rows)
    return Released([], [])
