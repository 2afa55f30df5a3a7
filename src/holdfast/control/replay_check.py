"""Check whether unfinished runs would continue with the current code as with the code that started them.

A replay runs the function against its recorded history, without running steps and without writing. Each branch stops at
the first operation that isn't recorded. When all branches have stopped or the function has returned, two things reveal
a difference: recorded checkpoints that the code didn't request, and waits of the run that the code no longer waits for.
Code outside steps does run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NoReturn, TypeAlias
from uuid import UUID

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.async_executor import AsyncExecutor
from holdfast.engine.durable.executor import Arguments, ReplayOutcome, missing_undos
from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.plans import OperationPlans
from holdfast.engine.durable.sync_executor import SyncExecutor
from holdfast.engine.services import ClientServices
from holdfast.engine.threads import ThreadCall, ThreadPool
from holdfast.errors import HoldfastError, TaskError
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.model.failure import describe_exception
from holdfast.model.payloads import Payloads
from holdfast.model.step_keys import key_label
from holdfast.store import NewRun, Store
from holdfast.store.commands import Checkpoint, LoadedHistory, RunToken
from holdfast.store.rows import NewGraph
from holdfast.store.run_queries import UnfinishedClaim, UnfinishedRow
from holdfast.task.registry import Registry
from holdfast.task.task import Task

DifferenceKind: TypeAlias = Literal[
    "arguments",  # the stored arguments don't match the signature
    "not_durable",  # the task is no longer a durable function
    "removed",  # recorded, but no longer in the code
    "instead",  # recorded, but the code does something else first
    "drift",  # recorded with other arguments
    "raised",  # the code raises where the recorded run continued
    "wait",  # the code no longer waits for what the run waits for
    "added",  # the code would start something new although the run only waits
    "undo",  # a compensation is no longer in the code
    "timeout",  # the replay didn't finish
    "unchecked",  # the replay couldn't continue
]

CLEANUP_S = 1.0
"""Time beyond its timeout that a replay gets for cleanup."""
SIGNAL_INTERVAL_S = 0.5
"""A Ctrl-C right before a wait doesn't end that wait, so waits are short."""


class Difference(msgspec.Struct, frozen=True):
    """A difference between the recorded run and the current code."""

    kind: DifferenceKind
    where: str
    """The label of the step or wait."""
    text: str
    key: str | None = None


class CannotCheck(BaseException):
    """The code uses something that a replay can't provide. A BaseException, so that task code doesn't catch it."""


class ChildHandle:
    """The handle of a child within a replay: it can be joined, nothing else."""

    def __init__(self, id: UUID, task: str) -> None:
        self.id = id
        self.task = task

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChildHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.task}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CannotCheck(f"the code uses .{name} of another run outside a step")


class ReadOnlyRunFactory:
    """The client services of a replay; they create nothing."""

    def __init__(self, registry: Registry, payloads: Payloads) -> None:
        self._registry = registry
        self._payloads = payloads

    def new_run(self, request: Any) -> NewRun:  # noqa: ARG002
        raise _refusal("create a run")

    def new_child_graph(self, plan: Any, result: str | None) -> tuple[NewRun, NewGraph]:  # noqa: ARG002
        raise _refusal("create a graph")

    def pack(self, text: str, what: str) -> str:
        return self._payloads.pack(text, what)

    def unpack(self, text: str) -> str:
        return self._payloads.unpack(text)

    def trace(self) -> str | None:
        """Return no trace context: the replay creates nothing."""

    def handle(self, id: UUID, task: str) -> ChildHandle:
        return ChildHandle(id, task)

    def decode_result(self, task: str, text: str) -> Any:
        return self._registry.decode_result(task, self.unpack(text))

    def wake_result_waiters(self) -> None:
        """Do nothing: no run ends in a replay."""


