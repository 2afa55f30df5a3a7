"""A run's history told whole: kept records, and what stands in the run's own row (enqueue, the attempt under way)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.database import Row
from holdfast.model.clock import to_datetime
from holdfast.model.history import Entry
from holdfast.store.views import RunRow

_PLAIN = ("waiting", "moved", "drift", "forked", "appended", "completed", "concluded_early", "retried", "sent")
"""Kinds whose data is no error."""


def tell(run: RunRow, records: list[Row]) -> list[Entry]:
    """All entries, in order."""
    return list(_entries(run, records))


def _entries(run: RunRow, records: list[Row]) -> Iterator[Entry]:
    yield Entry("enqueued", to_datetime(run.created_at), 0, None, {"task": run.task, "queue": run.queue} | _slot(run))
    waited = False
    drifts: list[Entry] = []  # recorded with the end of their attempt, just before it
    for _n, at, kind, attempt, session, since, data in records:
        entry = Entry(kind, to_datetime(at), attempt, session, _data(kind, data))
        if kind == "drift":
            drifts.append(entry)
            continue
        if since is not None:
            yield Entry("resumed" if waited else "started", to_datetime(since), attempt, session)
        if kind != "let_go":
            waited = kind == "waiting"
        yield from drifts
        drifts.clear()
        yield entry
    if run.running and run.claimed_at is not None:
        yield Entry("resumed" if waited else "started", to_datetime(run.claimed_at), run.attempt, run.session)


def _slot(run: RunRow) -> dict[str, Any]:
    """The schedule and the slot that made a run."""
    options = {} if run.options is None else _data("retried", run.options)
    if "schedule" not in options:
        return {}
    return {"schedule": options["schedule"], "scheduled_for": to_datetime(options["scheduled_for"]).isoformat()}


def _data(kind: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        kept = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"unreadable": text}
    if kind == "cancelled":
        return {"reason": kept.get("message") or None} | ({"by": kept["by"]} if "by" in kept else {})
    if kind in _PLAIN:
        return dict(kept)
    by = kept.pop("by", None)  # a gate that somebody let fail
    return {"error": kept} if by is None else {"error": kept, "by": by}
