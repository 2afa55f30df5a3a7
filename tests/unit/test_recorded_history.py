"""The recorded history of a run."""

from __future__ import annotations

import pytest

from holdfast.engine.durable.history import RecordedHistory
from holdfast.store.commands import Checkpoint, LoadedHistory, RunToken

MESSAGE, WITHDRAWN = "$message:number#1", "withdrawn"


@pytest.mark.parametrize(
    ("kinds", "withdrawn"),
    [(["message", WITHDRAWN], True), ([WITHDRAWN, "message"], False), ([WITHDRAWN, "message", WITHDRAWN], True)],
)
def test_the_last_outcome_or_withdrawal_of_a_wait_applies(kinds, withdrawn):
    """An outcome that arrives while user code cancels the wait is withdrawn, and another receiver gets it."""
    checkpoints = [Checkpoint(n, MESSAGE, kind, "4", 0) for n, kind in enumerate(kinds, 1)]
    history = RecordedHistory(LoadedHistory(checkpoints), RunToken("run", 1, 1, 0))
    assert history.withdrawn == ({MESSAGE} if withdrawn else set())
    assert list(history.unconsumed) == ([] if withdrawn else [MESSAGE])
    assert history.numbers == ([] if withdrawn else [2])
    assert history.last_number == len(kinds)
