"""Ends of attempts: the state that each leads to, and which are rejected."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.store.limits import counter_key
from holdfast.store.module import json_rows
from tests.support.store_harness import CANCELLED, DAY, OVERDUE, SECOND, end_of


@pytest.fixture
def claim(harness, clock):
    """A run that session `w` started 5 seconds ago."""
    harness.session("w")
    claim = harness.running("w")
    clock.advance(5)
    return claim


def test_done_ends_the_run_with_its_result(harness, clock, claim):
    assert harness.end("w", claim, result='{"a":1}')
    row = harness.row(claim.id)
    assert (row["state"], row["result"], row["error"], row["session"]) == ("done", '{"a":1}', None, None)
    assert (row["finished_at"], row["expires_at"], row["failures"]) == (clock.now, clock.now + 30 * DAY, 0)


def test_failed_ends_the_run_with_its_error(harness, clock, claim):
    assert harness.end("w", claim, "failed")
    row = harness.row(claim.id)
    assert (row["state"], row["result"], row["error"], row["session"]) == ("failed", None, '{"code":"error"}', None)
    assert (row["finished_at"], row["failures"]) == (clock.now, 1)


@pytest.mark.parametrize("kind", ["retrying", "timed_out"])
def test_a_failed_attempt_is_scheduled_again_and_counted(harness, clock, claim, kind):
    assert harness.end("w", claim, kind, delay=7 * SECOND)
    row = harness.row(claim.id)
    assert (row["state"], row["due_at"], row["failures"]) == ("scheduled", clock.now + 7 * SECOND, 1)
    assert (row["session"], row["finished_at"], row["error"]) == (None, None, '{"code":"error"}')


def test_a_run_handed_back_is_ready_at_once_and_its_attempt_not_counted(harness, claim):
    assert harness.end("w", claim, "handed_back")
    row = harness.row(claim.id)
    assert (row["state"], row["failures"], row["crashes"], row["session"]) == ("ready", 0, 0, None)
    assert harness.claim("w")[0].id == claim.id


def test_the_last_error_stays_until_an_attempt_succeeds(harness, clock, claim):
    harness.end("w", claim, "retrying", error='{"code":"first"}')
    clock.advance(20)
    harness.store.timers.promote_due()
    (again,) = harness.claim("w")
    harness.end("w", again, "handed_back")
    assert harness.row(claim.id)["error"] == '{"code":"first"}'
    harness.end("w", harness.claim("w")[0])
    assert harness.row(claim.id)["error"] is None


@pytest.mark.parametrize("kind", ["done", "failed", "retrying", "timed_out", "handed_back"])
def test_each_end_adds_one_history_row_with_the_start_of_the_attempt(harness, clock, claim, kind):
    harness.end("w", claim, kind)
    error = None if kind in ("done", "handed_back") else '{"code":"error"}'
    assert harness.store.queries.history(claim.id) == [(1, clock.now, kind, 1, "w", clock.now - 5 * SECOND, error)]
    assert harness.row(claim.id)["records"] == 1


def test_history_rows_are_numbered_across_attempts(harness, claim):
    harness.end("w", claim, "handed_back")
    harness.end("w", harness.claim("w")[0], "handed_back")
    harness.end("w", harness.claim("w")[0])
    assert [(record[0], record[2], record[3]) for record in harness.store.queries.history(claim.id)] == [
        (1, "handed_back", 1), (2, "handed_back", 2), (3, "done", 3)
    ]  # fmt: skip


def refused(harness, session, end):
    """Return whether an end is rejected and writes nothing."""
    before, history = harness.row(end.id), harness.store.queries.history(end.id)
    counted = harness.store.attempts.end(session, [end])
    assert (harness.row(end.id), harness.store.queries.history(end.id)) == (before, history)
    return counted == set()


@pytest.mark.parametrize("fence", [0, 2])
def test_an_end_with_another_fence_is_refused(harness, claim, fence):
    end = end_of(claim)
    end.fence = fence
    assert refused(harness, "w", end)
    assert harness.state(claim.id) == "running"


def test_an_end_by_another_session_is_refused(harness, claim):
    harness.session("v")
    assert refused(harness, "v", end_of(claim))
    assert refused(harness, "stranger", end_of(claim))


def test_an_end_after_the_lease_expired_is_rejected_even_before_recovery(harness, clock, claim):
    clock.advance(55)
    assert refused(harness, "w", end_of(claim))
    assert harness.state(claim.id) == "running"


def test_an_end_just_before_the_lease_expires_counts(harness, clock, claim):
    clock.advance(54.999999)
    assert harness.end("w", claim)


def test_an_end_of_a_run_that_does_not_exist_is_rejected(harness, claim):
    ghost = replace(claim, id="00000000-0000-7000-8000-000000000000")
    assert harness.store.attempts.end("w", [end_of(ghost), end_of(claim)]) == {end_of(claim).claim}


@pytest.mark.parametrize("family", [False, True])
@pytest.mark.parametrize("last_first", [False, True])
def test_of_two_ends_of_a_run_in_one_batch_only_that_of_the_last_claim_counts(harness, family, last_first):
    """The claim was handed back before the answer arrived, and the same session claimed the run again."""
    harness.session("w")
    harness.store.limits.declare([("few", 2, None)])
    limits = json_rows([counter_key("few", "")])
    other, run = (harness.add(limits=limits) for _ in range(2))
    lane = harness.lane()
    beside, old = harness.store.claims.claim_limited("w", [lane], 2)
    assert (beside.id, old.id) == (other, run)
    assert harness.end("w", old, "handed_back", limits=limits)
    (new,) = harness.store.claims.claim_limited("w", [lane], 1)
    ends = [end_of(new, in_tree=family, limits=limits), end_of(old, "failed", in_tree=family, limits=limits)]
    counted = harness.store.attempts.end("w", ends if last_first else ends[::-1])
    assert counted == {(run, new.fence), (run, old.fence)}, "the old one's is on record: it was handed back"
    assert (harness.state(run), harness.kinds(run)) == ("done", ["handed_back", "done"])
    assert harness.sql("select used from {schema}limits") == [(1,)], "the other run still has its permit"


def test_a_rejected_end_does_not_affect_the_rest_of_its_batch(harness):
    harness.session("w")
    claims = [harness.running("w") for _ in range(5)]
    harness.store.actions.cancel(claims[1].id, CANCELLED)
    ends = [
        end_of(claim, kind)
        for claim, kind in zip(claims, ["done", "done", "failed", "retrying", "handed_back"], strict=True)
    ]
    ends[3].fence = 9
    assert harness.store.attempts.end("w", ends) == {end_of(claims[at]).claim for at in (0, 2, 4)}
    states = [harness.state(claim.id) for claim in claims]
    assert states == ["done", "cancelled", "failed", "running", "ready"]


@pytest.mark.parametrize("kind", ["done", "failed", "retrying", "timed_out", "handed_back"])
def test_a_repeat_of_an_end_counts_and_writes_nothing_twice(harness, claim, kind):
    assert harness.end("w", claim, kind)
    before = harness.row(claim.id)
    assert harness.end("w", claim, kind)
    assert harness.row(claim.id) == before
    assert harness.kinds(claim.id) == [kind]


@pytest.mark.parametrize("last", [True, False])
def test_a_repeat_of_a_crash_counts_and_writes_nothing_twice(harness, last):
    harness.session("w")
    claim = harness.running("w", max_crashes=0 if last else 3)
    crashed = end_of(claim, "handed_back", error="{}")
    told = harness.store.attempts.crash("w", [crashed])
    assert told == ({(claim.id, claim.fence)}, [claim.id] if last else [])
    kinds = harness.kinds(claim.id)
    assert harness.store.attempts.crash("w", [crashed]) == told
    assert harness.kinds(claim.id) == kinds


def test_a_repeated_end_counts_even_when_another_worker_has_claimed_the_run(harness, claim):
    harness.session("v")
    harness.end("w", claim, "handed_back")
    harness.claim("v")
    before = harness.row(claim.id)
    assert harness.end("w", claim, "handed_back")
    assert harness.row(claim.id) == before


def test_after_a_takeover_the_old_workers_end_is_refused(harness, clock, claim):
    clock.advance(60)
    harness.session("v")
    harness.recover("w")
    (taken,) = harness.claim("v")
    assert taken.id == claim.id
    assert refused(harness, "w", end_of(claim))
    assert harness.end("v", taken)
    assert refused(harness, "w", end_of(claim, "failed"))
    assert harness.kinds(claim.id) == ["crashed", "done"]


def test_after_a_takeover_by_the_same_session_the_old_end_is_refused(harness, claim):
    harness.end("w", claim, "handed_back")
    (again,) = harness.claim("w")
    late = end_of(claim, "done")
    assert harness.store.attempts.end("w", [late]) == {late.claim}, "it was recorded as handed back: a repeat"
    assert harness.state(claim.id) == "running"
    assert harness.end("w", again)


def test_an_end_after_a_cancel_is_rejected_and_a_release_frees_the_run(harness, claim):
    harness.store.actions.cancel(claim.id, CANCELLED)
    assert refused(harness, "w", end_of(claim))
    assert harness.row(claim.id)["session"] == "w"
    assert harness.store.attempts.release("w", [(claim.id, claim.fence)]) == 1
    row = harness.row(claim.id)
    assert (row["state"], row["session"]) == ("cancelled", None)
    assert harness.kinds(claim.id) == ["cancelled", "let_go"]


def test_a_release_needs_the_fence_the_session_and_an_ended_run(harness, claim):
    let_go = harness.store.attempts.release
    assert let_go("w", [(claim.id, claim.fence)]) == 0, "still running"
    harness.store.actions.cancel(claim.id, CANCELLED)
    assert let_go("w", [(claim.id, 9)]) == let_go("v", [(claim.id, claim.fence)]) == 0
    assert harness.row(claim.id)["session"] == "w"
    assert let_go("w", [(claim.id, claim.fence)]) == 1
    assert let_go("w", [(claim.id, claim.fence)]) == 0
    assert harness.kinds(claim.id) == ["cancelled", "let_go"]


def test_a_late_end_after_a_release_does_not_count(harness, claim):
    harness.store.actions.cancel(claim.id, CANCELLED)
    harness.store.attempts.release("w", [(claim.id, claim.fence)])
    assert refused(harness, "w", end_of(claim))


def test_an_end_after_the_deadline_is_refused(harness, clock):
    harness.session("w")
    late = harness.running("w", deadline_in=SECOND)
    clock.advance(1)
    assert harness.store.timers.fail_overdue(OVERDUE) == [late.id]
    assert refused(harness, "w", end_of(late))
    assert harness.state(late.id) == "failed"


# Author code that can't be stopped


@pytest.mark.parametrize(("kind", "held"), [("timed_out", "quiescing"), ("handed_back", "quiescing"), ("failed", None)])
def test_a_run_whose_code_is_still_running_is_not_claimed(harness, clock, claim, kind, held):
    assert harness.end("w", claim, kind, still_running=1)
    row = harness.row(claim.id)
    assert (row["session"], row["held"]) == ("w", held)
    clock.advance(11)
    harness.store.timers.promote_due()
    assert harness.store.timers.release_held() == 0
    assert harness.claim("w") == []


@pytest.mark.parametrize("kind", ["timed_out", "handed_back"])
def test_a_run_whose_code_has_stopped_is_claimable(harness, clock, claim, kind):
    harness.end("w", claim, kind, still_running=1)
    harness.store.attempts.release("w", [(claim.id, claim.fence)])
    clock.advance(11)
    harness.store.timers.promote_due()
    assert [again.id for again in harness.claim("w")] == [claim.id]


def test_a_run_whose_worker_died_after_the_attempt_ended_is_claimable_and_not_charged(harness, clock, claim):
    harness.end("w", claim, "timed_out", still_running=1)
    clock.advance(60)
    harness.session("v")
    assert harness.recover("w").released == 1
    harness.store.timers.promote_due()
    assert [again.id for again in harness.claim("v")] == [claim.id]
    row = harness.row(claim.id)
    assert (row["crashes"], row["failures"]) == (0, 1)
    assert harness.kinds(claim.id) == ["timed_out", "let_go"]


@pytest.mark.parametrize("verb", ["cancel", "deadline"])
def test_an_attempt_appears_once_in_the_history_although_its_code_ran_on(harness, clock, verb):
    harness.session("w")
    claim = harness.running("w", deadline_in=100 * SECOND)
    harness.end("w", claim, "timed_out", still_running=1)
    clock.advance(100)
    if verb == "cancel":
        harness.store.actions.cancel(claim.id, CANCELLED)
    else:
        harness.store.timers.fail_overdue(OVERDUE)
    first, second = harness.store.queries.history(claim.id)
    assert (first[2], second[2]) == ("timed_out", {"cancel": "cancelled", "deadline": "failed"}[verb])
    assert first[5] is not None
    assert second[5] is None, "no attempt was under way"
