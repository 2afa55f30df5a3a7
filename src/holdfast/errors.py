"""Every error that Holdfast raises on purpose. A message says what happened, to what, and what to do next.

HoldfastError
├── ConfigError                   a setting, URL or name that can't work
├── TaskError
│   ├── UnknownTask               no task of that name in this app
│   ├── DuplicateTask             two tasks with one name
│   ├── BadArguments              arguments that don't fit the task
│   ├── BadState                  a machine's state that can't be read or kept
│   ├── GraphError                a graph that can't be run, or a run that is no graph
│   └── BlockingCall              a blocking verb where an event loop runs
├── PayloadError
│   ├── TooLarge                  a payload over the limit
│   └── NotSerializable           a value that can't be kept as JSON
├── StoreError
│   ├── StoreUnavailable          the database can't be reached
│   ├── StoreReplaced             the SQLite file was removed or replaced while it was in use
│   ├── SchemaBehind              the tables are older than this code
│   └── SchemaAhead               the tables need newer code
├── KeyConflict                   the key was used for another request
├── LeaseLost                     a worker lost its right to a run
├── RunNotFound                   no run with that id (any more)
├── RunFinished                   the run has ended; the verb needs an unfinished one
├── RunFailed                     the awaited run failed
├── RunCancelled                  the awaited run was cancelled
├── StepFailed                    a step failed for good
├── ResultTimeout                 the result didn't come in time (also TimeoutError)
├── WaitTimeout                   what was waited for didn't come in time (also TimeoutError)
├── Fatal                         raised by authors: fail now, no retry
└── RetryAfter                    raised by authors: retry after this delay
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Self
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What went wrong, as it is kept with a run.

    `code` is for programs: `error` (the author's exception), `timeout`, `deadline`, `crashed`, `cancelled`, `fatal`,
    `bad_arguments`, `bad_state`, `not_serializable`, `too_large`, `undo` (a compensation failed). In graphs also `node`
    (a graph: one of its nodes failed or was cancelled), `gate` (somebody let it fail), `bad_output` (a condition or an
    argument can't be had of an output), and for skipped nodes `failure` (one before it failed) or `condition` (its own,
    or that of one before it, wasn't true).
    """

    code: str
    type: str
    message: str
    traceback: str | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class HoldfastError(Exception):
    """The root of all errors of this library."""


class ConfigError(HoldfastError):
    """A setting, a URL or a name that can't work."""


class TaskError(HoldfastError):
    """Something is wrong with a task or a call of it."""


class UnknownTask(TaskError):
    """No task of that name is registered in this app."""


class DuplicateTask(TaskError):
    """Two tasks would have the same name."""


class BadArguments(TaskError):
    """Arguments or options that don't fit the task."""


class BadState(TaskError):
    """A kept state of a machine can't be read by this code, or code gave one that can't be kept."""


class GraphError(TaskError):
    """A graph that can't be run, or a graph's verb on a run that is no graph."""


class BlockingCall(TaskError):
    """A blocking verb was called in a thread with a running event loop."""


class PayloadError(HoldfastError):
    """A value that can't be kept."""


class TooLarge(PayloadError):
    """A payload over the size limit."""


class NotSerializable(PayloadError):
    """A value that can't be written as JSON, or wouldn't come back as it was."""


class StoreError(HoldfastError):
    """Something is wrong with the database."""


class StoreUnavailable(StoreError):
    """The database can't be reached, or can't write just now."""


class StoreReplaced(StoreError):
    """The SQLite file or its write-ahead log was removed or replaced while this program had it open.

    The program can't use that database again until it is restarted.
    """


class SchemaBehind(StoreError):
    """The tables are missing or older than this code needs."""


class SchemaAhead(StoreError):
    """The tables were made by newer code that this code can't work beside."""


class KeyConflict(HoldfastError):
    """The idempotency key was used before, for another request."""

    def __init__(self, message: str, run_id: UUID) -> None:
        super().__init__(message)
        self.run_id = run_id


class LeaseLost(HoldfastError):
    """This worker no longer has the right to work on a run. Never reaches author code."""


class RunNotFound(HoldfastError):
    """There is no run with that id; it may have been pruned."""

    @classmethod
    def of(cls, id: UUID | str) -> Self:
        return cls(f"there is no run {id}; it may have been pruned")


class RunFinished(HoldfastError):
    """The run has ended, and the verb needs an unfinished one."""


class RunFailed(HoldfastError):
    """The awaited run failed.

    `child` is the name of the task or graph when the run is a child of the durable function that awaited it. The
    outcome of a child is final, so an uncaught `RunFailed` with `child` fails the parent without a retry.
    """

    def __init__(self, run_id: UUID, error: ErrorInfo, *, child: str | None = None) -> None:
        super().__init__(f"{_named(run_id, child)} failed ({error.code}): {error}")
        self.run_id = run_id
        self.error = error
        self.child = child


class RunCancelled(HoldfastError):
    """The awaited run was cancelled. `child` as in `RunFailed`."""

    def __init__(self, run_id: UUID, reason: str | None = None, *, child: str | None = None) -> None:
        super().__init__(f"{_named(run_id, child)} was cancelled" + (f": {reason}" if reason else ""))
        self.run_id = run_id
        self.reason = reason
        self.child = child


def _named(run_id: UUID, child: str | None) -> str:
    return f"run {run_id}" if child is None else f"child {child} (run {run_id})"


class StepFailed(HoldfastError):
    """A step failed for good."""

    def __init__(self, step: str, error: ErrorInfo) -> None:
        super().__init__(f"step {step} failed ({error.code}): {error}")
        self.step = step
        self.error = error


class ResultTimeout(HoldfastError, TimeoutError):
    """The run didn't end within the given time; it goes on."""


class WaitTimeout(HoldfastError, TimeoutError):
    """What a durable function waited for didn't come in time."""


class Fatal(HoldfastError):
    """Raise it in a task to fail the run at once, without a retry."""


class RetryAfter(HoldfastError):
    """Raise it in a task to choose the delay before the next try. It counts as a failed try."""

    def __init__(self, delay: timedelta | float, message: str = "") -> None:
        super().__init__(message or f"retry after {delay}")
        self.delay = delay
