"""Values that runs publish, and asks: messages that get a reply.

A run sets values and answers asks with commands (`command_batch.py`). This module is what clients and operators do:
read values, ask, and read answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from holdfast.errors import GraphError, KeyConflict, RunFinished, RunNotFound, TooLarge
from holdfast.model.asks import (
    AskAnswer,
    ReceivedAsk,
    ask_context,
    ask_topic,
    asked_name,
    decode_envelope,
    encode_envelope,
    reply_context,
)
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import UnreadableText, canonical_text
from holdfast.model.ids import new_id_text
from holdfast.model.payloads import PayloadContext
from holdfast.model.run import FINAL_STATES
from holdfast.store.module import StoreModule, Tx, history_row, id_rows, in_chunks, json_rows
from holdfast.store.run_tree import locked_runs
from holdfast.store.waits import DirectMessage

MAX_VALUES = 100
MAX_VALUES_BYTES = 256 * 1024
"""How many values a run may have, and how many bytes all of them together, as stored."""
KEEP_ANSWERS_US = 24 * 3600 * MICROS_PER_SECOND
"""How long a run remembers an answer, and with it the key of the ask. Until the run is pruned, at most."""
ASKS_PER_CLEANUP = 100
"""After how many asks of a run the old ones are deleted."""
MAX_LISTED_ASKS = 100


class StoredValue(NamedTuple):
    """A value of a run as JSON text. `version` increases with each change."""

    text: str
    version: int
    at: int


class RunValues(NamedTuple):
    """The values of a run by name, and its state."""

    state: str
    values: dict[str, StoredValue]


class StoredAnswer(NamedTuple):
    """How an ask was answered: `reply` or `rejected`, None if it wasn't yet. `text`: JSON. `state`: that of the run."""

    name: str
    answer: str | None
    text: str
    state: str


class PendingAskRow(NamedTuple):
    """An ask that isn't answered. `is_received`: the run handles it."""

    name: str
    key: str
    sent_at: int
    is_received: bool


def value_context(tenant: str | None, run: str, name: str) -> PayloadContext:
    """Return the place of a value."""
    return PayloadContext("value", tenant, run, name)


def check_values_size(sizes: dict[str, int], run: str) -> None:
    """Raise TooLarge if a run would have too many values, given by name with their stored sizes in bytes."""
    if len(sizes) > MAX_VALUES:
        raise TooLarge(f"run {run} may have values of at most {MAX_VALUES} names, not {len(sizes):,}")
    if (size := sum(sizes.values())) > MAX_VALUES_BYTES:
        raise TooLarge(f"the values of run {run} may have at most {MAX_VALUES_BYTES:,} bytes together, not {size:,}")


class ValueStore(StoreModule):
    """The values of runs."""

    def read(self, run: str, name: str | None = None) -> RunValues | None:
        """Return the values of a run, or only the one of a name; None if the run doesn't exist."""
        rows = self._execute("read", "read_values", run=run, name=name)
        if not rows:
            return None
        unpack = self._context.payloads.unpack
        return RunValues(
            rows[0][0],
            {
                name: StoredValue(unpack(value, value_context(tenant, run, name)), version, at)
                for _, tenant, name, value, version, at in rows
                if name is not None
            },
        )

    def versions(self, runs: Iterable[str]) -> dict[str, tuple[str, dict[str, int]]]:
        """Return the states of runs, and the versions of their values by name."""
        found: dict[str, tuple[str, dict[str, int]]] = {}
        for chunk in in_chunks(sorted(runs)):
            for run, state, name, version in self._execute("read", "read_value_versions", rows=id_rows(chunk)):
                _, versions = found.setdefault(str(run), (state, {}))
                if name is not None:
                    versions[name] = version
        return found


