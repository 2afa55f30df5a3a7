"""A crash is charged to the run that caused it, and to no other."""

from __future__ import annotations

import pytest

from tests.support.world import CRASHED, SECOND, end_of


def die(world, session):
    """Let the session's process die with all its runs; return the result of the recovery."""
    world.store.sessions.expire([session])
    return world.recover(session)


def claim_all(world, session, most=512):
    claims = []
    while some := world.claim(session, most):
        claims += some
    return claims


def test_a_death_with_several_runs_charges_none_and_all_return_at_once(world):
    world.add_many(400, max_crashes=0)
    world.session("w")
    assert len(claim_all(world, "w")) == 400
    recovered = die(world, "w")
    assert (recovered.requeued, recovered.failed) == (400, [])
    world.session("v")
    again = claim_all(world, "v")
    assert len(again) == 400, "after a power cut all runs start again at full concurrency"
    assert {world.row(claim.id)["crashes"] for claim in again} == {0}
    assert world.kinds(again[0].id) == ["worker_lost"]


def test_a_second_death_in_a_row_isolates_the_runs_in_smaller_groups(world):
    world.add_many(9, max_crashes=0)
    for session in ("first", "second"):
        world.session(session)
        assert len(claim_all(world, session)) == 9
        assert die(world, session).failed == []
    world.session("w")
    assert world.claim("w", 16) == [], "an ordinary claim leaves isolated runs alone"
    lanes = [world.lane()]
    assert world.store.claims.has_isolated(lanes)
    assert world.store.claims.has_active(lanes), "a drain waits for them"
    groups = []
    while group := world.claim_isolated("w"):
        groups.append(len(group))
    assert groups == [3, 3, 3]
    assert not world.store.claims.has_isolated(lanes)


