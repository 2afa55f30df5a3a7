"""Pauses of tasks, tenants and single runs. Claims skip what is paused; what runs already continues.

Pauses of queues and tasks close lanes (the view `paused_lanes`). A run of a paused tenant, or a run that is paused
itself, is excluded by the condition `{claimable(…)}` in every claim. The timer loop takes such runs out of the ready
index (`held`), so that claims don't walk over them, and returns them after the pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.errors import RunFinished, RunNotFound
from holdfast.model.run import FINAL_STATES
from holdfast.store.module import StoreModule, Tx, column, history_row, id_rows, json_rows
from holdfast.store.run_tree import lock_with_parents
from holdfast.store.typed_rows import RowReader

PauseKind: TypeAlias = Literal["task", "tenant"]


class PauseRow(NamedTuple):
    """A paused task or tenant."""

    kind: str
    name: str
    paused_at: int
    paused_by: str | None


_PAUSE_ROWS = RowReader(PauseRow)


class PauseStore(StoreModule):
    """What isn't claimed, by task, tenant and run."""

    def pause(self, kind: PauseKind, names: Iterable[str], by: str) -> list[str]:
        """Stop claims of runs of these tasks or tenants; return the names of those that were not paused before."""
        found = self._execute("client", "pause_names", kind=kind, by=by, rows=_names(names))
        return sorted(row[0] for row in found)

    def resume(self, kind: PauseKind, names: Iterable[str]) -> list[str]:
        """Allow claims again; return the names of those that were paused."""
        found = self._execute("client", "resume_tasks" if kind == "task" else "resume_tenants", rows=_names(names))
        if found and kind == "tenant":
            self.release_resumed()
        return sorted(row[0] for row in found)

    def list_all(self) -> list[PauseRow]:
        """Return all paused tasks and tenants."""
        return _PAUSE_ROWS.read_all(self._execute("read", "list_pauses"))

    def pause_run(self, id: str, by: str | None) -> bool:
        """Pause an unfinished run with its unfinished descendants; False if it was paused."""
        return self._transaction("client", lambda tx: _change_run(tx, id, by, "paused", "pause_runs"))

    def resume_run(self, id: str, by: str | None) -> bool:
        """Resume a paused run with its descendants, which may outlive it; False if it was not paused."""
        return self._transaction("client", lambda tx: _change_run(tx, id, by, "unpaused", "resume_runs"))

    # For the timer loop

    def hold_ready(self) -> int:
        """Take a batch of paused runs out of the ready index; return how many."""
        found = column(self._execute("housekeeping", "find_ready_paused"))
        if any(row.kind == "tenant" for row in self.list_all()):
            gaps = json_rows([{"above": -1, "below": 2**62}])
            for (lane,) in self._execute("housekeeping", "list_ready_lanes", gaps=gaps):
                found += column(self._execute("housekeeping", "find_ready_of_paused_tenants", lane=lane))
        return len(self._execute("housekeeping", "hold_paused_runs", rows=id_rows(map(str, found)))) if found else 0

    def release_resumed(self) -> int:
        """Release a batch of runs of each tenant that was resumed; return how many."""
        released = 0
        for (name,) in self._execute("housekeeping", "list_resuming_tenants"):
            held = f"tenant:{name}"
            released += len(self._execute("housekeeping", "release_tenant_runs", held=held))
            self._execute("housekeeping", "check_parked_of_tenant", name=name)
            self._execute("housekeeping", "finish_resume", name=name, held=held)
        return released


def _change_run(tx: Tx, id: str, by: str | None, kind: str, statement: str) -> bool:
    """Pause or resume a run and its unfinished descendants, parents before their children."""
    run = lock_with_parents(tx, [id]).get(id)
    if run is None:
        raise RunNotFound.of(id)
    if run.state in FINAL_STATES and kind == "paused":
        raise RunFinished(f"run {id} is {run.state}: only unfinished runs can be paused")
    data = None if by is None else msgspec.json.encode({"by": by}).decode()
    level, changed = [id], False
    while level:
        rows = tx.execute(statement, rows=id_rows(level))
        changed = changed or (level == [id] and bool(rows))
        history = [history_row(str(row[0]), row[1], kind, row[2], data=data) for row in rows]
        if history:
            tx.execute("add_history", rows=json_rows(history))
        level = [str(row[0]) for row in tx.execute("lock_unfinished_children", rows=id_rows(level))]
    return changed


def _names(names: Iterable[str]) -> str:
    return json_rows({"name": name} for name in sorted(set(names)))
