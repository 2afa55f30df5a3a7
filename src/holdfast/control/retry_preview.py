"""Preview a retry: which steps or nodes are kept, which run again, and which effects may happen twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.model.names import counted
from holdfast.model.run import FINAL_STATES, RunState
from holdfast.model.step_keys import key_label
from holdfast.store import Store
from holdfast.store.run_actions import check_restartable, refuse_changed_retry, refuse_done_retry, refuse_node_retry
from holdfast.store.run_queries import NodeRow, RunDetailRow, RunRow, StepRow
from holdfast.store.run_tree import parse_spawn_key

RetryMode = Literal["none", "start", "resume", "rewind", "undo", "graph"]
RetryReason = Literal["failed", "timed_out", "undone", "not_undone", "repeated", "depends"]

_NOT_SHOWN = ("write", "set", "spend", "spent", "left", "budget", "withdrawn", "undone", "now", "random", "uuid")
_TEXTS = {
    "slept": "sleeps again",
    "event": "the event is received again",
    "message": "the message is received again",
    "timeout": "waits again, with its full timeout",
    "emit": "emitted before, so that the second emit has no effect",
    "existing": "enqueued again, unless the run with its key or unique name still stands for it",
    "undo": "registered again",
    "reply": "answered before, so that the second answer has no effect",
    "refused": "answered before, so that the second answer has no effect",
    "join": "joined again",
    "joined": "joined again",
    "failed": "failed, and runs again",
}


class RepeatedStep(msgspec.Struct, frozen=True):
    """A step or another operation that runs again."""

    label: str
    reason: RetryReason
    """`failed` and `timed_out`: it led to the failure. `undone`: its compensation ran. `not_undone`: it was recorded
    after a step that was undone, and its effect still exists. `repeated`: likewise, without an effect of its own.
    `depends`: a node that is done and depends on a node that runs again."""
    text: str


class RetryPreview(msgspec.Struct, frozen=True):
    """What a retry of a run would do."""

    id: UUID
    state: RunState
    mode: RetryMode
    """`none`: it is unfinished, nothing changes. `start`: it has recorded nothing. `resume`: it continues after what it
    has recorded. `rewind`: its compensations ran, and it continues before the first step that was undone. `undo`: its
    remaining compensations run. `graph`: some of its nodes run again."""
    summary: str
    kept: list[str] = msgspec.field(default_factory=list)
    """Steps, waits or nodes whose recorded results are used."""
    again: list[RepeatedStep] = msgspec.field(default_factory=list)
    """What runs again for sure, as far as the records tell; new code follows after it."""
    may_repeat: list[str] = msgspec.field(default_factory=list)
    """Effects that may happen twice."""
    children: list[UUID] = msgspec.field(default_factory=list)
    """Children that failed or were cancelled, and are retried too."""


class RetryPreviewer:
    """Derives previews from what is recorded; changes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def preview(self, row: RunRow, details: RunDetailRow, *, changed: bool = False) -> RetryPreview:
        """Preview a retry, with other arguments if `changed`. Raises the error that the retry would raise."""
        if row.state in ("done", "skipped"):
            raise refuse_done_retry(row.id, row.state, row.kind)
        if row.state not in FINAL_STATES:
            if changed:
                raise refuse_changed_retry(row.id, row.state, is_started=row.started_at is not None)
            return self._of(row, "none", f"it is unfinished ({row.state}): a retry changes nothing")
        if row.node is not None:
            raise refuse_node_retry(row.id, row.node, str(row.parent))
        if changed:
            limited, undoes = details.limits is not None, bool(details.failed_undo)
            check_restartable(row.id, row.kind, has_compensations=undoes, limited=limited)
            return self._restart(row)
        if row.kind == "graph":
            return self._graph(row)
        if details.failed_undo:
            text = f"its remaining compensations run; then it ends as {details.failed_undo}, with its first error"
            return self._of(row, "undo", text)
        return self._task(row, details)

    def _of(self, row: RunRow, mode: RetryMode, summary: str, **more: Any) -> RetryPreview:
        return RetryPreview(UUID(row.id), row.state, mode, summary, **more)

    # Tasks

    def _task(self, row: RunRow, details: RunDetailRow) -> RetryPreview:
        steps = self._store.queries.step_outline(row.id)
        current = [step for step in steps if step.generation >= 0]
        undone = {int(step.value or 0) for step in current if step.kind == "undone"}
        first = min((step.n for step in current if step.n in undone), default=None)
        kept = [step for step in current if step.kind not in _NOT_SHOWN and (first is None or step.n < first)]
        back = [] if first is None else [step for step in current if step.kind not in _NOT_SHOWN and step.n >= first]
        failures = _last_failures(steps)
        again = [*(_repeated(step, undone) for step in back), *map(_failure, failures)]
        children = self._failed_children(row, details, kept)
        lists: dict[str, Any] = {
            "kept": [key_label(step.key) for step in kept],
            "again": again,
            "may_repeat": list(_may_repeat(row, back, undone, failures, bool(current))),
            "children": children,
        }
        if first is not None:
            label = key_label(next(step.key for step in current if step.n == first))
            text = f"its compensations ran, so it continues before {label}, the first step that was undone"
            return self._of(row, "rewind", text, **lists)
        if kept:
            text = f"it continues after {counted(len(kept), 'recorded result')}"
            return self._of(row, "resume", text, **lists)
        return self._of(row, "start", "it starts from the beginning", **lists)

    def _restart(self, row: RunRow) -> RetryPreview:
        """Preview a retry with other arguments, which supersedes everything that is recorded."""
        current = [step for step in self._store.queries.step_outline(row.id) if step.generation >= 0]
        undone = {int(step.value or 0) for step in current if step.kind == "undone"}
        superseded = [step for step in current if step.kind not in _NOT_SHOWN]
        repeated = [
            RepeatedStep(key_label(step.key), "not_undone", _superseded_text(step, undone)) for step in superseded
        ]
        may_repeat = [
            f"{key_label(step.key)}: its effect wasn't undone"
            for step in superseded
            if step.n not in undone and step.kind in ("step", "spawn", "map", "enqueue")
        ]
        if row.started_at is not None:
            may_repeat.append("whatever the function did before it ended, apart from its recorded steps")
        text = "it starts from the beginning with the new arguments; nothing that it recorded is used"
        return self._of(row, "start", text, again=repeated, may_repeat=may_repeat)

    def _failed_children(self, row: RunRow, details: RunDetailRow, kept: Sequence[StepRow]) -> list[UUID]:
        """Return the children that are retried: those that the kept part created and hasn't joined."""
        created = {step.key for step in kept if step.kind in ("spawn", "map")}
        joined = {step.key.rpartition("#")[0].removeprefix("$join:") for step in kept if step.kind == "join"}
        found = []
        for id, spawn_key in self._store.queries.failed_children(row.id):
            generation, call = parse_spawn_key(spawn_key)
            if generation == details.generation and call in created - joined:
                found.append(UUID(id))
        return found

    # Graphs

    def _graph(self, row: RunRow) -> RetryPreview:
        nodes = {node.id: node for node in self._store.queries.node_overview(row.id)}
        dependents: dict[str, list[str]] = {}
        for needed, dependent in self._store.queries.edges(row.id):
            dependents.setdefault(needed, []).append(dependent)
        todo = [node.id for node in nodes.values() if node.state in ("failed", "cancelled")]
        again = set(todo)
        while todo:
            new = [id for id in dependents.get(todo.pop(), ()) if id not in again]
            again.update(new)
            todo += new
        repeated = [node for id, node in nodes.items() if id in again]
        kept = [node.node for id, node in nodes.items() if id not in again]
        text = f"{counted(len(repeated), 'node')} of {len(nodes):,} decided again, and run if their conditions allow it"
        return self._of(
            row, "graph", text, kept=kept, again=[_repeated_node(node) for node in repeated],
            may_repeat=[text for node in repeated for text in _repeated_effects(node)],
        )  # fmt: skip


