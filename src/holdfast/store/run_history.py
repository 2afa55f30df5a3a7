"""The history of a run: its stored entries, and those that are derived from its row and its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.model.clock import MICROS_PER_SECOND, to_datetime
from holdfast.model.history import Entry
from holdfast.model.payloads import PayloadContext
from holdfast.model.previews import PayloadView, omitted
from holdfast.model.step_keys import key_label
from holdfast.store.run_queries import HistoryRow, RunRow

if TYPE_CHECKING:
    from holdfast.store.store import Store

ArgumentsReader: TypeAlias = Callable[[str, str], Any]
"""Decodes the stored arguments of a failed step, given its key, for display."""

MAX_TRIES = 1000
"""How many failed tries of steps operators see: the last ones."""

_KINDS_WITH_PLAIN_DATA = (
    "waiting", "moved", "drift", "forked", "appended", "completed", "concluded_early", "retried", "sent",
    "set_aside", "quarantined", "worker_lost", "paused", "unpaused", "updated", "budget_exceeded", "budget_raised",
)  # fmt: skip
"""History kinds whose data isn't an error."""
_WITHIN_ATTEMPTS = (
    "drift", "step_retrying", "sent", "set_aside", "paused", "unpaused", "budget_exceeded", "budget_raised",
)  # fmt: skip
"""History kinds that may be recorded before the end of their attempt, of which the start is derived."""
_KINDS_ABOUT_STEPS = ("step_retrying", "restarted", "moved", "retried")


class HistoryView:
    """The history of a run for operators: all entries, but only the data of those that are shown."""

    def __init__(self, store: Store, run: RunRow, view: PayloadView) -> None:
        self._store = store
        self._run = run.id
        self._tenant = run.tenant
        self._view = view
        rows = store.queries.history_outline(run.id)
        stored = [(Entry(row.kind, to_datetime(row.at), row.attempt, row.session, {}), row.since) for row in rows]
        self._rows = {id(entry): row for (entry, _), row in zip(stored, rows, strict=True)}
        self._entries = history_entries(run, stored)

    def __len__(self) -> int:
        return len(self._entries)

    def part(self, start: int, end: int) -> list[Entry]:
        """Return some of the entries, in order."""
        return self._filled(self._entries[start:end])

    def about_steps(self) -> list[Entry]:
        """Return the last entries about failed tries of steps, and those that make earlier ones obsolete."""
        return self._filled([each for each in self._entries if each.kind in _KINDS_ABOUT_STEPS][-MAX_TRIES:])

    def set_aside(self) -> list[Entry]:
        """Return the last entries about messages that were set aside."""
        return self._filled([each for each in self._entries if each.kind == "set_aside"][-MAX_TRIES:])

    def _filled(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return entries with their data, the last ones first if not all of it may be read."""
        rows = [row for entry in reversed(entries) if (row := self._rows.get(id(entry))) is not None]
        chosen = self._view.choose((row.n, row.data_bytes) for row in rows)
        found = self._store.queries.history_data(self._run, chosen) if chosen else {}
        return [self._with_data(entry, found) for entry in entries]

    def _with_data(self, entry: Entry, found: dict[int, str | None]) -> Entry:
        row = self._rows.get(id(entry))
        if row is None or row.data_bytes is None:
            return entry
        if row.n not in found:
            return replace(entry, data={"omitted": omitted(row.data_bytes)})
        return replace(entry, data=entry_data(row.kind, row.at, found[row.n], self._arguments))

    def _arguments(self, stored: str, key: str) -> Any:
        return self._view.arguments(stored, PayloadContext("step_args", self._tenant, self._run, key))


def stored_entry(row: HistoryRow, read_arguments: ArgumentsReader) -> tuple[Entry, int | None]:
    """Return a history row as an entry, and when the attempt was claimed that it ended."""
    data = entry_data(row.kind, row.at, row.data, read_arguments)
    return Entry(row.kind, to_datetime(row.at), row.attempt, row.session, data), row.since


def history_entries(run: RunRow, stored: Iterable[tuple[Entry, int | None]]) -> list[Entry]:
    """Return all entries in order of time: stored ones, and those that are derived from the run and its claims."""
    data = {"task": run.task, "queue": run.queue} | _slot_data(run)
    entries = [Entry("enqueued", to_datetime(run.created_at), 0, None, data)]
    was_waiting = False

    def add_start(since: int, attempt: int, session: str | None) -> None:
        """Insert the start of an attempt before what happened in it."""
        at = to_datetime(since)
        behind = len(entries)
        while entries[behind - 1].kind in _WITHIN_ATTEMPTS and entries[behind - 1].at >= at:
            behind -= 1
        entries.insert(behind, Entry("resumed" if was_waiting else "started", at, attempt, session))

    for entry, since in stored:
        if since is not None:
            add_start(since, entry.attempt, entry.worker)
        if entry.kind not in (*_WITHIN_ATTEMPTS, "let_go"):
            was_waiting = entry.kind == "waiting"
        entries.append(entry)
    if run.is_running and run.claimed_at is not None:
        add_start(run.claimed_at, run.attempt, run.session)
    return entries


def entry_data(kind: str, at: int, text: str | None, read_arguments: ArgumentsReader) -> dict[str, Any]:
    """Decode the data of a history row."""
    data = _decoded(kind, text)
    error = data.get("error")
    if isinstance(error, dict) and isinstance(retry_in := error.pop("retry_in", None), int):
        return {**data, "retry_at": to_datetime(at + retry_in).isoformat()}
    return _try_data(data, at, read_arguments) if kind == "step_retrying" and "step" in data else data


def _slot_data(run: RunRow) -> dict[str, Any]:
    """Return the schedule and the slot that created a run."""
    options = {} if run.options is None else _decoded("retried", run.options)
    slot = options.get("scheduled_for")
    if "schedule" not in options or not isinstance(slot, int):
        return {}
    return {"schedule": options["schedule"], "scheduled_for": to_datetime(slot).isoformat()}


def _decoded(kind: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        data = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"unreadable": text}
    if kind == "cancelled":
        return {"reason": data.get("message") or None} | ({"by": data["by"]} if "by" in data else {})
    if kind in _KINDS_WITH_PLAIN_DATA or kind == "step_retrying":
        return dict(data)
    by = data.pop("by", None)  # who failed a gate
    return {"error": data} if by is None else {"error": data, "by": by}


def _try_data(stored: dict[str, Any], at: int, read_arguments: ArgumentsReader) -> dict[str, Any]:
    """Return the data of a failed try: the arguments decoded, times instead of durations."""
    args = stored.get("args")
    return {
        "step": key_label(stored["step"]),
        "key": stored["step"],
        "try": stored["try"],
        "tries": stored["tries"],
        "took": stored["took"] / MICROS_PER_SECOND,
        "next_at": to_datetime(at + stored["retry_in"]).isoformat(),
        "args": None if args is None else read_arguments(args, stored["step"]),
        "error": stored["error"],
    }
