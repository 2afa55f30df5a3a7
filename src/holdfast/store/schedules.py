"""Schedules and triggers: what code declares, the slots of schedules and their runs, the polls of triggers.

A slot creates at most one run, however many workers poll: the schedule's row is locked, and skipped by others,
until slot, run and the step to the next slot are committed together. Slots are computed from the database time. A
trigger is polled by one worker at a time, which holds a lease on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

import msgspec

from holdfast.errors import ConfigError, PayloadUnreadable, TenantMoved
from holdfast.model.clock import is_datetime, to_datetime
from holdfast.model.failure import cancellation_json
from holdfast.model.ids import new_id
from holdfast.model.names import quoted
from holdfast.model.payloads import CANT_COPY, PayloadContext, is_bound, schedule_context
from holdfast.policy.schedule_timing import MAX_SLOTS_PER_BATCH, CatchUp, Timing, due_slots, jitter_delay
from holdfast.store.enqueue import LaneKey, LaneStore, create_runs, lanes_by_key
from holdfast.store.module import MAX_BATCH_ROWS, StoreContext, StoreModule, Tx, json_rows, time_left
from holdfast.store.propagation import propagate_ends
from holdfast.store.rows import NewRun
from holdfast.store.run_tree import cancel_runs, lock_with_parents
from holdfast.store.schedule_definitions import (
    CREATED,
    DELETE_IT,
    DeclarationChanges,
    DeclaredSchedule,
    ScheduleAction,
    ScheduleKind,
    ScheduleRules,
    add_action,
    declare,
    delete_schedules,
    first_time,
    from_text,
    known_schedules,
    live_declarations,
    names_json,
    plan_declaration,
    read_actions,
)
from holdfast.store.typed_rows import MIN_INTEGER, RowReader

MAX_BACKFILLED_SLOTS = 10_000


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
    orphaned_at: int | None
    buffered: int | None


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


class FiredSlots(NamedTuple):
    """Runs that were created; slots skipped because a run was unfinished; unreadable schedules with the reason.

    `refused`: schedules of tenants that were moved away, with the reason. Their due slots were passed over.
    """

    created: list[SlotRun]
    skipped: list[tuple[str, int]]
    unreadable: dict[str, str]
    refused: dict[str, str]


class StoredSchedule(NamedTuple):
    """A locked schedule or trigger. `now`: the time."""

    name: str
    kind: ScheduleKind
    app: str
    timing: str
    rules: str
    template: str | None
    next_at: int | None
    paused: int
    orphaned: int
    actions: str | None
    now: int

    def definition(self) -> DeclaredSchedule:
        """Decode it; raises TypeError if newer code wrote it."""
        template = None if self.template is None else from_text(NewRun, self.template, id="")
        return DeclaredSchedule(
            self.name, from_text(Timing, self.timing), from_text(ScheduleRules, self.rules), template
        )

    def noted(self, by: str, did: str) -> str:
        """Return the last changes by people, with this one."""
        return add_action(self.actions, self.now, by, did)


class ScheduleStore(StoreModule):
    """Schedules and their slots, and what operators do to schedules and triggers."""

    def __init__(self, context: StoreContext, lanes: LaneStore) -> None:
        super().__init__(context)
        self._lanes = lanes
        self.catch_up: CatchUp | None = None
        """What happens to missed slots of all schedules, instead of what each schedule says. For the test kit."""

    # Definitions

    def declare(self, app: str, declared: Sequence[DeclaredSchedule]) -> DeclarationChanges:
        """Reconcile the stored schedules and triggers of an app with those of its code.

        One with a new timing, or that was orphaned for long, starts again from now. Takes no lock if nothing changed.
        """
        by_name = {each.name: each for each in declared}
        known = self._execute("housekeeping", "read_declared", app=app, rows=names_json(by_name))
        sessions = self._execute("housekeeping", "list_live_sessions")
        live = live_declarations(sessions, "schedules")
        _, changes = plan_declaration(app, by_name, known_schedules(known), live, DELETE_IT)
        if not changes.any():
            return changes
        self._lanes.for_runs(run for each in declared if (run := each.template) is not None)
        return self._transaction("housekeeping", lambda tx: declare(tx, app, by_name))

    def create(self, schedule: DeclaredSchedule, by: str, *, paused: bool = False) -> bool:
        """Create a schedule at run time; False if an equal one exists. Raises ConfigError if another one does."""
        assert schedule.template is not None
        self._lanes.for_runs([schedule.template])

        def work(tx: Tx) -> bool:
            now = int(tx.execute("read_clock")[0][0])
            row = schedule.row(CREATED)
            row |= {"next_at": schedule.timing.next_after(now), "paused": int(paused)}
            row["actions"] = add_action(None, now, by, "created")
            if tx.execute("add_schedules", rows=json_rows([row])):
                return True
            found = _lock(tx, schedule.name)
            if found.app != CREATED:
                raise ConfigError(f"app {found.app} declares schedule {quoted(schedule.name)}: choose another name")
            if not _is_same(tx, found, schedule):
                raise ConfigError(f"schedule {quoted(schedule.name)} exists with other settings: update or delete it")
            return False

        return self._transaction("client", work)

    def update(
        self, name: str, change: Callable[[DeclaredSchedule], DeclaredSchedule], by: str, new: NewRun | None
    ) -> bool:
        """Change a schedule that was created at run time; False if it was so already. `new`: its new template.

        If its timing changes, its slots are computed again from now.
        """
        if new is not None:
            self._lanes.for_runs([new])

        def work(tx: Tx) -> bool:
            found = _lock(tx, name)
            _refuse_declared(found, "change")
            changed = change(found.definition())
            row = changed.row(CREATED)
            if _is_same(tx, found, changed):
                return False
            row |= {"moved": int(row["timing"] != found.timing), "next_at": changed.timing.next_after(found.now)}
            row |= {"former": None, "actions": found.noted(by, "updated")}
            tx.execute("update_schedules", rows=json_rows([row]))
            return True

        return self._transaction("client", work)

    def delete(self, name: str) -> None:
        """Delete a schedule that was created at run time, or that no code declares any more. Its runs stay."""

        tries = count()

        def work(tx: Tx) -> None:
            if next(tries) and not _lock_all(tx, names_json([name])):
                return  # deleted before the response got lost
            found = _lock(tx, name)
            if not found.orphaned:
                _refuse_declared(found, "delete")
            delete_schedules(tx, [name])

        self._transaction("client", work)

    # Slots

    def until_next(self) -> int | None:
        """Return the microseconds until the next slot of any schedule, None if there is none."""
        return time_left(*self._execute("poll", "time_to_next_slot")[0])

    def fire(self) -> FiredSlots:
        """Create the runs of due slots, of some schedules."""
        lanes = lanes_by_key(self._lanes.refresh("housekeeping"))
        try:
            return self._transaction("housekeeping", lambda tx: _fire(tx, lanes, self.catch_up, {}))
        except TenantMoved:
            moved: dict[str, str] = dict(self._execute("housekeeping", "list_fenced_tenants"))
            return self._transaction("housekeeping", lambda tx: _fire(tx, lanes, self.catch_up, moved))

    def run_now(self, name: str, by: str) -> str | None:
        """Create a run of a schedule now and return its id, or let a trigger be polled soon and return None."""
        lanes = lanes_by_key(self._lanes.refresh())

        def work(tx: Tx) -> str | None:
            found = _lock(tx, name)
            noted = {"name": name, "actions": found.noted(by, "run")}
            tx.execute("note_schedule_actions", rows=json_rows([noted]))
            if found.kind == "trigger":
                tx.execute("advance_schedules", rows=json_rows([{"name": name, "next_at": found.now}]))
                return None
            run = _run_of_slot(tx, name, str(found.template), from_text(ScheduleRules, found.rules), found.now)
            run.run_at = None
            return _create_runs(tx, [(name, found.now, run)], lanes, asked=1)[0].run

        return self._transaction("client", work)

    def backfill(self, name: str, start: int, end: int, by: str) -> list[SlotRun]:
        """Create the runs of all slots from `start` to `end` that have none, and return them.

        A repeat creates nothing twice: each run has a key that consists of the schedule and the slot.
        """
        lanes = lanes_by_key(self._lanes.refresh())
        slots = self._transaction("client", lambda tx: _slots_to_fill(tx, name, start, end, by))
        created: list[SlotRun] = []
        for at in range(0, len(slots), MAX_SLOTS_PER_BATCH):
            batch = slots[at : at + MAX_SLOTS_PER_BATCH]
            created += self._transaction("client", partial(_fill_slots, name=name, slots=batch, lanes=lanes))
        return created

    # Read, pause, resume

    def list_all(self) -> list[ScheduleRow]:
        """Return every schedule and trigger, by name."""
        return _SCHEDULE_ROWS.read_all(self._execute("read", "list_schedules"))

    def find(self, names: Iterable[str]) -> dict[str, ScheduleRow]:
        """Return those of these schedules and triggers that exist."""
        rows = _SCHEDULE_ROWS.read_all(self._execute("read", "find_schedules", rows=names_json(names)))
        return {row.name: row for row in rows}

    def actions(self, name: str) -> list[ScheduleAction]:
        """Return the last changes of a schedule by people, newest first."""
        rows = self._execute("read", "read_schedule_actions", name=name)
        return read_actions(rows[0][0])[::-1] if rows else []

    def request(self, name: str) -> NewRun | None:
        """Return what a schedule enqueues, without an id; None for triggers and definitions of a newer release."""
        rows = self._execute("read", "read_schedule_actions", name=name)
        try:
            return from_text(NewRun, rows[0][1], id="") if rows and rows[0][1] is not None else None
        except TypeError:
            return None

    def last_slots(self, name: str) -> list[SlotRow]:
        """Return the last slots, newest first."""
        return _SLOT_ROWS.read_all(self._execute("read", "list_last_slots", name=name))

    def pause(self, names: Iterable[str], by: str) -> list[str]:
        """Pause schedules and triggers; return the names of those that weren't paused."""
        requested = names_json(names)

        def work(tx: Tx) -> list[str]:
            found = [each for each in _lock_all(tx, requested) if not each.paused]
            if found:
                rows = [{"name": each.name, "actions": each.noted(by, "paused")} for each in found]
                tx.execute("pause_schedules", rows=json_rows(rows))
            return [each.name for each in found]

        return self._transaction("client", work)

    def resume(self, names: Iterable[str], by: str) -> list[str]:
        """Resume schedules and triggers with what comes next from now; return the names of those that were paused."""
        requested = names_json(names)

        def work(tx: Tx) -> list[str]:
            rows = [
                {
                    "name": each.name,
                    "next_at": first_time(each.kind, from_text(Timing, each.timing), each.now),
                    "actions": each.noted(by, "resumed"),
                }
                for each in _lock_all(tx, requested)
                if each.paused
            ]
            if rows:
                tx.execute("resume_schedules", rows=json_rows(rows))
            return [str(row["name"]) for row in rows]

        return self._transaction("client", work)


