"""An in-memory copy of the simulated database, updated at each commit, so that invariants are cheap to check.

SQLite's preupdate hook reports each changed row with its old and new values. A commit applies the changes, a rollback
drops them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apsw

Row = dict[str, Any]

KEYS: dict[str, tuple[str, ...]] = {
    "runs": ("id",),
    "workers": ("session",),
    "checkpoints": ("run", "generation", "n"),
    "waits": ("run", "generation", "key"),
    "events": ("target",),
    "messages": ("run", "n"),
    "history": ("run", "n"),
    "limits": ("place",),
    "limit_settings": ("name",),
    "step_permits": ("run", "key"),
    "budgets": ("name",),
    "budget_totals": ("counter",),
    "edges": ("needs", "node"),
    "slots": ("id",),
    "pauses": ("kind", "name"),
    "metadata": ("run", "name"),
    "run_values": ("run", "name"),
    "publications": ("id",),
    "listeners": ("run", "inbox"),
    "chunks": ("run", "n"),
    "effects": ("run", "name", "n"),
}
"""The replicated tables and their keys."""


@dataclass(slots=True)
class Change:
    """A row before and after a transaction; None if it did not or does not exist."""

    table: str
    key: tuple[Any, ...]
    old: Row | None
    new: Row | None
    ready: Row | None = None
    """The run as this transaction claimed it. The transaction itself may have made it ready, or created it."""

    def parts(self) -> list[Change]:
        """Return what happened to the row before its claim, and the claim; or the change itself."""
        if self.ready is None:
            return [self]
        claim = Change(self.table, self.key, self.ready, self.new, self.ready)
        return [claim] if self.old == self.ready else [Change(self.table, self.key, self.old, self.ready), claim]


class Replica:
    """The rows of the replicated tables by key; `by_run` indexes them by run."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._columns: dict[str, tuple[str, ...]] = {}
        for table in KEYS:
            rows = connection.execute(f"pragma table_info({_full(table)})").fetchall()
            self._columns[_full(table)] = tuple(row[1] for row in rows)
        self._names = {_full(table): table for table in KEYS}
        self.rows: dict[str, dict[tuple[Any, ...], Row]] = {table: {} for table in KEYS}
        self.by_run: dict[str, defaultdict[str, dict[tuple[Any, ...], Row]]] = {
            table: defaultdict(dict) for table in KEYS if "run" in KEYS[table]
        }
        self._pending: list[tuple[str, tuple[Any, ...] | None, tuple[Any, ...] | None]] = []

    def watch(self) -> None:
        self._connection.preupdate_hook(self._changing)

    def unwatch(self) -> None:
        self._connection.preupdate_hook(None)

    def _changing(self, update: Any) -> None:
        if update.table_name in self._names:
            old = None if update.op == "INSERT" else update.old
            new = None if update.op == "DELETE" else update.new
            self._pending.append((update.table_name, old, new))

    def rolled_back(self) -> None:
        self._pending.clear()

    def committed(self) -> list[Change]:
        """Apply the committed changes and return one per row, ordered by first change."""
        if not self._pending:
            return []
        changes: dict[tuple[str, tuple[Any, ...]], Change] = {}
        for full, old, new in self._pending:
            table, columns = self._names[full], self._columns[full]
            before = None if old is None else dict(zip(columns, old, strict=True))
            after = None if new is None else dict(zip(columns, new, strict=True))
            if before is not None and after is not None and _key(table, before) != _key(table, after):
                pairs = [(before, None), (None, after)]  # its key was changed
            else:
                pairs = [(before, after)]
            for was, is_now in pairs:
                key = _key(table, was or is_now or {})
                known = changes.get((table, key))
                if known is None:
                    known = changes[table, key] = Change(table, key, was, is_now)
                else:
                    known.new = is_now
                if table == "runs" and known.ready is None and _is_claim(was, is_now):
                    known.ready = was
        self._pending.clear()
        for change in changes.values():
            self._apply(change)
        return list(changes.values())

    def _apply(self, change: Change) -> None:
        rows = self.rows[change.table]
        indexed = self.by_run.get(change.table)
        if change.new is None:
            rows.pop(change.key, None)
            if indexed is not None:
                indexed[change.key[0]].pop(change.key, None)
        else:
            rows[change.key] = change.new
            if indexed is not None:
                indexed[change.key[0]][change.key] = change.new

    def run(self, id: str) -> Row | None:
        return self.rows["runs"].get((id,))

    def runs(self) -> Iterator[Row]:
        return iter(self.rows["runs"].values())

    def of_run(self, table: str, run: str) -> list[Row]:
        return list(self.by_run[table][run].values())


def _is_claim(old: Row | None, new: Row | None) -> bool:
    return old is not None and new is not None and (old["state"], new["state"]) == ("ready", "running")


def _key(table: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEYS[table])


def _full(table: str) -> str:
    return "author_effects" if table == "effects" else f"holdfast_{table}"