@pytest.mark.parametrize("neighbours", [0, 1, 7, 100])
@pytest.mark.parametrize("undos", [False, True], ids=["plain", "with compensations"])
def test_the_run_that_kills_its_process_fails_and_all_others_finish(world, neighbours, undos):
    ids = [world.add(max_crashes=2) for _ in range(neighbours + 1)]
    culprit = ids[len(ids) // 2]
    if undos:
        world.sql("update {schema}runs set undos = 1 where id = cast(:id as {uuid})", id=culprit)
    deaths = 0
    for number in range(100):
        session = f"w{number}"
        world.session(session)
        group = claim_all(world, session) or world.claim_isolated(session)
        if not group:
            break
        if any(claim.id == culprit and claim.ending is None for claim in group):
            deaths += 1
            die(world, session)
            continue
        for claim in group:
            assert world.end(session, claim, in_tree=claim.ending is not None)
    states = {id: world.state(id) for id in ids}
    if undos:  # its compensations ran in the last attempt
        assert "undoing" not in states.values()
        assert world.row(culprit)["cause"] == CRASHED
    else:
        assert states.pop(culprit) == "failed"
        assert world.row(culprit)["error"] == CRASHED
    assert set(states.values()) <= {"done"}
    assert all(world.row(id)["crashes"] == 0 for id in ids if id != culprit)
    assert deaths <= 8, "it takes few deaths to find the culprit among a hundred"


@pytest.mark.parametrize("kind", ["retrying", "handed_back", "waiting"])
@pytest.mark.parametrize("family", [False, True])
def test_an_attempt_that_ends_regularly_clears_the_suspicion(world, kind, family):
    world.add_many(2)
    world.session("w")
    world.claim("w", 2)
    die(world, "w")
    world.session("v")
    first, _second = world.claim("v", 2)
    if kind == "waiting" and not family:
        pytest.skip("only durable functions wait")
    assert world.end("v", first, kind, in_tree=family)
    assert (world.row(first.id)["deaths"], world.row(first.id)["isolation"]) == (0, None)


def test_isolated_runs_of_a_paused_queue_wait(world):
    isolated(world, 2)
    world.session("w")
    world.store.queues.pause(["default"])
    assert not world.store.claims.has_isolated([world.lane()])
    assert world.claim_isolated("w") == []
    world.store.queues.resume(["default"])
    assert len(world.claim_isolated("w")) == 1


def test_a_session_without_a_lease_claims_no_isolated_runs(world):
    isolated(world, 2)
    assert world.claim_isolated("nobody") == []


def test_isolated_runs_take_their_permits(world):
    world.store.limits.declare([("one", 1, None)])
    for _ in range(2):
        world.add(limits='["[\\"one\\",\\"\\"]"]')
    world.sql("update {schema}runs set held = 'isolated', deaths = 2, isolation = 2")
    world.session("w")
    (claim,) = world.claim_isolated("w")
    assert claim.limits is not None
    assert world.sql("select held from {schema}runs where state = 'ready'") == [("full",)]
    world.end("w", claim, "done", limits=claim.limits)
    assert world.store.claims.claim_limited("w", [world.lane()], 1) == [], "with its permit it is isolated again"
    assert len(world.claim_isolated("w")) == 1


def test_an_operators_retry_starts_without_suspicion(world):
    (id, *_) = isolated(world, 1, max_crashes=2)
    world.session("w")
    world.claim_isolated("w")
    assert die(world, "w").failed == [id]
    world.store.actions.retry(id)
    row = world.row(id)
    assert (row["state"], row["held"], row["crashes"], row["deaths"], row["isolation"]) == ("ready", None, 0, 0, None)


def test_a_session_whose_process_is_known_to_have_ended_is_recovered_before_its_lease_expires(world):
    world.session("w", lease=60)
    claim = world.running("w")
    assert not world.recover("w")
    assert die(world, "w").requeued == 1
    assert world.state(claim.id) == "ready"


def test_a_session_reports_the_death_of_one_of_its_processes_as_that_runs_alone(world):
    world.session("w")
    first, second = world.running("w"), world.running("w")
    end = end_of(first, "crashed", error=CRASHED)
    assert world.store.attempts.crash("w", [end]) == ({(first.id, first.fence)}, [])
    assert (world.row(first.id)["crashes"], world.state(second.id)) == (1, "running")


@pytest.mark.parametrize(("isolate", "held"), [(True, "isolated"), (False, None), (None, None)])
def test_a_known_culprit_is_isolated_at_once_and_one_with_a_process_of_its_own_never(world, isolate, held):
    world.session("w")
    claim = world.running("w")
    world.store.attempts.crash("w", [end_of(claim, "crashed", error=CRASHED, isolate=isolate)])
    assert world.row(claim.id)["held"] == held
    if isolate is False:
        (again,) = world.claim("w")
        world.store.attempts.crash("w", [end_of(again, "crashed", error=CRASHED, isolate=isolate)])
        assert (world.row(claim.id)["held"], world.row(claim.id)["crashes"]) == (None, 2)


def test_suspects_that_a_session_reports_together_are_not_charged(world):
    world.session("w")
    claims = [world.running("w") for _ in range(3)]
    ends = [end_of(claim, "crashed", error=CRASHED, runs_in_process=3) for claim in claims]
    counted, failed = world.store.attempts.crash("w", ends)
    assert (len(counted), failed) == (3, [])
    assert [world.row(claim.id)["crashes"] for claim in claims] == [0, 0, 0]
    assert world.kinds(claims[0].id) == ["worker_lost"]


@pytest.mark.parametrize("by", ["its worker", "the recoverer"])
def test_runs_of_a_lease_lost_to_the_database_are_neither_charged_nor_suspected(world, by):
    ids = isolated(world, 1, max_crashes=3)
    world.session("w")
    world.claim_isolated("w")
    world.store.sessions.expire(["w"])
    if by == "its worker":
        world.store.sessions.excuse("w")
    recovered = world.store.sessions.recover(["w"], CRASHED, excused=by == "the recoverer")
    row = world.row(ids[0])
    assert (recovered.requeued, row["crashes"], row["deaths"], row["held"]) == (1, 2, 2, None)
    assert world.kinds(ids[0])[-1] == "worker_lost"


def test_a_run_beside_leftover_code_of_a_lost_session_did_not_die_alone(world):
    world.session("w")
    claim = world.running("w", max_crashes=0)
    world.store.sessions.renew("w", 60 * SECOND, '{"leftover":["another"]}')
    assert die(world, "w").failed == []
    assert (world.row(claim.id)["crashes"], world.kinds(claim.id)) == (0, ["worker_lost"])


@pytest.mark.parametrize("status", ["garbage", '{"leftover": 5}', "null", '{"leftover": ["THE RUN"]}'])
def test_a_run_beside_its_own_leftover_code_died_alone_and_an_unreadable_report_does_no_harm(world, status):
    world.session("w")
    claim = world.running("w", max_crashes=0)
    world.store.sessions.renew("w", 60 * SECOND, status.replace("THE RUN", claim.id))
    assert die(world, "w").failed == [claim.id]


def test_a_renewal_reports_the_workers_health(world):
    world.session("w")
    assert world.store.sessions.renew("w", 60 * SECOND, '{"lost_threads":3}')
    assert world.store.sessions.list_all()[0][-1] == '{"lost_threads":3}'


def isolated(world, count, **more):
    """Runs that died together twice."""
    ids = [world.add(**more) for _ in range(count)]
    for session in ("first", "second"):
        world.session(session)
        assert len(claim_all(world, session)) == count
        die(world, session)
    return ids
