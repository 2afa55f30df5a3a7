"""Runs and their families: locks, what a parent is told of its children's ends, what ends with a parent.

Everything here runs inside a transaction of its caller's. Order of locks: a parent before its children. A run's parent
never changes, so it can be looked up before the lock; children can't appear while their parent is locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.model.failure import cancellation_json
from holdfast.store.part import BATCH, Do, batch, record


class HeldRun(NamedTuple):
    """A locked run."""

    id: str
    seq: int
    state: str
    session: str | None
    fence: int
    generation: int
    tenant: str | None
    root: str | None
    parent: str | None
    spawn_key: str | None
    place: int | None
    attempt: int
    ending: str | None
    kind: str | None
    node: str | None
    limits: str | None

    def belongs_to(self, session: str, fence: int) -> bool:
        """Whether it is this session's at this fence, and running."""
        return self.session == session and self.fence == fence and self.state == "running"

    def ended(self, state: str) -> Ended:
        """It has just come to an end, or begun to undo."""
        return Ended(self.id, state, self.parent, self.spawn_key, self.place, self.node)


class Ended(NamedTuple):
    """A run that has just come to an end, or begun to undo. `cause`: why it was skipped."""

    id: str
    state: str
    parent: str | None
    spawn_key: str | None = None
    place: int | None = None
    node: str | None = None
    cause: str | None = None

    @property
    def final(self) -> bool:
        return self.state != "undoing"

    @property
    def good(self) -> bool:
        """Whether its children may go on without it."""
        return self.state == "done"


def spawn_key(generation: int, call: str) -> str:
    """How children name the call of their parent that made them: a restart makes the same calls again."""
    return f"{generation}:{call}"


def call_of(key: str) -> tuple[int, str]:
    """The generation and the call in a spawn key."""
    generation, _, call = key.partition(":")
    return int(generation), call


def ids(runs: Iterable[str]) -> str:
    """Ids as the batch that statements take."""
    return batch({"id": run} for run in runs)


def chunks(rows: Sequence[Any], size: int = BATCH) -> list[Sequence[Any]]:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def hold(do: Do, runs: Iterable[str]) -> dict[str, HeldRun]:
    """Lock runs in the order of arrival."""
    wanted = sorted(set(runs))
    return held_runs(do("hold_runs", rows=ids(wanted))) if wanted else {}


def held_runs(rows: Sequence[Sequence[Any]]) -> dict[str, HeldRun]:
    """Rows of locked runs by their id."""
    return {str(row[0]): HeldRun(str(row[0]), *row[1:7], *map(_text, row[7:9]), *row[9:]) for row in rows}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def hold_with_parents(do: Do, runs: Sequence[str]) -> dict[str, HeldRun]:
    """Lock runs that may end, and those above them, which come first by order of arrival."""
    held = hold(do, above(do, runs) | set(runs))
    return {run: held[run] for run in runs if run in held}


def above(do: Do, runs: Iterable[str]) -> set[str]:
    """Those above runs that their ends concern: their parents; and where those are graphs, which may end with them,
    theirs too."""
    found: set[str] = set()
    below = set(runs)
    while below:
        parents = do("parents_of", rows=ids(sorted(below)))
        found |= {str(parent) for parent, _ in parents}
        below = {str(parent) for parent, ends_with_them in parents if ends_with_them}
    return found


def tell_parents(do: Do, ends: Sequence[Ended]) -> None:
    """Runs have ended: those who wait for them as their children learn it."""
    children = [end for end in ends if end.parent is not None and end.spawn_key is not None]
    if not children:
        return
    calls = Counter((end.parent, end.spawn_key) for end in children)
    failed = {(end.parent, end.spawn_key): end.id for end in reversed(children) if not end.good}
    rows = [
        {
            "parent": parent, "generation": call_of(str(key))[0], "spawn_key": key, "ended": count,
            "failed": failed.get((parent, key)),
        }
        for (parent, key), count in calls.items()
    ]  # fmt: skip
    do("settle_children", rows=batch(rows))
    do("wake_runs", rows=ids({str(end.parent) for end in children}))
    places = Counter((end.parent, end.spawn_key) for end in children if end.place is not None)
    for (parent, key), count in places.items():
        do("release_siblings", parent=parent, spawn_key=key, size=count)


def cancel_children(do: Do, parents: Sequence[str]) -> list[Ended]:
    """Children of runs that ended badly end with them; how they did."""
    if not parents:
        return []
    children = [str(row[0]) for row in do("unfinished_children", rows=ids(parents))]
    reason = cancellation_json("its parent ended")
    return [end for some in chunks(children) for end in cancel(do, hold(do, some), reason)]


def cancel(do: Do, runs: dict[str, HeldRun], error: str) -> list[Ended]:
    """End locked runs as cancelled, or let them undo first; those that had ended are left alone."""
    return _end_from_outside(do, runs, "cancelled", error)


def fail_overdue(do: Do, runs: dict[str, HeldRun], error: str) -> list[Ended]:
    """The same for those that are past their deadline, which fail."""
    return _end_from_outside(do, runs, "failed", error, overdue=True)


def _end_from_outside(do: Do, runs: dict[str, HeldRun], kind: str, error: str, *, overdue: bool = False) -> list[Ended]:
    """Runs are ended by somebody else than their worker. That ends an attempt, which `since` says, only where one was
    under way."""
    rows = do("end_runs", rows=ids(runs), state=kind, error=error, overdue=int(overdue))
    records, ends = [], []
    for id, n, attempt, session, claimed_at, final, *_ in rows:
        run = runs[str(id)]
        what = kind if final else "undoing"
        since = claimed_at if run.state == "running" else None
        records.append(record(run.id, n, what, attempt, session=session, since=since, data=error))
        end = run.ended(what)
        ends.append(end._replace(place=None) if run.state == "blocked" else end)  # kept back: nobody moves up for it
    do("add_history", rows=batch(records))
    return ends
