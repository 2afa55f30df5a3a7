"""Whatever happens to runs with limits, the counters equal a recount of the runs, and all runs end."""

from __future__ import annotations

import json
import random

import pytest

from holdfast.model.ids import new_id
from holdfast.policy.admission import Rate
from holdfast.store.limits import counter_key
from tests.support.permits import in_use, parked_and_forgotten, recount
from tests.support.store_harness import CANCELLED, CRASHED, OVERDUE, SECOND, end_of

PLACES = [counter_key("one", '"a"'), counter_key("one", '"b"'), counter_key("three", ""), counter_key("slow", "")]
CAPS = {"one": 1, "three": 3}
ENDS = ("done", "failed", "retrying", "handed_back", "waiting", "timed_out")


class Play:
    """Random actions on one store."""

    def __init__(self, harness, seed):
        self.harness = harness
        self.chance = random.Random(seed)
        self.in_hand = {}
        self.lingering = {}
        self.runs = []
        self.opened = 0
        self.waits = 0
        self.sessions = [self._open() for _ in range(3)]
        harness.store.limits.declare([("one", 1, None), ("three", 3, None), ("slow", 5, Rate(4, SECOND))])

    def _open(self):
        self.opened += 1
        return self.harness.session(f"w{self.opened}", lease=10_000)

    def add(self):
        places = sorted(self.chance.sample(PLACES, self.chance.choice([0, 1, 1, 2, 3])))
        limits = json.dumps(places) if places else None
        deadline = self.chance.choice([None, None, None, 5 * SECOND])
        self.runs.append(self.harness.add(limits=limits, priority=self.chance.choice([0, 0, 5]), deadline_in=deadline))

    def claim(self):
        session = self.chance.choice(self.sessions)
        claims, lanes = self.harness.store.claims, [self.harness.lane()]
        found = claims.claim_limited(session, lanes, self.chance.choice([1, 4, 16]))
        for claim in found + claims.claim_isolated(session, lanes, 16):
            self.in_hand[claim.id] = session, claim

    def end(self):
        if not self.in_hand:
            return
        session, claim = self.in_hand.pop(self.chance.choice(list(self.in_hand)))
        kind = self.chance.choice(ENDS)
        lingers = int(kind == "timed_out" and self.chance.random() < 0.5)
        if kind == "waiting":
            self.waits += 1
            self.harness.wait(session, claim, "sleep", delay=SECOND, n=self.waits, key=f"sleep {self.waits}")
        end = end_of(claim, kind, still_running=lingers, in_tree=kind == "waiting" or self.chance.random() < 0.5)
        end.limits = claim.limits
        counted = self.harness.store.attempts.end(session, [end])
        if lingers or end.claim not in counted:
            self.lingering[claim.id] = session, claim

    def let_go(self):
        if self.lingering:
            session, claim = self.lingering.pop(self.chance.choice(list(self.lingering)))
            self.harness.store.attempts.release(session, [(claim.id, claim.fence)])

    def crash(self):
        if self.in_hand:
            session, claim = self.in_hand.pop(self.chance.choice(list(self.in_hand)))
            counted, _ = self.harness.store.attempts.crash(session, [end_of(claim, "handed_back", error=CRASHED)])
            if (claim.id, claim.fence) not in counted:
                self.lingering[claim.id] = session, claim

    def die(self):
        """A session's lease is over: closed by hand, as time may not pass for the others."""
        session = self.sessions.pop(self.chance.randrange(3))
        self.harness.sql("update {schema}workers set lease_until = 0 where session = :session", session=session)
        self.harness.recover(session)
        for held in (self.in_hand, self.lingering):
            for id in [id for id, (whose, _) in held.items() if whose == session]:
                del held[id]
        self.sessions.append(self._open())

    def cancel(self):
        if self.runs:
            self.harness.store.actions.cancel(self.chance.choice(self.runs), CANCELLED)

    def retry(self):
        run = self.chance.choice(self.runs) if self.runs else None
        if run is not None and self.harness.state(run) in ("failed", "cancelled"):
            self.harness.store.actions.retry(run)

    def fork(self):
        if self.runs:
            fork = str(new_id())
            self.harness.store.actions.fork(self.chance.choice(self.runs), fork, None, None)
            self.runs.append(fork)

    def tick(self):
        self.harness.clock.advance(self.chance.choice([0.05, 0.4, 1.1]))
        timers = self.harness.store.timers
        timers.promote_due()
        timers.resolve_due_waits()
        timers.fail_overdue(OVERDUE)
        timers.release_held()
        timers.unpark_due()

    def check(self):
        used = in_use(self.harness.store)
        assert used == recount(self.harness.store)
        for place, number in used.items():
            assert number <= CAPS.get(json.loads(place)[0], 5)
        assert parked_and_forgotten(self.harness.store) == []

    def finish(self):
        """Work until nothing is left."""
        for _ in range(2000):
            while self.lingering:
                self.let_go()
            for session, claim in self.in_hand.values():
                end = end_of(claim)
                end.limits = claim.limits
                if end.claim not in self.harness.store.attempts.end(session, [end]):
                    self.harness.store.attempts.release(session, [(claim.id, claim.fence)])
            self.in_hand.clear()
            self.claim()
            self.tick()
            if (
                not self.harness.sql("select 1 from {schema}runs where finished_at is null limit 1")
                and not self.in_hand
            ):
                return
        raise AssertionError("runs are left that nobody gets")


DEEDS = ("add",) * 6 + ("claim",) * 6 + ("end",) * 5 + ("tick",) * 3
DEEDS += ("let_go", "crash", "die", "cancel", "retry", "fork")


def play(harness, seed, deeds):
    plays = Play(harness, seed)
    for _ in range(deeds):
        getattr(plays, plays.chance.choice(DEEDS))()
        plays.check()
    plays.finish()
    plays.check()
    assert recount(harness.store) == {}


@pytest.mark.parametrize("seed", range(3))
def test_counters_agree_with_a_recount_after_everything_that_can_happen(harness, seed):
    play(harness, seed, 120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_counters_agree_with_a_recount_after_much_more(harness, seed):
    play(harness, seed, 500)
