"""The ends of attempts: fenced, set-based, each with its record."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.part import Do, Part, batch, record
from holdfast.store.rows import End


class Attempts(Part):
    """The ends of attempts."""

    def end(self, session: str, ends: Sequence[End]) -> set[str]:
        """End attempts. The ids of those that counted; the others had lost their run, and nothing was written.

        Safe to repeat: an end that was recorded before the answer was lost counts.
        """
        counted = self._write_ends(session, ends)
        refused = [end for end in ends if end.id not in counted]
        if refused:
            counted |= self._recorded(session, refused)
            refused = [end for end in refused if end.id not in counted]
        if refused and self._ground.database.dialect.writing_ctes:
            counted |= self._write_ends(session, refused)  # once more: see the statement
        return counted

    def _write_ends(self, session: str, ends: Sequence[End]) -> set[str]:
        rows = batch(ends)
        if self._ground.database.dialect.writing_ctes:
            return {str(row[0]) for row in self._one("commit", "end_attempts", session=session, rows=rows)}
        return self._together("commit", lambda do: self._end(do, session, ends, rows))

    def _recorded(self, session: str, ends: Sequence[End]) -> set[str]:
        rows = batch({"id": end.id, "fence": end.fence} for end in ends)
        return {str(row[0]) for row in self._one("commit", "recorded_ends", session=session, rows=rows)}

    def _end(self, do: Do, session: str, ends: Sequence[End], rows: str) -> set[str]:
        if not do("session_alive", session=session):
            return set()
        ended = do("end_attempts", session=session, rows=rows)
        by_id = {end.id: end for end in ends}
        records = [
            record(id, n, by_id[id].kind, attempt, fence=fence, session=session, since=since, data=by_id[id].error)
            for id, n, attempt, fence, since in ended
        ]
        do("add_history", rows=batch(records))
        return {row["run"] for row in records}

    def crash(self, session: str, ends: Sequence[End]) -> tuple[set[str], list[str]]:
        """The processes of these attempts died: their runs are tried again, or fail when they crashed too often. The
        ids of those that counted, and which of them failed."""

        def work(do: Do) -> tuple[set[str], list[str]]:
            if not do("session_alive", session=session):
                return set(), []
            crashed = do("crash_attempts", session=session, rows=batch(ends))
            errors = {end.id: end.error for end in ends}
            records = [
                record(str(id), n, "crashed", attempt, fence=fence, session=session, since=since, data=errors[str(id)])
                for id, n, attempt, fence, since, _, _ in crashed
            ]
            do("add_history", rows=batch(records))
            return {row["run"] for row in records}, [str(row[0]) for row in crashed if row[5] == "failed"]

        return self._together("commit", work)

    def let_go(self, session: str, runs: Sequence[tuple[str, int]]) -> int:
        """Author code that outlived its run has ended: give (id, fence) up, so that a retry or successor may start."""

        def work(do: Do) -> int:
            rows = do("let_go", session=session, rows=batch({"id": id, "fence": fence} for id, fence in runs))
            records = [
                record(str(id), n, "let_go", attempt, fence=fence, session=session) for id, n, attempt, fence, _ in rows
            ]
            do("add_history", rows=batch(records))
            return len(rows)

        return self._together("commit", work)