def _lock_all(tx: Tx, rows: str) -> list[StoredSchedule]:
    return [StoredSchedule(*row) for row in tx.execute("lock_schedules", rows=rows)]


def _lock(tx: Tx, name: str) -> StoredSchedule:
    found = _lock_all(tx, names_json([name]))
    if not found:
        raise ConfigError(f"schedule {quoted(name)} does not exist")
    return found[0]


def _is_same(tx: Tx, stored: StoredSchedule, schedule: DeclaredSchedule) -> bool:
    """Return whether a stored schedule has this definition. The codec may pack equal arguments differently."""
    row = schedule.row(stored.app)
    if (stored.timing, stored.rules) != (row["timing"], row["rules"]):
        return False
    before, after = (from_text(NewRun, str(text), id="") for text in (stored.template, row["template"]))
    for run in (before, after):
        if run.args[:1] == "~":
            run.args = tx.payloads.unpack(run.args, schedule_context(run.tenant, schedule.name))
    return before == after


def _refuse_declared(schedule: StoredSchedule, verb: str) -> None:
    if schedule.app != CREATED:
        raise ConfigError(
            f"{schedule.kind} {quoted(schedule.name)} is declared by app {schedule.app}: {verb} it in its code,"
            " or pause it"
        )


def _slots_to_fill(tx: Tx, name: str, start: int, end: int, by: str) -> list[int]:
    """Return the slots of a range, and note who asked for their runs."""
    found = _lock(tx, name)
    if found.kind == "trigger":
        raise ConfigError(f"{quoted(name)} is a trigger, which has no slots to backfill")
    if start > end:
        begin, last = to_datetime(start).isoformat(), to_datetime(end).isoformat()
        raise ConfigError(f"backfill of {quoted(name)}: the start {begin} is after the end {last}")
    until = min(end, found.now)  # the clock creates the runs of later slots
    slots = from_text(Timing, found.timing).newest(start - 1, until, MAX_BACKFILLED_SLOTS + 1)
    if len(slots) > MAX_BACKFILLED_SLOTS:
        raise ConfigError(f"backfill of {quoted(name)}: more than {MAX_BACKFILLED_SLOTS:,} slots: use shorter ranges")
    did = f"backfilled {to_datetime(start).isoformat()} to {to_datetime(end).isoformat()}"
    tx.execute("note_schedule_actions", rows=json_rows([{"name": name, "actions": found.noted(by, did)}]))
    return slots


