"""Sessions, their leases, and the recovery of runs of dead sessions."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.database import DataFault
from tests.support.world import CANCELLED, CRASHED, SECOND, World


def test_a_lease_is_renewed_only_before_it_expires(world, clock):
    world.session("w", lease=60)
    clock.advance(59.999999)
    assert world.store.sessions.renew("w", 60 * SECOND)
    clock.advance(60)
    assert not world.store.sessions.renew("w", 60 * SECOND), "nobody has recovered it, and yet it is over"
    assert world.store.sessions.find_dead() == ["w"]


def test_a_renewal_counts_from_the_moment_it_is_made(world, clock):
    world.session("w", lease=60)
    clock.advance(20)
    world.store.sessions.renew("w", 60 * SECOND)
    clock.advance(59)
    assert world.store.sessions.find_dead() == []
    assert world.store.sessions.next_expiry() == SECOND


def test_an_unknown_session_can_not_be_renewed(world):
    assert not world.store.sessions.renew("stranger", 60 * SECOND)


def test_opening_a_session_again_doesnt_lengthen_its_lease(world, clock):
    world.session("w", lease=60)
    clock.advance(60)
    world.session("w", lease=60)
    assert world.store.sessions.find_dead() == ["w"]


def test_live_workers_are_those_with_a_lease(world, clock):
    world.session("w", lease=10)
    world.session("v", lease=20)
    started = clock.now
    clock.advance(10)
    assert world.store.sessions.list_live() == [("v", "worker v", started, started + 20 * SECOND, "{}")]


def test_a_clean_stop_leaves_no_session_behind(world):
    world.session("w")
    assert world.store.sessions.close("w")
    assert world.rows("workers") == 0


def test_a_session_that_still_holds_runs_isnt_closed(world):
    world.session("w")
    world.running("w")
    assert not world.store.sessions.close("w")
    assert world.rows("workers") == 1


# Recovery


def test_runs_of_a_dead_session_go_back_to_ready_and_count_a_crash(world, clock):
    world.session("w")
    claim = world.running("w")
    clock.advance(60)
    recovered = world.recover(*world.store.sessions.find_dead())
    assert (recovered.requeued, recovered.failed, recovered.released, recovered.sessions) == (1, [], 0, ["w"])
    row = world.row(claim.id)
    assert (row["state"], row["session"], row["crashes"], row["failures"]) == ("ready", None, 1, 0)
    since = clock.now - 60 * SECOND
    assert world.store.queries.history(claim.id) == [(1, clock.now, "crashed", 1, "w", since, None)]


def test_the_next_claim_after_a_crash_has_the_next_attempt_and_fence(world, clock):
    world.session("w")
    claim = world.running("w")
    clock.advance(60)
    world.recover("w")
    world.session("v")
    (again,) = world.claim("v")
    assert (again.id, again.attempt, again.fence, again.failures) == (claim.id, 2, 2, 0)


def crash(world, clock, name):
    world.session(name)
    (claim,) = world.claim(name) or world.claim_isolated(name)
    clock.advance(60)
    return claim.id, world.recover(name)


def test_one_crash_more_than_max_crashes_fails_the_run(world, clock):
    id = world.add(max_crashes=2)
    for name in ("first", "second"):
        assert crash(world, clock, name)[1].requeued == 1
    assert crash(world, clock, "third")[1].failed == [id]
    row = world.row(id)
    assert (row["state"], row["crashes"], row["error"], row["session"]) == ("failed", 3, CRASHED, None)
    assert (row["finished_at"], row["expires_at"]) == (clock.now, clock.now + row["keep"])
    assert world.kinds(id) == ["crashed", "crashed", "crashed"]
    assert world.store.queries.history(id)[-1][6] == CRASHED


def test_with_no_crash_allowed_the_first_one_fails_the_run(world, clock):
    id = world.add(max_crashes=0)
    assert crash(world, clock, "w")[1].failed == [id]


def test_a_stale_list_doesnt_touch_a_run_that_finished_meanwhile(world, clock):
    world.session("w")
    claim = world.running("w")
    clock.advance(59)
    stale = ["w"]  # a recoverer of another machine, whose clock was used: it believes that w is dead
    world.end("w", claim)
    before = world.row(claim.id)
    assert not world.recover(*stale)
    clock.advance(1)
    assert not world.recover(*stale)
    assert world.row(claim.id) == before
    assert world.kinds(claim.id) == ["done"]


def test_live_sessions_are_never_recovered_even_if_listed(world, clock):
    world.session("w")
    claim = world.running("w")
    clock.advance(59.999999)
    recovered = world.recover("w")
    assert (bool(recovered), recovered.sessions) == (False, [])
    assert (world.state(claim.id), world.row(claim.id)["session"]) == ("running", "w")
    assert world.rows("workers") == 1


def test_runs_of_an_unknown_session_are_recovered(world):
    world.session("w")
    claim = world.running("w")
    world.sql("delete from {schema}workers")
    assert world.store.sessions.find_dead() == ["w"]
    assert world.recover("w").requeued == 1
    assert world.state(claim.id) == "ready"
    assert world.store.sessions.find_dead() == []


def test_only_dead_sessions_are_recovered(world, clock):
    world.session("dead", lease=10)
    world.session("live", lease=60)
    lost, kept = world.running("dead"), world.running("live")
    clock.advance(10)
    assert world.recover("dead", "live").sessions == ["dead"]
    assert (world.state(lost.id), world.state(kept.id)) == ("ready", "running")


def test_a_cancelled_run_of_a_dead_session_is_released_and_stays_cancelled(world, clock):
    world.session("w")
    claim = world.running("w")
    world.store.actions.cancel(claim.id, CANCELLED)
    before = world.row(claim.id)
    clock.advance(60)
    recovered = world.recover("w")
    assert (recovered.requeued, recovered.failed, recovered.released) == (0, [], 1)
    assert world.row(claim.id) == before | {"session": None, "records": 2}
    assert world.kinds(claim.id) == ["cancelled", "let_go"]


def test_a_session_is_deleted_only_when_no_run_names_it(world, clock):
    world.session("w")
    world.add_many(600)
    while world.claim("w", 512):
        pass
    clock.advance(60)
    assert world.recover("w").requeued == 500
    assert world.rows("workers") == 1, "100 runs still name it"
    assert world.recover("w").requeued == 100
    assert world.rows("workers") == 0


def test_recovering_again_changes_nothing(world, clock):
    world.session("w")
    claim = world.running("w")
    clock.advance(60)
    world.recover("w")
    before = world.row(claim.id)
    assert not world.recover("w")
    assert world.row(claim.id) == before


def test_a_recovery_in_several_transactions_leaves_no_run_with_the_dead_session(world, clock):
    """More runs than one call takes, and the second call fails: the third recovers the rest."""
    world.session("w")
    world.add_many(700)
    while world.claim("w", 512):
        pass
    clock.advance(60)
    assert world.recover("w").requeued == 500
    (poisoned,) = world.sql("select cast(id as text) from {schema}runs where state = 'running' limit 1")[0]
    world.sql(
        "insert into {schema}history (run, n, at, kind, attempt) values (cast(:id as {uuid}), 1, 1, 'x', 0)",
        id=poisoned,
    )
    with pytest.raises(DataFault):
        world.recover("w")
    assert world.sql("select count(*) from {schema}runs where state = 'running'") == [(200,)], "all or none"
    assert world.sql("select count(*) from {schema}runs where deaths > 0") == [(500,)]
    world.sql("delete from {schema}history where kind = 'x'")
    assert world.store.sessions.find_dead() == ["w"]
    assert world.recover("w").requeued == 200
    assert world.sql("select count(*) from {schema}runs where session is not null or deaths <> 1") == [(0,)]
    assert world.sql("select count(*) from {schema}runs where crashes > 0") == [(0,)], "nobody is charged"
    kinds = world.sql("select kind, data, count(*) from {schema}history group by kind, data")
    assert kinds == [("worker_lost", '{"together":700}', 700)]
    assert world.rows("workers") == 0


def test_recovery_skips_locked_runs_and_recovers_them_later(postgres_url):
    world = World(postgres_url)
    world.session("w")
    first, second = world.running("w"), world.running("w")
    world.clock.advance(60)
    with psycopg.connect(postgres_url) as other:
        other.execute("select 1 from holdfast.runs where id = %s for update", (first.id,))
        assert world.recover("w").requeued == 1
        assert world.rows("workers") == 1
        assert world.state(second.id) == "ready"
    assert world.recover("w").requeued == 1
    assert world.rows("workers") == 0
    world.close()


def test_a_worker_that_is_writing_keeps_its_session_from_being_recovered(postgres_url):
    """Its end locks the session's row until it commits; recovery skips it."""
    world = World(postgres_url)
    world.session("w")
    claim = world.running("w")
    with psycopg.connect(postgres_url) as committer:
        committer.execute("select 1 from holdfast.workers where session = 'w' for key share")
        world.clock.advance(60)
        assert world.recover("w").sessions == []
        assert world.state(claim.id) == "running"
        assert not world.store.sessions.renew("w", SECOND), "a heartbeat doesn't wait for it"
    assert world.recover("w").requeued == 1
    world.close()
