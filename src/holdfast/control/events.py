"""Events: what is awaited and by whom, what happened, and which tenant each belongs to."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.control.audit import audited
from holdfast.model.clock import to_datetime, to_datetime_or_none
from holdfast.model.codec import encode
from holdfast.model.names import check_name
from holdfast.model.previews import PayloadView
from holdfast.store import Store
from holdfast.store.waits import EmittedRow, NamedEventRow, WaiterRow, event_context, event_target

MAX_EVENTS = 1000
MAX_WAITERS = 100


class AwaitedEvent(msgspec.Struct, frozen=True):
    """An event that runs wait for."""

    name: str
    tenant: str | None
    waiters: int
    """How many waits there are."""
    since: datetime
    """When the first run began to wait."""
    run: UUID
    """The run that has waited longest."""
    task: str
    """Its task."""


class EmittedEvent(msgspec.Struct, frozen=True):
    """An event that was emitted. The payload is a plain JSON value."""

    name: str
    tenant: str | None
    at: datetime
    payload: Any


class EventList(msgspec.Struct, frozen=True):
    """What is awaited, the longest first, and what was emitted, the newest first."""

    awaited: list[AwaitedEvent]
    emitted: list[EmittedEvent]
    partial: bool
    """Whether there are so many waits or events that only some were read."""


class WaitingRun(msgspec.Struct, frozen=True):
    """A run that waits for an event."""

    run: UUID
    task: str
    since: datetime
    until: datetime | None
    """When the wait times out."""


class EventInfo(msgspec.Struct, frozen=True):
    """An event of one tenant, or of none: whether it was emitted, and who waits for it."""

    name: str
    tenant: str | None
    emitted_at: datetime | None
    payload: Any
    waiters: list[WaitingRun]
    """The first runs that wait for it."""


class EventControl:
    """Events that durable functions wait for by name. Each belongs to a tenant or to none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @audited("emit event", "name", unless_api=True)
    def emit(self, name: str, payload: Any = None, tenant: str | None = None) -> bool:
        """Emit an event; False if it had already been emitted, which changes nothing."""
        text = encode(payload, f"the payload of event {name!r}")
        return self._store.events.emit(_tenant(tenant), _event(name), text)

    @audited("clear event", "name")
    def clear(self, name: str, tenant: str | None = None) -> bool:
        """Forget that an event was emitted, so that it can be emitted again; False if it wasn't.

        Runs that received it keep it; runs that wait later wait for the next emit.
        """
        return self._store.events.clear(_tenant(tenant), _event(name))

    def show(self, name: str, tenant: str | None = None) -> list[EventInfo]:
        """Show the events of a name: those of all tenants and of none, or only that of one tenant.

        Of many events, only those that were emitted or awaited last are searched.
        """
        rows = self._store.events.named(_event(name), _tenant(tenant))
        waiters = self._store.events.waiters([row.target for row in rows], MAX_WAITERS) if rows else []
        payloads = self._payloads(rows)
        found = [
            EventInfo(
                name=name,
                tenant=row.tenant,
                emitted_at=to_datetime_or_none(row.emitted_at),
                payload=None if row.payload_bytes is None else payloads(row),
                waiters=_waiters(each for each in waiters if each.target == row.target),
            )
            for row in rows
        ]
        return [each for each in found if each.emitted_at is not None or each.waiters]

    def awaited_elsewhere(self, name: str, tenant: str | None = None) -> list[EventInfo]:
        """Return events of this name that runs of other tenants, or of none, wait for: an emit doesn't reach them."""
        return [each for each in self.show(name) if each.tenant != tenant and each.waiters]

    def waiters(self, name: str, tenant: str | None = None) -> list[WaitingRun]:
        """Return the first runs that wait for an event."""
        target = event_target(_tenant(tenant), _event(name))
        return _waiters(self._store.events.waiters([target], MAX_WAITERS))

    def list(self, tenant: str | None = None, limit: int = 100) -> EventList:
        """List what is awaited and what was emitted, of one tenant or all."""
        size = min(limit, MAX_EVENTS)
        awaited, some_awaited = self._store.events.awaited(_tenant(tenant), size)
        emitted, some_emitted = self._store.events.emitted(_tenant(tenant), size)
        payloads = self._payloads(emitted)
        return EventList(
            awaited=[
                AwaitedEvent(row.name, row.tenant, row.waiters, to_datetime(row.since), UUID(row.run), row.task)
                for row in awaited
            ],
            emitted=[EmittedEvent(row.name, row.tenant, to_datetime(row.emitted_at), payloads(row)) for row in emitted],
            partial=some_awaited or some_emitted,
        )

    def _payloads(
        self, rows: Sequence[EmittedRow] | Sequence[NamedEventRow]
    ) -> Callable[[EmittedRow | NamedEventRow], Any]:
        """Read payloads for one response; return a function that decodes that of an event."""
        view = PayloadView(self._store.payloads)
        chosen = view.choose((row.target, row.payload_bytes) for row in rows)
        found = self._store.events.payloads(chosen) if chosen else {}
        return lambda row: view.arguments(found.get(row.target), event_context(row.target), row.payload_bytes)


def _waiters(rows: Iterable[WaiterRow]) -> list[WaitingRun]:
    return [
        WaitingRun(UUID(row.run), row.task, to_datetime(row.since), to_datetime_or_none(row.due_at)) for row in rows
    ]


def _event(name: str) -> str:
    return check_name(name, "the name of an event")


def _tenant(tenant: str | None) -> str | None:
    return None if tenant is None else check_name(tenant, "tenant")


def emit_command(name: str, tenant: str | None) -> str:
    """Return the command that emits an event."""
    return f"holdfast emit {shlex.quote(name)}" + ("" if tenant is None else f" --tenant {shlex.quote(tenant)}")


def clear_command(name: str, tenant: str | None) -> str:
    """Return the command that deletes the emit of an event."""
    return f"holdfast events clear {shlex.quote(name)}" + ("" if tenant is None else f" --tenant {shlex.quote(tenant)}")
