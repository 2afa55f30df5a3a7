"""What a durable function has behind it: recorded outcomes by key, open waits, and the numbers of what comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from holdfast.errors import ErrorInfo, Fatal, PayloadError, RunCancelled, RunFailed, StepFailed, WaitTimeout
from holdfast.model.codec import decode, encode
from holdfast.model.failure import error_from_json, error_to_json
from holdfast.model.names import dotted_name
from holdfast.model.step_keys import key_name
from holdfast.store.commands import Checkpoint, Held, Kept, KeptWait, Outcome, Record
from holdfast.store.waking import recorded_as
from holdfast.task.operations import Step


@dataclass(slots=True)
class Compensation:
    """A compensation: what to call, with what, and after which number it was registered."""

    n: int
    key: str
    call: Callable[[], Any]
    step: Step | None = None


class RecordedHistory:
    """The kept outcomes of one run. Each is handed out once, to the first who asks for its key."""

    __slots__ = (
        "_new",
        "_occurrences",
        "_times_undone",
        "last",
        "numbers",
        "open",
        "run_token",
        "settled",
        "unasked",
        "undone",
        "withdrawn",
    )  # fmt: skip

    def __init__(self, kept: Kept | None, run_token: Held) -> None:
        self.run_token = run_token
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
        return Record(*self.run_token, n, wait.key, kind, value, waited=True)

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


def failure_text(error: ErrorInfo, exception: BaseException | None) -> str:
    """What is kept of a step's failure: the error, and the exception's class and arguments where they can be kept."""
    kept: dict[str, Any] = msgspec.json.decode(error_to_json(error))
    if exception is not None:
        with suppress(Exception):
            kept["class"] = dotted_name(type(exception))
            kept["args"] = decode(encode(exception.args))
    return msgspec.json.encode(kept).decode()


def fail(step: str, error: ErrorInfo, raises: tuple[type[Exception], ...], exception: BaseException | None) -> NoReturn:
    """A step has failed just now."""
    if exception is not None and raises and isinstance(exception, raises):
        raise exception
    raise StepFailed(step, error) from exception


def fail_again(step: str, text: str, raises: tuple[type[Exception], ...]) -> NoReturn:
    """A step's failure is on record: raise what was raised then."""
    rebuilt = _rebuild(text, raises) if raises else None
    if rebuilt is not None:
        raise rebuilt
    raise StepFailed(step, error_from_json(text))


def _rebuild(text: str, raises: tuple[type[Exception], ...]) -> Exception | None:
    """The exception of a kept failure, if it is one of those that shall come through as themselves."""
    try:
        kept = decode(text)
    except PayloadError:
        return None
    name = kept.get("class")
    kind = next((kind for kind in _with_subclasses(raises) if dotted_name(kind) == name), None)
    if kind is None:
        return None
    args = kept.get("args", [kept.get("message", "")])
    try:
        return kind(*args)
    except Exception:  # a class that wants other arguments than it keeps
        made = kind.__new__(kind)
        made.args = tuple(args)
        return made


def _with_subclasses(kinds: tuple[type[Exception], ...]) -> Iterator[type[Exception]]:
    for kind in kinds:
        yield kind
        yield from _with_subclasses(tuple(kind.__subclasses__()))


def causes(error: BaseException) -> set[int]:
    """The ids of an exception and of all that it came from: members of groups, causes, contexts."""
    found: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in found:
            continue
        found.add(id(one))
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
    return found


def payload(outcome: Outcome, what: str, kind: Any, unpack: Callable[[str], str]) -> Any:
    """What came of a wait, as the type that it was waited for with; raises WaitTimeout when nothing did."""
    if outcome.kind == "due":
        raise WaitTimeout(f"no {what} came in time")
    try:
        return decode(unpack(outcome.value or "null"), Any if kind is None else kind)
    except PayloadError as error:
        raise Fatal(f"the {what} isn't of the type that it is waited for with: {error}") from error


def end_of_child(row: Sequence[Any]) -> Sequence[Any]:
    id, _, state, result, error = row
    return str(id), state, result, error


def failure_of_child(child: str, end: Sequence[Any]) -> RunFailed | RunCancelled:
    """Return the exception for a failed or cancelled child; `child` is the name of its task or graph."""
    id, state, _, error = end
    info = error_from_json(error) if error else ErrorInfo("error", state, "")
    if state == "cancelled":
        return RunCancelled(UUID(id), info.message or None, child=child)
    return RunFailed(UUID(id), info, child=child)


def chosen_ends(rows: Sequence[Any], failed: str | None) -> Sequence[Any]:
    """All ends; or, where a failure ended the wait, that one."""
    return rows if failed is None else [row for row in rows if row[0] == failed]
