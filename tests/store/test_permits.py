"""Permits: taken by claims, and returned however the session's ownership of a run ends."""

from __future__ import annotations

import threading

import msgspec
import pytest

from holdfast.policy.admission import RECHECK_MICROS, Rate
from holdfast.store.limits import counter_key
from tests.support.store_harness import CANCELLED, CRASHED, OVERDUE, SECOND, end_of

ONE = counter_key("one", "")
SLOW = counter_key("slow", "")


@pytest.fixture
def limited(harness):
    harness.session("w")
    harness.store.limits.declare([("one", 1, None), ("slow", None, Rate(2, SECOND))])
    return harness


def add(harness, *places, **more):
    return harness.add(limits=msgspec.json.encode(places or (ONE,)).decode(), **more)


def claim(harness, wanted=8, session="w"):
    return harness.store.claims.claim_limited(session, [harness.lane()], wanted)


def counter(harness, place=ONE):
    return harness.store.limits.counter(place)


def test_a_claim_takes_only_as_many_runs_as_permits_and_parks_the_others(limited):
    runs = [add(limited) for _ in range(3)]
    (first,) = claim(limited)
    assert first.id == runs[0]
    assert [limited.row(run)["held"] for run in runs] == [None, "full", "full"]
    assert [limited.state(run) for run in runs] == ["running", "ready", "ready"]
    assert claim(limited) == []
    assert counter(limited).used == 1


def test_the_ordinary_claim_never_takes_a_run_with_limits(limited):
    add(limited)
    assert limited.claim("w", 8) == []


def test_runs_without_limits_in_the_same_lane_are_claimed_too(limited):
    one, free, two = add(limited), limited.add(), add(limited)
    assert {each.id for each in claim(limited)} == {one, free}
    assert limited.row(two)["held"] == "full"


def ends(harness, run):
    return {
        "done": lambda: harness.end("w", run, in_tree=True),
        "failed": lambda: harness.end("w", run, "failed", error=CRASHED, in_tree=True),
        "retrying": lambda: harness.end("w", run, "retrying", delay=SECOND, in_tree=True),
        "handed back": lambda: harness.end("w", run, "handed_back", in_tree=True),
        "suspended": lambda: harness.wait("w", run, "sleep", delay=SECOND) and harness.suspend("w", run),
        "process crashed": lambda: harness.store.attempts.crash("w", [end_of(run, "handed_back", error=CRASHED)]),
        "worker died": lambda: harness.clock.advance(61) or harness.recover("w"),
    }


@pytest.mark.parametrize("how", ends(None, None))
def test_a_permit_returns_with_the_end_of_an_attempt(limited, how):
    add(limited)
    waiting = add(limited)
    (run,) = claim(limited)
    assert claim(limited) == []
    ends(limited, run)[how]()
    if how == "worker died":
        limited.session("w2")
    assert limited.row(waiting)["held"] is None
    session = "w2" if how == "worker died" else "w"
    claimed = claim(limited, 1, session)
    assert len(claimed) == 1
    assert counter(limited).used == 1


@pytest.mark.parametrize("how", ["cancelled", "overdue"])
def test_a_cancelled_run_keeps_its_permit_until_its_worker_releases_it(limited, how):
    add(limited, deadline_in=SECOND)
    waiting = add(limited)
    (run,) = claim(limited)
    claim(limited)
    if how == "cancelled":
        assert limited.store.actions.cancel(run.id, CANCELLED)
    else:
        limited.clock.advance(2)
        assert limited.store.timers.fail_overdue(OVERDUE) == [run.id]
    assert claim(limited) == []
    assert limited.row(waiting)["held"] == "full"
    limited.store.attempts.release("w", [(run.id, run.fence)])
    assert [each.id for each in claim(limited)] == [waiting]


def test_a_thread_that_outlives_its_attempt_keeps_the_permit(limited):
    add(limited)
    add(limited)
    (run,) = claim(limited)
    claim(limited)
    limited.end("w", run, "timed_out", delay=0, still_running=1, in_tree=True)
    assert claim(limited) == []
    limited.store.attempts.release("w", [(run.id, run.fence)])
    assert len(claim(limited)) == 1


