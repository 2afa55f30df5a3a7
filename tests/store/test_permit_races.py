"""Permits under concurrent transactions on PostgreSQL, and permits that would stay unused, on both databases."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from holdfast.policy.admission import RECHECK_MICROS, Rate
from holdfast.store.limits import MAX_UNPARKED_RUNS, counter_key
from tests.support.manual_transaction import BlockedCall, ManualTransaction
from tests.support.permits import in_use
from tests.support.store_harness import SECOND, StoreHarness

ONE, SLOW = counter_key("one", ""), counter_key("slow", "")


def add(harness, *places, **more):
    return harness.add(limits=msgspec.json.encode(places or (ONE,)).decode(), **more)


def claim(harness, wanted=8, session="w"):
    return harness.store.claims.claim_limited(session, [harness.lane()], wanted)


def prepare(harness):
    harness.session("w")
    harness.store.limits.declare([("one", 1, None), ("slow", None, Rate(1, SECOND))])
    return harness


@pytest.fixture
def postgres(postgres_url):
    harness = StoreHarness(postgres_url)
    yield prepare(harness)
    harness.close()


@pytest.fixture
def limited(harness):
    return prepare(harness)


# Where transactions meet


def test_a_parked_run_that_is_locked_for_a_moment_is_checked_soon(postgres):
    add(postgres)
    parked = add(postgres)
    (run,) = claim(postgres)
    other = ManualTransaction(postgres)
    other.do("lock_runs", rows=msgspec.json.encode([{"id": parked}]).decode())
    postgres.end("w", run, limits=run.limits)
    other.rollback()
    assert claim(postgres) == [], "it couldn't be told"
    assert postgres.store.timers.due().limits <= SECOND // 10
    postgres.clock.advance(0.1)
    postgres.store.timers.unpark_due()
    assert [each.id for each in claim(postgres)] == [parked]


def test_a_counter_is_not_pruned_while_a_claim_uses_it(postgres):
    add(postgres)
    (run,) = claim(postgres)
    postgres.end("w", run, limits=run.limits)
    postgres.clock.advance(3601)
    taking = ManualTransaction(postgres)
    rows = msgspec.json.encode([{"place": ONE, "name": "one", "used": 1, "log": "[]", "look_at": None}]).decode()
    taking.do("lock_counters", rows=rows)
    postgres.store.retention.prune_limits()
    taking.do("store_counters", rows=rows)
    taking.commit()
    postgres.store.retention.prune_limits()
    assert in_use(postgres.store) == {ONE: 1}


def test_permits_that_return_together_are_all_counted(postgres):
    postgres.store.limits.declare([("one", 5, None)])
    for _ in range(3):
        add(postgres)
    first, *_ = claim(postgres)
    other = ManualTransaction(postgres)
    other.do("return_permits", rows=msgspec.json.encode([{"place": ONE, "name": "one", "number": 1}]).decode())
    ending = BlockedCall(postgres, lambda: postgres.end("w", first, limits=first.limits))
    other.commit()
    assert ending.result()
    assert in_use(postgres.store) == {ONE: 1}


# Room that nobody would use


def test_a_run_parked_on_another_limit_leaves_its_permit_to_the_next(limited):
    add(limited, ONE)
    (run,) = claim(limited)
    both, single = add(limited, ONE, SLOW), add(limited, ONE)
    slow = add(limited, SLOW)
    assert [each.id for each in claim(limited)] == [slow]
    limited.end("w", run, limits=run.limits)
    assert claim(limited) == [], "it finds the other one full"
    assert limited.row(both)["held"] == "full"
    assert [each.id for each in claim(limited)] == [single]


def test_unused_permits_reach_runs_behind_many_parked_ones(limited):
    add(limited)
    (run,) = claim(limited)
    unclaimed = [add(limited, task="unheard-of") for _ in range(20)]
    known = add(limited)
    lanes = [limited.lane("unheard-of"), limited.lane()]
    assert limited.store.claims.claim_limited("w", lanes, 64) == []
    limited.end("w", run, limits=run.limits)
    assert [limited.row(each)["held"] for each in unclaimed].count(None) == 1
    assert claim(limited) == []
    limited.clock.advance(RECHECK_MICROS / SECOND)
    limited.store.timers.unpark_due()
    assert [each.id for each in claim(limited)] == [known]
    assert len(unclaimed) < MAX_UNPARKED_RUNS


def test_a_rate_is_checked_when_its_window_moves_even_if_runs_take_long(limited):
    for _ in range(3):
        add(limited, SLOW)
    starts = []
    while len(starts) < 3:
        starts += [limited.clock() for _ in claim(limited)]
        limited.clock.advance((limited.store.timers.due().limits or SECOND) / SECOND)
        limited.store.timers.unpark_due()
    assert [later - at for at, later in pairwise(starts)] == [SECOND, SECOND]
