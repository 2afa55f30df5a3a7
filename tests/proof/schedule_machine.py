"""A Hypothesis state machine that changes a schedule while it fires, on the model and on stores."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import ConfigError
from holdfast.policy.schedule_timing import Timing
from holdfast.store import Claim
from holdfast.store.schedule_definitions import DeclaredSchedule, ScheduleRules
from tests.proof.model import SECOND
from tests.proof.schedule_model import ScheduleModel, SlotRun
from tests.support.store_harness import StoreHarness

TABLES = ("runs", "workers", "history", "keys", "schedules", "slots")
INTERVALS = st.sampled_from((10 * SECOND, 15 * SECOND, 60 * SECOND))
OVERLAPS = st.sampled_from(("allow", "skip", "buffer_one", "cancel_running"))
CATCH_UPS = st.sampled_from(("skip", "latest", "all"))
EXISTS = precondition(lambda self: self.model.schedule is not None)
LEASE_S = 1_000_000
START = 1_800_000_000 * SECOND


class ScheduleMachine(RuleBasedStateMachine):
    """Random changes of one schedule, time, and runs that take their time."""

    harnesses: tuple[StoreHarness, ...] = ()

    @initialize(every=INTERVALS, overlap=OVERLAPS, catch_up=CATCH_UPS)
    def begin(self, every: int, overlap: str, catch_up: str) -> None:
        for harness in self.harnesses:
            for table in TABLES:
                harness.sql(f"delete from {{schema}}{table}")
            harness.clock.now = START
            harness.session("worker", lease=LEASE_S)
            harness.lane()
        self.model = ScheduleModel(START)
        self.claims: list[tuple[SlotRun, list[Claim]]] = []
        self.create(every, overlap, catch_up)

    def compare(self, wanted: Any, call: Any) -> None:
        """Check that every store replies as the model does."""
        for harness in self.harnesses:
            reply = call(harness)
            assert reply == wanted, f"{harness.store.database.dialect.name} replied {reply!r}, the model {wanted!r}"

    @rule(every=INTERVALS, overlap=OVERLAPS, catch_up=CATCH_UPS)
    def create(self, every: int, overlap: str, catch_up: str) -> None:
        wanted = self.model.create(every, overlap, catch_up)
        rules = ScheduleRules(catch_up, overlap)  # type: ignore[arg-type]

        def create(harness: StoreHarness) -> str:
            schedule = DeclaredSchedule("tick", Timing(every=every), rules, harness.new())
            try:
                return "created" if harness.store.schedules.create(schedule, "ada") else "same"
            except ConfigError:
                return "exists"

        self.compare(wanted, create)

    @EXISTS
    @rule(every=INTERVALS, overlap=OVERLAPS, catch_up=CATCH_UPS, fire=st.booleans())
    def update(self, every: int, overlap: str, catch_up: str, fire: bool) -> None:
        """Change the schedule, and perhaps let it fire at once."""
        wanted = self.model.update(every, overlap, catch_up)

        def change(current: DeclaredSchedule) -> DeclaredSchedule:
            rules = ScheduleRules(catch_up, overlap)  # type: ignore[arg-type]
            return DeclaredSchedule("tick", Timing(every=every), rules, current.template)

        self.compare(wanted, lambda harness: harness.store.schedules.update("tick", change, "bob", None))
        if fire:
            self.time_passes(0)

    @EXISTS
    @rule()
    def delete(self) -> None:
        self.model.delete()
        for harness in self.harnesses:
            harness.store.schedules.delete("tick")

    @EXISTS
    @rule()
    def pause(self) -> None:
        changed = ["tick"] if self.model.pause() else []
        self.compare(changed, lambda harness: harness.store.schedules.pause(["tick"], "ada"))

    @EXISTS
    @rule()
    def resume(self) -> None:
        changed = ["tick"] if self.model.resume() else []
        self.compare(changed, lambda harness: harness.store.schedules.resume(["tick"], "ada"))

    @EXISTS
    @rule()
    def run_now(self) -> None:
        self.model.run_now()
        for harness in self.harnesses:
            harness.store.schedules.run_now("tick", "ada")

    @EXISTS
    @rule(ago=st.sampled_from((20, 45, 130)), length=st.sampled_from((0, 30, 200)), fire=st.booleans())
    def backfill(self, ago: int, length: int, fire: bool) -> None:
        """Create the runs of passed slots; some of them may be due."""
        start = self.model.now - ago * SECOND
        wanted = self.model.backfill(start, start + length * SECOND)

        def backfill(harness: StoreHarness) -> list[int]:
            made = harness.store.schedules.backfill("tick", start, start + length * SECOND, "ada")
            return [each.slot for each in made]

        self.compare(wanted, backfill)
        if fire:
            self.time_passes(0)

    @rule(seconds=st.sampled_from((0, 1, 9, 10, 30, 61, 200)))
    def time_passes(self, seconds: int) -> None:
        """Let time pass, and create the runs that are due."""
        self.model.now += seconds * SECOND
        wanted = self.model.fire()

        def fire(harness: StoreHarness) -> list[int]:
            harness.clock.now = self.model.now
            made: list[int] = []
            while (left := harness.store.schedules.until_next()) is not None and left <= 0:
                made += [each.slot for each in harness.store.schedules.fire().created]
            return made

        self.compare(wanted, fire)

    @EXISTS
    @rule(end=st.booleans())
    def outrun(self, end: bool) -> None:
        """Execute a run for longer than the interval, so that the next slots are due meanwhile."""
        every = self.model.schedule.every // SECOND
        self.time_passes(every)
        self.claim()
        self.time_passes(every)
        self.time_passes(1)
        if end and self.claims:
            self.end(0)
            self.time_passes(1)

    # Runs

    @rule()
    def claim(self) -> None:
        run = self.model.claim()
        found = [harness.claim("worker") for harness in self.harnesses]
        assert [bool(claims) for claims in found] == [run is not None] * len(found)
        if run is not None:
            self.claims.append((run, [claim for (claim,) in found]))

    @precondition(lambda self: self.claims)
    @rule(pick=st.integers(0, 5))
    def end(self, pick: int) -> None:
        """End an attempt, or let its code stop if the run was cancelled meanwhile."""
        run, claims = self.claims.pop(pick % len(self.claims))
        ended = self.model.end(run)
        for harness, claim in zip(self.harnesses, claims, strict=True):
            assert harness.end("worker", claim) == ended
        if not ended:
            released = self.model.release(run)
            for harness, claim in zip(self.harnesses, claims, strict=True):
                assert harness.store.attempts.release("worker", [(claim.id, claim.fence)]) == int(released)

    # Comparison

    @invariant()
    def stores_match_the_model(self) -> None:
        model = getattr(self, "model", None)
        if model is None:
            return
        it = model.schedule
        wanted = {
            "schedule": [] if it is None else [(it.next_at, int(it.paused), it.buffered)],
            "slots": [] if it is None else [(slot, int(asked), run.state) for slot, asked, run in it.slots],
            "runs": [run.state for run in model.runs],
        }
        for harness in self.harnesses:
            slots = harness.sql(
                "select slot, asked, state from {schema}slots s join {schema}runs r on r.id = s.run order by s.id"
            )
            kept = {
                "schedule": [
                    tuple(row) for row in harness.sql("select next_at, paused, buffered from {schema}schedules")
                ],
                "slots": [tuple(row) for row in slots],
                "runs": [state for (state,) in harness.sql("select state from {schema}runs order by seq")],
            }
            for what, rows in wanted.items():
                assert kept[what] == rows, f"{harness.store.database.dialect.name}: {what}"
