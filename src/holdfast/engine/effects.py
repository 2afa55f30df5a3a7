"""What carrying out an operation needs from the outside, as plain data.

The plans of operations (`score.py`) are generators that yield these and are sent what came of them, so that they are
written once: `conductor.py` carries them out on an event loop, `blocking.py` in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import ErrorInfo
from holdfast.store.commands import Checkpoint, Command, Outcome, Wait
from holdfast.task.operations import Step, Transaction

ReadEnds: TypeAlias = Callable[[], Any]


class Replay(msgspec.Struct):
    """Something on record; answered, when its turn comes, with what `read` gives."""

    kept: Checkpoint
    read: ReadEnds | None = None


class Submit(msgspec.Struct):
    """A command to be written; answered with the value on record when it is durable."""

    command: Command


class Await(msgspec.Struct):
    """Something to wait for; answered with `Came`."""

    wait: Wait
    read: ReadEnds | None = None


class Came(msgspec.Struct):
    """What a wait came to, under which number it is on record, and what its `read` gave."""

    n: int
    outcome: Outcome
    data: Any = None


class Try(msgspec.Struct):
    """Author code to run, with its retries; answered with `Tried`."""

    step: Step
    key: str


class Transact(msgspec.Struct):
    """Author code to run in a transaction that also records it; answered with `Tried`."""

    operation: Transaction
    key: str


class Restart(msgspec.Struct):
    """The run begins anew. Never answered."""

    args: str


class Stuck(msgspec.Struct):
    """Something new where nothing new may happen. Never answered."""

    key: str


class Tried(msgspec.Struct):
    """What author code came to: the JSON text of its result, and that as it is stored, or its failure. `n`: it is on
    record already."""

    text: str | None = None
    kept: str | None = None
    error: ErrorInfo | None = None
    exception: BaseException | None = None
    took: int = 0
    n: int = 0


Effect: TypeAlias = Replay | Submit | Await | Try | Transact | Restart | Stuck
Plan: TypeAlias = Generator[Effect, Any, Any]


def waits_by(effect: Effect) -> str | None:
    """The key of the wait behind an effect, where author code that gives it up would lose something or keep it open:
    one that is open, or a message on record that hasn't reached it yet."""
    if isinstance(effect, Await):
        return effect.wait.key
    return effect.kept.key if isinstance(effect, Replay) and effect.kept.kind == "message" else None
