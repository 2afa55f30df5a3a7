"""What a durable function has behind it: recorded outcomes by key, open waits, and the numbers of what comes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.model.step_keys import key_name
from holdfast.store.commands import Checkpoint, Held, Kept, KeptWait, Record
from holdfast.store.waking import recorded_as
from holdfast.task.operations import Step


@dataclass(slots=True)
class Registered:
    """A compensation: what to call, with what, and after which number it was registered."""

    n: int
    key: str
    call: Callable[[], Any]
    step: Step | None = None


class Past:
    """The kept outcomes of one run. Each is handed out once, to the first who asks for its key."""

    __slots__ = (
        "_new", "_occurrences", "_times_undone", "held", "last", "numbers", "open", "settled", "unasked", "undone",
        "withdrawn",
    )  # fmt: skip

    def __init__(self, kept: Kept | None, held: Held) -> None:
        self.held = held
        self.unasked: dict[str, Checkpoint] = {}
        """What is on record and nobody has asked for yet, by key. When there is nothing, nothing new can be a drift."""
        self.withdrawn: set[str] = set()
        """Waits that author code cancelled. Nothing comes of them in a replay, in which it cancels them again."""
        self.undone: set[int] = set()
        self._times_undone: dict[str, int] = {}
        self._occurrences: dict[str, int] = {}
        self.last = 0
        """The highest number that was given."""
        self._new: set[str] = set()
        self.open: dict[str, KeptWait] = {}
        self.settled: list[Record] = []
        self.numbers: Sequence[int] = ()
        """Of what is on record, in their order."""
        if kept is not None:
            self._recall(kept)

    def _recall(self, kept: Kept) -> None:
        self.last = kept.checkpoints[-1].n if kept.checkpoints else 0
        for item in kept.checkpoints:
            self._remember(item)
        for wait in kept.waits:
            self.withdrawn.discard(wait.key)  # waited for again since then
            if wait.outcome is None:
                self.open[wait.key] = wait
            else:
                self.settled.append(self._settle(wait))
        self.numbers = sorted(item.n for item in self.unasked.values())

    def _remember(self, item: Checkpoint) -> None:
        if item.kind == "undone":
            self.undone.add(int(item.value or 0))
            self._times_undone[item.key] = self._times_undone.get(item.key, 0) + 1
        elif item.kind == "withdrawn":  # what it had come to doesn't count: it was given back
            self.withdrawn.add(item.key)
            self.unasked.pop(item.key, None)
        else:
            self.unasked[item.key] = item
            self.withdrawn.discard(item.key)

    def _settle(self, wait: KeptWait) -> Record:
        """A wait that came to something while the run was asleep is on record from now on, after all the rest."""
        assert wait.outcome is not None
        kind, value = recorded_as(wait.kind, wait.outcome)
        n = self.number()
        self.unasked[wait.key] = Checkpoint(n, wait.key, kind, value, 0)
        return Record(*self.held, n, wait.key, kind, value, waited=True)

    def key(self, base: str) -> str:
        """The key of the next occurrence of an identity."""
        number = self._occurrences[base] = self._occurrences.get(base, 0) + 1
        return f"{base}#{number}"

    def tried_as(self, key: str) -> str:
        """What a step is called in its idempotency key: something else after it was undone; its compensation too."""
        if not self._times_undone:
            return key
        times = self._times_undone.get(key if key.startswith("$undone:") else f"$undone:{key}", 0)
        return f"{key}~{times}" if times else key

    def number(self) -> int:
        """The number of the next outcome."""
        self.last += 1
        return self.last

    def take(self, key: str) -> Checkpoint | None:
        """What is on record under a key; None for something new."""
        kept = self.unasked.pop(key, None)
        if kept is None:
            self._new.add(key)
        return kept

    def came(self, key: str) -> bool:
        """Whether it is the outcome of a wait that came while the run was asleep, and so is new to it."""
        return any(record.key == key for record in self.settled)

    def drift(self) -> dict[str, list[str]]:
        """Steps that were asked for with other arguments than on record: by name, the recorded keys."""
        if not self.unasked:
            return {}
        names = {key_name(key) for key in self._new if not key.startswith("$")}
        found: dict[str, list[str]] = {}
        for key in self.unasked:
            if not key.startswith("$") and (name := key_name(key)) in names:
                found.setdefault(name, []).append(key)
        return found
