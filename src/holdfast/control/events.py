"""Events from operators."""

from __future__ import annotations

from typing import Any

from holdfast.model.codec import encode
from holdfast.model.names import check_name
from holdfast.store import Store


class Events:
    """Facts that durable functions wait for by name."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def emit(self, name: str, payload: Any = None, tenant: str | None = None) -> bool:
        """Emit an event; False when it had been emitted before, which changes nothing."""
        event = check_name(name, "the name of an event")
        text = encode(payload, f"the payload of event {name!r}")
        return self._store.events.emit(None if tenant is None else check_name(tenant, "tenant"), event, text)
