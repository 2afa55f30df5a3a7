"""Schedules: what code declares of them, their slots, and the runs that these make.

A slot makes at most one run, whatever number of workers look: its schedule's row is locked, and passed over by others,
until slot, run and the step to the next slot are committed together. Slots are computed here, from the database's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.database import Row
from holdfast.policy.schedule_timing import Timing, due_slots
from holdfast.store.intake import carry_out, plan
from holdfast.store.lanes import Lanes, Pair
from holdfast.store.part import BATCH, Do, Ground, Part, batch
from holdfast.store.rows import NewRun
from holdfast.store.schedule_rows import Declared, Kind, Made, Rules, ScheduleRow, from_text, run_of_slot


class Changes(NamedTuple):
    """What a declaration changed, by name. `taken`: what another app had declared before, and which."""

    added: list[str]
    changed: list[str]
    orphaned: list[str]
    taken: dict[str, str]


class Fired(NamedTuple):
    """Runs that were made; slots that were passed over because a run was unfinished; schedules that this code can't
    read, with what is wrong."""

    made: list[Made]
    passed: list[tuple[str, int]]
    unreadable: dict[str, str]


class Schedules(Part):
    """What makes runs by the clock."""

    def __init__(self, ground: Ground, lanes: Lanes) -> None:
        super().__init__(ground)
        self._lanes = lanes

    def declare(self, app: str, declared: Sequence[Declared]) -> Changes:
        """Let the database know the schedules and triggers of an app's code, all of them: those that it had before and
        has no more are orphaned. What has a new timing, or was orphaned, begins anew, from now."""
        self._lanes.of(run for each in declared if (run := each.template) is not None)
        return self._together("housekeeping", lambda do: _declare(do, app, {each.name: each for each in declared}))

    def until_next(self) -> int | None:
        """Microseconds until the next slot of any schedule; None when there is none."""
        left = self._one("look", "next_slot")[0][0]
        return None if left is None else int(left)

    def fire(self) -> Fired:
        """Make the runs of the slots that have come, of some schedules."""
        lanes = _by_pair(self._lanes.refresh("housekeeping"))
        return self._together("housekeeping", lambda do: _fire(do, lanes))

    def run_now(self, name: str) -> str | None:
        """Make a run of a schedule now, beside its slots; its id. None for a trigger, which is polled soon."""
        lanes = _by_pair(self._lanes.refresh())

        def work(do: Do) -> str | None:
            _, kind, _, rules, template, now = do("hold_schedules", rows=_names([name]))[0]
            if kind == "trigger":
                do("move_schedules", rows=batch([{"name": name, "next_at": now}]))
                return None
            run = run_of_slot(name, template, from_text(Rules, rules), int(now))
            run.run_at = None
            return _make(do, [(name, int(now), run)], lanes, asked=1)[0].run

        return self._together("client", work)

    def all(self) -> list[ScheduleRow]:
        """Every schedule and trigger, by name, with the last run of each."""
        return [_shown(row) for row in self._one("read", "list_schedules")]

    def last_slots(self, name: str) -> list[Row]:
        """The last slots that made runs, newest first: slot, whether an operator asked, run, the run's state."""
        return self._one("read", "last_slots", name=name)

    def pause(self, names: Iterable[str]) -> list[str]:
        """Let these make nothing; the names of those that weren't paused."""
        return sorted(row[0] for row in self._one("client", "pause_schedules", rows=_names(names)))

    def resume(self, names: Iterable[str]) -> list[str]:
        """Let these go on, with what comes next from now; the names of those that were paused."""
        asked = _names(names)

        def work(do: Do) -> list[str]:
            rows = [
                {"name": name, "next_at": _first(kind, from_text(Timing, timing), int(now))}
                for name, kind, timing, _, _, now in do("hold_paused", rows=asked)
            ]
            if rows:
                do("resume_schedules", rows=batch(rows))
            return [str(row["name"]) for row in rows]

        return self._together("client", work)


# Declaring


def _declare(do: Do, app: str, declared: Mapping[str, Declared]) -> Changes:
    known = {row[0]: row for row in do("hold_declared", app=app, rows=_names(declared))}
    now = int(do("read_clock")[0][0])
    changes = Changes([], [], [], {})
    rows: dict[str, dict[str, Any]] = {}
    for name, each in declared.items():
        rows[name] = row = each.row(app)
        row["next_at"] = _first(row["kind"], each.timing, now)
        _compare(row, known.get(name), changes)
    changes.orphaned.extend(name for name, row in known.items() if name not in declared and not row[-1])  # of this app
    for statement, names in (("add_schedules", changes.added), ("change_schedules", changes.changed)):
        if names:
            do(statement, rows=batch(rows[name] for name in sorted(names)))
    if changes.orphaned:
        do("orphan_schedules", rows=_names(changes.orphaned))
    return changes


