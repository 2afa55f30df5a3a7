"""The recorded history of a run: what its earlier attempts recorded, and how user code sees it in a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from holdfast.errors import (
    ErrorInfo,
    Fatal,
    GateRejected,
    HoldfastError,
    PayloadError,
    RunCancelled,
    RunFailed,
    StepFailed,
    StepTraceback,
    WaitTimeout,
)
from holdfast.model.clock import to_micros
from holdfast.model.codec import MaskedDigest, decode, encode
from holdfast.model.failure import MAX_MESSAGE_BYTES, error_from_json, error_to_json, truncate_start
from holdfast.model.names import dotted_name
from holdfast.model.step_keys import key_digest, key_name
from holdfast.policy.retry_decision import longest_retry_after
from holdfast.store.commands import Checkpoint, LoadedHistory, LoadedWait, NewCheckpoint, RunToken, WaitOutcome
from holdfast.store.module import CORRUPT_DATA
from holdfast.store.waits import encode_outcome
from holdfast.task.operations import Step

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt
    from holdfast.engine.durable.resident import ResidentFunctions
    from holdfast.store import Store

BUDGET_KEY = "$budget:"
"""How the keys of waits for budgets begin."""

ExceptionTypes: TypeAlias = tuple[type[Exception], ...]
ChildOutcome: TypeAlias = Sequence[Any]
"""How a child ended, as its parent reads it: id, state, result and error."""


class Drift(NamedTuple):
    """Steps that ran again although they are recorded: their recorded keys by name, and the new names of some."""

    steps: dict[str, list[str]]
    renamed: dict[str, str]

    def to_json(self) -> str:
        return encode({"steps": self.steps, **({"renamed": self.renamed} if self.renamed else {})})


def renamed_to(key: str, new: Iterable[str]) -> str | None:
    """Return the first of these new keys that has the arguments of a recorded step, but another name."""
    wanted = _kind(key), key_digest(key)
    return next((each for each in new if (_kind(each), key_digest(each)) == wanted and each != key), None)


def _kind(key: str) -> str:
    return key.partition(":")[0] if key.startswith("$") else "step"


@dataclass(slots=True)
class Compensation:
    """A call that undoes an effect. `n` is the number of the checkpoint that registered it."""

    n: int
    key: str
    call: Callable[[], Any]
    step: Step | None = None


class RecordedHistory:
    """The checkpoints and waits of one run, and the keys and numbers of the next ones.

    A checkpoint has a key, which identifies its operation, and a number `n`, its position in the history. Each
    checkpoint is handed out once, to the first operation with its key.
    """

    __slots__ = (
        "_consumed_to", "_loaded_waits", "_new_keys", "_occurrences", "_seen_to", "_undo_counts", "last_number",
        "numbers", "open_waits", "permits", "replayed_to", "resolved_waits", "run_token", "spent", "unconsumed",
        "undone", "withdrawn",
    )  # fmt: skip

    def __init__(self, loaded: LoadedHistory | None, run_token: RunToken) -> None:
        self.run_token = run_token
        self.unconsumed: dict[str, Checkpoint] = {}
        """Checkpoints that no operation has consumed yet, by key."""
        self.withdrawn: set[str] = set()
        """Keys of waits that user code cancelled. They stay unresolved in a replay, where it cancels them again."""
        self.undone: set[int] = set()
        self.last_number = 0
        self.open_waits: dict[str, LoadedWait] = {}
        self.resolved_waits: list[NewCheckpoint] = []
        """Outcomes of waits that were resolved while the run was suspended. They still have to be recorded."""
        self.numbers: Sequence[int] = ()
        """The numbers of all recorded outcomes, in order."""
        self.permits: dict[str, str] = {}
        """What steps took of weighted limits, by the key of the record."""
        self.spent: dict[str, str] = {}
        """What steps have spent of budgets, by the key of the record."""
        self._undo_counts: dict[str, int] = {}
        self._occurrences: dict[str, int] = {}
        self._new_keys: dict[str, None] = {}  # In the order of the code.
        self._consumed_to = 0
        self._seen_to = 0  # the number of the last outcome that an earlier attempt may have got
        self.replayed_to = 0
        """The highest number of a recorded outcome that user code has got."""
        if loaded is not None:
            self._load(loaded)
        self._loaded_waits = len(self.open_waits)

    def _load(self, loaded: LoadedHistory) -> None:
        self.last_number = loaded.checkpoints[-1].n if loaded.checkpoints else 0
        for checkpoint in loaded.checkpoints:
            self._add(checkpoint)
        self._seen_to = max((checkpoint.n for checkpoint in self.unconsumed.values()), default=0)
        for wait in loaded.waits:
            self.withdrawn.discard(wait.key)  # The code waits for it again since it withdrew the wait.
            if wait.key.startswith("$limit:"):
                continue  # The step asks for its permits again, whether there may be room or not.
            if wait.key.startswith(BUDGET_KEY):
                wait.kind = "budget"  # stored as a wait for an event
            if wait.outcome is None:
                self.open_waits[wait.key] = wait
            else:
                self.resolved_waits.append(self._resolve(wait, wait.outcome))
        self.numbers = sorted(checkpoint.n for checkpoint in self.unconsumed.values())

    def _add(self, checkpoint: Checkpoint) -> None:
        key = checkpoint.key
        if checkpoint.kind == "undone":
            self.undone.add(int(checkpoint.value or 0))
            self._undo_counts[key] = self._undo_counts.get(key, 0) + 1
        elif checkpoint.kind == "permit":
            self.permits[key] = checkpoint.value or "[]"
        elif checkpoint.kind == "spent":
            self.spent[key] = checkpoint.value or "[]"
        elif checkpoint.kind == "withdrawn":  # An earlier outcome of the wait no longer counts: it was returned.
            self.withdrawn.add(key)
            self.unconsumed.pop(key, None)
        else:
            self.unconsumed[key] = checkpoint
            self.withdrawn.discard(key)

    def _resolve(self, wait: LoadedWait, outcome: WaitOutcome) -> NewCheckpoint:
        """Append the outcome of a wait that was resolved while the run was suspended."""
        kind, value = encode_outcome(wait.kind, outcome)
        n = self.next_number()
        self.unconsumed[wait.key] = Checkpoint(n, wait.key, kind, value, 0)
        return NewCheckpoint(*self.run_token, n, wait.key, kind, value, waited=True)

    def next_key(self, base: str) -> str:
        """Return the key of the next operation with this base: the base and the number of its occurrence."""
        if base.__class__ is not str:
            base = self._recorded_base(base)
        occurrence = self._occurrences[base] = self._occurrences.get(base, 0) + 1
        return f"{base}#{occurrence}"

    def _recorded_base(self, base: str) -> str:
        """Return the base under which release 0.1 recorded an operation with secrets, if it did in this run."""
        assert isinstance(base, MaskedDigest)
        start = f"{base.unmasked}#"
        is_recorded = base.unmasked in self._occurrences or any(
            key.startswith(start) for keys in (self.unconsumed, self.open_waits, self.withdrawn) for key in keys
        )
        return base.unmasked if is_recorded else str(base)

    def next_number(self) -> int:
        self.last_number += 1
        return self.last_number

    def consume(self, key: str) -> Checkpoint | None:
        """Return the checkpoint of an operation, or None if the operation isn't recorded."""
        checkpoint = self.unconsumed.pop(key, None)
        if checkpoint is None:
            self._new_keys[key] = None
        elif checkpoint.n > self._consumed_to:
            self._consumed_to = checkpoint.n
        return checkpoint

    @property
    def expects_more(self) -> bool:
        """Whether the code hasn't reached the last recorded outcome yet."""
        return bool(self.unconsumed) and self.numbers[-1] > self._consumed_to

    @property
    def is_behind(self) -> bool:
        """Whether the replay hasn't reached the point where the previous attempt stopped, so that code runs again.

        A function that was suspended had done everything up to its waits: the first new outcome continues it. One that
        was interrupted had got the outcomes that are recorded, and waited where a wait is open.
        """
        if self.resolved_waits:
            return self.replayed_to < self.resolved_waits[0].n
        return bool(self.open_waits) or self._seen_to > self.replayed_to

    def note_replayed(self, n: int) -> None:
        """Note that user code gets the outcome with this number."""
        if n > self.replayed_to:
            self.replayed_to = n

    def idempotency_name(self, key: str) -> str:
        """Return the name of a step in its idempotency key, which differs after the step was undone."""
        if not self._undo_counts:
            return key
        count = self._undo_counts.get(key if key.startswith("$undone:") else f"$undone:{key}", 0)
        return f"{key}~{count}" if count else key

    def was_resolved_while_suspended(self, key: str) -> bool:
        return any(record.key == key for record in self.resolved_waits)

    def drift(self, *, returned: bool, suspended: bool) -> Drift | None:
        """Return the recorded steps that the code ran again with other arguments or under another name, if any.

        `returned` and `suspended` say how the code has stopped. Unless it returned, it may still get to a step. It has
        passed over what comes before an outcome that it got, or before a wait that it reached again.
        """
        if not self.unconsumed or not self._new_keys:
            return None
        new = [key for key in self._new_keys if not key.startswith("$")]
        new_names = {key_name(key) for key in new}
        passed_all = returned or len(self.open_waits) < self._loaded_waits
        drift = Drift({}, {})
        for key, checkpoint in self.unconsumed.items():
            if key.startswith("$"):
                continue
            name, passed = key_name(key), passed_all or checkpoint.n < self._consumed_to
            if name in new_names:
                if suspended and not passed:
                    continue
            else:
                if not passed:
                    continue
                renamed = renamed_to(key, new)
                if renamed is None:
                    continue
                new.remove(renamed)
                drift.renamed[name] = key_name(renamed)
            drift.steps.setdefault(name, []).append(key)
        return drift if drift.steps else None


