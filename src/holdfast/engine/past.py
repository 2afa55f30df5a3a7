"""What a durable function has behind it: recorded outcomes by key, open waits, and the numbers of what comes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.model.labels import name_of
from holdfast.store.commands import Checkpoint, Held, Kept, KeptWait, Record
from holdfast.store.waking import recorded_as
from holdfast.task.operations import Step

_NEVER_ASKED_FOR = ("undone",)


@dataclass(slots=True)
class Registered:
    """A compensation: what to call, with what, and after which number it was registered."""

    n: int
    key: str
    call: Callable[[], Any]
    step: Step | None = None


class Past:
    """The kept outcomes of one run. Each is handed out once, to the first who asks for its key."""

    def __init__(self, kept: Kept, held: Held) -> None:
        self._held = held
        self._kept = {item.key: item for item in kept.checkpoints if item.kind not in _NEVER_ASKED_FOR}
        self.withdrawn = {key for key, item in self._kept.items() if item.kind == "withdrawn"}
        """Waits that author code cancelled. Nothing comes of them in a replay, in which it cancels them again."""
        for key in self.withdrawn:
            del self._kept[key]
        undone = [item for item in kept.checkpoints if item.kind == "undone"]
        self.undone = {int(item.value or 0) for item in undone}
        self._times_undone = Counter(item.key for item in undone) if undone else {}
        self._occurrences: dict[str, int] = {}
        self._last = kept.checkpoints[-1].n if kept.checkpoints else 0
        self._new: set[str] = set()
        self.open: dict[str, KeptWait] = {wait.key: wait for wait in kept.waits if wait.outcome is None}
        self.withdrawn -= {wait.key for wait in kept.waits}  # waited for again since then
        self.settled = [self._settle(wait) for wait in kept.waits if wait.outcome is not None]
        self.numbers = sorted(item.n for item in self._kept.values())

    def _settle(self, wait: KeptWait) -> Record:
        """A wait that came to something while the run was asleep is on record from now on, after all the rest."""
        assert wait.outcome is not None
        kind, value = recorded_as(wait.kind, wait.outcome)
        n = self.number()
        self._kept[wait.key] = Checkpoint(n, wait.key, kind, value, 0)
        return Record(*self._held, n, wait.key, kind, value, waited=True)

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
        self._last += 1
        return self._last

    def take(self, key: str) -> Checkpoint | None:
        """What is on record under a key; None for something new."""
        kept = self._kept.pop(key, None)
        if kept is None:
            self._new.add(key)
        return kept

    def came(self, key: str) -> bool:
        """Whether it is the outcome of a wait that came while the run was asleep, and so is new to it."""
        return any(record.key == key for record in self.settled)

    @property
    def replaying(self) -> bool:
        """Whether something is on record that nobody has asked for yet. When not, nothing new can be a drift."""
        return bool(self._kept)

    def unasked(self) -> Iterable[Checkpoint]:
        """What is on record and nobody asked for."""
        return self._kept.values()

    def drift(self) -> dict[str, list[str]]:
        """Steps that were asked for with other arguments than on record: by name, the recorded keys."""
        if not self._kept:
            return {}
        names = {name_of(key) for key in self._new if not key.startswith("$")}
        found: dict[str, list[str]] = {}
        for key in self._kept:
            if not key.startswith("$") and (name := name_of(key)) in names:
                found.setdefault(name, []).append(key)
        return found
