"""Claims on PostgreSQL that resume behind the last claimed run, and those that scan a lane from its head."""

from __future__ import annotations

import math
from types import SimpleNamespace

import psycopg
import pytest

from holdfast.store import claims as claims_module
from holdfast.store.claims import MAX_CURSOR_PRIORITIES, SHARES, LaneCursor, ScanPolicy, ScanRange
from tests.support.store_harness import StoreHarness

POLICY = ScanPolicy()
MANY = POLICY.crowded_runs


class Stopwatch:
    """A clock by which each claim takes `took` seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.took = 0.0

    def __call__(self) -> float:
        self.now += self.took
        return self.now


@pytest.fixture
def timed(postgres_url, monkeypatch):
    """A store whose claims take as long as the test says: with an old snapshot held open, those that begin at the front
    of a lane take long on PostgreSQL."""
    harness = StoreHarness(postgres_url)
    watch = Stopwatch()
    monkeypatch.setattr(harness.store.claims, "_monotonic", watch)
    monkeypatch.setattr(harness.store.claims, "_policy", POLICY)
    harness.session("w")
    yield harness, watch
    harness.close()


def one_back(harness, watch, took):
    """A run that is ready again at an earlier position than the last claimed one, whose claim took so long."""
    back = harness.add()
    (first,) = harness.claim("w", 1)
    watch.took = took
    harness.add()
    harness.claim("w", 1)
    watch.took = 0.0
    harness.end("w", first, "handed_back")
    return back


@pytest.mark.parametrize(("took", "pause"), [(0.03, 0.6), (0.05, 1.0), (8.0, 1.0), (3600.0, 1.0)])
def test_after_a_slow_head_scan_claims_resume_for_a_while_but_never_longer_than_a_second(timed, took, pause):
    harness, watch = timed
    back = one_back(harness, watch, took)
    later, urgent, minor = harness.add(), harness.add(priority=5), harness.add(priority=-5)
    other = harness.add("never claimed before")
    lanes = ["task", "never claimed before"]
    assert [claim.id for claim in harness.claim("w", 8, lanes)] == [urgent, later, other]
    watch.now += 0.99 * pause
    next_urgent, last = harness.add(priority=5), harness.add()
    assert [claim.id for claim in harness.claim("w", 8, lanes)] == [next_urgent, last]
    watch.now += 0.02 * pause
    newest = harness.add()
    assert [claim.id for claim in harness.claim("w", 8, lanes)] == [back, newest, minor]


@pytest.mark.parametrize("took", [0.03, 1.0, 8.0, 3600.0])
def test_an_idle_worker_scans_the_head_however_long_the_last_scan_took(timed, took):
    harness, watch = timed
    back = one_back(harness, watch, took)
    assert harness.store.claims.has_ready([harness.lane()])
    assert [claim.id for claim in harness.claim("w", 8)] == [back]
    assert harness.claim("w", 8) == []
    minor = harness.add(priority=-5)
    assert [claim.id for claim in harness.claim("w", 8)] == [minor]


@pytest.mark.parametrize("took", [0.0, 0.001, 0.02, 0.5, 8.0, math.inf])
@pytest.mark.parametrize("crowded", [False, True])
def test_the_policy_never_keeps_claims_from_the_head_for_more_than_a_second(took, crowded):
    assert 0.0 <= POLICY.resume_s(took, crowded=crowded) <= POLICY.max_head_interval_s == 1.0


def ids(claims):
    return [claim.id for claim in claims]


@pytest.fixture
def crowded(timed):
    """Five times as many ready runs as a large claim takes, and one that returned to the head after the first."""
    harness, watch = timed
    harness.add_many(6 * MANY)
    (back, *_) = harness.claim("w", MANY)
    harness.end("w", back, "handed_back")
    return harness, watch, back.id


def test_in_a_crowded_lane_claims_resume_for_a_moment_and_then_scan_the_head(crowded):
    harness, watch, back = crowded
    assert back not in ids(harness.claim("w", MANY))
    watch.now += 0.99 * POLICY.head_interval_s
    assert back not in ids(harness.claim("w", MANY)), "the last look at the front was at the first claim"
    watch.now += 0.01 * POLICY.head_interval_s
    assert harness.claim("w", MANY)[0].id == back
    assert len(harness.claim("w", MANY)) == MANY


def test_head_scans_take_a_twentieth_of_the_time(timed):
    harness, watch = timed
    harness.add_many(4 * MANY)
    watch.took = 0.01
    (back, *_) = harness.claim("w", MANY)
    watch.took = 0.0
    harness.end("w", back, "handed_back")
    watch.now += 0.19
    assert back.id not in ids(harness.claim("w", MANY))
    watch.now += 0.011
    assert harness.claim("w", MANY)[0].id == back.id


def test_one_slow_scan_does_not_delay_the_next_head_scan_for_long(timed):
    harness, watch = timed
    harness.add_many(4 * MANY)
    watch.took = 0.15
    (back, *_) = harness.claim("w", MANY)
    watch.took = 0.0
    harness.end("w", back, "handed_back")
    watch.now += 1.0
    assert harness.claim("w", MANY)[0].id == back.id


def test_an_urgent_run_is_claimed_next_while_claims_resume(crowded):
    harness, _, back = crowded
    urgent = harness.add(priority=1)
    claimed = ids(harness.claim("w", MANY))
    assert claimed[0] == urgent
    assert back not in claimed


def test_after_a_claim_that_got_less_than_it_wanted_the_head_is_scanned(crowded):
    harness, _, back = crowded
    while len(claims := harness.claim("w", 2 * MANY)) == 2 * MANY:
        assert back not in ids(claims)
    later = harness.add()
    assert ids(harness.claim("w", 2 * MANY)) == [back, later]


def test_small_claims_scan_the_head_however_long_the_lane_is(timed):
    harness, _ = timed
    harness.add_many(MANY)
    (back, *_) = harness.claim("w", MANY // 2)
    harness.end("w", back, "handed_back")
    assert harness.claim("w", 1)[0].id == back.id


def test_a_short_lane_is_scanned_from_its_head_while_another_resumes(timed):
    harness, watch = timed
    lanes = ["task", "quiet"]
    harness.add("quiet", priority=9)
    (urgent,) = harness.claim("w", 1, ["quiet"])
    harness.add_many(4 * MANY)
    (back, *_) = harness.claim("w", MANY, lanes)
    for claim in (urgent, back):
        harness.end("w", claim, "handed_back")
    claimed = ids(harness.claim("w", MANY, lanes))
    assert claimed[0] == urgent.id
    assert back.id not in claimed
    watch.now += POLICY.head_interval_s
    assert harness.claim("w", MANY, lanes)[0].id == back.id


def test_fair_queues_are_always_scanned_from_the_head(timed):
    """A new tenant gets a turn before those of waiting tenants."""
    harness, _ = timed
    harness.add_many(4 * MANY, turn=1000)
    harness.claim("w", MANY)
    new = harness.add(turn=999)
    assert harness.claim("w", MANY)[0].id == new


def test_a_cursor_with_too_many_priorities_is_reset():
    reached = LaneCursor(1)
    for priority in range(MAX_CURSOR_PRIORITIES):
        reached.advance(SimpleNamespace(priority=priority, turn=0, seq=5))
    assert len(reached.ranges()) == MAX_CURSOR_PRIORITIES
    reached.advance(SimpleNamespace(priority=-1, turn=0, seq=5))
    assert reached.ranges() == [ScanRange(1)]


@pytest.fixture
def contended(timed, monkeypatch):
    """A store with the experience that other workers claim the same runs."""
    harness, watch = timed
    harness.add()
    assert len(harness.claim("w", 1)) == 1
    harness.store.claims.expect_contention()
    monkeypatch.setattr(claims_module.random, "randrange", lambda shares: min(3, shares))
    monkeypatch.setattr(claims_module, "MIN_SHARED_CLAIM_RUNS", 2)
    return harness, watch


def seqs(claims):
    return [claim.seq for claim in claims]


def test_claims_of_many_workers_prefer_a_share_of_the_next_runs_and_then_take_others(contended):
    harness, _ = contended
    added = [harness.add() for _ in range(4 * SHARES)]
    first = harness.claim("w", 4)
    assert [seq % SHARES for seq in seqs(first)] == [3] * 4, "all rows of the share are in the window"
    second = harness.claim("w", 4)
    assert ids(second) == [run for run in added if run not in ids(first)][:4], "the share is used up"


def test_a_claim_that_loses_candidates_to_another_transaction_expects_contention(timed, monkeypatch):
    harness, _ = timed
    *_, last = [harness.add() for _ in range(4)]
    monkeypatch.setattr(claims_module.random, "randrange", lambda shares: min(3, shares))
    monkeypatch.setattr(claims_module, "MIN_SHARED_CLAIM_RUNS", 2)
    with psycopg.connect(harness.url) as other:
        other.execute(f"select 1 from holdfast.runs where id <> '{last}' for update".encode())
        assert ids(harness.claim("w", 4)) == [last]
    for _ in range(2 * SHARES):
        harness.add()
    assert [seq % SHARES for seq in seqs(harness.claim("w", 2))] == [3, 3]


def test_a_small_claim_stays_in_order(contended):
    harness, _ = contended
    first, *_ = [harness.add() for _ in range(2 * SHARES)]
    assert ids(harness.claim("w", 1)) == [first]


def test_a_more_urgent_run_comes_before_the_share(contended):
    harness, _ = contended
    for _ in range(2 * SHARES):
        harness.add()
    urgent = [harness.add(priority=5) for _ in range(2)]
    assert set(urgent) <= set(ids(harness.claim("w", 4)))


def test_claims_in_shares_end_and_do_not_keep_old_runs_waiting(contended):
    """One claim a second takes the first runs in order, and all do when claims aren't contended any more."""
    harness, watch = contended
    added = [harness.add() for _ in range(8 * SHARES)]
    claimed = ids(harness.claim("w", 4))
    assert claimed != added[:4]
    watch.now += POLICY.max_head_interval_s + 0.01
    assert ids(harness.claim("w", 4)) == [run for run in added if run not in claimed][:4]


def test_a_run_that_a_finished_transaction_had_locked_is_claimed_in_shares_too(contended):
    harness, _ = contended
    run = harness.add()
    harness.sql(f"select 1 from {{schema}}runs where id = '{run}' for update")
    assert ids(harness.claim("w", 2)) == [run]
