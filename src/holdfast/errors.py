"""The exceptions that Holdfast raises. A message says what happened, where, and what to do.

HoldfastError
├── ConfigError                   an invalid setting, URL or name
│   └── ResourceMissing           a parameter with the default inject() has no resource
├── TaskError
│   ├── UnknownTask               the app has no task of that name
│   ├── DuplicateTask             two tasks have the same name
│   ├── BadArguments              arguments that don't match the task
│   │   └── CostExceedsLimit      a cost above all that a limit allows
│   ├── LimitNotTaken             an adjustment of a limit that the code hasn't taken
│   ├── BadMessage                a message or ask that doesn't have the declared type
│   ├── BadState                  a state of a state machine that can't be decoded or stored
│   ├── GraphError                an invalid graph, or a run that isn't a graph
│   └── BlockingCall              a blocking call in a thread with a running event loop
├── PayloadError
│   ├── TooLarge                  a payload above the size limit
│   ├── NotSerializable           a value that can't be stored as JSON
│   └── PayloadUnreadable         a stored payload that the codec rejected
│       ├── PayloadAltered        it was changed or moved, or is stored in clear
│       ├── EncryptionKeyMissing  its key doesn't exist or was deleted
│       └── EncryptionKeysUnavailable  the keys can't be loaded at the moment
├── StoreError
│   ├── StoreUnavailable          the database can't be reached
│   │   └── StoreMoved            its data was moved to another database
│   ├── TenantMoved               the data of this tenant was moved to another database
│   ├── MoveRefused               the data can't be moved
│   ├── StoreReplaced             the SQLite file was removed or replaced while it was open
│   ├── SchemaBehind              the tables are older than this code
│   └── SchemaAhead               the tables require newer code
├── KeyConflict                   the idempotency key was used for another request
├── LeaseLost                     a worker lost its claim on a run
├── RunNotFound                   the run doesn't exist or has been pruned
├── MessageNotFound               the run has no such message that was set aside
├── RunFinished                   the run has finished; the operation needs an unfinished one
├── RunStarted                    the run has started
├── BudgetExceeded                the run has spent more than a budget allows
├── RunFailed                     the awaited run failed
│   └── GateRejected              a gate that a durable function opened was rejected
├── RunCancelled                  the awaited run was cancelled
├── ExecutorLost                  a call in an executor was lost
├── StepFailed                    a step failed permanently
├── ResultTimeout                 the run didn't finish in time (also TimeoutError)
├── AskTimeout                    the run didn't answer an ask in time (also TimeoutError)
├── AskRejected                   the run rejected an ask
├── WaitTimeout                   a durable wait timed out (also TimeoutError)
├── BatchFailed                   raised by tasks with batch=: some of the runs failed
├── Fatal                         raised by tasks: fail now, without a retry
└── RetryAfter                    raised by tasks: retry after this delay
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Self
from uuid import UUID


def error_text(type: str, message: str) -> str:
    """Describe an error for people: its type, without the module if it is Holdfast's own, and its message."""
    name = type.removeprefix("holdfast.errors.")
    return f"{name}: {message}" if message else name


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The error that is stored with a run.

    `code` is for programs: `error` (an exception of the task), `timeout`, `deadline`, `crashed`, `cancelled`, `fatal`,
    `bad_arguments`, `bad_state`, `unreadable` (a stored payload was altered, or its key is gone), `not_serializable`,
    `too_large`, `undo` (a compensation failed). Graphs add `node` (a
    node of the graph failed or was cancelled), `gate` (a gate was rejected), `bad_output` (an output has no value for a
    condition or an argument), and for skipped nodes `failure` (a dependency failed) or `condition` (its own condition,
    or one of a dependency, was false).
    """

    code: str
    type: str
    message: str
    traceback: str | None = None
    data: Any = None
    """What the task attached with `Fatal(message, data=…)`: plain JSON with secrets masked, at most 8 KiB. A
    `StepFailed` or `RunFailed` that isn't caught passes the data of its own error on."""

    def __str__(self) -> str:
        return error_text(self.type, self.message)


class HoldfastError(Exception):
    """Base class of all errors of this library."""


class ConfigError(HoldfastError):
    """An invalid setting, URL or name."""


class TaskError(HoldfastError):
    """An invalid task, or an invalid call of one."""


class UnknownTask(TaskError):
    """The app has no task of that name."""


class DuplicateTask(TaskError):
    """Two tasks have the same name."""


class BadArguments(TaskError):
    """Arguments or options that don't match the task."""


class CostExceedsLimit(BadArguments):
    """The cost of a run or step is above all that the rate of its limit allows, so it would never start.

    In the code of a run, it isn't retried, unless the task's retry policy names it.
    """


