"""Forks: a new run that begins with the checkpoints that another one made before a step.

What the original joined is copied, so that the fork doesn't depend on the original's children; children that it spawned
and didn't join before that step are spawned anew. Compensations stay the original's; what it has undone runs again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import ConfigError, GraphError, RunNotFound
from holdfast.model.step_keys import key_label, key_name
from holdfast.store.family import HeldRun, hold, spawn_key
from holdfast.store.part import BATCH, Do, Part, batch, bounded, record
from holdfast.store.releasing import child_end
from holdfast.store.views import StepRow

_NOT_COPIED = ("write", "undone")


class Forks(Part):
    """New runs with the past of others."""

    def fork(self, id: str, fork: str, from_step: str | None, args: str | None, by: str | None = None) -> None:
        """Make the run `fork` of the run `id`, with the checkpoints before a step, which is given by name or key;
        without one it begins at the beginning. A repeat after a lost answer changes nothing."""

        args = None if args is None else self._ground.payloads.pack(args, f"the arguments of a fork of run {id}")

        def work(do: Do) -> None:
            original = hold(do, [id]).get(id)
            if original is None:
                raise RunNotFound.of(id)
            _refuse_kind(original)
            steps = [StepRow._make(row) for row in do("run_steps", id=id)] if from_step is not None else []
            before = [] if from_step is None else _before(steps, from_step, id)
            if not do("fork_run", id=id, fork=fork, args=args):
                return
            kept = [_past(do, original, fork, step) for step in _without_unjoined(before)]
            for some in bounded(kept, lambda row: len(row["value"] or "")):
                do("add_past", rows=batch(some))
            data = {"from": id, "from_step": from_step, "steps": len(kept)} | ({} if by is None else {"by": by})
            told = msgspec.json.encode(data).decode()
            do("add_history", rows=batch([record(fork, 1, "forked", 0, data=told)]))

        self._together("client", work)


def _refuse_kind(run: HeldRun) -> None:
    if run.kind is not None:
        raise GraphError(f"run {run.id} is a {run.kind}, which can't be forked: submit the graph again")
    if run.node is not None and run.state in ("blocked", "skipped"):
        raise GraphError(f"run {run.id} is node {run.node} of a graph and {run.state}: it has no arguments yet")


def _before(steps: list[StepRow], from_step: str, id: str) -> list[StepRow]:
    undone = {int(step.value or 0) for step in steps if step.kind == "undone"}
    for at, step in enumerate(steps):
        if from_step in (step.key, key_name(step.key), key_label(step.key)):
            return [before for before in steps[:at] if before.n not in undone]
    names = list(dict.fromkeys(key_label(step.key) for step in steps if step.kind not in _NOT_COPIED))
    known = f"it has {', '.join(names[:20])}" if names else "it has recorded nothing yet"
    raise ConfigError(f"run {id} has no step {from_step!r} on record: {known}")


def _without_unjoined(steps: list[StepRow]) -> list[StepRow]:
    joined = {_joined(step.key) for step in steps if step.kind in ("join", "joined")}
    return [
        step
        for step in steps
        if step.kind not in _NOT_COPIED and not (step.kind in ("spawn", "map") and step.key not in joined)
    ]


def _joined(key: str) -> str:
    """The key of the call whose children a join is about."""
    return key.rpartition("#")[0].removeprefix("$join:")


def _past(do: Do, original: HeldRun, fork: str, step: StepRow) -> dict[str, Any]:
    row = {"run": fork, "n": step.n, "key": step.key, "kind": step.kind, "value": step.value, "took": step.took}
    if step.kind == "join":
        call = spawn_key(original.generation, _joined(step.key))
        row |= {"kind": "joined", "value": _ends(do, original.id, call, step.value)}
    return {**row, "at": step.at}


def _ends(do: Do, parent: str, call: str, failed: str | None) -> str:
    """How children ended, copied; of an eager wait that a failure ended only that failure."""
    rows: list[Any] = []
    while True:
        after = rows[-1][1] if rows else -1
        page = do("children_page", parent=parent, spawn_key=call, after=after, size=BATCH)
        rows += [child_end(do, row) for row in page]
        if len(page) < BATCH:
            break
    wanted = None if failed is None else msgspec.json.decode(failed)
    ends = [[str(id), state, result, error] for id, _, state, result, error in rows if wanted in (None, str(id))]
    return msgspec.json.encode({"eager": wanted is not None, "ends": ends}).decode()
