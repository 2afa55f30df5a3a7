"""Permits of steps: taken before a step runs, returned with its checkpoint or when its session releases the run.

A step that finds a limit full waits like for an event, and its run is suspended. When there may be room, the wait is
resolved, and the step tries again: permits are taken when the step starts, not while its run waits for a worker. Steps
get permits in the order in which they began to wait. Every function runs inside the transaction of its caller, which
has locked the runs. Decision 41 has the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.policy.admission import LimitCounter, Permit, Reserved, Room
from holdfast.store.commands import (
    AdjustCommand,
    LimitedStepCommand,
    Reply,
    RunToken,
    WaitCommand,
    WaitOutcome,
    WaitRegistered,
)
from holdfast.store.limits import (
    STEP_TARGET,
    WaitingStep,
    lock_counters,
    parse_counter_key,
    parse_permits,
    reserved_for,
    store_counters,
    unpark,
    waiting_steps,
)
from holdfast.store.module import Tx, id_rows, json_rows

NEWEST = 2**63 - 1


class HeldPermits(NamedTuple):
    """The permits that a step holds, and when it took them."""

    run: str
    key: str
    fence: int
    limits: str
    taken_at: int


class _Correction(NamedTuple):
    """A change of the cost of a start."""

    permit: Permit
    taken_at: int
    used: int


def drop_step_permits(tx: Tx, runs: Collection[str]) -> list[str]:
    """Delete the permits that steps of these runs hold; return their limits, for `return_permits`."""
    return [str(limits) for (limits,) in tx.execute("drop_step_permits", rows=id_rows(runs))] if runs else []


def without_times(takes: str | None) -> str:
    """Return the record of what a step took, as a fork copies it: adjusting it must not correct the original again."""
    try:
        rows = msgspec.json.decode(takes or "[]", type=list[tuple[str, int, int, int | None]])
    except msgspec.MsgspecError:  # a corrupt row
        rows = []
    return msgspec.json.encode([(counter, cost, 0, used) for counter, cost, _, used in rows]).decode()


class StepPermits:
    """What one transaction does with permits of steps: return some, correct costs, then take others.

    All counters are locked at once, in order.
    """

    def __init__(
        self,
        tx: Tx,
        wanted: Sequence[tuple[int, WaitCommand]],
        ended: Sequence[LimitedStepCommand],
        adjusted: Sequence[AdjustCommand],
    ) -> None:
        self._tx = tx
        self._wanted = wanted
        self._ended = ended
        self._adjusted = adjusted
        self._counters: dict[str, LimitCounter] = {}
        self._now = 0
        self._has_room: set[str] = set()

    def settle(self) -> dict[int, Reply]:
        """Return, correct and take the permits; return the replies to the steps that want permits, by position."""
        held = self._find_held()
        returned = [held[command.token.run, command.step] for command in self._ended if _step_of(command) in held]
        stale = [row for row in held.values() if _is_stale(row, self._wanted)]
        corrections = [*self._corrections_of_ended(held), *self._corrections()]
        wanted = {at: parse_permits(wait.target) for at, wait in self._wanted}
        permits = [permit for row in (*returned, *stale) for permit in parse_permits(row.limits)]
        permits += [permit for some in wanted.values() for permit in some]
        permits += [each.permit for each in corrections]
        if not permits:
            return {at: WaitOutcome("permit", None) for at in wanted}
        self._counters, self._now = lock_counters(self._tx, sorted({permit.counter for permit in permits}))
        self._return([*returned, *stale])
        for each in corrections:
            self._correct(each)
        replies = self._take(wanted, held)
        for key in sorted(self._has_room):
            counter = self._counters[key]
            if counter.check_at is not None:
                unpark(self._tx, key, counter, self._now)
        store_counters(self._tx, self._counters)
        return replies

    def _find_held(self) -> dict[tuple[str, str], HeldPermits]:
        steps = {_step_of(command) for command in self._ended} | {_step_of(wait) for _, wait in self._wanted}
        if not steps:
            return {}
        rows = json_rows({"run": run, "key": key} for run, key in sorted(steps))
        found = [HeldPermits(str(run), *row) for run, *row in self._tx.execute("find_step_permits", rows=rows)]
        return {(each.run, each.key): each for each in found}

    # Return and correct

    def _return(self, rows: Sequence[HeldPermits]) -> None:
        if not rows:
            return
        self._tx.execute("delete_step_permits", rows=json_rows({"run": row.run, "key": row.key} for row in rows))
        for row in rows:
            for permit in parse_permits(row.limits):
                counter = self._counters[permit.counter]
                counter.used = max(counter.used - 1, 0)
                self._has_room.add(permit.counter)

    def _corrections_of_ended(self, held: Mapping[tuple[str, str], HeldPermits]) -> Iterable[_Correction]:
        """Yield the costs that steps have adjusted while they ran."""
        for command in self._ended:
            row = held.get(_step_of(command))
            if row is None or not command.used:
                continue
            for permit in parse_permits(row.limits):
                if permit.counter in command.used:
                    yield _Correction(permit, row.taken_at, command.used[permit.counter])

    def _corrections(self) -> Iterable[_Correction]:
        own = {command.token.run for command in self._adjusted if command.taken_at is None}
        started: dict[str, int | None] = {}
        if own:
            started = {str(id): at for id, at in self._tx.execute("read_claim_times", rows=id_rows(sorted(own)))}
        for command in self._adjusted:
            taken_at = started.get(command.token.run) if command.taken_at is None else command.taken_at
            if taken_at is not None:
                yield _Correction(Permit(command.counter, command.cost), taken_at, command.used)

    def _correct(self, correction: _Correction) -> None:
        permit = correction.permit
        change = correction.used - permit.cost
        self._counters[permit.counter].correct(correction.taken_at, change, self._now)
        if change < 0:
            self._has_room.add(permit.counter)

    # Take

    def _take(
        self, wanted: Mapping[int, Sequence[Permit]], held: Mapping[tuple[str, str], HeldPermits]
    ) -> dict[int, Reply]:
        replies: dict[int, Reply] = {}
        if not wanted:
            return replies
        room = Room(self._counters, self._now)
        waiting = waiting_steps(self._tx, self._counters)
        known = self._find_waits()
        taken: list[dict[str, object]] = []
        waits: list[dict[str, object]] = []
        for at, wait in self._wanted:
            token, permits = wait.token, wanted[at]
            row = held.get(_step_of(wait))
            if row is not None and row.fence == token.fence:  # taken before, but the reply got lost
                replies[at] = WaitOutcome("permit", str(row.taken_at))
                continue
            if (too_much := next((each for each in permits if self._exceeds(each)), None)) is not None:
                replies[at] = self._refuse(too_much)
                continue
            since = known.get((token.run, wait.key), NEWEST)
            lacking = room.lacking(permits, {key: _ahead(some, wait, since) for key, some in waiting.items()})
            if lacking is None:
                room.take(permits)
                taken.append(
                    {
                        "run": token.run, "key": wait.name, "fence": token.fence, "limits": wait.target,
                        "taken_at": self._now,
                    }
                )  # fmt: skip
                replies[at] = WaitOutcome("permit", str(self._now))
                continue
            counter = self._counters[lacking.counter]
            counter.steps = True
            opens = counter.opens_at(self._now, lacking.cost)
            counter.check_at = opens if counter.check_at is None else min(counter.check_at, opens)
            waits.append(_wait_row(wait, lacking, self._now))
            replies[at] = WaitRegistered(None)
            waiting.setdefault(lacking.counter, []).append(WaitingStep(token.run, wait.key, self._now, lacking.cost))
        self._store(known, replies, taken, waits)
        return replies

    def _exceeds(self, permit: Permit) -> bool:
        return self._counters[permit.counter].exceeds(permit.cost)

    def _refuse(self, permit: Permit) -> WaitOutcome:
        name, rate = parse_counter_key(permit.counter)[0], self._counters[permit.counter].rate
        allowed = 0 if rate is None else rate.starts
        text = f"has a cost of {permit.cost:,}, and limit {name} allows {allowed:,} per period: it would never start"
        return WaitOutcome("refused", text)

    def _find_waits(self) -> dict[tuple[str, str], int]:
        """Return since when those of the steps wait that have waited before."""
        rows = json_rows(_key_of(wait.token, wait.key) for _, wait in self._wanted)
        return {(str(run), key): since for run, key, since in self._tx.execute("find_step_waits", rows=rows)}

    def _store(
        self,
        known: Mapping[tuple[str, str], int],
        replies: Mapping[int, Reply],
        taken: list[dict[str, object]],
        waits: list[dict[str, object]],
    ) -> None:
        resolved = [
            _key_of(wait.token, wait.key)
            for at, wait in self._wanted
            if (wait.token.run, wait.key) in known and not isinstance(replies[at], WaitRegistered)
        ]
        if resolved:
            self._tx.execute("delete_waits_by_key", rows=json_rows(resolved))
        if taken:
            self._tx.execute("add_step_permits", rows=json_rows(taken))
        if waits:
            self._tx.execute("add_step_waits", rows=json_rows(waits))


def _step_of(command: LimitedStepCommand | WaitCommand) -> tuple[str, str]:
    return command.token.run, str(command.name) if isinstance(command, WaitCommand) else command.step


def _is_stale(row: HeldPermits, wanted: Sequence[tuple[int, WaitCommand]]) -> bool:
    """Return whether an earlier claim has left permits behind."""
    return any(_step_of(wait) == (row.run, row.key) and wait.token.fence != row.fence for _, wait in wanted)


def _ahead(waiting: Sequence[WaitingStep], wait: WaitCommand, since: int) -> Reserved:
    """Return what is reserved for steps that have waited longer than this one."""
    own = wait.token.run, wait.key
    return reserved_for(step for step in waiting if step.since < since and (step.run, step.key) != own)


def _key_of(token: RunToken, key: str) -> dict[str, object]:
    return {"run": token.run, "generation": token.generation, "key": key}


def _wait_row(wait: WaitCommand, lacking: Permit, now: int) -> dict[str, object]:
    target = STEP_TARGET + lacking.counter
    return {**_key_of(wait.token, wait.key), "target": target, "cost": lacking.cost, "since": now}
