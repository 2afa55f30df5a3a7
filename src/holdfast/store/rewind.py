"""Take back what retried runs recorded, so that they run it again.

A run whose compensations ran takes back everything from the first step that was undone on. Everything recorded before
that step is kept: nothing that it depends on was undone. What was recorded from it on may depend on effects that no
longer exist. A node that starts over takes back everything.

The checkpoints are superseded, not deleted. Children that were created in this part belong to superseded calls, and
messages that were received in it are received again.

Every function runs inside the transaction of its caller, which has locked the runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.store.module import Tx, id_rows, json_rows
from holdfast.store.run_tree import format_spawn_key
from holdfast.store.waits import receiver_key


def rewind_runs(tx: Tx, runs: Collection[str]) -> dict[str, str]:
    """Rewind those of the runs whose compensations ran; return the key of the first checkpoint that each takes back.

    The other runs wait anew, with their full timeout, for what they waited for when they ended.
    """
    rows = tx.execute("find_first_undone", rows=id_rows(sorted(runs)))
    first = {str(run): (generation, n) for run, generation, n in rows}
    others = sorted(run for run in runs if run not in first)
    if others:
        tx.execute("delete_timed_waits", rows=id_rows(others))
    return take_back(tx, first)


def take_back(tx: Tx, first: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Supersede the checkpoints of runs from a generation and number on; return the key of the first of each.

    With the number 0, the records that steps were undone are superseded, too.
    """
    if not first:
        return {}
    ids = id_rows(sorted(first))
    if starting_over := sorted(run for run, (_, n) in first.items() if n == 0):
        tx.execute("mark_chunks_of_restarts", rows=id_rows(starting_over))
    tx.execute("return_unread_messages", rows=ids)
    tx.execute("delete_waits", rows=ids)
    rows = json_rows({"run": run, "generation": generation, "n": n} for run, (generation, n) in sorted(first.items()))
    calls, receivers = [], []
    keys: dict[str, tuple[int, str]] = {}
    for id, superseded, n, key, kind in tx.execute("rewind_checkpoints", rows=rows):
        run, generation = str(id), first[str(id)][0]
        keys[run] = min(keys.get(run, (n, key)), (n, key))
        if kind in ("spawn", "map"):
            names = {"spawn_key": format_spawn_key(generation, key), "detached": format_spawn_key(superseded, key)}
            calls.append({"parent": run, **names})
        elif kind == "message":
            receivers.append({"run": run, "taken_by": receiver_key(generation, key)})
    if calls:
        tx.execute("lock_children_of_calls", rows=json_rows(calls))
        tx.execute("detach_children", rows=json_rows(calls))
    if receivers:
        tx.execute("return_messages", rows=json_rows(receivers))
    return {run: key for run, (_, key) in keys.items()}