def _fill_slots(tx: Tx, name: str, slots: Sequence[int], lanes: Mapping[LaneKey, int]) -> list[SlotRun]:
    found = _lock(tx, name)
    rules = from_text(ScheduleRules, found.rules)
    given = json_rows({"schedule": name, "slot": slot} for slot in slots)
    fired = {int(slot) for _, slot in tx.execute("find_fired_slots", rows=given)}
    runs: list[tuple[str, int, NewRun]] = []
    for slot in slots:
        if slot not in fired:
            run = _run_of_slot(tx, name, str(found.template), rules, slot)
            run.key = f"{name}@{to_datetime(slot).isoformat()}"
            run.digest = "backfill"
            runs.append((name, slot, run))
    ids = {run.id for _, _, run in runs}
    return [each for each in _create_runs(tx, runs, lanes) if each.run in ids]


# Fire


class DueSchedule(NamedTuple):
    """A due schedule, with the runs of its due slots."""

    name: str
    rules: ScheduleRules
    runs: dict[int, NewRun]
    """By slot."""
    next_at: int | None
    buffered: int | None = None


class SlotDecisions:
    """What happens to due slots: the runs to create, and for each schedule the last skipped slot, the slot to buffer
    and the runs to cancel."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, int, NewRun]] = []
        self.skipped: dict[str, int] = {}
        self.buffered: dict[str, int] = {}
        self.cancelled: list[str] = []

    def add(self, due: DueSchedule, slots: Sequence[int], running: Sequence[str]) -> None:
        """Decide the slots of a schedule. `running`: its runs that are unfinished or still executing."""
        overlap = due.rules.overlap
        if overlap == "cancel_running":  # only the newest slot counts
            for slot in slots[:-1]:
                self.skipped[due.name] = slot
            slots = slots[-1:]
        is_busy, buffered = bool(running), due.buffered
        for slot in slots:
            if overlap == "allow" or not (is_busy or (overlap != "skip" and buffered is not None)):
                self.runs.append((due.name, slot, due.runs[slot]))
                is_busy = True
            elif overlap == "cancel_running":
                if buffered is not None:
                    self.skipped[due.name] = buffered
                self.buffered[due.name] = slot
                self.cancelled += running
            elif overlap == "buffer_one" and buffered is None:
                self.buffered[due.name] = buffered = slot
            else:
                self.skipped[due.name] = slot


def _fire(tx: Tx, lanes: Mapping[LaneKey, int], catch_up: CatchUp | None, moved: Mapping[str, str]) -> FiredSlots:
    """Create the runs of due slots. `moved`: why tenants are refused here; their slots are passed over."""
    fired = FiredSlots([], [], {}, {})
    fired.created.extend(_fire_buffered(tx, lanes, fired, moved))
    due = _pick_due(tx, lanes, catch_up, fired.unreadable)
    for it in due:
        for slot, run in list(it.runs.items()):
            if run.tenant is not None and run.tenant in moved:
                del it.runs[slot]
                fired.refused[it.name] = moved[run.tenant]
    decided = _decide(tx, due)
    fired.created.extend(_create_runs(tx, decided.runs, lanes))
    fired.skipped.extend(decided.skipped.items())
    if due:
        rows = [{"name": it.name, "next_at": it.next_at, "passed_at": decided.skipped.get(it.name)} for it in due]
        tx.execute("advance_schedules", rows=json_rows(rows))
    if decided.buffered:
        rows = [{"name": name, "buffered": slot} for name, slot in decided.buffered.items()]
        tx.execute("set_buffered_slots", rows=json_rows(rows))
    if decided.cancelled:
        error = cancellation_json("the next slot of its schedule is due", "schedule")
        propagate_ends(tx, cancel_runs(tx, lock_with_parents(tx, decided.cancelled), error))
    return fired


def _fire_buffered(tx: Tx, lanes: Mapping[LaneKey, int], fired: FiredSlots, moved: Mapping[str, str]) -> list[SlotRun]:
    """Create the runs of buffered slots whose schedules have no other run left."""
    runs = []
    for name, queue, task, rules, template, slot in tx.execute("pick_buffered_schedules"):
        if (queue, task) not in lanes:
            continue
        try:
            runs.append((name, slot, _run_of_slot(tx, name, template, from_text(ScheduleRules, rules), slot)))
        except Exception as error:  # from newer code: other workers may know it
            fired.unreadable[name] = f"{type(error).__name__}: {error}"
    if not runs:
        return []
    tx.execute("set_buffered_slots", rows=json_rows({"name": name, "buffered": None} for name, *_ in runs))
    fired.refused.update((name, moved[run.tenant or ""]) for name, _, run in runs if run.tenant in moved)
    before = _find_fired(tx, [(name, slot) for name, slot, _ in runs])
    return _create_runs(tx, [each for each in runs if each[:2] not in before and each[2].tenant not in moved], lanes)


def _pick_due(
    tx: Tx, lanes: Mapping[LaneKey, int], catch_up: CatchUp | None, unreadable: dict[str, str]
) -> list[DueSchedule]:
    """Pick the first due schedules that this code can read; the others stay as they are."""
    picked: list[DueSchedule] = []
    name, next_at = "", MIN_INTEGER
    while not picked and (rows := tx.execute("pick_due_schedules", at=next_at, behind=name)):
        for name, queue, task, timing, rules, template, next_at, buffered, now in rows:
            if (queue, task) not in lanes or sum(len(it.runs) for it in picked) >= MAX_BATCH_ROWS:
                continue  # the next round has room, and knows the lane of a schedule that was just added
            try:
                decoded = from_text(ScheduleRules, rules)
                known = from_text(Timing, timing)
                if not is_datetime(next_at):
                    picked.append(DueSchedule(name, decoded, {}, known.next_after(now), buffered))
                    raise ValueError(f"next_at was corrupt ({next_at}) and starts again from now")
                due = due_slots(known, catch_up or decoded.catch_up, next_at, now)
                runs = {slot: _run_of_slot(tx, name, template, decoded, slot) for slot in due.slots}
                picked.append(DueSchedule(name, decoded, runs, due.next, buffered))
            except Exception as error:  # from newer code, or a time zone unknown here: other workers may know it
                unreadable[name] = f"{type(error).__name__}: {error}"
    return picked


def _run_of_slot(tx: Tx, schedule: str, template: str, rules: ScheduleRules, slot: int) -> NewRun:
    """Build the run of a slot, which starts at the slot's time plus delay and jitter."""
    run = from_text(NewRun, template, id=str(new_id()))
    options = {} if run.options is None else msgspec.json.decode(run.options)
    run.options = msgspec.json.encode({**options, "schedule": schedule, "scheduled_for": slot}).decode()
    later = (run.delay or 0) + jitter_delay(rules.jitter, schedule, slot)
    run.run_at, run.delay = slot + later if later else None, None
    run.args = _slot_arguments(tx, schedule, run)
    return run


