"""Schedules and triggers: what code declares, the slots of schedules and their runs, the polls of triggers.

A slot creates at most one run, however many workers poll: the schedule's row is locked, and skipped by others,
until slot, run and the step to the next slot are committed together. Slots are computed from the database time. A
trigger is polled by one worker at a time, which holds a lease on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast.database import Row
from holdfast.model.clock import is_datetime
from holdfast.model.ids import new_id
from holdfast.policy.schedule_timing import CatchUp, Timing, due_slots, jitter_delay
from holdfast.store.enqueue import LaneKey, LaneStore, enqueue_steps, lanes_by_key, run_steps
from holdfast.store.module import MAX_BATCH_ROWS, StoreContext, StoreModule, Tx, json_rows, time_left
from holdfast.store.rows import NewRun
from holdfast.store.typed_rows import MIN_INTEGER, RowReader

ScheduleKind: TypeAlias = Literal["schedule", "trigger"]
Overlap: TypeAlias = Literal["allow", "skip"]
T = TypeVar("T")


class ScheduleRules(msgspec.Struct, frozen=True):
    """How the slots of a schedule become runs. `jitter`: microseconds."""

    catch_up: CatchUp = "skip"
    overlap: Overlap = "allow"
    jitter: int = 0


class DeclaredSchedule(msgspec.Struct, frozen=True):
    """A schedule or trigger as an app's code declares it. A trigger has no template: its code creates requests."""

    name: str
    timing: Timing
    rules: ScheduleRules = ScheduleRules()
    template: NewRun | None = None

    def row(self, app: str) -> dict[str, Any]:
        """Return the row that statements take; equal for equal declarations."""
        run = self.template
        return {
            "name": self.name,
            "kind": "trigger" if run is None else "schedule",
            "app": app,
            "queue": None if run is None else run.queue,
            "task": None if run is None else run.task,
            "timing": to_text(self.timing),
            "rules": to_text(self.rules),
            "template": None if run is None else to_text(run, leave_out="id"),
        }


class ScheduleRow(NamedTuple):
    """A schedule or trigger as operators see it, with its last run, or the outcome of its last poll."""

    name: str
    kind: ScheduleKind
    app: str
    task: str | None
    timing: str
    rules: str
    next_at: int | None
    paused: int
    orphaned: int
    passed_at: int | None
    last_slot: int | None
    last_run: str | None
    last_state: str | None
    polled_at: int | None
    found: int | None
    made: int | None
    poll_error: str | None


_SCHEDULE_ROWS = RowReader(ScheduleRow)


class SlotRow(NamedTuple):
    """A slot that created a run. `asked`: an operator requested it. `state`: that of the run, None if it was pruned."""

    slot: int
    asked: int
    run: str
    state: str | None


_SLOT_ROWS = RowReader(SlotRow)


class SlotRun(NamedTuple):
    """A run that a slot created."""

    schedule: str
    slot: int
    run: str


class ScheduleChanges(NamedTuple):
    """What a declaration changed, by name. `taken`: schedules that another app had declared, with that app."""

    added: list[str]
    changed: list[str]
    orphaned: list[str]
    taken: dict[str, str]


class FiredSlots(NamedTuple):
    """Runs that were created; slots skipped because a run was unfinished; unreadable schedules with the reason."""

    created: list[SlotRun]
    skipped: list[tuple[str, int]]
    unreadable: dict[str, str]


class ScheduleStore(StoreModule):
    """Schedules and their slots, and what operators do to schedules and triggers."""

    def __init__(self, context: StoreContext, lanes: LaneStore) -> None:
        super().__init__(context)
        self._lanes = lanes
        self.catch_up: CatchUp | None = None
        """What happens to missed slots of all schedules, instead of what each schedule says. For the test kit."""

    def declare(self, app: str, declared: Sequence[DeclaredSchedule]) -> ScheduleChanges:
        """Store all schedules and triggers of an app's code; orphan those that its code no longer has.

        One with a new timing, or that was orphaned, starts again from now.
        """
        self._lanes.for_runs(run for each in declared if (run := each.template) is not None)
        return self._transaction("housekeeping", lambda tx: _declare(tx, app, {each.name: each for each in declared}))

    def until_next(self) -> int | None:
        """Return the microseconds until the next slot of any schedule, None if there is none."""
        return time_left(*self._execute("poll", "time_to_next_slot")[0])

    def fire(self) -> FiredSlots:
        """Create the runs of due slots, of some schedules."""
        lanes = lanes_by_key(self._lanes.refresh("housekeeping"))
        return self._transaction("housekeeping", lambda tx: _fire(tx, lanes, self.catch_up))

    def run_now(self, name: str) -> str | None:
        """Create a run of a schedule now and return its id, or let a trigger be polled soon and return None."""
        lanes = lanes_by_key(self._lanes.refresh())

        def work(tx: Tx) -> str | None:
            _, kind, _, rules, template, now = tx.execute("lock_schedules", rows=_names([name]))[0]
            if kind == "trigger":
                tx.execute("advance_schedules", rows=json_rows([{"name": name, "next_at": now}]))
                return None
            run = _run_of_slot(name, template, from_text(ScheduleRules, rules), int(now))
            run.run_at = None
            return _create_runs(tx, [(name, int(now), run)], lanes, asked=1)[0].run

        return self._transaction("client", work)

    def list_all(self) -> list[ScheduleRow]:
        """Return every schedule and trigger, by name."""
        return _SCHEDULE_ROWS.read_all(self._execute("read", "list_schedules"))

    def last_slots(self, name: str) -> list[SlotRow]:
        """Return the last slots, newest first."""
        return _SLOT_ROWS.read_all(self._execute("read", "list_last_slots", name=name))

    def pause(self, names: Iterable[str]) -> list[str]:
        """Pause schedules and triggers; return the names of those that weren't paused."""
        return sorted(row[0] for row in self._execute("client", "pause_schedules", rows=_names(names)))

    def resume(self, names: Iterable[str]) -> list[str]:
        """Resume schedules and triggers with what comes next from now; return the names of those that were paused."""
        requested = _names(names)

        def work(tx: Tx) -> list[str]:
            rows = [
                {"name": name, "next_at": _first_time(kind, from_text(Timing, timing), int(now))}
                for name, kind, timing, _, _, now in tx.execute("lock_paused_schedules", rows=requested)
            ]
            if rows:
                tx.execute("resume_schedules", rows=json_rows(rows))
            return [str(row["name"]) for row in rows]

        return self._transaction("client", work)


