"""The audit log: what operators did. An entry is written before an action and completed after it."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.module import MAX_BATCH_ROWS, StoreModule
from holdfast.store.typed_rows import RowReader

MAX_SCANNED = 10_000
"""How many entries a page looks at."""
_AFTER_ALL = "g"  # greater than any id


class AuditRow(NamedTuple):
    """A stored entry. `detail`: JSON."""

    id: str
    at: int
    actor: str
    action: str
    subject: str | None
    via: str
    client: str | None
    outcome: str | None
    detail: str
    tenant: str | None = None


class AuditFilter(NamedTuple):
    """Which entries to list; None: all. Times are microseconds."""

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    outcome: str | None = None
    tenant: str | None = None
    since: int | None = None
    until: int | None = None


class AuditRows(NamedTuple):
    """A page of entries. `after`: where the next page begins, None at the end."""

    rows: list[AuditRow]
    after: str | None
    partial: bool


_ROWS = RowReader(AuditRow)


class AuditStore(StoreModule):
    """Entries of the audit log."""

    def add(self, row: AuditRow, run: str | None = None) -> None:
        """Store the entry of an action that is about to begin. The database clock sets its time.

        `run`: the run whose tenant it concerns, if the row names none.
        """
        values = row._asdict()
        del values["at"], values["outcome"]
        self._execute("client", "add_audit", **values, run=run)

    def finish(self, id: str, outcome: str, detail: str) -> None:
        """Record what came of an action."""
        self._execute("client", "finish_audit", id=id, outcome=outcome, detail=detail)

    def page(self, filters: AuditFilter, limit: int, after: str | None = None) -> AuditRows:
        """List matching entries, newest first, among at most `MAX_SCANNED`."""
        before = after or _AFTER_ALL
        ((last, scanned),) = self._execute("read", "bound_audit", before=before, limit=MAX_SCANNED)
        if last is None:
            return AuditRows([], None, partial=False)
        found = _ROWS.read_all(
            self._execute("read", "list_audit", before=before, last=last, limit=limit + 1, **filters._asdict())
        )
        if len(found) > limit:
            return AuditRows(found[:limit], found[limit - 1].id, partial=False)
        more = scanned >= MAX_SCANNED
        return AuditRows(found, str(last) if more else None, partial=more)

    def prune(self, age: int) -> bool:
        """Delete a batch of entries that are `age` microseconds old; return whether there may be more."""
        return len(self._execute("housekeeping", "prune_audit", age=age)) >= MAX_BATCH_ROWS
