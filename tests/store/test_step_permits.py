"""Permits of steps in the store: taken once, returned with the checkpoint, and by whatever ends the attempt."""

from __future__ import annotations

import pytest

from holdfast.policy.admission import Rate
from holdfast.store import AttemptEnd
from holdfast.store.commands import (
    AdjustCommand,
    LimitedStepCommand,
    NewCheckpoint,
    RunToken,
    WaitCommand,
    WaitOutcome,
    WaitRegistered,
    WithdrawCommand,
    Written,
)
from holdfast.store.limits import counter_key, encode_permits
from tests.support.permits import in_use
from tests.support.store_harness import SECOND

ONE = encode_permits([("one", "", None)])
TOKENS = counter_key("tokens", "")


@pytest.fixture
def limited(harness):
    harness.store.limits.declare([("one", 1, None), ("tokens", None, Rate(10, SECOND), True)])
    return harness


def claimed(harness, session="s"):
    """Create a run and claim it; return its token."""
    harness.store.sessions.open(session, session, 60 * SECOND, "{}")
    harness.add()
    (claim,) = harness.store.claims.claim(session, [harness.lane()], 1)
    return RunToken(str(claim.id), claim.seq, claim.fence, claim.generation)


def take(harness, token, limits=ONE, step="step-x#1", n=1, session="s"):
    wait = WaitCommand(token, f"$limit:{step}", "limit", limits, name=step, n=n)
    (reply,) = harness.store.journal.write(session, [wait])
    return reply


def end_step(harness, token, n=2, step="step-x#1", used=None, session="s"):
    record = NewCheckpoint(*token, n, step, "step", "1")
    command = LimitedStepCommand(token, n, step, step, record, None, used or {})
    (reply,) = harness.store.journal.write(session, [command])
    return reply


def started(harness):
    return sum(counter.started for counter in harness.store.limits.counters("tokens"))


def test_a_step_takes_its_permits_once_although_the_reply_got_lost(limited):
    token = claimed(limited)
    first = take(limited, token)
    assert isinstance(first, WaitOutcome)
    assert take(limited, token, n=5) == first
    assert in_use(limited.store) == {counter_key("one", ""): 1}
    assert end_step(limited, token) == Written()
    assert end_step(limited, token) == Written(value="1")
    assert in_use(limited.store) == {}


def test_a_step_waits_and_is_woken_by_the_checkpoint_of_the_other(limited):
    first, second = claimed(limited), claimed(limited)
    take(limited, first)
    assert take(limited, second) == WaitRegistered(None)
    assert limited.store.journal.resolved_waits([(second.run, 0)]) == []
    end_step(limited, first)
    ((_, key, _, _),) = limited.store.journal.resolved_waits([(second.run, 0)])
    assert key == "$limit:step-x#1"
    assert isinstance(take(limited, second), WaitOutcome)
    assert limited.store.journal.resolved_waits([(second.run, 0)]) == []


def test_a_newcomer_does_not_overtake_a_step_that_was_just_woken(limited):
    first, second, third = claimed(limited), claimed(limited), claimed(limited)
    take(limited, first)
    take(limited, second)
    end_step(limited, first)
    assert take(limited, third) == WaitRegistered(None)
    assert isinstance(take(limited, second), WaitOutcome)


@pytest.mark.parametrize("how", ["end", "crash", "release", "recover"])
def test_permits_return_when_the_attempt_ends(limited, how):
    token = claimed(limited)
    take(limited, token)
    end = AttemptEnd(token.run, token.seq, token.fence, "handed_back", "ready", in_tree=True, permits=True)
    if how == "end":
        limited.store.attempts.end("s", [end])
    elif how == "crash":
        crashed = AttemptEnd(token.run, token.seq, token.fence, "crashed", "ready", error="{}")
        limited.store.attempts.crash("s", [crashed])
    elif how == "release":
        end.still_running = 1
        limited.store.attempts.end("s", [end])
        assert in_use(limited.store) == {counter_key("one", ""): 1}, "the code still runs"
        limited.store.attempts.release("s", [(token.run, token.fence)])
    else:
        limited.store.sessions.expire(["s"])
        limited.store.sessions.recover(["s"], "{}")
    assert in_use(limited.store) == {}


def test_a_withdrawn_wait_is_forgotten(limited):
    first, second, third = claimed(limited), claimed(limited), claimed(limited)
    take(limited, first)
    take(limited, second)
    take(limited, third)
    limited.store.journal.write("s", [WithdrawCommand(second, 7, "$limit:step-x#1")])
    end_step(limited, first)
    ((run, *_),) = limited.store.journal.resolved_waits([(second.run, 0), (third.run, 0)])
    assert run == third.run


def test_an_adjustment_counts_once_although_the_reply_got_lost(limited):
    token = claimed(limited)
    taken = take(limited, token, encode_permits([("tokens", "", 8)]))
    end_step(limited, token)
    adjust = AdjustCommand(token, 3, "$adjust:tokens#1", TOKENS, 8, int(taken.value), 2, "null")
    for _ in range(2):
        assert isinstance(limited.store.journal.write("s", [adjust])[0], Written)
        assert started(limited) == 2


def test_a_lowered_cost_makes_room_for_a_waiting_step(limited):
    first, second = claimed(limited), claimed(limited)
    take(limited, first, encode_permits([("tokens", "", 8)]))
    assert take(limited, second, encode_permits([("tokens", "", 5)])) == WaitRegistered(None)
    end_step(limited, first, used={TOKENS: 3})
    assert started(limited) == 3
    assert len(limited.store.journal.resolved_waits([(second.run, 0)])) == 1
    assert isinstance(take(limited, second, encode_permits([("tokens", "", 5)])), WaitOutcome)
    assert started(limited) == 8


def test_a_lost_run_takes_no_permits(limited):
    token = claimed(limited)
    limited.store.sessions.expire(["s"])
    limited.store.sessions.recover(["s"], "{}")
    limited.store.sessions.open("s", "s", 60 * SECOND, "{}")
    assert not isinstance(take(limited, token), WaitOutcome | WaitRegistered)
    assert in_use(limited.store) == {}