# Declare


def _declare(tx: Tx, app: str, declared: Mapping[str, DeclaredSchedule]) -> ScheduleChanges:
    known = {row[0]: row for row in tx.execute("lock_declared", app=app, rows=_names(declared))}
    now = int(tx.execute("read_clock")[0][0])
    changes = ScheduleChanges([], [], [], {})
    rows: dict[str, dict[str, Any]] = {}
    for name, each in declared.items():
        rows[name] = row = each.row(app)
        row["next_at"] = _first_time(row["kind"], each.timing, now)
        _compare(row, known.get(name), changes)
    changes.orphaned.extend(name for name, row in known.items() if name not in declared and not row[-1])
    for statement, names in (("add_schedules", changes.added), ("update_schedules", changes.changed)):
        if names:
            tx.execute(statement, rows=json_rows(rows[name] for name in sorted(names)))
    if changes.orphaned:
        tx.execute("orphan_schedules", rows=_names(changes.orphaned))
    return changes


def _compare(row: dict[str, Any], known: Row | None, changes: ScheduleChanges) -> None:
    """Note how the declared row differs from the stored one, and whether its slots start again (`moved`)."""
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


def _first_time(kind: ScheduleKind, timing: Timing, now: int) -> int | None:
    """Return when something that starts now is due next: a trigger is polled at once."""
    return now if kind == "trigger" else timing.next_after(now)


def to_text(thing: Any, leave_out: str = "") -> str:
    """Encode plain data as JSON, without fields that are None."""
    given = msgspec.to_builtins(thing)
    fields = {name: value for name, value in given.items() if value is not None and name != leave_out}
    return msgspec.json.encode(fields, order="sorted").decode()


def from_text(kind: type[T], text: str, **more: Any) -> T:
    """Decode what `to_text` encoded; raise TypeError if it is corrupt, or newer code wrote an unknown field."""
    try:
        return msgspec.convert(msgspec.to_builtins(kind(**msgspec.json.decode(text), **more)), kind)
    except msgspec.MsgspecError as error:
        raise TypeError(str(error)) from error


# Fire


class DueSchedule(NamedTuple):
    """A due schedule, with the runs of its due slots."""

    name: str
    rules: ScheduleRules
    runs: dict[int, NewRun]
    """By slot."""
    next_at: int | None


def _fire(tx: Tx, lanes: Mapping[LaneKey, int], catch_up: CatchUp | None) -> FiredSlots:
    fired = FiredSlots([], [], {})
    due = _pick_due(tx, lanes, catch_up, fired.unreadable)
    runs, skipped = _runs_to_create(tx, due)
    fired.created.extend(_create_runs(tx, runs, lanes))
    fired.skipped.extend(skipped.items())
    if due:
        rows = [{"name": it.name, "next_at": it.next_at, "passed_at": skipped.get(it.name)} for it in due]
        tx.execute("advance_schedules", rows=json_rows(rows))
    return fired


def _pick_due(
    tx: Tx, lanes: Mapping[LaneKey, int], catch_up: CatchUp | None, unreadable: dict[str, str]
) -> list[DueSchedule]:
    """Pick the first due schedules that this code can read; the others stay as they are."""
    picked: list[DueSchedule] = []
    name, next_at = "", MIN_INTEGER
    while not picked and (rows := tx.execute("pick_due_schedules", at=next_at, behind=name)):
        for name, queue, task, timing, rules, template, next_at, now in rows:
            if (queue, task) not in lanes or sum(len(it.runs) for it in picked) >= MAX_BATCH_ROWS:
                continue  # the next round has room, and knows the lane of a schedule that was just added
            try:
                decoded = from_text(ScheduleRules, rules)
                known = from_text(Timing, timing)
                if not is_datetime(next_at):
                    picked.append(DueSchedule(name, decoded, {}, known.next_after(now)))
                    raise ValueError(f"next_at was corrupt ({next_at}) and starts again from now")
                due = due_slots(known, catch_up or decoded.catch_up, next_at, now)
                runs = {slot: _run_of_slot(name, template, decoded, slot) for slot in due.slots}
                picked.append(DueSchedule(name, decoded, runs, due.next))
            except Exception as error:  # from newer code, or a time zone unknown here: other workers may know it
                unreadable[name] = f"{type(error).__name__}: {error}"
    return picked