def _slot_arguments(tx: Tx, schedule: str, run: NewRun) -> str:
    """Return the stored arguments of a run of a slot. Those of a schedule created at run time are packed already."""
    context = PayloadContext("args", run.tenant, run.id)
    if run.args[:1] != "~":
        return tx.payloads.pack(run.args, context, f"the arguments of task {run.task}")
    if tx.payloads.binds:
        return tx.payloads.repack(run.args, schedule_context(run.tenant, schedule), context)
    if is_bound(run.args):
        raise PayloadUnreadable(CANT_COPY)
    return run.args


def _decide(tx: Tx, due: Sequence[DueSchedule]) -> SlotDecisions:
    """Decide what happens to the due slots of locked schedules, but for those that created a run before."""
    fired = _find_fired(tx, [(it.name, slot) for it in due for slot in it.runs])
    exclusive = [it.name for it in due if it.rules.overlap != "allow" and it.runs]
    running: dict[str, list[str]] = {}
    for name, run in tx.execute("find_busy_runs", rows=names_json(exclusive)) if exclusive else ():
        running.setdefault(name, []).append(str(run))
    decided = SlotDecisions()
    for it in due:
        decided.add(it, [slot for slot in it.runs if (it.name, slot) not in fired], running.get(it.name, ()))
    return decided


def _find_fired(tx: Tx, slots: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return those of these slots that created a run before."""
    if not slots:
        return set()
    rows = json_rows({"schedule": name, "slot": slot} for name, slot in slots)
    return {(name, int(slot)) for name, slot in tx.execute("find_fired_slots", rows=rows)}


def _create_runs(
    tx: Tx, runs: Sequence[tuple[str, int, NewRun]], lanes: Mapping[LaneKey, int], asked: int = 0
) -> list[SlotRun]:
    """Create the runs of slots and record the slots. `asked`: an operator requested them."""
    if not runs:
        return []
    ids = create_runs(tx, [run for _, _, run in runs], dict(lanes))
    created = [SlotRun(name, slot, id) for (name, slot, _), id in zip(runs, ids, strict=True)]
    tx.execute("add_slots", rows=json_rows({**each._asdict(), "asked": asked} for each in created))
    tx.execute("trim_slots", rows=names_json({each.schedule for each in created}))
    return created


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
