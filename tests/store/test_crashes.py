"""A crash is charged to the run that caused it, and to no other."""

from __future__ import annotations

import pytest

from tests.support.store_harness import CRASHED, SECOND, end_of


def die(harness, session):
    """Let the session's process die with all its runs; return the result of the recovery."""
    harness.store.sessions.expire([session])
    return harness.recover(session)


def claim_all(harness, session, most=512):
    claims = []
    while some := harness.claim(session, most):
        claims += some
    return claims


def test_a_death_with_several_runs_charges_none_and_all_return_at_once(harness):
    harness.add_many(400, max_crashes=0)
    harness.session("w")
    assert len(claim_all(harness, "w")) == 400
    recovered = die(harness, "w")
    assert (recovered.requeued, recovered.failed) == (400, [])
    harness.session("v")
    again = claim_all(harness, "v")
    assert len(again) == 400, "after a power cut all runs start again at full concurrency"
    assert {harness.row(claim.id)["crashes"] for claim in again} == {0}
    assert harness.kinds(again[0].id) == ["worker_lost"]


def test_a_second_death_in_a_row_isolates_the_runs_in_smaller_groups(harness):
    harness.add_many(9, max_crashes=0)
    for session in ("first", "second"):
        harness.session(session)
        assert len(claim_all(harness, session)) == 9
        assert die(harness, session).failed == []
    harness.session("w")
    assert harness.claim("w", 16) == [], "an ordinary claim leaves isolated runs alone"
    lanes = [harness.lane()]
    assert harness.store.claims.has_isolated(lanes)
    assert harness.store.claims.has_active(lanes), "a drain waits for them"
    groups = []
    while group := harness.claim_isolated("w"):
        groups.append(len(group))
    assert groups == [3, 3, 3]
    assert not harness.store.claims.has_isolated(lanes)