def _run_of_slot(schedule: str, template: str, rules: ScheduleRules, slot: int) -> NewRun:
    """Build the run of a slot, which starts at the slot's time plus delay and jitter."""
    run = from_text(NewRun, template, id=str(new_id()))
    options = {} if run.options is None else msgspec.json.decode(run.options)
    run.options = msgspec.json.encode({**options, "schedule": schedule, "scheduled_for": slot}).decode()
    later = (run.delay or 0) + jitter_delay(rules.jitter, schedule, slot)
    run.run_at, run.delay = slot + later if later else None, None
    return run


def _runs_to_create(tx: Tx, due: Sequence[DueSchedule]) -> tuple[list[tuple[str, int, NewRun]], dict[str, int]]:
    """Return the runs to create, and the last slots that are skipped because a run of the schedule is unfinished."""
    slots = [{"schedule": it.name, "slot": slot} for it in due for slot in it.runs]
    fired = {(name, int(slot)) for name, slot in tx.execute("find_fired_slots", rows=json_rows(slots))} if slots else ()
    exclusive = [it.name for it in due if it.rules.overlap == "skip" and it.runs]
    busy = {name for (name,) in tx.execute("find_busy_schedules", rows=_names(exclusive))} if exclusive else set()
    runs, skipped = [], {}
    for it in due:
        for slot, run in it.runs.items():
            if (it.name, slot) in fired:
                continue
            if it.name in busy:
                skipped[it.name] = slot
                continue
            runs.append((it.name, slot, run))
            if it.rules.overlap == "skip":
                busy.add(it.name)
    return runs, skipped


def _create_runs(
    tx: Tx, runs: Sequence[tuple[str, int, NewRun]], lanes: Mapping[LaneKey, int], asked: int = 0
) -> list[SlotRun]:
    """Create the runs of slots and record the slots. `asked`: an operator requested them."""
    if not runs:
        return []
    for _, _, run in runs:
        run.args = tx.payloads.pack(run.args, f"the arguments of task {run.task}")
    ids = run_steps(enqueue_steps([run for _, _, run in runs], dict(lanes)), tx.execute)
    created = [SlotRun(name, slot, id) for (name, slot, _), id in zip(runs, ids, strict=True)]
    tx.execute("add_slots", rows=json_rows({**each._asdict(), "asked": asked} for each in created))
    tx.execute("trim_slots", rows=_names({each.schedule for each in created}))
    return created


def _names(names: Iterable[str]) -> str:
    return json_rows({"name": name} for name in sorted(set(names)))


# Triggers


class PollResult(NamedTuple):
    """The outcome of a poll: microseconds, requests, how many of them created a run, and the error."""

    took: int
    found: int
    made: int
    error: str | None


class PollRecord(NamedTuple):
    """A stored poll: when it ended, and its outcome."""

    at: int
    took: int
    found: int
    made: int
    error: str | None


_POLL_ROWS = RowReader(PollRecord)


class TriggerStore(StoreModule):
    """Which worker polls which trigger, and the outcomes of the last polls."""

    def until_next(self, names: list[str]) -> int | None:
        """Return the microseconds until one of these may be polled, None if none will."""
        rows = json_rows({"name": name} for name in names)
        return time_left(*self._execute("poll", "time_to_next_poll", rows=rows)[0])

    def acquire_due(self, poller: str, wanted: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Acquire the due ones of these triggers; return the number of each poll, by name.

        `wanted`: by name, how long a poll may take and how long after its start the next is due, in microseconds.
        """
        rows = [{"name": name, "lease": lease, "every": every} for name, (lease, every) in sorted(wanted.items())]
        acquired = self._execute("housekeeping", "acquire_due_triggers", poller=poller, rows=json_rows(rows))
        return {name: int(number) for name, number in acquired}

    def finish_poll(self, poller: str, name: str, number: int, result: PollResult, *, again: bool = False) -> bool:
        """Release a trigger and store the outcome of its poll; False if another poller has acquired it since.

        `again`: the poll was interrupted, and the next is due at once.
        """

        def work(tx: Tx) -> bool:
            if not tx.execute("finish_poll", name=name, poller=poller, number=number, again=int(again)):
                return False
            tx.execute("add_poll", name=name, **result._asdict())
            tx.execute("trim_polls", name=name)
            return True

        return self._transaction("housekeeping", work)

    def last_polls(self, name: str) -> list[PollRecord]:
        """Return the last polls, newest first."""
        return _POLL_ROWS.read_all(self._execute("read", "list_last_polls", name=name))
