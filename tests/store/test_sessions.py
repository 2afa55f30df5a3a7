"""Sessions, their leases, and the recovery of runs of dead sessions."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.database import DataFault
from holdfast.store.rows import LostWorker
from tests.support.store_harness import CANCELLED, CRASHED, DAY, SECOND, StoreHarness


def test_a_lease_is_renewed_only_before_it_expires(harness, clock):
    harness.session("w", lease=60)
    clock.advance(59.999999)
    assert harness.store.sessions.renew("w", 60 * SECOND)
    clock.advance(60)
    assert not harness.store.sessions.renew("w", 60 * SECOND), "nobody has recovered it, and yet it is over"
    assert list(harness.store.sessions.find_dead()) == ["w"]


def test_a_renewal_counts_from_the_moment_it_is_made(harness, clock):
    harness.session("w", lease=60)
    clock.advance(20)
    harness.store.sessions.renew("w", 60 * SECOND)
    clock.advance(59)
    assert harness.store.sessions.find_dead() == {}
    assert harness.store.sessions.next_expiry() == SECOND


def test_an_unknown_session_can_not_be_renewed(harness):
    assert not harness.store.sessions.renew("stranger", 60 * SECOND)


def test_opening_a_session_again_doesnt_lengthen_its_lease(harness, clock):
    harness.session("w", lease=60)
    clock.advance(60)
    harness.session("w", lease=60)
    assert list(harness.store.sessions.find_dead()) == ["w"]


def test_live_workers_are_those_with_a_lease(harness, clock):
    harness.session("w", lease=10)
    harness.session("v", lease=20)
    started = clock.now
    clock.advance(10)
    assert harness.store.sessions.list_live() == [("v", "worker v", started, started + 20 * SECOND, "{}")]


def test_a_clean_stop_leaves_no_session_behind(harness):
    harness.session("w")
    assert harness.store.sessions.close("w")
    assert harness.rows("workers") == 0


def test_a_session_that_still_holds_runs_isnt_closed(harness):
    harness.session("w")
    harness.running("w")
    assert not harness.store.sessions.close("w")
    assert harness.rows("workers") == 1


# Recovery


def test_runs_of_a_dead_session_go_back_to_ready_and_count_a_crash(harness, clock):
    harness.session("w")
    claim = harness.running("w")
    clock.advance(60)
    recovered = harness.recover(*harness.store.sessions.find_dead())
    assert (recovered.requeued, recovered.failed, recovered.released, recovered.sessions) == (1, [], 0, ["w"])
    assert recovered.lost == [LostWorker("w", "worker w", 1, 0, runs=(claim.id,))]
    row = harness.row(claim.id)
    assert (row["state"], row["session"], row["crashes"], row["failures"]) == ("ready", None, 1, 0)
    since = clock.now - 60 * SECOND
    assert harness.store.queries.history(claim.id) == [(1, clock.now, "crashed", 1, "w", since, None)]


def test_the_next_claim_after_a_crash_has_the_next_attempt_and_fence(harness, clock):
    harness.session("w")
    claim = harness.running("w")
    clock.advance(60)
    harness.recover("w")
    harness.session("v")
    (again,) = harness.claim("v")
    assert (again.id, again.attempt, again.fence, again.failures) == (claim.id, 2, 2, 0)


def crash(harness, clock, name):
    harness.session(name)
    (claim,) = harness.claim(name) or harness.claim_isolated(name)
    clock.advance(60)
    return claim.id, harness.recover(name)


def test_one_crash_more_than_max_crashes_fails_the_run(harness, clock):
    id = harness.add(max_crashes=2)
    for name in ("first", "second"):
        assert crash(harness, clock, name)[1].requeued == 1
    assert crash(harness, clock, "third")[1].failed == [id]
    row = harness.row(id)
    assert (row["state"], row["crashes"], row["error"], row["session"]) == ("failed", 3, CRASHED, None)
    assert (row["finished_at"], row["expires_at"]) == (clock.now, clock.now + row["keep"])
    assert harness.kinds(id) == ["crashed", "crashed", "crashed"]
    assert harness.store.queries.history(id)[-1][6] == CRASHED


def test_with_no_crash_allowed_the_first_one_fails_the_run(harness, clock):
    id = harness.add(max_crashes=0)
    assert crash(harness, clock, "w")[1].failed == [id]


def test_a_stale_list_doesnt_touch_a_run_that_finished_meanwhile(harness, clock):
    harness.session("w")
    claim = harness.running("w")
    clock.advance(59)
    stale = ["w"]  # a recoverer of another machine, whose clock was used: it believes that w is dead
    harness.end("w", claim)
    before = harness.row(claim.id)
    assert not harness.recover(*stale)
    clock.advance(1)
    assert not harness.recover(*stale)
    assert harness.row(claim.id) == before
    assert harness.kinds(claim.id) == ["done"]


def test_live_sessions_are_never_recovered_even_if_listed(harness, clock):
    harness.session("w")
    claim = harness.running("w")
    clock.advance(59.999999)
    recovered = harness.recover("w")
    assert (bool(recovered), recovered.sessions) == (False, [])
    assert (harness.state(claim.id), harness.row(claim.id)["session"]) == ("running", "w")
    assert harness.rows("workers") == 1


def test_runs_of_an_unknown_session_are_recovered(harness):
    harness.session("w")
    claim = harness.running("w")
    harness.sql("delete from {schema}workers")
    assert list(harness.store.sessions.find_dead()) == ["w"]
    assert harness.recover("w").requeued == 1
    assert harness.state(claim.id) == "ready"
    assert harness.store.sessions.find_dead() == {}


def test_only_dead_sessions_are_recovered(harness, clock):
    harness.session("dead", lease=10)
    harness.session("live", lease=60)
    lost, kept = harness.running("dead"), harness.running("live")
    clock.advance(10)
    assert harness.recover("dead", "live").sessions == ["dead"]
    assert (harness.state(lost.id), harness.state(kept.id)) == ("ready", "running")


def test_a_cancelled_run_of_a_dead_session_is_released_and_stays_cancelled(harness, clock):
    harness.session("w")
    claim = harness.running("w")
    harness.store.actions.cancel(claim.id, CANCELLED)
    before = harness.row(claim.id)
    clock.advance(60)
    recovered = harness.recover("w")
    assert (recovered.requeued, recovered.failed, recovered.released) == (0, [], 1)
    assert harness.row(claim.id) == before | {"session": None, "records": 2}
    assert harness.kinds(claim.id) == ["cancelled", "let_go"]


def test_a_session_is_deleted_only_when_no_run_names_it(harness, clock):
    harness.session("w")
    harness.add_many(600)
    while harness.claim("w", 512):
        pass
    clock.advance(60)
    assert harness.recover("w").requeued == 500
    assert harness.rows("workers") == 1, "100 runs still name it"
    clock.advance(1)
    assert harness.recover("w").requeued == 100
    assert harness.rows("workers") == 0
    ((at, lost),) = harness.store.sessions.list_lost(DAY)
    assert (at, lost[:4], len(set(lost.runs))) == (clock(), ("w", "worker w", 600, 0), 600)


def test_lost_workers_are_listed_for_a_while_also_without_runs(harness, clock):
    harness.session("idle")
    harness.session("alive", lease=10_000)
    harness.session("alone")
    fails = harness.running("alone", max_crashes=0)
    harness.session("cut")
    cut = harness.running("cut")
    harness.store.sessions.excuse("cut")
    clock.advance(60)
    recovered = harness.recover(*harness.store.sessions.find_dead())
    assert recovered.failed == [fails.id]
    lost = [
        LostWorker("alone", "worker alone", 0, 1, failed_runs=(fails.id,)),
        LostWorker("cut", "worker cut", 1, 0, excused=True, runs=(cut.id,)),
        LostWorker("idle", "worker idle", 0, 0),
    ]
    assert recovered.lost == lost
    assert [worker for _, worker in harness.store.sessions.list_lost(DAY)] == lost
    clock.advance(3600)
    assert harness.store.sessions.list_lost(1800 * SECOND) == []
    harness.store.stats.aggregate()
    assert len(harness.store.sessions.list_lost(DAY)) == 3
    clock.advance(8 * 86_400)
    harness.store.stats.aggregate()
    assert harness.store.sessions.list_lost(30 * DAY) == [], "pruned with the statistics"


def test_recovering_again_changes_nothing(harness, clock):
    harness.session("w")
    claim = harness.running("w")
    clock.advance(60)
    harness.recover("w")
    before = harness.row(claim.id)
    assert not harness.recover("w")
    assert harness.row(claim.id) == before


def test_a_recovery_in_several_transactions_leaves_no_run_with_the_dead_session(harness, clock):
    """More runs than one call takes, and the second call fails: the third recovers the rest."""
    harness.session("w")
    harness.add_many(700)
    while harness.claim("w", 512):
        pass
    clock.advance(60)
    assert harness.recover("w").requeued == 500
    (poisoned,) = harness.sql("select cast(id as text) from {schema}runs where state = 'running' limit 1")[0]
    harness.sql(
        "insert into {schema}history (run, n, at, kind, attempt) values (cast(:id as {uuid}), 1, 1, 'x', 0)",
        id=poisoned,
    )
    with pytest.raises(DataFault):
        harness.recover("w")
    assert harness.sql("select count(*) from {schema}runs where state = 'running'") == [(200,)], "all or none"
    assert harness.sql("select count(*) from {schema}runs where deaths > 0") == [(500,)]
    harness.sql("delete from {schema}history where kind = 'x'")
    assert list(harness.store.sessions.find_dead()) == ["w"]
    assert harness.recover("w").requeued == 200
    assert harness.sql("select count(*) from {schema}runs where session is not null or deaths <> 1") == [(0,)]
    assert harness.sql("select count(*) from {schema}runs where crashes > 0") == [(0,)], "nobody is charged"
    kinds = harness.sql("select kind, data, count(*) from {schema}history group by kind, data")
    assert kinds == [("worker_lost", '{"together":700}', 700)]
    assert harness.rows("workers") == 0


def test_recovery_skips_locked_runs_and_recovers_them_later(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.session("w")
    first, second = harness.running("w"), harness.running("w")
    harness.clock.advance(60)
    with psycopg.connect(postgres_url) as other:
        other.execute("select 1 from holdfast.runs where id = %s for update", (first.id,))
        assert harness.recover("w").requeued == 1
        assert harness.rows("workers") == 1
        assert harness.state(second.id) == "ready"
    assert harness.recover("w").requeued == 1
    assert harness.rows("workers") == 0
    harness.close()


def test_a_worker_that_is_writing_keeps_its_session_from_being_recovered(postgres_url):
    """Its end locks the session's row until it commits; recovery skips it."""
    harness = StoreHarness(postgres_url)
    harness.session("w")
    claim = harness.running("w")
    with psycopg.connect(postgres_url) as committer:
        committer.execute("select 1 from holdfast.workers where session = 'w' for key share")
        harness.clock.advance(60)
        assert harness.recover("w").sessions == []
        assert harness.state(claim.id) == "running"
        assert not harness.store.sessions.renew("w", SECOND), "a heartbeat doesn't wait for it"
    assert harness.recover("w").requeued == 1
    harness.close()
