"""Tenants that have runs."""

from __future__ import annotations

import msgspec

from holdfast.control.pauses import PauseControl
from holdfast.store import Store


class TenantInfo(msgspec.Struct, frozen=True):
    """A tenant."""

    name: str
    paused: bool


class TenantControl:
    """Lists tenants. They aren't declared: a run names its tenant."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, limit: int = 200) -> list[TenantInfo]:
        """List the first tenants by name: those that have a finished run or are paused."""
        paused = {pause.name for pause in PauseControl(self._store).list() if pause.kind == "tenant"}
        names = sorted({*self._store.queries.tenants(limit), *paused})[:limit]
        return [TenantInfo(name, name in paused) for name in names]
