"""Take runs out of circulation whose rows another program, or a failure, has corrupted.

Workers handle runs in batches. If the database rejects a batch because of a value in one of its rows (a counter at its
maximum overflows, a text where a number belongs), all other runs would wait behind that row. So the caller names the
runs that the batch may have contained. Each is examined alone: its values are compared with their bounds, and the
changes that every attempt makes are tried and rolled back. A run that fails gets valid values in place of the corrupt
ones, an entry in its history with what was stored, and fails with code `corrupt_row`. An operator can retry it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.database.dialect import MAX_TIME_MICROS, MAX_TURN
from holdfast.errors import ErrorInfo
from holdfast.model.failure import error_to_json
from holdfast.store.module import CORRUPT_DATA, StoreModule, Tx, history_row, id_rows, in_chunks, json_rows
from holdfast.store.propagation import propagate_ends
from holdfast.store.run_tree import fail_runs, lock_runs, lock_with_parents
from holdfast.telemetry import log

CORRUPT_CODE = "corrupt_row"
HELD_AS_CORRUPT = "corrupt"
MAX_SUSPECTS = 2000
MAX_INSPECTED_AT_ONCE = 50
MAX_SHOWN_CHARS = 200
MAX_SAMPLED_RUNS = 200
"""How many unfinished runs of each state `holdfast doctor` inspects."""
MAX_COUNT = 2_000_000_000
"""Counters of 32 bits; a run never gets near."""
MAX_FENCE = 2**62
RESET_FENCE = 2**40
"""Above every fence that a worker can still use."""
DEFAULT_KEEP_MICROS = 30 * 86_400 * 1_000_000


class Bounds(NamedTuple):
    """The values that a column of numbers may have, and the one that replaces others."""

    low: int
    high: int
    default: int | None


_TIME = Bounds(-MAX_TIME_MICROS, MAX_TIME_MICROS, None)
_COUNT = Bounds(0, MAX_COUNT, 0)
_FLAG = Bounds(0, 1, 0)
NUMBERS: dict[str, Bounds] = {
    "priority": Bounds(-(2**31), 2**31 - 1, 0),
    "turn": Bounds(-MAX_TURN, MAX_TURN, 0),
    "due_at": _TIME,
    "deadline": _TIME,
    "lifetime": Bounds(-MAX_TIME_MICROS, MAX_TIME_MICROS, None),
    "fence": Bounds(0, MAX_FENCE, RESET_FENCE),
    "attempt": _COUNT,
    "failures": _COUNT,
    "crashes": _COUNT,
    "max_crashes": _COUNT,
    "keep": Bounds(0, MAX_TIME_MICROS, DEFAULT_KEEP_MICROS),
    "records": _COUNT,
    "created_at": _TIME._replace(default=0),
    "claimed_at": _TIME,
    "started_at": _TIME,
    "place": Bounds(0, MAX_COUNT, None),
    "generation": _COUNT,
    "resumed": _FLAG,
    "spent": Bounds(0, MAX_TIME_MICROS, 0),
    "undos": _FLAG,
    "pending": Bounds(-MAX_COUNT, MAX_COUNT, None),
    "deaths": _COUNT,
    "isolation": Bounds(-MAX_COUNT, MAX_COUNT, None),
    "ready_at": _TIME,
    "keep_failed": Bounds(0, MAX_TIME_MICROS, None),
    "start_by": _TIME,
}
TEXTS = (
    "tenant", "unique_name", "args", "options", "tags", "root", "parent", "spawn_key", "ending", "cause", "progress",
    "kind", "node", "plan", "limits", "parked_on", "session", "debounce",
)  # fmt: skip
_REQUIRED_TEXTS = {"args": "null"}
_CHOICES = {"kind": ("graph", "gate"), "ending": ("failed", "cancelled")}
"""The values that a column of texts may have, if it has any."""
_COLUMNS = (*NUMBERS, *TEXTS)


class Quarantine(StoreModule):
    """Finds and takes out corrupt runs among those that a failed batch may have contained."""

    def take_out(self, purpose: str, suspects: Callable[[Tx], Iterable[Any]], error: Exception) -> None:
        """Quarantine the corrupt ones among the suspects; raise the error again if none is.

        `suspects` reads the ids of the runs that the failed work handles first, at most about `MAX_SUSPECTS`.
        """
        found = self._transaction(purpose, lambda tx: list(dict.fromkeys(str(id) for id in suspects(tx))))
        if not self.examine(purpose, found[:MAX_SUSPECTS], str(error)):
            raise error

    def examine(self, purpose: str, runs: Sequence[str], reason: str) -> list[str]:
        """Examine runs one by one; quarantine those that are corrupt and return them."""
        faults = self.inspect(purpose, runs)
        for run in runs:
            if run not in faults and not self._survives_an_attempt(purpose, run):
                faults[run] = {}
        for run, found in faults.items():
            self._quarantine(purpose, run, found, reason)
        return list(faults)

    def inspect(self, purpose: str, runs: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return those of the runs that have values out of bounds: the columns, and what is stored in them."""
        found: dict[str, dict[str, str]] = {}
        for chunk in in_chunks(list(runs), MAX_INSPECTED_AT_ONCE):
            for row in self._execute(purpose, "inspect_runs", rows=id_rows(chunk)):
                _, faults = _examine_row(row[1:])
                if faults:
                    found[str(row[0])] = faults
        return found

    def _survives_an_attempt(self, purpose: str, run: str) -> bool:
        """Return whether the database accepts the changes that an attempt makes. They are rolled back."""

        def work(tx: Tx) -> None:
            tx.execute("try_attempt", id=run)
            raise _Undo

        try:
            self._transaction(purpose, work)
        except _Undo:
            return True
        except CORRUPT_DATA:
            return False
        return True

    def _quarantine(self, purpose: str, run: str, faults: Mapping[str, str], reason: str) -> None:
        columns = ", ".join(faults) or "unknown"
        message = (
            f"the row of this run is corrupt ({columns}), so that workers can't handle it; the history shows what was"
            " stored. Retry the run if its arguments are correct"
        )
        error = error_to_json(ErrorInfo(CORRUPT_CODE, "CorruptRow", message))
        data = msgspec.json.encode({"columns": dict(faults), "reason": reason[:MAX_SHOWN_CHARS]}).decode()
        try:
            self._transaction(purpose, lambda tx: _take_out(tx, run, error, data, propagate=True))
        except CORRUPT_DATA:  # a row around it is corrupt too: it is found when its own turn comes
            self._transaction(purpose, lambda tx: _take_out(tx, run, error, data, propagate=False))
        log.run_quarantined(run, columns, reason)

    def list_all(self, limit: int) -> list[str]:
        """Return quarantined runs."""
        return [str(id) for (id,) in self._execute("read", "list_quarantined", limit=limit)]

    def find_corrupt(self) -> dict[str, list[str]]:
        """Return unfinished runs, of the first of each state, whose rows are corrupt, with the columns."""
        runs: set[str] = set()
        for statement in ("some_ready", "some_held", "some_scheduled", "some_running", "some_suspended"):
            runs.update(str(id) for (id,) in self._execute("read", statement, limit=MAX_SAMPLED_RUNS))
        return {run: list(faults) for run, faults in self.inspect("read", sorted(runs)).items()}


