"""What operators and applications do to a run from outside: cancel and retry."""

from __future__ import annotations

from uuid import UUID

from holdfast.database import Conflict, Duplicate
from holdfast.errors import KeyConflict, RunFinished, RunNotFound
from holdfast.store.part import Do, Part, batch, ended, record


class Operators(Part):
    """Cancel and retry."""

    def cancel(self, id: str, error: str) -> bool:
        """End an unfinished run as cancelled; False when it had ended before."""

        def work(do: Do) -> bool:
            rows = batch([{"id": id}])
            state, _ = _lock(do, id, rows)
            cancelled = do("cancel_runs", rows=rows, error=error)
            records = [
                ended(state, record(str(id), n, "cancelled", attempt, session=session, since=since, data=error))
                for id, n, attempt, session, since in cancelled
            ]
            do("add_history", rows=batch(records))
            return bool(cancelled)

        return self._together("client", work)

    def retry(self, id: str) -> bool:
        """A failed or cancelled run goes back to ready; False when it is unfinished anyway."""

        def work(do: Do) -> bool:
            rows = batch([{"id": id}])
            state, unique_name = _lock(do, id, rows)
            if state in ("done", "skipped"):
                raise RunFinished(f"run {id} is {state}; only failed and cancelled runs can be retried")
            retried = do("retry_runs", rows=rows)
            if state in ("failed", "cancelled") and not retried:
                holder = do("find_unique", rows=batch([{"unique_name": unique_name}]))
                if not holder:
                    raise Conflict(f"run {id} can't be retried: its unique name changed hands just now; try again")
                raise KeyConflict(
                    f"run {id} can't be retried: run {holder[0][0]} has its unique name and is unfinished",
                    UUID(str(holder[0][0])),
                )
            do("add_history", rows=batch(record(str(id), n, "retried", 0) for id, n, _ in retried))
            return bool(retried)

        try:
            return self._together("client", work)
        except Duplicate:  # a run of its unique name was being made meanwhile: now it can be seen
            return self._together("client", work)


def _lock(do: Do, id: str, rows: str) -> tuple[str, str | None]:
    """Lock one run; its state and unique name."""
    found = do("lock_runs", rows=rows)
    if not found:
        raise RunNotFound.of(id)
    state, unique_name = found[0]
    return state, unique_name