class LimitNotTaken(TaskError):
    """`ctx.adjust` names a limit of which neither the run nor one of its steps has a cost to correct."""


class BadMessage(TaskError):
    """A message or an ask that doesn't have the type that the task declares for it."""


class BadState(TaskError):
    """A stored state of a state machine can't be decoded by this code, or a new one can't be stored."""


class GraphError(TaskError):
    """An invalid graph, or a graph operation on a run that isn't a graph."""


class BlockingCall(TaskError):
    """A blocking method was called in a thread with a running event loop."""


class PayloadError(HoldfastError):
    """A value that can't be stored."""


class TooLarge(PayloadError):
    """A payload above the size limit."""


class NotSerializable(PayloadError):
    """A value that can't be encoded as JSON, or that would change when decoded."""


class PayloadUnreadable(PayloadError):
    """A stored payload that the codec rejected, or that can't be copied without the codec."""


class PayloadAltered(PayloadUnreadable):
    """A stored payload that isn't what was stored there: it was changed, moved from elsewhere, or never encrypted."""


class EncryptionKeyMissing(PayloadUnreadable):
    """The key of a payload, or of a tenant, doesn't exist or was deleted."""


class EncryptionKeysUnavailable(PayloadUnreadable):
    """The function that returns the keys of a tenant failed. The keys may exist; try again later."""


class StoreError(HoldfastError):
    """A database error."""


class StoreUnavailable(StoreError):
    """The database can't be reached or can't write at the moment."""


class StoreMoved(StoreUnavailable):
    """The data of this database was moved to another database, or is being moved, so nothing is written here any more.

    The program needs the URL of the other database.
    """


class TenantMoved(StoreError):
    """The data of this tenant was moved to another database, or is being moved, so nothing new is stored for it here.

    Other tenants aren't affected. The message says which database to use for this tenant.
    """


class MoveRefused(StoreError):
    """`holdfast move` can't move this data: the target isn't empty, or another move of it is under way."""


class StoreReplaced(StoreError):
    """The SQLite file or its write-ahead log was removed or replaced while this program had it open.

    The program can't use that database again until it is restarted.
    """


class SchemaBehind(StoreError):
    """The tables are missing or older than this code needs."""


class SchemaAhead(StoreError):
    """The tables were migrated by newer code and require it."""


class KeyConflict(HoldfastError):
    """The idempotency key was used before for another request."""

    def __init__(self, message: str, run_id: UUID) -> None:
        super().__init__(message)
        self.run_id = run_id


class LeaseLost(HoldfastError):
    """This worker lost its claim on a run. Never raised in task code."""


class RunNotFound(HoldfastError):
    """The run does not exist or has been pruned."""

    @classmethod
    def of(cls, id: UUID | str) -> Self:
        return cls(f"run {id} does not exist or has been pruned")


class MessageNotFound(HoldfastError):
    """The run has no message with this number that was set aside."""


class ResourceMissing(ConfigError):
    """A parameter with the default `inject()` has no resource, or more than one that fits."""


class RunStarted(HoldfastError):
    """The run has started, so it can't be changed any more."""


class RunFinished(HoldfastError):
    """The run has finished, but the operation needs an unfinished one."""


class BudgetExceeded(HoldfastError):
    """The run has spent more than a budget with `on_exceeded="fail"` allows.

    What it has spent is recorded. Not retried, unless the task's retry policy names it: an operator raises the budget,
    then retries the run.
    """

    def __init__(
        self, message: str, budget: str = "", spent: Decimal | None = None, limit: Decimal | None = None
    ) -> None:
        super().__init__(message)
        self.budget = budget
        """The name of the budget."""
        self.spent = spent
        """What was spent of it."""
        self.limit = limit
        """What it allows."""


class RunFailed(HoldfastError):
    """The awaited run failed.

    `child` is the name of the task or graph when the run is a child of the durable function that awaited it. The
    outcome of a child is final, so an uncaught `RunFailed` with `child` fails the parent without a retry.
    """

    def __init__(self, run_id: UUID, error: ErrorInfo, *, child: str | None = None) -> None:
        super().__init__(f"{_run_text(run_id, child)} failed ({error.code}): {error}")
        self.run_id = run_id
        self.error = error
        self.child = child


class GateRejected(RunFailed):
    """A gate that a durable function opened with `ctx.gate` was rejected. `gate` is its name.

    The decision is final, so an uncaught `GateRejected` fails the run without a retry.
    """

    def __init__(self, run_id: UUID, error: ErrorInfo, gate: str) -> None:
        super().__init__(run_id, error, child=gate)
        self.args = (f"gate {gate} was rejected: {error.message}",)
        self.gate = gate


