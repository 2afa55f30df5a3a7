"""Pauses of tasks and tenants: list, pause and resume them. Queues and runs have their own operations."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from holdfast.control.audit import audited
from holdfast.model.clock import to_datetime
from holdfast.model.names import actor_or_user, check_name
from holdfast.store import Store
from holdfast.store.pauses import PauseKind as PauseKind


class PauseInfo(msgspec.Struct, frozen=True):
    """A paused task or tenant."""

    kind: str
    name: str
    paused_at: datetime
    paused_by: str | None


class PauseControl:
    """Stops and allows claims of the runs of tasks and tenants. Running runs continue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self) -> list[PauseInfo]:
        """List paused tasks and tenants."""
        rows = self._store.pauses.list_all()
        return [PauseInfo(row.kind, row.name, to_datetime(row.paused_at), row.paused_by) for row in rows]

    @audited("pause {kind}", "names")
    def pause(self, kind: PauseKind, names: Iterable[str], by: str | None = None) -> set[str]:
        """Pause tasks or tenants, and return those that were not paused before."""
        checked = [check_name(name, f"a {kind}") for name in names]
        return set(self._store.pauses.pause(kind, checked, actor_or_user(by)))

    @audited("resume {kind}", "names")
    def resume(self, kind: PauseKind, names: Iterable[str]) -> set[str]:
        """Resume tasks or tenants, and return those that were paused."""
        return set(self._store.pauses.resume(kind, [check_name(name, f"a {kind}") for name in names]))