class _Undo(Exception):
    """Rolls a transaction back."""


def _take_out(tx: Tx, run: str, error: str, data: str, *, propagate: bool) -> None:
    """Replace the corrupt values of a run, record what they were, and fail it unless it has ended meanwhile."""
    if run not in lock_with_parents(tx, [run]):
        return
    rows = tx.execute("inspect_runs", rows=id_rows([run]))
    if not rows:
        return
    values, _ = _examine_row(rows[0][1:])
    last = tx.execute("last_history_number", id=run)[0][0]
    values["records"] = max(values["records"], last if isinstance(last, int) else 0) + 1
    tx.execute("mend_runs", rows=json_rows([{"id": run, **values}]))
    tx.execute("add_history", rows=json_rows([history_row(run, values["records"], "quarantined", 0, data=data)]))
    mended = lock_runs(tx, [run])
    ends = fail_runs(tx, mended, error)
    tx.execute("mark_quarantined", rows=id_rows(end.id for end in ends))
    if propagate:
        propagate_ends(tx, ends)


def _examine_row(row: Sequence[Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return valid values of all columns, and what is stored in those that are corrupt."""
    values: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, stored in zip(_COLUMNS, row, strict=True):
        bounds = NUMBERS.get(name)
        valid = _number(stored, bounds) if bounds is not None else _text(name, stored)
        values[name], is_valid = valid
        if not is_valid:
            faults[name] = _shown(stored)
    return values, faults


def _number(stored: Any, bounds: Bounds) -> tuple[int | None, bool]:
    if stored is None and bounds.default is None:
        return None, True
    if type(stored) is int and bounds.low <= stored <= bounds.high:
        return stored, True
    return bounds.default, False


def _text(name: str, stored: Any) -> tuple[str | None, bool]:
    """Decode a column of text. On SQLite its bytes come in hexadecimal, with a letter for their type."""
    if stored is None:
        return _REQUIRED_TEXTS.get(name), name not in _REQUIRED_TEXTS
    if not isinstance(stored, str):
        return str(stored), False
    text, is_text = stored, True
    if stored[:1] == "\1":
        data = bytes.fromhex(stored[2:])
        text = data.decode(errors="replace")
        is_text = stored[1] == "t" and text.encode() == data
    if name in _CHOICES and text not in _CHOICES[name]:
        return None, False
    return text, is_text


def _shown(stored: Any) -> str:
    text = bytes.fromhex(stored[2:]).decode(errors="backslashreplace") if str(stored)[:1] == "\1" else str(stored)
    return text[:MAX_SHOWN_CHARS]