class RunCancelled(HoldfastError):
    """The awaited run was cancelled. `child` as in `RunFailed`."""

    def __init__(self, run_id: UUID, reason: str | None = None, *, child: str | None = None) -> None:
        super().__init__(f"{_run_text(run_id, child)} was cancelled" + (f": {reason}" if reason else ""))
        self.run_id = run_id
        self.reason = reason
        self.child = child


def _run_text(run_id: UUID, child: str | None) -> str:
    return f"run {run_id}" if child is None else f"child {child} (run {run_id})"


class ExecutorLost(HoldfastError):
    """A call in an executor was lost: the process or machine that executed it died more than once, or is unreachable.

    It counts as a failed attempt of the task or step, and is retried whatever `Retry(on=…)` names.
    """


class StepFailed(HoldfastError):
    """A step failed permanently.

    `error` describes the exception of the step. Its traceback is the cause of this exception, as text: a replay has no
    other, so the original exception isn't available to code that runs live either. `raises=` passes chosen classes on.
    `retry_after` is the delay of the `RetryAfter` that the step raised, otherwise None: if this exception isn't caught,
    the next attempt of the run starts after it.
    """

    def __init__(self, step: str, error: ErrorInfo, retry_after: timedelta | None = None) -> None:
        super().__init__(f"step {step} failed ({error.code}): {error}")
        self.step = step
        self.error = error
        self.retry_after = retry_after


class StepTraceback(Exception):
    """The traceback of a failed step as text, so that the traceback of `StepFailed` shows where the step failed."""

    def __str__(self) -> str:
        return '\n"""\n{}"""'.format(*self.args)


class ResultTimeout(HoldfastError, TimeoutError):
    """The run didn't finish within the given time. It continues."""


class WaitTimeout(HoldfastError, TimeoutError):
    """A durable wait timed out."""


class AskTimeout(HoldfastError, TimeoutError):
    """The run didn't answer an ask within the given time. It may still do so.

    Ask again with the same `key` to get the reply: the run handles an ask with a key once.
    """


class AskRejected(HoldfastError):
    """The run rejected an ask. Raise it in a handler of `ctx.serve` to reject the ask that it handles.

    Args:
        reason: Why, for people.
        data: JSON for programs.
        type: The name of the exception's class, if a handler raised another exception.
    """

    def __init__(
        self, reason: str, *, data: Any = None, type: str | None = None, ask: str | None = None, run: str | None = None
    ) -> None:
        text = error_text(type, reason) if type else reason
        super().__init__(text if ask is None else f"run {run} rejected ask {ask!r}: {text}")
        self.reason = reason
        self.data = data
        self.type = type


class BatchFailed(HoldfastError):
    """Raise it in a task with `batch=` to fail some of its runs; the others are done.

    Args:
        errors: The exceptions by position in the list that the task received. Each run is retried by its own policy;
            `Fatal` fails it at once.
        results: The results of all runs, in order, if the task has any; those of failed runs are ignored.

    Example:
        ```python
        raise BatchFailed({3: ValueError("no such document")})
        ```
    """

    def __init__(self, errors: Mapping[int, Exception], results: Sequence[Any] | None = None) -> None:
        if not isinstance(errors, Mapping):
            raise TypeError(f"BatchFailed takes a dict of positions and exceptions, not {type(errors).__name__}")
        wrong: list[object] = [error for error in errors.values() if not isinstance(error, BaseException)]
        wrong += [at for at in errors if not hasattr(at, "__index__")]
        if not errors or wrong:
            found = f"not {wrong[0]!r}" if wrong else "but it is empty"
            raise TypeError(f"BatchFailed takes a dict of positions and exceptions, {found}")
        super().__init__(f"failed items of the batch: {len(errors)}; the first: {next(iter(errors.values()))}")
        self.errors = dict(errors)
        self.results = results


class Fatal(HoldfastError):
    """Raise it in a task to fail the run immediately, without a retry.

    Args:
        *args: The message.
        data: JSON for programs, which callers find in `failed.error.data`. Data that can't be stored is left out, and
            the message says so.
    """

    def __init__(self, *args: object, data: Any = None) -> None:
        super().__init__(*args)
        self.data = data


class RetryAfter(HoldfastError):
    """Raise it in a task or a step to choose the delay before the next attempt or try. It counts as a failed one."""

    def __init__(self, delay: timedelta | float, message: str = "") -> None:
        super().__init__(message or f"retry after {delay}")
        self.delay = delay
