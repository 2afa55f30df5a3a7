"""How long a run that only waits keeps its slot."""

from __future__ import annotations

from holdfast.engine.lingering import CROWDED, LINGER, MAX_CROWDED_RESUMES, Lingering


def test_a_run_that_resumed_often_gives_its_slot_up_at_once_on_a_full_worker_only():
    lingering = Lingering()
    lingering.opened("sleep", 1000, now=0.0)
    for _ in range(MAX_CROWDED_RESUMES):
        assert lingering.seconds(0.0, has_room=False) == CROWDED
        lingering.resumed()
    assert lingering.seconds(0.0, has_room=False) == 0.0
    assert lingering.seconds(0.0, has_room=True) == LINGER
