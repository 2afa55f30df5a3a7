"""Operations on running functions: read their values, ask them, and read their answers."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.control.audit import audited
from holdfast.errors import RunNotFound
from holdfast.model.clock import to_datetime
from holdfast.model.codec import encode
from holdfast.model.ids import new_id_text
from holdfast.model.names import MAX_KEY_CHARS, check_actor, check_name, quoted
from holdfast.model.previews import UNREADABLE, displayed_arguments
from holdfast.model.run import FINAL_STATES
from holdfast.store import Store
from holdfast.store.run_reader import RunReader
from holdfast.task.registry import Registry

FIRST_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = 0.01, 0.25


class ValueInfo(msgspec.Struct, frozen=True):
    """A value that a run publishes. `version` increases with each change."""

    name: str
    value: Any
    version: int
    at: datetime


class AskInfo(msgspec.Struct, frozen=True):
    """An ask and its answer. `run_finished`: the run ended without answering it."""

    run: UUID
    name: str
    key: str
    state: Literal["pending", "replied", "rejected", "run_finished"]
    reply: Any = None
    reason: str | None = None
    """Why it was rejected."""
    type: str | None = None
    """The name of the exception's class, if an exception of the handler rejected it."""
    data: Any = None


class PendingAsk(msgspec.Struct, frozen=True):
    """An ask that isn't answered yet. `received`: the run handles it."""

    name: str
    key: str
    sent_at: datetime
    received: bool


class InteractionControl:
    """Values and asks of any run in the database."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self._reader = RunReader(store)

    def values(self, id: UUID) -> list[ValueInfo]:
        """List the values of a run by name, as plain JSON with secrets masked."""
        found = self._store.values.read(str(id))
        if found is None:
            raise RunNotFound.of(id)
        return [
            ValueInfo(name, displayed_arguments(value.text), value.version, to_datetime(value.at))
            for name, value in found.values.items()
        ]

    def pending(self, id: UUID) -> list[PendingAsk]:
        """List the first asks that a run hasn't answered, in order of arrival."""
        rows = self._store.asks.pending(str(id))
        return [PendingAsk(row.name, row.key, to_datetime(row.sent_at), row.is_received) for row in rows]

    @audited("ask run", "id", unless_api=True)
    def ask(self, id: UUID, name: str, payload: Any = None, key: str | None = None, by: str | None = None) -> AskInfo:
        """Ask an unfinished run, without waiting for the answer. The payload is checked if the task's code is known."""
        text = self._encode(id, check_name(name, "the name of an ask"), payload)
        chosen = new_id_text() if key is None else check_name(key, "key", MAX_KEY_CHARS)
        self._store.asks.ask(str(id), name, text, chosen, check_actor(by))
        return self.answer(id, chosen)

    def _encode(self, id: UUID, name: str, payload: Any) -> str:
        task = self._reader.row(id).task
        if task not in self._registry.names():
            return encode(payload, f"the payload of ask {name!r}")
        return self._registry.encode_ask(task, name, payload)

    def answer(self, id: UUID, key: str) -> AskInfo:
        """Return an ask and its answer, if there is one."""
        found = self._store.asks.answers([(str(id), key)]).get((str(id), key))
        if found is None:
            raise RunNotFound(f"run {id} has no ask with the key {quoted(key)}, or has forgotten it")
        if found.answer == "reply":
            return AskInfo(id, found.name, key, "replied", displayed_arguments(found.text))
        if found.answer is not None:
            shown = displayed_arguments(found.text)
            why: dict[str, Any] = shown if isinstance(shown, dict) else {"reason": UNREADABLE}
            return AskInfo(id, found.name, key, "rejected", None, why.get("reason"), why.get("type"), why.get("data"))
        ended = found.state in FINAL_STATES or found.state == "undoing"
        return AskInfo(id, found.name, key, "run_finished" if ended else "pending")

    def wait(self, ask: AskInfo, timeout_s: float) -> AskInfo:
        """Wait until an ask is answered, or for this long."""
        deadline, pause = time.monotonic() + timeout_s, FIRST_POLL_INTERVAL_S
        while ask.state == "pending" and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, MAX_POLL_INTERVAL_S)
            ask = self.answer(ask.run, ask.key)
        return ask
