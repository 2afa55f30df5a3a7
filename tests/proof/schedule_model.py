"""A model of one schedule in plain Python: its slots, and the runs that they create. Times are in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.proof.model import FINAL, SECOND

MISSED_AFTER = 60 * SECOND
"""A slot that is overdue by more than this counts as missed."""
MAX_BATCH = 100
MAX_SLOTS = 100


@dataclass
class SlotRun:
    """A run of a schedule. `executes`: a worker has it, perhaps although it has ended."""

    state: str = "ready"
    executes: bool = False

    @property
    def is_busy(self) -> bool:
        return self.state not in FINAL or self.executes


@dataclass
class Schedule:
    """The schedule. Each slot in `slots` created a run: by its time, or because somebody asked for it now."""

    every: int
    overlap: str
    catch_up: str
    next_at: int
    paused: bool = False
    buffered: int | None = None
    slots: list[tuple[int, bool, SlotRun]] = field(default_factory=list)

    def between(self, after: int, until: int) -> list[int]:
        """Return the times of its slots in (after, until]."""
        return list(range(after // self.every * self.every + self.every, until + 1, self.every))

    def following(self, moment: int) -> int:
        """Return the time of its first slot after a moment."""
        return moment // self.every * self.every + self.every

    def has_fired(self, slot: int) -> bool:
        return any(at == slot and not asked for at, asked, _ in self.slots)

    @property
    def is_busy(self) -> bool:
        return any(run.is_busy for _, _, run in self.slots)


class ScheduleModel:
    """What a schedule has to do when its slots are due, and when operators change it."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.schedule: Schedule | None = None
        self.runs: list[SlotRun] = []  # in order of creation
        self.backfilled: dict[int, SlotRun] = {}  # by slot: a slot is filled once

    def create(self, every: int, overlap: str, catch_up: str) -> str:
        known = self.schedule
        if known is not None:
            same = (known.every, known.overlap, known.catch_up) == (every, overlap, catch_up)
            return "same" if same else "exists"
        self.schedule = Schedule(every, overlap, catch_up, self.now // every * every + every)
        return "created"

    def update(self, every: int, overlap: str, catch_up: str) -> bool:
        """Change the schedule. With another timing its slots start after now."""
        it = self._it()
        if (it.every, it.overlap, it.catch_up) == (every, overlap, catch_up):
            return False
        if it.every != every:
            it.every, it.buffered = every, None
            it.next_at = it.following(self.now)
        it.overlap, it.catch_up = overlap, catch_up
        return True

    def delete(self) -> None:
        """Delete the schedule; its runs stay."""
        self.schedule = None

    def pause(self) -> bool:
        it = self._it()
        if it.paused:
            return False
        it.paused, it.buffered = True, None
        return True

    def resume(self) -> bool:
        it = self._it()
        if not it.paused:
            return False
        it.paused, it.next_at = False, it.following(self.now)
        return True

    def run_now(self) -> None:
        self._add(self.now, asked=True)
        self._trim()

    def backfill(self, start: int, end: int) -> list[int]:
        """Create the runs of passed slots that have none; return those that no earlier call had created."""
        it = self._it()
        missing = [slot for slot in it.between(start - 1, min(end, self.now)) if not it.has_fired(slot)]
        created = [slot for slot in missing if slot not in self.backfilled]
        for slot in missing:
            run = self.backfilled.get(slot)
            if run is None:
                self.backfilled[slot] = self._add(slot)
            else:
                it.slots.append((slot, False, run))
        self._trim()
        return created

    def fire(self) -> list[int]:
        """Create the runs of due slots; return these slots."""
        created: list[int] = []
        while (made := self._fire_once()) is not None:
            created += made
        return created

    def _fire_once(self) -> list[int] | None:
        """Apply what is due, up to a batch of slots; None if nothing is."""
        it = self.schedule
        if it is None or it.paused or not (it.next_at <= self.now or (it.buffered is not None and not it.is_busy)):
            return None
        created: list[int] = []
        if it.buffered is not None and not it.is_busy:
            slot, it.buffered = it.buffered, None
            if not it.has_fired(slot):
                created.append(slot)
                self._add(slot)
        if it.next_at <= self.now:
            created += self._fire_due(it)
        self._trim()
        return created

    def _fire_due(self, it: Schedule) -> list[int]:
        slots = it.between(it.next_at - 1, self.now)
        if it.catch_up == "all":
            slots = slots[:MAX_BATCH]
            it.next_at = it.following(slots[-1])
        else:
            slots = [slot for slot in slots[-1:] if it.catch_up == "latest" or self.now - slot <= MISSED_AFTER]
            it.next_at = it.following(self.now)
        slots = [slot for slot in slots if not it.has_fired(slot)]
        if it.overlap == "cancel_running":
            slots = slots[-1:]
        created = []
        for slot in slots:
            if it.overlap == "allow" or not (it.is_busy or (it.overlap != "skip" and it.buffered is not None)):
                created.append(slot)
                self._add(slot)
            elif it.overlap == "cancel_running":
                it.buffered = slot
                for _, _, run in it.slots:
                    run.state = run.state if run.state in FINAL else "cancelled"
            elif it.overlap == "buffer_one" and it.buffered is None:
                it.buffered = slot
        return created

    def _add(self, slot: int, *, asked: bool = False) -> SlotRun:
        run = SlotRun()
        self.runs.append(run)
        self._it().slots.append((slot, asked, run))
        return run

    def _trim(self) -> None:
        """Forget all but the last slots."""
        it = self._it()
        it.slots = it.slots[-MAX_SLOTS:]

    def _it(self) -> Schedule:
        assert self.schedule is not None
        return self.schedule

    # Runs

    def claim(self) -> SlotRun | None:
        """Let a worker execute the first ready run."""
        run = next((run for run in self.runs if run.state == "ready"), None)
        if run is not None:
            run.state, run.executes = "running", True
        return run

    @staticmethod
    def end(run: SlotRun) -> bool:
        """End an attempt; False if the run was cancelled before."""
        if run.state != "running":
            return False
        run.state, run.executes = "done", False
        return True

    @staticmethod
    def release(run: SlotRun) -> bool:
        """Note that the code of a cancelled run has stopped."""
        released = run.executes and run.state != "running"
        run.executes = run.executes and not released
        return released