# Failures of steps

MAX_STEP_TRACEBACK_BYTES = MAX_MESSAGE_BYTES - 100
"""Of longer tracebacks, the end is kept: the text is the message of an exception, whose stored size is limited."""


def encode_failure(error: ErrorInfo, exception: BaseException | None, step_args: str | None, tries: int) -> str:
    """Return the JSON of a step's failure, with the class and arguments of the exception where they are encodable.

    `step_args` and `tries` are for operators.
    """
    failure: dict[str, Any] = msgspec.json.decode(error_to_json(error)) | {"step_args": step_args, "tries": tries}
    if exception is not None:
        with suppress(Exception):
            failure["class"] = dotted_name(type(exception))
            failure["args"] = decode(encode(exception.args))
        if (delay := longest_retry_after(exception)) is not None:
            failure["retry_after"] = to_micros(delay)
    return msgspec.json.encode(failure).decode()


def step_failure(step: str, error: ErrorInfo, raises: ExceptionTypes, exception: BaseException | None) -> BaseException:
    """Return the exception that a step raises to its caller when it fails."""
    if exception is not None and raises and isinstance(exception, raises):
        return exception
    return _step_failed(step, error, None if exception is None else longest_retry_after(exception))


def recorded_step_failure(step: str, text: str, raises: ExceptionTypes) -> BaseException:
    """Return the exception that a step raised to its caller, from its recorded failure."""
    restored = _restore_exception(text, raises) if raises else None
    return _step_failed(step, error_from_json(text), _recorded_delay(text)) if restored is None else restored