def test_parked_runs_are_unparked_by_priority_then_arrival(limited):
    add(limited)
    (run,) = claim(limited)
    low, high, later = add(limited), add(limited, priority=5), add(limited, priority=5)
    assert claim(limited) == []
    order = []
    for _ in range(3):
        limited.end("w", run, in_tree=True)
        (run,) = claim(limited)
        order.append(run.id)
    assert order == [high, later, low]


def test_a_full_limit_does_not_block_other_runs(limited):
    for _ in range(600):
        add(limited)
    other = add(limited, counter_key("one", "other"))
    found = []
    for _ in range(5):
        found += [each.id for each in claim(limited, 512)]
    assert other in found
    assert counter(limited).used == 1


def test_a_rate_bounds_the_starts_in_any_window(limited):
    for _ in range(6):
        add(limited, SLOW)
    starts = []
    for _ in range(40):
        for run in claim(limited):
            starts.append(limited.clock())
            limited.end("w", run, in_tree=True)
        limited.clock.advance(0.1)
        limited.store.timers.unpark_due()
    assert len(starts) == 6
    assert all(sum(start <= other < start + SECOND for other in starts) <= 2 for start in starts)
    assert starts[-1] - starts[0] <= 2.2 * SECOND, "no slot of the window is left unused"


def test_runs_parked_on_a_rate_are_checked_when_it_has_room(limited):
    for _ in range(3):
        add(limited, SLOW)
    assert len(claim(limited)) == 2
    assert limited.store.timers.due().limits == SECOND
    limited.clock.advance(1.001)
    assert limited.store.timers.unpark_due() == 1
    assert len(claim(limited)) == 1


def test_parked_runs_are_checked_even_without_a_returned_permit(limited):
    add(limited)
    waiting = add(limited)
    claim(limited)
    claim(limited)
    limited.sql("update {schema}limits set used = 0")
    limited.clock.advance(RECHECK_MICROS / SECOND + 1)
    limited.store.timers.unpark_due()
    assert [each.id for each in claim(limited)] == [waiting]


def test_a_changed_limit_applies_at_once(limited):
    for _ in range(3):
        add(limited)
    assert len(claim(limited)) == 1
    assert claim(limited) == []
    limited.store.limits.declare([("one", 3, None)])
    limited.store.timers.unpark_due()
    assert len(claim(limited)) == 2


def test_several_limits_are_all_needed(limited):
    both = [add(limited, ONE, SLOW) for _ in range(3)]
    slow = add(limited, SLOW)
    assert {each.id for each in claim(limited)} == {both[0], slow}


def test_a_parked_run_can_be_cancelled(limited):
    add(limited)
    parked = add(limited)
    claim(limited)
    claim(limited)
    assert limited.store.actions.cancel(parked, CANCELLED)
    assert limited.state(parked) == "cancelled"


def test_unused_counters_are_pruned(limited):
    add(limited, counter_key("one", '"acme"'))
    (run,) = claim(limited)
    limited.end("w", run, in_tree=True)
    limited.store.retention.prune_limits()
    assert limited.rows("limits") == 1
    limited.clock.advance(3601)
    limited.store.retention.prune_limits()
    assert limited.rows("limits") == 0


def test_a_claim_without_a_valid_lease_takes_no_permits(limited):
    add(limited)
    limited.clock.advance(61)
    assert claim(limited) == []
    assert counter(limited) is None


def test_many_claimers_at_once_never_exceed_a_limit(limited):
    for _ in range(60):
        add(limited)
    taken: list[str] = []
    at_once: list[int] = []
    lock = threading.Lock()

    def work(number):
        session = limited.session(f"s{number}")
        for _ in range(12):
            for run in claim(limited, 4, session):
                with lock:
                    taken.append(run.id)
                at_once.append(limited.sql("select count(*) from {schema}runs where session is not null")[0][0])
                assert limited.end(session, run, in_tree=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while runs := claim(limited):
        taken += [run.id for run in runs]
        for run in runs:
            limited.end("w", run, in_tree=True)
    assert len(taken) == len(set(taken)) == 60
    assert set(at_once) == {1}
    assert counter(limited).used == 0
