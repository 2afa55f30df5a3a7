"""When the waits of functions in memory are polled, and which commits ask for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import pytest

from holdfast.engine.loops.wait_poller import FIRST_INTERVAL_S, WaitPoller
from holdfast.store import commands


class Polls:
    """A store whose polls are counted."""

    def __init__(self) -> None:
        self.count = 0
        self.journal = self

    def resolved_waits(self, _runs):
        self.count += 1
        if self.count == 1:
            raise RuntimeError("the first poll fails")
        return []


def waiter():
    claim = SimpleNamespace(id="run", generation=0)
    return SimpleNamespace(current=SimpleNamespace(stopped=None, reported=False, claim=claim))


def test_a_new_wait_is_not_polled_at_once_and_a_commit_polls_it():
    polls = Polls()
    poller = WaitPoller(polls)
    assert poller.tick() > 60, "there is nothing to poll"
    poller.add(waiter())
    assert 0 < poller.tick() <= FIRST_INTERVAL_S
    assert polls.count == 0, "the transaction that registered the wait has looked"
    poller._last_poll = 0.0
    poller.poll_soon()
    with pytest.raises(RuntimeError):
        poller.tick()
    assert polls.count == 1
    assert 0 < poller.tick() < 1, "a poll that failed is followed by another one"
    poller._last_poll = 0.0
    poller.poll_soon()
    assert poller.tick() < 1
    assert polls.count == 2


def test_commands_that_resolve_no_wait_of_others_are_known():
    """A command that isn't listed makes waiting functions look: that is right for new commands, but not for free."""
    kinds = set(get_args(commands.Command))
    others = {kind.__name__ for kind in kinds - set(commands.OF_ITS_RUN)}
    assert others == {
        "WithdrawCommand", "SetAsideCommand", "EmitCommand", "PublishCommand", "SpawnCommand", "EnqueueCommand",
        "LimitedStepCommand", "AdjustCommand", "SpendCommand",
    }  # fmt: skip
