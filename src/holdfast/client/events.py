"""`Events`: delete the emits of events, from `app.events`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.names import check_name
from holdfast.task.scope import refuse_in_body, reject_in_event_loop

if TYPE_CHECKING:
    from holdfast.client.client import Client

INSTEAD = "call it inside a step"


class Events:
    """The events of the database, from `app.events`. `app.emit` emits one. Methods that start with `a` are awaitable.

    Example:
        ```python
        app.events.clear("order-42-paid")
        app.emit("order-42-paid", {"cents": 4200})
        ```
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def clear(self, name: str, tenant: str | None = None) -> bool:
        """Forget that an event was emitted, so that it can be emitted again. Returns False if it wasn't emitted.

        Runs that received it keep it. Runs that wait later, or have set it aside because it doesn't have the type that
        they expect, wait for the next emit.

        Args:
            name: The name of the event.
            tenant: The tenant for which it was emitted. None for runs without a tenant.
        """
        refuse_in_body("events.clear", INSTEAD)
        reject_in_event_loop("clear", "use `await app.events.aclear(…)`")
        return self._clear(name, tenant)

    async def aclear(self, name: str, tenant: str | None = None) -> bool:
        """Forget that an event was emitted. The awaitable form of `clear`."""
        refuse_in_body("events.aclear", INSTEAD)
        return await run_in_thread(self._clear, name, tenant)

    def _clear(self, name: str, tenant: str | None) -> bool:
        checked = check_name(name, "the name of an event")
        return self._client.store.events.clear(None if tenant is None else check_name(tenant, "tenant"), checked)