@pytest.mark.parametrize("neighbours", [0, 1, 7, 100])
@pytest.mark.parametrize("undos", [False, True], ids=["plain", "with compensations"])
def test_the_run_that_kills_its_process_fails_and_all_others_finish(harness, neighbours, undos):
    ids = [harness.add(max_crashes=2) for _ in range(neighbours + 1)]
    culprit = ids[len(ids) // 2]
    if undos:
        harness.sql("update {schema}runs set undos = 1 where id = cast(:id as {uuid})", id=culprit)
    deaths = 0
    for number in range(100):
        session = f"w{number}"
        harness.session(session)
        group = claim_all(harness, session) or harness.claim_isolated(session)
        if not group:
            break
        if any(claim.id == culprit and claim.ending is None for claim in group):
            deaths += 1
            die(harness, session)
            continue
        for claim in group:
            assert harness.end(session, claim, in_tree=claim.ending is not None)
    states = {id: harness.state(id) for id in ids}
    if undos:  # its compensations ran in the last attempt
        assert "undoing" not in states.values()
        assert harness.row(culprit)["cause"] == CRASHED
    else:
        assert states.pop(culprit) == "failed"
        assert harness.row(culprit)["error"] == CRASHED
    assert set(states.values()) <= {"done"}
    assert all(harness.row(id)["crashes"] == 0 for id in ids if id != culprit)
    assert deaths <= 8, "it takes few deaths to find the culprit among a hundred"


@pytest.mark.parametrize("kind", ["retrying", "handed_back", "waiting"])
@pytest.mark.parametrize("family", [False, True])
def test_an_attempt_that_ends_regularly_clears_the_suspicion(harness, kind, family):
    harness.add_many(2)
    harness.session("w")
    harness.claim("w", 2)
    die(harness, "w")
    harness.session("v")
    first, _second = harness.claim("v", 2)
    if kind == "waiting" and not family:
        pytest.skip("only durable functions wait")
    assert harness.end("v", first, kind, in_tree=family)
    assert (harness.row(first.id)["deaths"], harness.row(first.id)["isolation"]) == (0, None)


def test_isolated_runs_of_a_paused_queue_wait(harness):
    isolated(harness, 2)
    harness.session("w")
    harness.store.queues.pause(["default"])
    assert not harness.store.claims.has_isolated([harness.lane()])
    assert harness.claim_isolated("w") == []
    harness.store.queues.resume(["default"])
    assert len(harness.claim_isolated("w")) == 1


def test_a_session_without_a_lease_claims_no_isolated_runs(harness):
    isolated(harness, 2)
    assert harness.claim_isolated("nobody") == []


def test_isolated_runs_take_their_permits(harness):
    harness.store.limits.declare([("one", 1, None)])
    for _ in range(2):
        harness.add(limits='["[\\"one\\",\\"\\"]"]')
    harness.sql("update {schema}runs set held = 'isolated', deaths = 2, isolation = 2")
    harness.session("w")
    (claim,) = harness.claim_isolated("w")
    assert claim.limits is not None
    assert harness.sql("select held from {schema}runs where state = 'ready'") == [("full",)]
    harness.end("w", claim, "done", limits=claim.limits)
    assert harness.store.claims.claim_limited("w", [harness.lane()], 1) == [], "with its permit it is isolated again"
    assert len(harness.claim_isolated("w")) == 1


def test_an_operators_retry_starts_without_suspicion(harness):
    (id, *_) = isolated(harness, 1, max_crashes=2)
    harness.session("w")
    harness.claim_isolated("w")
    assert die(harness, "w").failed == [id]
    harness.store.actions.retry(id)
    row = harness.row(id)
    assert (row["state"], row["held"], row["crashes"], row["deaths"], row["isolation"]) == ("ready", None, 0, 0, None)


def test_a_session_whose_process_is_known_to_have_ended_is_recovered_before_its_lease_expires(harness):
    harness.session("w", lease=60)
    claim = harness.running("w")
    assert not harness.recover("w")
    assert die(harness, "w").requeued == 1
    assert harness.state(claim.id) == "ready"


def test_a_session_reports_the_death_of_one_of_its_processes_as_that_runs_alone(harness):
    harness.session("w")
    first, second = harness.running("w"), harness.running("w")
    end = end_of(first, "crashed", error=CRASHED)
    assert harness.store.attempts.crash("w", [end]) == ({(first.id, first.fence)}, [])
    assert (harness.row(first.id)["crashes"], harness.state(second.id)) == (1, "running")


@pytest.mark.parametrize(("isolate", "held"), [(True, "isolated"), (False, None), (None, None)])
def test_a_known_culprit_is_isolated_at_once_and_one_with_a_process_of_its_own_never(harness, isolate, held):
    harness.session("w")
    claim = harness.running("w")
    harness.store.attempts.crash("w", [end_of(claim, "crashed", error=CRASHED, isolate=isolate)])
    assert harness.row(claim.id)["held"] == held
    if isolate is False:
        (again,) = harness.claim("w")
        harness.store.attempts.crash("w", [end_of(again, "crashed", error=CRASHED, isolate=isolate)])
        assert (harness.row(claim.id)["held"], harness.row(claim.id)["crashes"]) == (None, 2)


def test_suspects_that_a_session_reports_together_are_not_charged(harness):
    harness.session("w")
    claims = [harness.running("w") for _ in range(3)]
    ends = [end_of(claim, "crashed", error=CRASHED, runs_in_process=3) for claim in claims]
    counted, failed = harness.store.attempts.crash("w", ends)
    assert (len(counted), failed) == (3, [])
    assert [harness.row(claim.id)["crashes"] for claim in claims] == [0, 0, 0]
    assert harness.kinds(claims[0].id) == ["worker_lost"]


@pytest.mark.parametrize("by", ["its worker", "the recoverer"])
def test_runs_of_a_lease_lost_to_the_database_are_neither_charged_nor_suspected(harness, by):
    ids = isolated(harness, 1, max_crashes=3)
    harness.session("w")
    harness.claim_isolated("w")
    harness.store.sessions.expire(["w"])
    if by == "its worker":
        harness.store.sessions.excuse("w")
    recovered = harness.store.sessions.recover(["w"], CRASHED, excused=by == "the recoverer")
    row = harness.row(ids[0])
    assert (recovered.requeued, row["crashes"], row["deaths"], row["held"]) == (1, 2, 2, None)
    assert harness.kinds(ids[0])[-1] == "worker_lost"


def test_a_run_beside_leftover_code_of_a_lost_session_did_not_die_alone(harness):
    harness.session("w")
    claim = harness.running("w", max_crashes=0)
    harness.store.sessions.renew("w", 60 * SECOND, '{"leftover":["another"]}')
    assert die(harness, "w").failed == []
    assert (harness.row(claim.id)["crashes"], harness.kinds(claim.id)) == (0, ["worker_lost"])


@pytest.mark.parametrize("status", ["garbage", '{"leftover": 5}', "null", '{"leftover": ["THE RUN"]}'])
def test_a_run_beside_its_own_leftover_code_died_alone_and_an_unreadable_report_does_no_harm(harness, status):
    harness.session("w")
    claim = harness.running("w", max_crashes=0)
    harness.store.sessions.renew("w", 60 * SECOND, status.replace("THE RUN", claim.id))
    assert die(harness, "w").failed == [claim.id]


def test_a_renewal_reports_the_workers_health(harness):
    harness.session("w")
    assert harness.store.sessions.renew("w", 60 * SECOND, '{"lost_threads":3}')
    assert harness.store.sessions.list_all()[0].status == '{"lost_threads":3}'


def isolated(harness, count, **more):
    """Runs that died together twice."""
    ids = [harness.add(**more) for _ in range(count)]
    for session in ("first", "second"):
        harness.session(session)
        assert len(claim_all(harness, session)) == count
        die(harness, session)
    return ids