class ReadOnlyServices:
    """The worker services of a replay; they only read."""

    def __init__(self, store: Store, client: ClientServices) -> None:
        self.store = store
        self.client = client

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall:
        """Run a call in a thread that ends with the call."""
        threads = ThreadPool()
        handle = threads.run(call)
        threads.close()
        return handle

    def has_free_slots(self) -> bool:
        return True

    def read(self, attempt: Any, read: Callable[[], Any]) -> Any:  # noqa: ARG002
        return read()

    def submit(self, write: Any) -> NoReturn:
        raise _refusal(f"write {type(write.command).__name__}")

    def watch(self, waiting: Any) -> NoReturn:  # noqa: ARG002
        raise _refusal("wait")

    def stop(self, attempt: Any, order: Any) -> NoReturn:  # noqa: ARG002
        raise _refusal(f"end by {order}")

    def transact(self, attempt: Any, command: Any, work: Any) -> NoReturn:  # noqa: ARG002
        raise _refusal("run a transaction")


def _refusal(what: str) -> TaskError:
    return TaskError(f"the check tried to {what}; this is a bug in Holdfast")


class RunReplay:
    """Replays one run, and compares the outcome with its recorded history."""

    def __init__(
        self,
        services: ReadOnlyServices,
        task: Task[..., Any],
        run: UnfinishedClaim,
        kept: LoadedHistory,
        timeout: float,
    ) -> None:
        claim = run.claim
        self._services = services
        self._run = run
        self._timeout = timeout
        self._history = RecordedHistory(kept, RunToken(claim.id, claim.seq, claim.fence, claim.generation))
        self._waits = list(self._history.open_waits)
        self._plans = OperationPlans(claim, self._history, services.client, services.store.journal, replay_only=True)
        self._attempt = Attempt(claim, task, "check", kept)
        self._unrecorded: list[str] = []
        self._replayed: ReplayOutcome | None = None

    def findings(self) -> list[Difference]:
        """Return the differences; empty if the run would continue as recorded."""
        try:
            arguments = self._attempt.signature.decode(self._run.claim.args)
        except Exception as error:
            return [
                Difference(
                    "arguments", "arguments", f"the stored arguments don't match the signature: {_error_text(error)}"
                )
            ]
        thread = threading.Thread(target=self._work, args=(arguments,), name="holdfast-check", daemon=True)
        thread.start()
        until = time.monotonic() + self._timeout + CLEANUP_S
        while thread.is_alive() and (left := until - time.monotonic()) > 0:
            thread.join(min(left, SIGNAL_INTERVAL_S))
        if self._replayed is None:
            key = next((kept.key for kept in _in_order(self._history)), None)
            where = "the end of the history" if key is None else key_label(key)
            text = f"the replay didn't get there, or didn't stop, within {self._timeout:g} s"
            return [Difference("timeout", where, text, key)]
        if isinstance(self._replayed.error, CannotCheck):
            return [Difference("unchecked", "body", str(self._replayed.error))]
        return self._undo_findings() if self._run.claim.ending is not None else self._compare(self._replayed)

    # Replay

    def _work(self, arguments: Arguments) -> None:
        try:
            if self._attempt.run_in == "loop":
                with asyncio.Runner() as runner:
                    runner.get_loop().set_exception_handler(lambda *_: None)
                    self._replayed = runner.run(asyncio.wait_for(self._on_loop(arguments), self._timeout))
            else:
                executor = SyncExecutor(self._attempt, self._plans, self._services)
                self._unrecorded = executor.unrecorded
                self._replayed = executor.replay_function(arguments)
        except TimeoutError:
            pass  # reported as a missing outcome
        except BaseException as error:
            self._replayed = ReplayOutcome(True, error)

    async def _on_loop(self, arguments: Arguments) -> ReplayOutcome:
        executor = AsyncExecutor(self._attempt, self._plans, self._services, asyncio.get_running_loop())
        self._unrecorded = executor.unrecorded
        return await executor.replay_function(arguments)

    # Comparison

    def _undo_findings(self) -> list[Difference]:
        """Check a run that is undoing: it only needs its compensations."""
        text = "must be undone, but its compensation is no longer in the code"
        return [Difference("undo", key_label(key), text, key) for key in missing_undos(self._plans)]

    def _compare(self, replayed: ReplayOutcome) -> list[Difference]:
        unasked = _in_order(self._history)
        lost_waits = [key for key in self._waits if key not in self._unrecorded]
        if replayed.error is not None and (unasked or lost_waits):
            key = unasked[0].key if unasked else lost_waits[0]
            what = "is recorded" if unasked else "is awaited"
            return [
                Difference("raised", key_label(key), f"{what}, but the code raises {_error_text(replayed.error)}", key)
            ]
        new = [key for key in dict.fromkeys(self._unrecorded) if key not in self._waits]
        found = self._unasked(unasked, new)
        if not (found and new):  # else the code may wait for them after what is new
            found += [_lost(key, new, ended=replayed.ended) for key in lost_waits]
        if not found and self._run.state == "waiting" and not self._history.resolved_waits:
            text = "isn't recorded, but the code would start it now although the run only waits"
            found = [Difference("added", key_label(key), text, key) for key in new]
        return found + self._without_undo()

    def _unasked(self, unasked: list[Checkpoint], new: list[str]) -> list[Difference]:
        """Compare recorded checkpoints that the code didn't request. What follows something new is unknown."""
        drifted = {key for keys in self._history.drift().values() for key in keys}
        text = "the code calls it with other arguments, so it would run again"
        found = [Difference("drift", key_label(kept.key), text, kept.key) for kept in unasked if kept.key in drifted]
        others = [kept for kept in unasked if kept.key not in drifted]
        if new:
            return found or ([_instead(others, new)] if others else [])
        text = "is recorded, but no longer in the code"
        return found + [Difference("removed", key_label(kept.key), text, kept.key) for kept in others]

    def _without_undo(self) -> list[Difference]:
        text = "was recorded with a compensation that is no longer in the code"
        return [
            Difference("undo", key_label(key), text, key)
            for n, key in self._plans.steps_without_undo
            if n not in self._history.undone
        ]