def _recorded_delay(text: str) -> timedelta | None:
    try:
        delay = decode(text).get("retry_after")
        return timedelta(microseconds=delay) if isinstance(delay, int) else None
    except (PayloadError, AttributeError, OverflowError):  # a corrupt row
        return None


def _step_failed(step: str, error: ErrorInfo, retry_after: timedelta | None) -> StepFailed:
    """Build the exception from what is recorded and nothing else, so that it is the same live and in a replay."""
    failed = StepFailed(step, error, retry_after)
    if error.traceback is not None:
        failed.__cause__ = StepTraceback(truncate_start(error.traceback, MAX_STEP_TRACEBACK_BYTES))
    return failed


def _restore_exception(text: str, raises: ExceptionTypes) -> Exception | None:
    try:
        failure = decode(text)
    except PayloadError:
        return None
    name = failure.get("class")
    cls = next((cls for cls in _with_subclasses(raises) if dotted_name(cls) == name), None)
    if cls is None:
        return None
    args = failure.get("args", [failure.get("message", "")])
    try:
        exception = cls(*args)
    except Exception:  # The constructor takes other arguments than the exception stores in `args`.
        exception = cls.__new__(cls)
        exception.args = tuple(args)
    if isinstance(exception, Fatal):
        exception.data = failure.get("data")
    return exception