def _compare(row: dict[str, Any], known: Row | None, changes: Changes) -> None:
    """Note what the code's row changes about the kept one, and whether its slots begin anew."""
    name = row["name"]
    if known is None:
        changes.added.append(name)
        return
    _, app, kind, timing, rules, template, orphaned = known
    row["moved"] = int(bool(orphaned) or (kind, timing) != (row["kind"], row["timing"]))
    if app != row["app"]:
        changes.taken[name] = app
    if row["moved"] or app != row["app"] or (rules, template) != (row["rules"], row["template"]):
        changes.changed.append(name)


def _first(kind: Kind, timing: Timing, now: int) -> int | None:
    """When something that begins now comes next: a trigger is polled at once."""
    return now if kind == "trigger" else timing.next_after(now)


# Making runs


class Plan(NamedTuple):
    """What is to be done about one schedule."""

    name: str
    rules: Rules
    runs: dict[int, NewRun]
    """By slot."""
    next_at: int | None


def _fire(do: Do, lanes: Mapping[Pair, int]) -> Fired:
    fired = Fired([], [], {})
    plans = _plan_due(do, lanes, fired.unreadable)
    runs, passed = _sort_out(do, plans)
    fired.made.extend(_make(do, runs, lanes))
    fired.passed.extend(passed.items())
    if plans:
        rows = [{"name": it.name, "next_at": it.next_at, "passed_at": passed.get(it.name)} for it in plans]
        do("move_schedules", rows=batch(rows))
    return fired


def _plan_due(do: Do, lanes: Mapping[Pair, int], unreadable: dict[str, str]) -> list[Plan]:
    """The first of what is due. What this code can't read stays as it is, and is passed by."""
    plans: list[Plan] = []
    name, next_at = "", -1
    while not plans and (rows := do("pick_due_schedules", at=next_at, behind=name)):
        for name, queue, task, timing, rules, template, next_at, now in rows:
            if (queue, task) not in lanes or sum(len(it.runs) for it in plans) >= BATCH:
                continue  # the next round has room, and knows the lane of what was added a moment ago
            try:
                due = due_slots(from_text(Timing, timing), (kept := from_text(Rules, rules)).catch_up, next_at, now)
                runs = {slot: run_of_slot(name, template, kept, slot) for slot in due.slots}
                plans.append(Plan(name, kept, runs, due.next))
            except Exception as error:  # of newer code, or of a time zone that isn't known here: others may know it
                unreadable[name] = f"{type(error).__name__}: {error}"
    return plans


def _sort_out(do: Do, plans: Sequence[Plan]) -> tuple[list[tuple[str, int, NewRun]], dict[str, int]]:
    """The runs to be made, and the last slots that are passed over because a run of their schedule is unfinished."""
    slots = [{"schedule": it.name, "slot": slot} for it in plans for slot in it.runs]
    made = {(name, int(slot)) for name, slot in do("find_slots", rows=batch(slots))} if slots else set()
    alone = [it.name for it in plans if it.rules.overlap == "skip" and it.runs]
    busy = {name for (name,) in do("busy_schedules", rows=_names(alone))} if alone else set()
    runs, passed = [], {}
    for it in plans:
        for slot, run in it.runs.items():
            if (it.name, slot) in made:
                continue
            if it.name in busy:
                passed[it.name] = slot
                continue
            runs.append((it.name, slot, run))
            if it.rules.overlap == "skip":
                busy.add(it.name)
    return runs, passed


def _make(do: Do, runs: Sequence[tuple[str, int, NewRun]], lanes: Mapping[Pair, int], asked: int = 0) -> list[Made]:
    """The runs of slots, and the record of it."""
    if not runs:
        return []
    for _, _, run in runs:
        run.args = do.payloads.pack(run.args, f"the arguments of task {run.task}")
    ids = carry_out(plan([run for _, _, run in runs], dict(lanes)), do)
    made = [Made(name, slot, id) for (name, slot, _), id in zip(runs, ids, strict=True)]
    do("add_slots", rows=batch({**each._asdict(), "asked": asked} for each in made))
    do("trim_slots", rows=_names({each.schedule for each in made}))
    return made


def _names(names: Iterable[str]) -> str:
    return batch({"name": name} for name in sorted(set(names)))


def _by_pair(lanes: Mapping[int, Pair]) -> dict[Pair, int]:
    return {pair: id for id, pair in lanes.items()}


def _shown(row: Row) -> ScheduleRow:
    shown = ScheduleRow._make(row)
    return shown._replace(last_run=None if shown.last_run is None else str(shown.last_run))
