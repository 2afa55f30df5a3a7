"""How long a run that only waits keeps its slot."""

from __future__ import annotations

from holdfast.engine.durable.executor import BUSY_SUSPEND_DELAY_S, MAX_BUSY_RESUMES, SUSPEND_DELAY_S, SuspendDelay


def test_a_run_that_resumed_often_gives_its_slot_up_at_once_on_a_full_worker_only():
    lingering = SuspendDelay()
    lingering.opened("sleep", 1000, now=0.0)
    for _ in range(MAX_BUSY_RESUMES):
        assert lingering.seconds(0.0, has_room=False) == BUSY_SUSPEND_DELAY_S
        lingering.resumed()
    assert lingering.seconds(0.0, has_room=False) == 0.0
    assert lingering.seconds(0.0, has_room=True) == SUSPEND_DELAY_S
