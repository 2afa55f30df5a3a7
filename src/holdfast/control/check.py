"""Would the runs that are open go on with this code as they did with the code that began them? Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

import msgspec

from holdfast.control.replaying import Finding, OneReplay, ReadingClerk, ReadingDesk
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.store import Store
from holdfast.store.commands import Kept
from holdfast.store.views import OpenClaim, OpenRow
from holdfast.task.registry import Registry

PAGE = 10_000
BATCH = 50
LOOKS = 3
"""How often a run that moves meanwhile is looked at before its difference is believed."""


class Checked(msgspec.Struct, frozen=True):
    """A run, and where the code of now parts from it."""

    id: UUID
    task: str
    state: str
    findings: list[Finding]


class Report(msgspec.Struct):
    """What came of a check."""

    checked: int = 0
    """How many runs were replayed."""
    same: int = 0
    different: list[Checked] = msgspec.field(default_factory=list)
    unchecked: list[Checked] = msgspec.field(default_factory=list)
    """Runs that could only be replayed in part."""
    unknown: dict[str, int] = msgspec.field(default_factory=dict)
    """Tasks that this app doesn't have, and how many open runs they have. Others may know them."""


class Check:
    """Replays open runs of durable functions, without running any step. Code outside steps does run."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self._services = ReadingDesk(store, ReadingClerk(registry, store.payloads))

    def run(
        self,
        *,
        task: str | None = None,
        limit: int | None = None,
        timeout: Duration = 10,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> Report:
        """Replay the unfinished runs that were begun, the oldest first, each for at most `timeout`; `progress` is told
        how many of how many are done."""
        seconds = to_micros(timeout, "timeout") / MICROS_PER_SECOND
        self._registry.load()
        report = Report()
        if task is not None:
            self._registry.get(task)  # raises when there is no such task
        todo = self._choose(report, task, limit)
        for at in range(0, len(todo), BATCH):
            for id, run, kept in self._load(todo[at : at + BATCH]):
                self._judge(report, id, run, kept, seconds)
                progress(report.checked, len(todo))
        return report

    def _choose(self, report: Report, task: str | None, limit: int | None) -> list[str]:
        """The runs to be replayed; those of tasks that aren't known are counted."""
        todo: list[str] = []
        known = self._registry.names()
        for row in self._open(task):
            mine = known.get(row.task)
            if mine is None:
                if row.past:
                    report.unknown[row.task] = report.unknown.get(row.task, 0) + 1
            elif (mine.durable or row.past) and (limit is None or len(todo) < limit):
                todo.append(row.id)
        return todo

    def _open(self, task: str | None) -> Iterator[OpenRow]:
        after: str | None = None
        while True:
            page = self._store.views.open_runs(task, PAGE, after)
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].id

    def _load(self, runs: Sequence[str]) -> list[tuple[str, OpenClaim, Kept]]:
        """What is kept of runs; those that have ended meanwhile are left out."""
        found = self._store.views.open_claims(runs)
        kept = self._store.journal.load([(id, run.claim.generation) for id, run in found.items()], "read")
        return [(id, found[id], kept[id]) for id in runs if id in found]

    def _judge(self, report: Report, id: str, run: OpenClaim, kept: Kept, timeout: float) -> None:
        findings = self._findings(run, kept, timeout)
        for _ in range(LOOKS):  # its parts are not read in one moment, and a worker may be at it
            if not findings or findings[0].kind == "timeout":
                break
            again = self._load([id])
            if not again:
                findings = []  # it has ended
                break
            if _as_it_was(run, kept, *again[0][1:]):
                break
            _, run, kept = again[0]
            findings = self._findings(run, kept, timeout)
        report.checked += 1
        if not findings:
            report.same += 1
            return
        state = "undoing" if run.claim.ending is not None else run.state
        checked = Checked(UUID(id), run.task, state, findings)
        (report.unchecked if findings[0].kind == "unchecked" else report.different).append(checked)

    def _findings(self, run: OpenClaim, kept: Kept, timeout: float) -> list[Finding]:
        task = self._registry.get(run.task)
        if not task.durable:
            text = f"{len(kept.checkpoints)} steps are on record, but it is no durable function any more"
            return [Finding("not_durable", "task", text)]
        return OneReplay(self._services, task, run, kept, timeout).findings()


def _as_it_was(run: OpenClaim, kept: Kept, run_now: OpenClaim, kept_now: Kept) -> bool:
    waits, waits_now = ([(wait.key, wait.outcome) for wait in some.waits] for some in (kept, kept_now))
    return run == run_now and kept.checkpoints == kept_now.checkpoints and waits == waits_now
