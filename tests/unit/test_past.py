"""What a durable function has behind it, made of what is on record."""

from __future__ import annotations

import pytest

from holdfast.engine.durable.history import RecordedHistory
from holdfast.store.commands import Checkpoint, LoadedHistory, RunToken

MESSAGE, WITHDRAWN = "$message:number#1", "withdrawn"


@pytest.mark.parametrize(
    ("kinds", "withdrawn"),
    [(["message", WITHDRAWN], True), ([WITHDRAWN, "message"], False), ([WITHDRAWN, "message", WITHDRAWN], True)],
)
def test_of_a_wait_that_was_cancelled_and_came_to_something_the_last_counts(kinds, withdrawn):
    """What came as the code cancelled was given back: it is another's."""
    checkpoints = [Checkpoint(n, MESSAGE, kind, "4", 0) for n, kind in enumerate(kinds, 1)]
    history = RecordedHistory(LoadedHistory(checkpoints), RunToken("run", 1, 1, 0))
    assert history.withdrawn == ({MESSAGE} if withdrawn else set())
    assert list(history.unasked) == ([] if withdrawn else [MESSAGE])
    assert history.numbers == ([] if withdrawn else [2])
    assert history.last == len(kinds)