def _in_order(history: RecordedHistory) -> list[Checkpoint]:
    return sorted(history.unconsumed.values(), key=lambda kept: kept.n)


def _instead(unasked: list[Checkpoint], new: list[str]) -> Difference:
    first = unasked[0]
    more = f" (and {len(unasked) - 1} more)" if len(unasked) > 1 else ""
    text = f"is recorded{more}, but the code does {_list_labels(new)} first"
    return Difference("instead", key_label(first.key), text, first.key)


def _lost(key: str, new: list[str], *, ended: bool) -> Difference:
    instead = "would finish" if ended else f"would continue with {_list_labels(new)}" if new else "no longer does"
    return Difference("wait", key_label(key), f"the run waits for it, but the code {instead}", key)


def _list_labels(keys: list[str]) -> str:
    named = ", ".join(map(key_label, keys[:3]))
    return f"{named}, …" if len(keys) > 3 else named


def _error_text(error: BaseException) -> str:
    return " ".join((str(error) if isinstance(error, HoldfastError) else str(describe_exception(error))).split())


PAGE_SIZE = 10_000
BATCH_SIZE = 50
MAX_READS = 3
"""A run that changes during its replay is read again up to this often."""


class CheckedRun(msgspec.Struct, frozen=True):
    """A run with its differences from the current code."""

    id: UUID
    task: str
    state: str
    findings: list[Difference]


class CheckReport(msgspec.Struct):
    """The result of a check."""

    checked: int = 0
    """The number of replayed runs."""
    same: int = 0
    different: list[CheckedRun] = msgspec.field(default_factory=list)
    unchecked: list[CheckedRun] = msgspec.field(default_factory=list)
    """Runs that could only be replayed partly."""
    unknown: dict[str, int] = msgspec.field(default_factory=dict)
    """Tasks that this app doesn't declare, with the number of their unfinished runs."""


