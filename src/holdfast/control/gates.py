"""Gates that wait for somebody, of all graphs."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.model.clock import to_datetime, to_datetime_or_none
from holdfast.store import Store

MOST = 1000


class OpenGate(msgspec.Struct, frozen=True):
    """A gate that somebody has to complete."""

    id: UUID
    name: str
    graph: UUID
    """The run whose gate it is,"""
    task: str
    """and the name of that graph."""
    tenant: str | None
    created_at: datetime
    until: datetime | None
    """When it times out."""
    schema: dict[str, Any] | None
    """What its output must be like, as JSON Schema."""


class Gates:
    """What waits for people. How a gate is completed is in `graphs.py`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def open(self, tenant: str | None = None, limit: int = 100) -> list[OpenGate]:
        """Gates that wait, of one tenant's graphs or all, the oldest first, but no more than that."""
        rows = self._store.views.open_gates(tenant, min(limit, MOST))
        return [
            OpenGate(
                id=UUID(str(id)),
                name=node,
                graph=UUID(str(graph)),
                task=task,
                tenant=of,
                created_at=to_datetime(created_at),
                until=to_datetime_or_none(deadline),
                schema=msgspec.json.decode(plan).get("schema"),
            )
            for id, node, graph, task, of, created_at, deadline, plan in rows
        ]
