"""Check whether unfinished runs would continue with the current code as with the code that started them.

Each run is replayed (`run_replay.py`) and its differences are judged: whether they are harmless, repeat an effect, or
keep the run from continuing. `docs/cli.md` explains the result.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.control.run_replay import CannotCheck, ReadOnlyRunFactory, ReadOnlyServices, RunReplay, SkippingPlans
from holdfast.control.workers import WorkerControl
from holdfast.engine.durable.executor import Arguments
from holdfast.engine.durable.history import RecordedHistory, renamed_to
from holdfast.engine.durable.undo import ReplayOutcome, missing_undos
from holdfast.errors import HoldfastError
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.model.failure import describe_exception
from holdfast.model.step_keys import key_identity, key_label
from holdfast.store import Store
from holdfast.store.commands import Checkpoint, LoadedHistory, LoadedWait
from holdfast.store.run_queries import UnfinishedClaim, UnfinishedRow
from holdfast.task.registry import Registry
from holdfast.task.task import Task

Severity: TypeAlias = Literal["harmless", "unchecked", "repeats", "blocked"]
"""Harmless; can't be checked; repeats an effect; can't continue. From the least to the most severe."""

SEVERITIES: tuple[Severity, ...] = ("harmless", "unchecked", "repeats", "blocked")

DifferenceKind: TypeAlias = Literal[
    "added",  # the code would start something new
    "removed",  # recorded, but no longer in the code
    "drift",  # recorded with other arguments
    "renamed",  # recorded under another name
    "instead",  # recorded, but the code does something else
    "arguments",  # the stored arguments don't match the signature
    "not_durable",  # the task is no longer a durable function
    "raised",  # the code raises where the recorded run continued
    "wait",  # the code no longer waits for what the run waits for
    "undo",  # a compensation is no longer in the code
    "timeout",  # the replay didn't finish
    "unchecked",  # the replay couldn't continue
]

_SEVERITY_OF: dict[DifferenceKind, Severity] = {
    "added": "harmless", "removed": "harmless",
    "drift": "repeats", "renamed": "repeats", "instead": "repeats",
    "timeout": "unchecked", "unchecked": "unchecked",
}  # fmt: skip
"""All others are `blocked`."""

_EFFECTS = ("$spawn:", "$map:", "$submit:", "$gate:", "$enqueue:", "$emit:")
"""Operations besides steps that have an effect outside the run."""
_WOKEN_BY_OTHERS = ("$event:", "$message:")
"""Waits that only someone else ends: if the code no longer knows them, the run stays where it is."""


class Difference(msgspec.Struct, frozen=True):
    """A difference between the recorded run and the current code."""

    kind: DifferenceKind
    where: str
    """The label of the step or wait."""
    text: str
    key: str | None = None
    severity: Severity = "blocked"


def _difference(kind: DifferenceKind, where: str, text: str, key: str | None = None) -> Difference:
    return Difference(kind, where, text, key, _SEVERITY_OF.get(kind, "blocked"))


class RunComparison:
    """Compares one run with the current code."""

    def __init__(
        self,
        services: ReadOnlyServices,
        task: Task[..., object],
        run: UnfinishedClaim,
        kept: LoadedHistory,
        timeout: float,
    ) -> None:
        self._services = services
        self._task = task
        self._run = run
        self._kept = kept
        self._timeout = timeout

    def findings(self) -> list[Difference]:
        """Return the differences; empty if the run would continue as recorded."""
        replay = self._replay(skipping=False)
        waits = dict(replay.history.open_waits)
        try:
            arguments = replay.arguments()
            if self._kept.unreadable is not None:
                return [_difference("unchecked", "history", str(self._kept.unreadable))]
        except Exception as error:
            text = f"the stored arguments don't match the signature: {_error_text(error)}"
            return [_difference("arguments", "arguments", text)]
        outcome = replay.run(arguments, self._timeout)
        if outcome is None:
            return [self._timed_out(replay.history)]
        if isinstance(outcome.error, CannotCheck):
            return [_difference("unchecked", "body", str(outcome.error))]
        if self._run.claim.ending is not None:
            text = "must be undone, but its compensation is no longer in the code"
            return [_difference("undo", key_label(key), text, key) for key in missing_undos(replay.plans)]
        return self._compare(replay, outcome, waits, arguments) + _without_undo(replay)

    def _replay(self, *, skipping: bool) -> RunReplay:
        return RunReplay(self._services, self._task, self._run, self._kept, skipping=skipping)

    def _timed_out(self, history: RecordedHistory) -> Difference:
        key = next((kept.key for kept in _in_order(history)), None)
        where = "the end of the history" if key is None else key_label(key)
        text = f"the replay didn't get there, or didn't stop, within {self._timeout:g} s"
        return _difference("timeout", where, text, key)

    def _compare(
        self, replay: RunReplay, outcome: ReplayOutcome, waits: Mapping[str, LoadedWait], arguments: Arguments
    ) -> list[Difference]:
        unasked = _in_order(replay.history)
        lost_waits = [key for key in waits if key not in replay.unrecorded]
        new = [key for key in dict.fromkeys(replay.unrecorded) if key not in waits]
        if outcome.error is not None and (unasked or lost_waits):
            key = unasked[0].key if unasked else lost_waits[0]
            what = "is recorded" if unasked else "is awaited"
            text = f"{what}, but the code raises {_error_text(outcome.error)}"
            return [_difference("raised", key_label(key), text, key)]
        if new and (unasked or lost_waits):
            return self._compare_beyond(waits, arguments)
        found = [_removed(kept) for kept in unasked]
        found += [_lost(waits[key], new, ended=outcome.ended) for key in lost_waits]
        if not found and self._run.state == "waiting" and not replay.history.resolved_waits:
            found = [_added(key, "the code would start it now although the run only waits") for key in new]
        return found

    def _compare_beyond(self, waits: Mapping[str, LoadedWait], arguments: Arguments) -> list[Difference]:
        """Compare what the code does after the first operations that aren't recorded."""
        replay = self._replay(skipping=True)
        outcome = replay.run(arguments, self._timeout)
        if outcome is None:
            return [self._timed_out(replay.history)]
        assert isinstance(replay.plans, SkippingPlans)
        new = replay.plans.skipped
        unasked = _in_order(replay.history)
        lost_waits = [key for key in waits if key not in replay.unrecorded]
        if not unasked and not lost_waits:
            return [_added(key, "the code would start it before it continues as recorded") for key in new]
        found, rest = _ran_again(unasked, replay.plans, complete=outcome.error is None)
        if outcome.error is not None:
            replaced = [key for key in lost_waits if _wait_kind(key) in {_wait_kind(each) for each in new}]
            found += [_lost(waits[key], new, ended=False) for key in replaced]
            if rest or not found:
                found.append(_not_reached(rest, lost_waits, new, outcome.error))
            return found
        if not found:
            found = [_added(key, "the code would start it") for key in new if _is_effect(key)]
        return (
            found
            + [_removed(kept) for kept in rest]
            + [_lost(waits[key], new, ended=outcome.ended) for key in lost_waits]
        )


