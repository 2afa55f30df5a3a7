"""What operators and applications do to a run from outside: cancel, retry, send. Forks are in `forks.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from uuid import UUID

import msgspec

from holdfast.database import Conflict, DataFault, Duplicate
from holdfast.errors import GraphError, KeyConflict, RunFinished, RunNotFound
from holdfast.model.ids import new_id
from holdfast.model.run import FINAL_STATES
from holdfast.store.family import HeldRun, cancel, hold, hold_with_parents
from holdfast.store.part import Do, Part, batch, record
from holdfast.store.retrying import retry
from holdfast.store.settling import settle
from holdfast.store.waking import give_message


class Operators(Part):
    """Cancel and retry, one run or many; send."""

    def cancel(self, id: str, error: str) -> bool:
        """End an unfinished run as cancelled, or let it undo first, and its children with it; False when it had ended
        before."""

        def work(do: Do) -> bool:
            run = _hold(do, id)
            ends = cancel(do, {id: run}, error)
            settle(do, ends)
            return bool(ends)

        return self._together("client", work)

    def cancel_many(self, ids: Sequence[str], error: str) -> int:
        """The same for a batch of runs, in one transaction; how many of them ended by it, or began to undo."""

        def work(do: Do) -> int:
            ends = cancel(do, hold_with_parents(do, ids), error)
            settle(do, ends)
            return len(ends)

        return self._together("client", work)

    def retry(self, id: str, by: str | None = None) -> bool:
        """A failed or cancelled run goes back to ready, with the children that ended so with it; False when it is
        unfinished anyway. `by`: who wants it."""

        def work(do: Do) -> bool:
            run = _hold(do, id)
            if run.state in ("done", "skipped"):
                raise RunFinished(f"run {id} is {run.state}; only failed and cancelled runs can be retried")
            if run.state not in FINAL_STATES:
                return False
            if run.node is not None:
                raise GraphError(
                    f"run {id} is node {run.node} of graph run {run.parent}: retry that; it runs again what failed or "
                    "was skipped, and keeps what is done"
                )
            released = retry(do, [id], by)
            if released is None:
                _refuse_retry(do, id)
            settle(do, [], released)
            return True

        try:
            return self._together("client", work)
        except Duplicate:  # a run of its unique name was being made meanwhile: now it can be seen
            return self._together("client", work)

    def retry_many(self, ids: Sequence[str], by: str | None = None) -> int:
        """The same for a batch of runs, in one transaction; how many of them are tried again. Those that can't be
        (nodes of graphs, which are retried with these; those whose unique name another run has) are passed over."""

        def work(do: Do) -> int:
            held = hold_with_parents(do, ids)
            ended = [run.id for run in held.values() if run.state in ("failed", "cancelled") and run.node is None]
            released = retry(do, ended, by) if ended else None
            if released is None:
                return 0
            settle(do, [], released)
            return sum(run.state not in FINAL_STATES for run in hold(do, ended).values())

        try:
            return self._together("client", work)
        except DataFault:  # several of them have the same unique name: only one can be retried
            return sum(self._retry_alone(id, by) for id in ids)

    def _retry_alone(self, id: str, by: str | None) -> bool:
        try:
            return self.retry(id, by)
        except (KeyConflict, GraphError, RunFinished, RunNotFound):
            return False

    def send(self, id: str, topic: str, payload: str, by: str | None = None) -> None:
        """A message to an unfinished run: to the receive that waits for it, or to a later one. It is in the run's
        history only where somebody is named who sent it: applications send many."""
        call = str(new_id())
        tries = count(1)
        payload = self._ground.payloads.pack(payload, f"the message on topic {topic!r}")

        def work(do: Do) -> None:
            run = _hold(do, id)
            if next(tries) > 1 and do("sent_by", run=id, sent_by=call):
                return  # the answer got lost
            if run.kind is not None:
                raise GraphError(f"run {id} is a {run.kind}, which receives no messages: send them to one of its nodes")
            if run.state in FINAL_STATES:
                raise RunFinished(f"run {id} is {run.state}; messages go to unfinished runs")
            do(
                "add_messages",
                rows=batch([{"run": id, "number": 1, "topic": topic, "payload": payload, "sent_by": call}]),
            )
            if by is not None:
                ((n, attempt),) = do("number_record", id=id)
                data = msgspec.json.encode({"by": by, "topic": topic}).decode()
                do("add_history", rows=batch([record(id, n, "sent", attempt, data=data)]))
            give_message(do, id, topic)

        self._together("client", work)


def _hold(do: Do, id: str) -> HeldRun:
    """Lock one run, after its parent."""
    found = hold_with_parents(do, [id])
    if not found:
        raise RunNotFound.of(id)
    return found[id]


def _refuse_retry(do: Do, id: str) -> None:
    unique_name = do("unique_name_of", id=id)[0][0]
    holder = do("find_unique", rows=batch([{"unique_name": unique_name}]))
    if not holder:
        raise Conflict(f"run {id} can't be retried: its unique name changed hands just now; try again")
    raise KeyConflict(
        f"run {id} can't be retried: run {holder[0][0]} has its unique name and is unfinished",
        UUID(str(holder[0][0])),
    )
