"""How long a run that only waits stays in memory."""

from __future__ import annotations

from holdfast.engine.durable.executor import (
    BUSY_SUSPEND_DELAY_S,
    MAX_BUSY_RESUMES,
    MAX_REPLAY_S,
    REPLAY_S_PER_OUTCOME,
    SUSPEND_DELAY_S,
    suspend_delay_s,
)


def delay_s(has_free_slots, resumes=0, due_in_s=0.001, waits_for_others=False, outcomes=0):
    return suspend_delay_s(
        due_in_s=due_in_s,
        waits_for_others=waits_for_others,
        has_free_slots=has_free_slots,
        resumes=resumes,
        outcomes=outcomes,
    )


def test_only_a_wait_that_may_be_resolved_soon_keeps_a_run_in_memory_for_long():
    assert delay_s(True) == delay_s(True, due_in_s=3600, waits_for_others=True) == SUSPEND_DELAY_S
    assert delay_s(True, due_in_s=3600) == BUSY_SUSPEND_DELAY_S


def test_a_run_that_resumed_often_is_suspended_at_once_only_on_a_full_worker():
    assert delay_s(False, MAX_BUSY_RESUMES - 1) == BUSY_SUSPEND_DELAY_S
    assert delay_s(False, MAX_BUSY_RESUMES) == 0.0
    assert delay_s(True, MAX_BUSY_RESUMES) == SUSPEND_DELAY_S


def test_a_run_that_waits_for_others_stays_for_as_long_as_its_replay_would_take():
    for has_free_slots in (True, False):
        assert delay_s(has_free_slots, waits_for_others=True, outcomes=4000) == 4000 * REPLAY_S_PER_OUTCOME
        assert delay_s(has_free_slots, waits_for_others=True, outcomes=10**6) == MAX_REPLAY_S
        assert delay_s(has_free_slots, due_in_s=3600, outcomes=4000) == BUSY_SUSPEND_DELAY_S, "it only sleeps"


def test_a_run_is_replayed_again_only_after_as_many_resumes_as_it_has_outcomes():
    assert delay_s(False, 3999, outcomes=4000) > 0
    assert delay_s(False, 4000, outcomes=4000) == 0.0