def _repeated_node(node: NodeRow) -> RepeatedStep:
    if node.state == "done":
        return RepeatedStep(node.node, "depends", "is done, and starts over because a node before it runs again")
    if node.state == "skipped":
        return RepeatedStep(node.node, "depends", "was skipped, and is decided again")
    text = "was cancelled, and runs again" if node.state == "cancelled" else "failed, and runs again"
    return RepeatedStep(node.node, "failed", text)


def _repeated_effects(node: NodeRow) -> Iterator[str]:
    if node.state == "done":
        yield f"node {node.node}: everything that it did"
    elif node.started_at is not None:
        yield f"node {node.node}: whatever it did before it ended"


def _last_failures(steps: Sequence[StepRow]) -> list[StepRow]:
    """Return the failures and timeouts that ended the last attempt that had any."""
    ended = [step for step in steps if step.generation < 0 and step.kind in ("failed", "timeout", "join")]
    last = min((step.generation for step in ended), default=0)
    return [step for step in ended if step.generation == last]


def _repeated(step: StepRow, undone: set[int]) -> RepeatedStep:
    label = key_label(step.key)
    if step.n in undone:
        return RepeatedStep(label, "undone", "was undone, and runs again with a new idempotency key")
    if step.kind == "step":
        text = "wasn't undone, and runs again with the same idempotency key"
        return RepeatedStep(label, "not_undone", text)
    if step.kind in ("spawn", "map"):
        return RepeatedStep(label, "not_undone", "creates new children; the old ones stay as they ended")
    if step.kind == "enqueue":
        return RepeatedStep(label, "not_undone", "enqueues again")
    return RepeatedStep(label, "repeated", _TEXTS.get(step.kind, "runs again"))


def _superseded_text(step: StepRow, undone: set[int]) -> str:
    effect = "was undone" if step.n in undone else "is recorded"
    return f"{effect}, and runs again with a new idempotency key if the function calls it"


def _failure(step: StepRow) -> RepeatedStep:
    if step.kind == "timeout":
        return RepeatedStep(key_label(step.key), "timed_out", f"timed out; {_TEXTS['timeout']}")
    text = "a child failed, and is retried" if step.kind == "join" else "failed, and runs again"
    return RepeatedStep(key_label(step.key), "failed", text)


def _may_repeat(
    row: RunRow, back: Sequence[StepRow], undone: set[int], failures: Sequence[StepRow], has_steps: bool
) -> Iterator[str]:
    for step in back:
        if step.n not in undone and step.kind in ("step", "spawn", "map", "enqueue"):
            yield f"{key_label(step.key)}: its effect wasn't undone"
    for step in failures:
        if step.kind == "failed":
            yield f"{key_label(step.key)}: whatever it did before it failed"
    if row.started_at is None or failures:
        return
    if has_steps:
        yield "a step that was running when the run ended, if there was one"
    else:
        yield "everything that the function did before it ended"
