"""Groups of isolated runs: the next group starts only when the ends of the last one are durable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.engine.attempt import Session, WorkerState
from holdfast.engine.loops.isolation import IsolatedRuns


class FakeClaims:
    """Claims that always find another isolated run."""

    def __init__(self) -> None:
        self.claimed: list[str] = []

    def has_isolated(self, _tasks: Any) -> bool:
        return True

    def claim_isolated(self, _session: str, _tasks: Any, _max: int) -> list[Any]:
        self.claimed.append(f"run {len(self.claimed)}")
        return [SimpleNamespace(id=self.claimed[-1], fence=1)]


@pytest.fixture
def group(monkeypatch):
    """A worker that runs a group of one isolated run: the isolation, its state, its session, its claims."""
    monkeypatch.setattr("holdfast.engine.loops.isolation.new_attempts", fake_attempts)
    monkeypatch.setattr("holdfast.engine.loops.isolation.load_history", lambda *_: None)
    state, session, claims = WorkerState(), Session("worker", "{}"), FakeClaims()
    state.begin(session)
    runner: Any = SimpleNamespace(concurrency=10, busy_slots=0, pools={}, residents=None, start=lambda _: True)
    lanes: Any = SimpleNamespace(tasks={}, pools={})
    isolation = IsolatedRuns(SimpleNamespace(claims=claims), state, runner, lanes, lease=60)  # type: ignore[arg-type]
    while not state.claimed() or isolation.has_reserved:
        isolation.advance(session)
    return isolation, state, session, claims


def fake_attempts(claims: Any, _tasks: Any, _pools: Any, session: str, isolated: bool) -> list[Any]:
    flags = dict.fromkeys(("stopped", "abandoned", "batched"), False)
    state: Any = {"session": session, "isolated": isolated, "slots": None, **flags}
    return [SimpleNamespace(claim=claim, **state) for claim in claims]


def test_a_stopped_run_whose_end_is_not_durable_keeps_the_next_group_waiting(group):
    """A culprit in the next group would kill the process, and the end would be lost: again and again."""
    isolation, state, session, claims = group
    (attempt,) = state.claimed().values()
    attempt.stopped = True
    isolation.advance(session)
    assert claims.claimed == ["run 0"]
    state.remove([attempt])  # its end is durable
    isolation.advance(session)
    assert claims.claimed == ["run 0", "run 1"]
