"""Durable hooks: enqueue the tasks of `on_success`, `on_failure` and `on_end` in the transaction that ends a run.

The process that ends a run (its worker, another one that recovers it, an operator, a timer) may not have its code, so
the options of the run have a template of each hook, stored when the run was created.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from holdfast.database import Row
from holdfast.errors import PayloadError
from holdfast.model.clock import to_datetime
from holdfast.model.codec import encode
from holdfast.model.failure import error_from_json
from holdfast.model.ids import new_id_text
from holdfast.model.payloads import PayloadContext
from holdfast.model.run import RunEnd
from holdfast.store.metadata import add_metadata
from holdfast.store.module import Tx, id_rows, json_rows
from holdfast.store.rows import NewRun
from holdfast.store.run_tree import EndedRun
from holdfast.telemetry import log

HOOKS = "hooks"
"""The name of the templates among the stored options of a run."""
EVENTS = {"done": ("on_success", "on_end"), "failed": ("on_failure", "on_end"), "cancelled": ("on_end",)}
"""Which hooks are enqueued after a run ended in a state. A node that was skipped never ran, and has none."""


class HookTemplate(msgspec.Struct):
    """A run to create when another one ends. `argument`: the parameter that takes the `RunEnd`, None if positional."""

    run: NewRun
    argument: str | None = None


class _HookOptions(msgspec.Struct):
    hooks: dict[str, list[HookTemplate]] = {}


def has_hooks(options: str | None) -> bool:
    """Return whether stored options may have hooks."""
    return options is not None and f'"{HOOKS}"' in options


def enqueue_hooks(tx: Tx, ends: Iterable[EndedRun]) -> None:
    """Create the runs of the hooks of runs that have just ended. The caller ends each run once, under its lock."""
    templates: dict[str, list[HookTemplate]] = {}
    for end in ends:
        if has_hooks(end.options) and (found := _templates(end)):
            templates[end.id] = found
    if not templates:
        return
    new: list[NewRun] = []
    for row in tx.execute("read_ended_runs", rows=id_rows(sorted(templates))):
        new += _hook_runs(tx, row, templates[str(row[0])])
    insert_runs(tx, new)


def insert_runs(tx: Tx, new: Sequence[NewRun]) -> None:
    """Insert independent runs without keys or unique names, whose lanes may be missing."""
    from holdfast.store.enqueue import assign_turns, new_run_batches  # which imports what imports this module

    if not new:
        return
    lanes = _lanes(tx, new)
    for tenant in {run.tenant for run in new}:
        assign_turns(tx, [run for run in new if run.tenant == tenant], tenant)
    for rows in new_run_batches(new, lanes):
        tx.execute("add_runs", rows=rows)
    add_metadata(tx, new)
    tx.ready_runs += len(new)


def _templates(end: EndedRun) -> list[HookTemplate]:
    try:
        hooks = msgspec.json.decode(end.options or "{}", type=_HookOptions).hooks
    except msgspec.MsgspecError as error:  # a corrupt row must not keep the run from ending
        log.hooks_unreadable(end.id, error)
        return []
    return [template for event in EVENTS.get(end.state, ()) for template in hooks.get(event, ())]


def _hook_runs(tx: Tx, row: Row, templates: Sequence[HookTemplate]) -> list[NewRun]:
    id, queue, task, state, attempt, tenant, error, created_at, finished_at = row
    info = None if error is None else error_from_json(error)
    if info is not None:
        info = type(info)(info.code, info.type, info.message, None, info.data)  # the run itself has the traceback
    end = RunEnd(
        id=UUID(str(id)), task=task, queue=queue, state=state, attempt=attempt, tenant=tenant, error=info,
        created_at=to_datetime(created_at), finished_at=to_datetime(finished_at),
    )  # fmt: skip
    runs = []
    for template in templates:
        run = template.run
        given: Any = {"*": [end]} if template.argument is None else {template.argument: end}
        run.id = new_id_text()
        run.tenant = tenant if run.tenant is None else run.tenant
        text, context = encode(given), PayloadContext("args", run.tenant, run.id)
        try:
            run.args = tx.payloads.pack(text, context, "the arguments of task", run.task)
        except PayloadError as failure:  # the app's codec failed: the run must end all the same
            log.hooks_unreadable(str(id), failure)
            continue
        runs.append(run)
    return runs


def _lanes(tx: Tx, runs: Sequence[NewRun]) -> dict[tuple[str, str], int]:
    """Return the lanes of new runs; create missing ones, and mark those that get runs with limits."""
    wanted = {(run.queue, run.task) for run in runs}
    rows = json_rows({"queue": queue, "task": task} for queue, task in sorted(wanted))
    found = tx.execute("find_lanes", rows=rows)
    if len(found) < len(wanted):
        tx.execute("add_lanes", rows=rows)
        found = tx.execute("find_lanes", rows=rows)
    lanes = {(queue, task): int(id) for id, queue, task in found}
    limited = {lanes[run.queue, run.task] for run in runs if run.limits is not None}
    if limited:
        tx.execute("mark_lanes_limited", rows=json_rows({"id": lane} for lane in sorted(limited)))
    return lanes