class ReplayChecker:
    """Replays unfinished runs of durable functions without running steps. Code outside steps does run."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self._services = ReadOnlyServices(store, ReadOnlyRunFactory(registry, store.payloads))

    def run(
        self,
        *,
        task: str | None = None,
        limit: int | None = None,
        timeout: Duration = 10,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> CheckReport:
        """Replay the started, unfinished runs, oldest first, each for at most `timeout`.

        `progress` is called with the number of checked runs and the total.
        """
        seconds = to_micros(timeout, "timeout") / MICROS_PER_SECOND
        self._registry.load()
        report = CheckReport()
        if task is not None:
            self._registry.get(task)  # raises UnknownTask
        todo = self._choose(report, task, limit)
        for at in range(0, len(todo), BATCH_SIZE):
            for id, run, kept in self._load(todo[at : at + BATCH_SIZE]):
                self._judge(report, id, run, kept, seconds)
                progress(report.checked, len(todo))
        return report

    def _choose(self, report: CheckReport, task: str | None, limit: int | None) -> list[str]:
        """Select the runs to replay, and count those of unknown tasks."""
        todo: list[str] = []
        known = self._registry.names()
        for row in self._open(task):
            declared = known.get(row.task)
            if declared is None:
                if row.has_history:
                    report.unknown[row.task] = report.unknown.get(row.task, 0) + 1
            elif (declared.durable or row.has_history) and (limit is None or len(todo) < limit):
                todo.append(row.id)
        return todo

    def _open(self, task: str | None) -> Iterator[UnfinishedRow]:
        after: str | None = None
        while True:
            page = self._store.queries.unfinished_runs(task, PAGE_SIZE, after)
            yield from page
            if len(page) < PAGE_SIZE:
                return
            after = page[-1].id

    def _load(self, runs: Sequence[str]) -> list[tuple[str, UnfinishedClaim, LoadedHistory]]:
        """Load the history of runs, without those that have finished meanwhile."""
        found = self._store.queries.unfinished_claims(runs)
        kept = self._store.journal.load([(id, run.claim.generation) for id, run in found.items()], "read")
        return [(id, found[id], kept[id]) for id in runs if id in found]

    def _judge(self, report: CheckReport, id: str, run: UnfinishedClaim, kept: LoadedHistory, timeout: float) -> None:
        findings = self._findings(run, kept, timeout)
        for _ in range(MAX_READS):  # its rows aren't read atomically, and a worker may be running it
            if not findings or findings[0].kind == "timeout":
                break
            again = self._load([id])
            if not again:
                findings = []  # it has finished
                break
            if _unchanged(run, kept, *again[0][1:]):
                break
            _, run, kept = again[0]
            findings = self._findings(run, kept, timeout)
        report.checked += 1
        if not findings:
            report.same += 1
            return
        state = "undoing" if run.claim.ending is not None else run.state
        checked = CheckedRun(UUID(id), run.task, state, findings)
        (report.unchecked if findings[0].kind == "unchecked" else report.different).append(checked)

    def _findings(self, run: UnfinishedClaim, kept: LoadedHistory, timeout: float) -> list[Difference]:
        task = self._registry.get(run.task)
        if not task.durable:
            text = f"{_checkpoints(len(kept.checkpoints))} recorded, but the task is no longer a durable function"
            return [Difference("not_durable", "task", text)]
        return RunReplay(self._services, task, run, kept, timeout).findings()


def _unchanged(run: UnfinishedClaim, kept: LoadedHistory, run_now: UnfinishedClaim, kept_now: LoadedHistory) -> bool:
    waits, waits_now = ([(wait.key, wait.outcome) for wait in some.waits] for some in (kept, kept_now))
    return run == run_now and kept.checkpoints == kept_now.checkpoints and waits == waits_now


def _checkpoints(count: int) -> str:
    return f"{count} checkpoint is" if count == 1 else f"{count} checkpoints are"