def _ran_again(
    unasked: list[Checkpoint], plans: SkippingPlans, *, complete: bool
) -> tuple[list[Difference], list[Checkpoint]]:
    """Return the recorded effects that the code would repeat in another form, and the other checkpoints.

    If the replay isn't complete, the code may still request what it hasn't: only changed arguments are certain.
    """
    found: list[Difference] = []
    rest: list[Checkpoint] = []
    effects = [key for key in plans.skipped if _is_effect(key)]
    identities = {key_identity(key) for key in effects}
    others = [key for key in effects if key_identity(key) not in {key_identity(kept.key) for kept in unasked}]
    for kept in unasked:
        label = key_label(kept.key)
        if not _is_effect(kept.key) or (key_identity(kept.key) not in identities and not (complete and others)):
            rest.append(kept)
        elif key_identity(kept.key) in identities:
            text = "the code calls it with other arguments, so it would run again"
            if key_identity(kept.key) in plans.uncertain:
                text = "the code calls it with a result that isn't recorded, so it may run again"
            found.append(_difference("drift", label, text, kept.key))
        elif (renamed := renamed_to(kept.key, others)) is not None:
            others.remove(renamed)
            hint = "" if kept.key.startswith("$") else f'; if it was renamed, give it name="{label.partition(" #")[0]}"'
            text = f"is recorded, but the code runs {key_label(renamed)} with the same arguments, so it would run again"
            found.append(_difference("renamed", label, text + hint, kept.key))
        else:
            text = f"is recorded, but the code runs {_list_labels(others)} instead, which may have the same effect"
            found.append(_difference("instead", label, text, kept.key))
    return found, rest


