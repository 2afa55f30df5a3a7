"""What conductors need of their worker: to have commands written, threads for plain functions, looks at waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import msgspec

from holdfast.engine.clerk import Clerk
from holdfast.engine.threads import ThreadCall
from holdfast.store import Store
from holdfast.store.commands import Command, Outcome, Record, Reply, StepRecord, payload_size

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt, Order

Answer: TypeAlias = Reply | Exception


class Ask(msgspec.Struct):
    """A command that waits to be written, and who is told of it, and of what it is about to him. On the loop answers
    are given there, in the order of the commands; else right away, on the committer's thread."""

    attempt: Attempt
    command: Command | StepRecord
    answer: Callable[[Ask, Answer], None]
    on_loop: bool
    about: Any = None
    size: int = 0
    """About how many bytes of payload the command has."""
    plain: bool = False
    """Whether the command is a checkpoint and nothing else, as most are."""
    number: ClassVar[int] = 1

    @classmethod
    def of(
        cls, attempt: Attempt, command: Command, answer: Callable[[Ask, Answer], None], on_loop: bool, about: Any = None
    ) -> Ask:
        """With what is to be known of the command."""
        plain = type(command) is Record and not command.waited
        return cls(attempt, command, answer, on_loop, about, payload_size(command), plain)

    def record(self) -> Record:
        """The command of one that is plain, as any other checkpoint."""
        command = self.command
        if type(command) is StepRecord:
            return command.whole(self.attempt.claim.generation)
        assert type(command) is Record
        return command


class Waiting(Protocol):
    """An attempt that waits in memory."""

    current: Attempt

    def hear(self, key: str, kind: str, outcome: Outcome) -> None:
        """What one of its waits came to. From any thread; more than once, perhaps."""


class Desk(Protocol):
    """A worker as its conductors see it."""

    store: Store
    clerk: Clerk

    def submit(self, ask: Ask) -> None: ...

    def submit_here(self, ask: Ask) -> None:
        """The same on the loop."""

    def keep(self, ask: Ask) -> None:
        """The same for the checkpoint of a step that went well and has no undo."""

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall: ...

    def watch(self, waiting: Waiting) -> None:
        """Look at the waits of an attempt from now on, until it is over."""

    def stop(self, attempt: Attempt, order: Order) -> None:
        """Tell author code to stop."""

    def has_room(self) -> bool:
        """Whether there are free slots, so that waiting in memory takes nothing from others."""

    def transact(self, attempt: Attempt, command: Record, work: Callable[[Any], str]) -> str | None:
        """Call work with a connection, and record the text that it returns, in one transaction; None when the run was
        lost, and all of it taken back. Blocks."""
