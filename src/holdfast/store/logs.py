"""Write and read what the code of runs has logged.

Lines are written in groups, one row each, when their attempt ends (`attempts.py`) or while it executes (`record`).
Repeating a write changes nothing: a group is identified by its claim and its number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.model.payloads import PayloadContext
from holdfast.model.run_logs import LogFilter, LogLine, LogPage, decode_lines, shown_lines
from holdfast.store.module import StoreModule, Tx, in_batches, json_rows
from holdfast.store.rows import ClaimKey
from holdfast.store.run_tree import lock_runs

UNREADABLE_LINES = "({} lines can't be read: this app's codec or key can't decode them)"


class NewLogs(msgspec.Struct, gc=False):
    """A group of lines to write. Statements take it as it is.

    `last_line` and `last_byte` count all lines of the claim so far, those that were dropped included.
    """

    run: str
    fence: int
    n: int
    attempt: int
    lines: int
    bytes: int
    last_line: int
    last_byte: int
    data: str


class LogWrites(NamedTuple):
    """Groups of lines to write, and how much of each run is kept."""

    groups: Sequence[NewLogs]
    max_lines: int
    max_bytes: int

    def of_claims(self, claims: Collection[ClaimKey]) -> LogWrites:
        """Return only the groups of these claims."""
        return self._replace(groups=[group for group in self.groups if (group.run, group.fence) in claims])


def add_logs(tx: Tx, writes: LogWrites) -> None:
    """Write lines of claims that the transaction has found to be valid, and delete the oldest of runs with too many."""
    if not writes.groups:
        return
    for batch in in_batches(writes.groups, lambda group: len(group.data)):
        tx.execute("add_logs", rows=json_rows(batch))
    long = {
        group.run
        for group in writes.groups
        if group.fence > 1 or group.last_line > writes.max_lines or group.last_byte > writes.max_bytes
    }
    if long:
        _trim(tx, long, writes)


def _trim(tx: Tx, runs: Iterable[str], writes: LogWrites) -> None:
    rows = json_rows({"run": run} for run in sorted(runs))
    too_long = [
        {"run": str(run), "line": last_line - writes.max_lines, "byte": last_byte - writes.max_bytes}
        for run, last_line, last_byte in tx.execute("last_log_numbers", rows=rows)
        if last_line is not None and (last_line > writes.max_lines or last_byte > writes.max_bytes)
    ]
    if too_long:
        tx.execute("trim_logs", rows=json_rows(too_long))


class LogStore(StoreModule):
    """The log lines of runs."""

    def record(self, session: str, writes: LogWrites) -> None:
        """Write lines of attempts that are executing. Those of claims that the session has lost are left out."""

        def work(tx: Tx) -> None:
            if not tx.execute("lock_session", session=session):
                return
            runs = lock_runs(tx, {group.run for group in writes.groups})
            valid = {(run.id, run.fence) for run in runs.values() if run.belongs_to(session, run.fence)}
            add_logs(tx, writes.of_claims(valid))

        self._transaction("commit", work)

    def page(
        self,
        run: str,
        tenant: str | None,
        accepts: LogFilter,
        after: int = 0,
        limit: int | None = None,
        tail: int | None = None,
    ) -> LogPage:
        """Return the lines of a run behind a line: up to `limit`, or the last `tail` of them."""
        found: list[LogLine] = []
        context, seen, more = PayloadContext("log", tenant, run), after, False
        while not more:
            rows = self._execute("read", "list_logs", id=run, after=seen)
            if not rows:
                break
            for _, _, attempt, lines, last_line, data in rows:
                first = last_line - lines + 1
                stored = decode_lines(self._context.payloads.unpack(data, context))
                if stored is None:
                    stored = [(0, 0, "holdfast", UNREADABLE_LINES.format(lines), None)]
                new = [line for line in shown_lines(stored, first, attempt, accepts) if line.seq > after]
                if limit is not None and len(found) + len(new) > limit:
                    new, more = new[: limit - len(found)], True
                found += new
                seen = last_line
                if more:
                    break
        total, kept = self._execute("read", "count_logs", id=run)[0]
        dropped = int(total or 0) - int(kept or 0)
        return LogPage(found if tail is None else found[-tail:], dropped, found[-1].seq if more else None)
