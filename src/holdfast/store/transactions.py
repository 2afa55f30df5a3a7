"""Author code and our record of it in one transaction: both happen, or neither, whatever dies.

The run's fence is checked with the checkpoint, as the last statement, so that no run is locked while author code runs.
When the answer to a commit gets lost, the checkpoint says whether it happened.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from holdfast.database import Conflict, ConnectionLost
from holdfast.database.base import MAX_CONFLICT_ATTEMPTS
from holdfast.errors import StoreUnavailable
from holdfast.store.commands import LOST, Record, Wrote
from holdfast.store.group import read_back
from holdfast.store.journal import Journal
from holdfast.store.part import Ground, Part, batch

LINES = 2
LOST_LINE_POLL_S = 1.0
"""How long a transaction waits for a line before it looks for lines that were lost."""


class Refused(Exception):
    """The run was lost: the transaction is taken back."""


class Transactions(Part):
    """Transactions of author code. At most two at once on PostgreSQL, one on SQLite.

    A transaction whose run was told to stop, and whose code doesn't return, doesn't count: its line is replaced.
    """

    def __init__(self, ground: Ground, journal: Journal) -> None:
        super().__init__(ground)
        self._journal = journal
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._users: dict[str, Callable[[], bool]] = {}  # by line: whether the run that uses it was told to stop
        self._lock = threading.Lock()
        self._lines = LINES
        for number in range(LINES):
            self._free.put(f"author-{number + 1}")

    def run(
        self,
        session: str,
        record: Record,
        work: Callable[[Any], str],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> str | None:
        """Call work with a connection and record the text it returns; None when the run was lost. After a conflict
        it is called again, and after a lost connection unless the checkpoint is there.

        `is_stopped`: whether the run was told to stop, so that nobody waits for its transaction any more.
        """
        purpose = self._take_line(is_stopped)
        try:
            tries = 0
            while True:
                tries += 1
                try:
                    return self._once(purpose, session, record, work)
                except Refused:
                    return self._recorded(record)
                except Conflict:
                    if tries == MAX_CONFLICT_ATTEMPTS:
                        raise
                except ConnectionLost:
                    if (text := self._recorded(record)) is not None:
                        return text
                    if tries == MAX_CONFLICT_ATTEMPTS:
                        raise
        finally:
            self._return_line(purpose)

    def _take_line(self, is_stopped: Callable[[], bool]) -> str:
        while True:
            try:
                purpose = self._free.get(timeout=LOST_LINE_POLL_S)
            except queue.Empty:
                if is_stopped():
                    raise StoreUnavailable("the run was told to stop before its transaction began") from None
                self._replace_lost_lines()
                continue
            with self._lock:
                self._users[purpose] = is_stopped
            return purpose

    def _replace_lost_lines(self) -> None:
        with self._lock:
            for purpose in [purpose for purpose, is_stopped in self._users.items() if is_stopped()]:
                del self._users[purpose]
                self._lines += 1
                self._free.put(f"author-{self._lines}")

    def _return_line(self, purpose: str) -> None:
        with self._lock:
            is_lost = self._users.pop(purpose, None) is None
        if not is_lost:
            self._free.put(purpose)
        elif self._ground.database.dialect.writing_ctes:  # on SQLite, all of them are the one writer
            self._ground.line(purpose).close()

    def _recorded(self, record: Record) -> str | None:
        """What stands on record, if the transaction was committed and its answer got lost. One whose commit is still
        under way can't be seen: then the next try waits for its locks, and is refused."""
        known = self._together("commit", lambda do: read_back(do, [record])) if record.n else {}
        return self._ground.payloads.unpack(str(known[0].value)) if known and isinstance(known[0], Wrote) else None

    def _once(self, purpose: str, session: str, record: Record, work: Callable[[Any], str]) -> str:
        ground = self._ground
        line = ground.line(purpose)
        with ground.database.task_transaction(line) as connection:
            text = work(connection)
            record.value = ground.payloads.pack(text, "the result of a transaction")
            self._record(purpose, session, record)
        return text

    def _record(self, purpose: str, session: str, record: Record) -> None:
        """The last statement of the transaction: it counts only while the run is ours."""
        rows = batch([record])
        if self._ground.database.dialect.writing_ctes:
            written = bool(self._one(purpose, "record_checkpoints", session=session, rows=rows))
        else:
            written = self._journal.record(session, [record]) != [LOST]
        if not written:
            raise Refused