class AskStore(StoreModule):
    """Asks of clients."""

    def ask(self, run: str, name: str, payload: str, key: str, by: str | None = None) -> bool:
        """Ask an unfinished run. An ask with a key that was used before changes nothing; return False then.

        Raises KeyConflict if that was another ask, and RunFinished if the run has finished.
        """
        id = new_id_text()

        def work(tx: Tx) -> bool:
            asked = tx.queue("lock_runs", rows=id_rows([run])), tx.queue("find_ask", run=run, ask=key)
            message = DirectMessage(tx, run, ask_topic(name))
            locked, found = locked_runs(asked[0]()).get(run), asked[1]()
            if locked is None:
                raise RunNotFound.of(run)
            context = ask_context(locked.tenant, run)
            if found:
                topic, stored, sent_by = found[0]
                if sent_by != id:  # otherwise it was sent before the response got lost
                    _check_same(run, key, name, payload, str(topic), tx.payloads.unpack(str(stored), context))
                return False
            if locked.kind is not None:
                raise GraphError(f"run {run} is a {locked.kind}, which answers no asks: ask one of its nodes")
            if locked.state in FINAL_STATES or locked.ending is not None:
                state = locked.state if locked.state in FINAL_STATES else "undoing"
                raise RunFinished(f"run {run} is {state}; only unfinished runs answer asks")
            text = tx.payloads.pack(
                encode_envelope(ReceivedAsk(key, id, name, payload)), context, f"the payload of ask {name!r}"
            )
            message.add(text, id, key, is_waiting=locked.state == "waiting")
            if by is not None:
                ((n, attempt),) = tx.execute("next_history_number", id=run)
                entry = msgspec.json.encode({"by": by, "ask": name}).decode()
                tx.execute("add_history", rows=json_rows([history_row(run, n, "sent", attempt, data=entry)]))
            tx.counts_ready_runs = True
            return True

        return self._transaction("client", work)

    def answers(self, asks: Sequence[tuple[str, str]]) -> dict[tuple[str, str], StoredAnswer]:
        """Return the answers to asks, given and found by run and key."""
        found: dict[tuple[str, str], StoredAnswer] = {}
        for chunk in in_chunks(asks):
            rows = json_rows({"run": run, "ask": key} for run, key in chunk)
            for run, key, answer, reply, topic, tenant, state in self._execute("read", "read_answers", rows=rows):
                text = ""
                if reply is not None:
                    text = self._context.payloads.unpack(reply, reply_context(tenant, str(run), key))
                found[str(run), key] = StoredAnswer(asked_name(topic) or "", answer, text, state)
        return found

    def pending(self, run: str) -> list[PendingAskRow]:
        """Return the first asks of a run that aren't answered, in order of arrival."""
        rows = self._execute("read", "list_pending_asks", run=run, size=MAX_LISTED_ASKS)
        return [PendingAskRow(asked_name(topic) or "", key, at, bool(taken)) for topic, key, at, taken in rows]


def _check_same(run: str, key: str, name: str, payload: str, topic: str, stored: str) -> None:
    """Raise KeyConflict unless an ask with this key is the same: its name, and its payload if that can be read."""
    if topic == ask_topic(name):
        if isinstance(stored, UnreadableText) or stored[:1] == "~":
            return
        if canonical_text(decode_envelope(stored).payload) == canonical_text(payload):
            return
    raise KeyConflict(
        f"run {run} was asked something else with the key {key!r}: use another key for another ask", UUID(run)
    )


class AnsweredAsks(NamedTuple):
    """The answers that were written, with their runs, and the runs whose old answers are due to be forgotten."""

    answers: list[tuple[str, AskAnswer]]
    forgetful: list[str]


def answer_asks(tx: Tx, answers: Iterable[tuple[str, AskAnswer]]) -> Callable[[], AnsweredAsks]:
    """Write answers to asks, given with the id of their locked runs.

    Return a function that returns what was written. Call it after the commit.
    """
    given: dict[tuple[str, str], AskAnswer] = {}
    for run, each in answers:
        given.setdefault((run, each.id), each)  # the first one counts
    if not given:
        return lambda: AnsweredAsks([], [])
    rows = [
        {"run": run, "ask": each.key, "sent_by": each.id, "answer": each.answer, "reply": each.text}
        for (run, _), each in given.items()
    ]
    answered = tx.queue("answer_asks", rows=json_rows(rows))

    def written() -> AnsweredAsks:
        found = [(str(run), str(id), n) for run, id, n, *_ in answered()]
        return AnsweredAsks(
            [(run, given[run, id]) for run, id, _ in found],
            sorted({run for run, _, n in found if n % ASKS_PER_CLEANUP == 0}),
        )

    return written
