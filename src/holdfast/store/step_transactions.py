"""Transactional steps: application code and its checkpoint in one transaction, so that both happen or neither.

The fence is checked with the checkpoint, as the last statement, so that no run is locked while application code runs.
If the response to a commit gets lost, the checkpoint shows whether it happened.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from holdfast.database import Conflict, ConnectionLost
from holdfast.database.base import MAX_CONFLICT_ATTEMPTS
from holdfast.errors import StoreUnavailable
from holdfast.model.payloads import PayloadContext
from holdfast.store.command_batch import read_replies
from holdfast.store.commands import RUN_LOST, NewCheckpoint, Written
from holdfast.store.journal import Journal, RunLostError
from holdfast.store.module import StoreContext, StoreModule, json_rows

MAX_STEP_TRANSACTIONS = 2
ABANDONED_POLL_INTERVAL_S = 1.0
"""How long a transaction waits for a connection before it checks for abandoned ones."""


class StepTransactions(StoreModule):
    """Runs transactions of application code: at most two at once on PostgreSQL, one on SQLite.

    A transaction whose run was stopped, but whose code doesn't return, is abandoned: it doesn't count towards the
    two, and another connection replaces its own.
    """

    def __init__(self, context: StoreContext, journal: Journal) -> None:
        super().__init__(context)
        self._journal = journal
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._users: dict[str, Callable[[], bool]] = {}  # by connection: whether its run was stopped
        self._lock = threading.Lock()
        self._opened = MAX_STEP_TRANSACTIONS
        for number in range(MAX_STEP_TRANSACTIONS):
            self._free.put(f"transaction-{number + 1}")

    def run(
        self,
        session: str,
        record: NewCheckpoint,
        work: Callable[[Any], str],
        is_stopped: Callable[[], bool] = lambda: False,
        tenant: str | None = None,
    ) -> str | None:
        """Call `work` with a connection and record the text that it returns; return None if the run is lost.

        `work` is called again after a conflict, and after a lost connection unless the checkpoint exists. `is_stopped`
        tells whether the run was stopped, so that nothing waits for its transaction. `tenant`: that of the run.
        """
        context = PayloadContext("step", tenant, record.run, record.key)
        purpose = self._take_connection(is_stopped)
        try:
            tries = 0
            while True:
                tries += 1
                try:
                    return self._run_once(purpose, session, record, context, work)
                except RunLostError:
                    return self._read_recorded(record, context)
                except Conflict:
                    if tries == MAX_CONFLICT_ATTEMPTS:
                        raise
                except ConnectionLost:
                    if (text := self._read_recorded(record, context)) is not None:
                        return text
                    if tries == MAX_CONFLICT_ATTEMPTS:
                        raise
        finally:
            self._return_connection(purpose)

    def _take_connection(self, is_stopped: Callable[[], bool]) -> str:
        while True:
            try:
                purpose = self._free.get(timeout=ABANDONED_POLL_INTERVAL_S)
            except queue.Empty:
                if is_stopped():
                    raise StoreUnavailable("the run was stopped before its transaction began") from None
                self._replace_abandoned()
                continue
            with self._lock:
                self._users[purpose] = is_stopped
            return purpose

    def _replace_abandoned(self) -> None:
        with self._lock:
            for purpose in [purpose for purpose, is_stopped in self._users.items() if is_stopped()]:
                del self._users[purpose]
                self._opened += 1
                self._free.put(f"transaction-{self._opened}")

    def _return_connection(self, purpose: str) -> None:
        with self._lock:
            was_replaced = self._users.pop(purpose, None) is None
        if not was_replaced:
            self._free.put(purpose)
        elif not self._context.database.dialect.single_writer:  # otherwise all of them share one connection
            self._context.connection(purpose).close()

    def _read_recorded(self, record: NewCheckpoint, context: PayloadContext) -> str | None:
        """Return what is recorded if the transaction was committed and its response got lost.

        A commit still in progress isn't visible: then the next try waits for its locks and is rejected.
        """
        known = self._transaction("commit", lambda tx: read_replies(tx, [record])()) if record.n else {}
        if not known or not isinstance(known[0], Written):
            return None
        return self._context.payloads.unpack(str(known[0].value), context)

    def _run_once(
        self,
        purpose: str,
        session: str,
        record: NewCheckpoint,
        context: PayloadContext,
        work: Callable[[Any], str],
    ) -> str:
        store = self._context
        with store.database.task_transaction(store.connection(purpose)) as connection:
            text = work(connection)
            record.value = store.payloads.pack(text, context, "the result of a transaction")
            self._record(purpose, session, record)
        return text

    def _record(self, purpose: str, session: str, record: NewCheckpoint) -> None:
        """Record the checkpoint as the last statement of the transaction, unless the run is lost."""
        if self._context.on_postgres:
            rows = json_rows([record])
            written = bool(self._execute(purpose, "record_checkpoints", session=session, rows=rows))
        else:
            written = self._journal.record(session, [record]) != [RUN_LOST]
        if not written:
            raise RunLostError
