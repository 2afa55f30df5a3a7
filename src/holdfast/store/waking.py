"""How waits are settled: what came is written into the wait, and a run that is waiting becomes ready.

A run that is running just now isn't touched: its worker looks at its waits itself, before it suspends at the latest.
Everything here runs inside a transaction of its caller's, which has locked the events and runs concerned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.store.commands import Outcome
from holdfast.store.family import ids
from holdfast.store.part import Do, batch, bounded

MOST_WOKEN = 500


class Waiter(NamedTuple):
    """An open wait for an event."""

    run: str
    generation: int
    key: str
    target: str


def target_of(tenant: str | None, name: str) -> str:
    """An event of a tenant, as waits and events name it."""
    return msgspec.json.encode([tenant, name]).decode()


def recorded_as(kind: str, outcome: Outcome) -> tuple[str, str | None]:
    """The checkpoint's kind and value for what came of a wait."""
    if kind == "sleep":
        return "slept", None
    if outcome.kind == "due":
        return "timeout", None
    if kind == "children":
        return "join", None if outcome.value is None else msgspec.json.encode(outcome.value).decode()
    return kind, outcome.value


def outcome_of(kind: str, value: str | None) -> Outcome:
    """What came of a wait, from its checkpoint."""
    if kind in ("slept", "timeout"):
        return Outcome("due", None)
    if kind == "join":
        return Outcome("children", None) if value is None else Outcome("failed", msgspec.json.decode(value))
    return Outcome(kind, value)


def lock_events(do: Do, events: Iterable[tuple[str | None, str]]) -> dict[str, str]:
    """Lock events by tenant and name, whether or not they were emitted; the payloads of those that were."""
    named = {target_of(tenant, name): (tenant, name) for tenant, name in events}
    rows = batch({"target": target, "tenant": tenant, "name": name} for target, (tenant, name) in sorted(named.items()))
    do("touch_events", rows=rows)
    while len(do("lock_events", rows=rows)) < len(named):  # one was pruned in between
        do("touch_events", rows=rows)
    return dict(do("emitted_events", rows=rows))


def find_waiters(do: Do, targets: Collection[str]) -> tuple[list[Waiter], bool]:
    """Who waits for events: at most so many, and whether there are more."""
    if not targets:
        return [], False
    rows = do("find_waiters", rows=batch({"target": target} for target in sorted(targets)))
    found = [Waiter(str(run), generation, key, target) for run, generation, key, target in rows]
    return found[:MOST_WOKEN], len(found) > MOST_WOKEN


def settle_events(
    do: Do,
    payloads: Mapping[str, str],
    waiters: Iterable[Waiter],
    *,
    more: bool,
    traces: Mapping[str, str | None],
    by: str | None = None,
) -> set[str]:
    """Locked events are emitted for the first time: their waiters, whose runs are locked, have what they waited for.
    The runs to wake."""
    rows = [
        {"target": target, "payload": payload, "more": int(more), "emitted_by": by, "trace": traces[target]}
        for target, payload in payloads.items()
    ]
    do("emit_events", rows=batch(rows))
    return settle_waiters(do, payloads, waiters)


def settle_waiters(do: Do, payloads: Mapping[str, str], waiters: Iterable[Waiter]) -> set[str]:
    rows: list[dict[str, Any]] = [
        {
            "run": waiter.run, "generation": waiter.generation, "key": waiter.key, "outcome": "event",
            "value": payloads[waiter.target],
        }
        for waiter in waiters
        if waiter.target in payloads
    ]  # fmt: skip
    woken: set[str] = set()
    for some in bounded(rows, lambda row: len(row["value"])):
        woken.update(str(row[0]) for row in do("settle_waits", rows=batch(some)))
    return woken


def receiver(generation: int, key: str) -> str:
    """How messages name the wait that took them: a restart makes the same waits again."""
    return f"{generation}:{key}"


def take_message(do: Do, run: str, topic: str | None, by: str) -> str | None:
    """The payload of the first message of a topic that nobody took, which is this receiver's now; None without one."""
    found = do("first_message", run=run, topic=topic)
    if not found:
        return None
    n, payload = found[0]
    do("take_messages", rows=batch([{"run": run, "n": n, "taken_by": by}]))
    return str(payload)


def give_message(do: Do, run: str, topic: str) -> None:
    """Give the first message of a topic that nobody took to the first open wait for one, if there are both."""
    waiting = do("first_receiver", run=run, topic=topic)
    if not waiting:
        return
    generation, key = waiting[0]
    payload = take_message(do, run, topic, receiver(generation, key))
    if payload is None:
        return
    settled = {"run": run, "generation": generation, "key": key, "outcome": "message", "value": payload}
    do("settle_waits", rows=batch([settled]))
    wake(do, [run])


def wake(do: Do, runs: Collection[str]) -> int:
    """Waiting runs with a settled wait become ready; how many did."""
    return len(do("wake_runs", rows=ids(sorted(runs)))) if runs else 0