def _with_subclasses(classes: ExceptionTypes) -> Iterator[type[Exception]]:
    for cls in classes:
        yield cls
        yield from _with_subclasses(tuple(cls.__subclasses__()))


def chained_exception_ids(error: BaseException) -> set[int]:
    """Return the ids of an exception, its causes and contexts, and the members of exception groups among them."""
    found: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        exception = todo.pop()
        if exception is None or id(exception) in found:
            continue
        found.add(id(exception))
        todo += [exception.__cause__, exception.__context__]
        if isinstance(exception, BaseExceptionGroup):
            todo += exception.exceptions
    return found


# Outcomes of waits


def unexpected_payload(what: str, error: PayloadError) -> Fatal:
    """Return the exception for a payload of an event or message that can't be decoded as the expected type."""
    failure = Fatal(f"the payload of {what} doesn't have the expected type: {error}")
    failure.__cause__ = error
    return failure


def child_outcome(row: Sequence[Any]) -> ChildOutcome:
    id, _, state, result, error = row
    return str(id), state, result, error


def child_failure(child: str, end: ChildOutcome) -> RunFailed | RunCancelled:
    """Return the exception for a failed or cancelled child; `child` is the name of its task or graph."""
    id, state, _, error = end
    info = error_from_json(error) if error else ErrorInfo("error", state, "")
    if state == "cancelled":
        return RunCancelled(UUID(id), info.message or None, child=child)
    return RunFailed(UUID(id), info, child=child)


def gate_failure(gate: str, end: ChildOutcome) -> HoldfastError:
    """Return the exception for a gate of a durable function that was rejected, timed out or cancelled."""
    failure = child_failure(gate, end)
    cause = failure.error.data if isinstance(failure, RunFailed) else None
    if not isinstance(failure, RunFailed) or not isinstance(cause, dict) or cause.get("node") != gate:
        return failure
    code, message = str(cause.get("code")), str(cause.get("message"))
    if code == "timeout":
        return WaitTimeout(message)
    return GateRejected(failure.run_id, ErrorInfo(code, str(cause.get("type")), message), gate)


# Loading


def load_history(store: Store, attempts: Iterable[Attempt], residents: ResidentFunctions) -> None:
    """Load the recorded history of durable functions that were claimed before: of resident ones, only the waits."""
    again = [each for each in attempts if each.claim.fence > 1 and each.durable]
    if not again:
        return
    for attempt in again:
        attempt.resident = residents.take(attempt)
    resident = [attempt for attempt in again if attempt.resident is not None]
    replayed = [attempt for attempt in again if attempt.resident is None]
    for some, load in ((resident, _load_waits), (replayed, _load_all)):
        try:
            _set_history(some, load(store, some))
        except CORRUPT_DATA:  # of one of them: find out which
            for attempt in some:
                try:
                    _set_history([attempt], load(store, [attempt]))
                except CORRUPT_DATA as error:
                    attempt.corrupt_history = PayloadError(f"the run's stored history is corrupt: {error}")


def _load_all(store: Store, attempts: Sequence[Attempt]) -> dict[str, LoadedHistory]:
    tenants = {each.claim.id: each.claim.tenant for each in attempts if each.claim.tenant is not None}
    return store.journal.load(_run_keys(attempts), tenants=tenants) if attempts else {}


def _load_waits(store: Store, attempts: Sequence[Attempt]) -> dict[str, LoadedHistory]:
    return store.journal.load_waits(_run_keys(attempts)) if attempts else {}


def _run_keys(attempts: Sequence[Attempt]) -> list[tuple[str, int]]:
    return [(each.claim.id, each.claim.generation) for each in attempts]


def _set_history(attempts: Sequence[Attempt], loaded: dict[str, LoadedHistory]) -> None:
    for attempt in attempts:
        attempt.loaded_history = loaded[attempt.claim.id]
        attempt.corrupt_history = loaded[attempt.claim.id].unreadable