def _not_reached(rest: list[Checkpoint], lost_waits: list[str], new: list[str], error: BaseException) -> Difference:
    key = rest[0].key if rest else lost_waits[0]
    why = str(error) if isinstance(error, CannotCheck) else f"the code raises {_error_text(error)}"
    what = "is recorded" if rest else "is awaited"
    renamed = renamed_to(key, [each for each in new if _is_effect(each)]) if _is_effect(key) else None
    hint = "" if renamed is None else f"; it would run again if {key_label(renamed)} is its new name"
    text = f"{what}, but the code does {_list_labels(new)} first, and what follows can't be checked: {why}{hint}"
    return _difference("unchecked", key_label(key), text, key)


def _added(key: str, text: str) -> Difference:
    return _difference("added", key_label(key), f"isn't recorded: {text}", key)


def _removed(kept: Checkpoint) -> Difference:
    if kept.undo:
        text = "was recorded with a compensation; both are no longer in the code, so the run can't be undone"
        return _difference("undo", key_label(kept.key), text, kept.key)
    return _difference("removed", key_label(kept.key), "is recorded, but no longer in the code", kept.key)


def _lost(wait: LoadedWait, new: list[str], *, ended: bool) -> Difference:
    key = wait.key
    instead = "would finish" if ended else f"would continue with {_list_labels(new)}" if new else "no longer does"
    text = f"the run waits for it, but the code {instead}"
    if not key.startswith(_WOKEN_BY_OTHERS):
        return Difference("wait", key_label(key), text, key, "harmless")
    until = "" if wait.due_in is None else " before its timeout"
    return _difference("wait", key_label(key), f"{text}; nothing else wakes the run{until}", key)


def _wait_kind(key: str) -> str:
    return key.partition(":")[0]


def _without_undo(replay: RunReplay) -> list[Difference]:
    text = "was recorded with a compensation that is no longer in the code, so the run can't be undone"
    return [
        _difference("undo", key_label(key), text, key)
        for n, key in replay.plans.steps_without_undo
        if n not in replay.history.undone
    ]


def _is_effect(key: str) -> bool:
    return not key.startswith("$") or key.startswith(_EFFECTS)


def _in_order(history: RecordedHistory) -> list[Checkpoint]:
    return sorted(history.unconsumed.values(), key=lambda kept: kept.n)


def _list_labels(keys: Sequence[str]) -> str:
    named = ", ".join(map(key_label, keys[:3]))
    return f"{named}, …" if len(keys) > 3 else named


def _error_text(error: BaseException) -> str:
    return " ".join((str(error) if isinstance(error, HoldfastError) else str(describe_exception(error))).split())


PAGE_SIZE = 10_000
BATCH_SIZE = 50
MAX_READS = 3
"""A run that changes during its replay is read again up to this often."""


class CheckedRun(msgspec.Struct, frozen=True):
    """A run with its differences from the current code, and the severity of the worst."""

    id: UUID
    task: str
    state: str
    severity: Severity
    findings: list[Difference]


