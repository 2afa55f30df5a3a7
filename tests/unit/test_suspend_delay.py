"""How long a run that only waits stays in memory."""

from __future__ import annotations

from holdfast.engine.durable.executor import BUSY_SUSPEND_DELAY_S, MAX_BUSY_RESUMES, SUSPEND_DELAY_S, suspend_delay_s


def delay_s(has_free_slots, resumes=0, due_in_s=0.001, waits_for_others=False):
    return suspend_delay_s(
        due_in_s=due_in_s, waits_for_others=waits_for_others, has_free_slots=has_free_slots, resumes=resumes
    )


def test_only_a_wait_that_may_be_resolved_soon_keeps_a_run_in_memory_for_long():
    assert delay_s(True) == delay_s(True, due_in_s=3600, waits_for_others=True) == SUSPEND_DELAY_S
    assert delay_s(True, due_in_s=3600) == BUSY_SUSPEND_DELAY_S


def test_a_run_that_resumed_often_is_suspended_at_once_only_on_a_full_worker():
    assert delay_s(False, MAX_BUSY_RESUMES - 1) == BUSY_SUSPEND_DELAY_S
    assert delay_s(False, MAX_BUSY_RESUMES) == 0.0
    assert delay_s(True, MAX_BUSY_RESUMES) == SUSPEND_DELAY_S