class CheckReport(msgspec.Struct):
    """The result of a check."""

    severity: Severity | None = None
    """The worst severity, or None if no run would behave differently."""
    checked: int = 0
    """The number of replayed runs."""
    same: int = 0
    different: list[CheckedRun] = msgspec.field(default_factory=list)
    unchecked: list[CheckedRun] = msgspec.field(default_factory=list)
    """Runs that could only be replayed partly."""
    unknown: dict[str, int] = msgspec.field(default_factory=dict)
    """Tasks that no app declares, with the number of their unfinished runs, which can't continue."""
    elsewhere: dict[str, int] = msgspec.field(default_factory=dict)
    """The same for tasks of other apps."""

    def add(self, severity: Severity) -> None:
        if self.severity is None or SEVERITIES.index(severity) > SEVERITIES.index(self.severity):
            self.severity = severity


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
        ignore: Sequence[str] = (),
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> CheckReport:
        """Replay the started, unfinished runs, oldest first, each for at most `timeout`.

        Without `task`, also find unfinished runs of tasks that the app doesn't declare. `ignore` has the names of tasks
        of other apps, with `*` for any text. `progress` is called with the number of checked runs and the total.
        """
        seconds = to_micros(timeout, "timeout") / MICROS_PER_SECOND
        self._registry.load()
        report = CheckReport()
        if task is not None:
            self._registry.get(task)  # raises UnknownTask
        else:
            self._find_unknown(report, ignore)
        todo = self._choose(task, limit)
        for at in range(0, len(todo), BATCH_SIZE):
            for id, run, kept in self._load(todo[at : at + BATCH_SIZE]):
                self._judge(report, id, run, kept, seconds)
                progress(report.checked, len(todo))
        return report

    def _find_unknown(self, report: CheckReport, ignore: Sequence[str]) -> None:
        """Find the unfinished runs of tasks that the app doesn't declare, whether they have started or not."""
        known = self._registry.names()
        unknown = {task: runs for task, runs in self._store.queries.count_unfinished().items() if task not in known}
        if not unknown:
            return
        others = self._tasks_of_other_apps(known)
        for task, runs in sorted(unknown.items()):
            if task in others or any(fnmatchcase(task, pattern) for pattern in ignore):
                report.elsewhere[task] = runs
            else:
                report.unknown[task] = runs
                report.add("blocked")

    def _tasks_of_other_apps(self, known: Container[str]) -> set[str]:
        """Return the tasks of running workers whose code has no task in common with this app's.

        A worker of this app's previous release has some: it doesn't show that the new code needs no alias.
        """
        running = [worker.tasks or () for worker in WorkerControl(self._store).list() if worker.state != "dead"]
        return {task for tasks in running if not any(each in known for each in tasks) for task in tasks}

    def _choose(self, task: str | None, limit: int | None) -> list[str]:
        """Select the runs to replay."""
        todo: list[str] = []
        known = self._registry.names()
        for row in self._open(task):
            declared = known.get(row.task)
            if declared is not None and (declared.durable or row.has_history):
                todo.append(row.id)
                if len(todo) == limit:
                    break
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
        tenants = {id: run.claim.tenant for id, run in found.items()}
        kept = self._store.journal.load([(id, run.claim.generation) for id, run in found.items()], "read", tenants)
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
        severity = max((found.severity for found in findings), key=SEVERITIES.index)
        checked = CheckedRun(UUID(id), run.task, state, severity, findings)
        (report.unchecked if severity == "unchecked" else report.different).append(checked)
        report.add(severity)

    def _findings(self, run: UnfinishedClaim, kept: LoadedHistory, timeout: float) -> list[Difference]:
        task = self._registry.get(run.task)
        if not task.durable:
            text = f"{_checkpoints(len(kept.checkpoints))} recorded, but the task is no longer a durable function"
            return [_difference("not_durable", "task", text)]
        return RunComparison(self._services, task, run, kept, timeout).findings()


def _unchanged(run: UnfinishedClaim, kept: LoadedHistory, run_now: UnfinishedClaim, kept_now: LoadedHistory) -> bool:
    waits, waits_now = ([(wait.key, wait.outcome) for wait in some.waits] for some in (kept, kept_now))
    return run == run_now and kept.checkpoints == kept_now.checkpoints and waits == waits_now


def _checkpoints(count: int) -> str:
    return f"{count} checkpoint is" if count == 1 else f"{count} checkpoints are"
