"""Counts, statistics and acts on many runs by the API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from holdfast.control.bulk import BulkPreview, BulkProgress
from holdfast.control.stats import Counts, GroupBy, Interval, Stats
from holdfast.model.filters import RunFilter
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.api.runs import RunFilterBody, tenant_of

BULK_SECONDS = 5.0
"""After so long an act on many runs answers how far it has come."""


class StatsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Over which time, in seconds, in which spans, and of what."""

    last: float = 3600
    span: Interval | None = None
    by: GroupBy = "all"
    name: str | None = None


class StatsAnswer(msgspec.Struct):
    """How things went: one entry for the whole time, or for each span of it; and by task or queue, where asked."""

    stats: list[Stats]


class BulkRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """To which runs it is done. `after` goes on where an answer's `progress` says that it was left."""

    filter: RunFilterBody
    reason: str | None = None
    after: str | None = None


class PreviewRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What would be done, and to which runs."""

    verb: Literal["cancel", "retry", "prune"]
    filter: RunFilterBody


class Far(msgspec.Struct):
    """How far it has come within some seconds; ask again with its `after` as long as there is one."""

    progress: BulkProgress


def _counts(call: ApiRequest) -> Counts:
    return call.control.counts.overview()


def _stats(call: ApiRequest) -> StatsAnswer:
    asked: StatsQuery = call.query
    stats = call.control.stats
    if asked.span is None:
        return StatsAnswer(stats.summary(last=asked.last, by=asked.by, name=asked.name))
    return StatsAnswer(stats.over_time(last=asked.last, span=asked.span, by=asked.by, name=asked.name))


def _filter(call: ApiRequest, asked: RunFilterBody) -> RunFilter:
    given: Any = msgspec.structs.asdict(asked)
    return RunFilter.of({**given, "tenant": tenant_of(call, asked.tenant)})  # type: ignore[typeddict-item]


def _preview(call: ApiRequest) -> BulkPreview:
    return call.control.bulk.preview(call.body.verb, _filter(call, call.body.filter))


def _cancel(call: ApiRequest) -> Far:
    asked: BulkRequest = call.body
    steps = call.control.bulk.cancel(
        _filter(call, asked.filter), reason=asked.reason, by=call.principal.by, after=asked.after
    )
    return Far(advance(steps))


def _retry(call: ApiRequest) -> Far:
    asked: BulkRequest = call.body
    return Far(advance(call.control.bulk.retry(_filter(call, asked.filter), by=call.principal.by, after=asked.after)))


def advance(steps: Iterator[BulkProgress]) -> BulkProgress:
    """Do batches until the time for an answer has come."""
    end = time.monotonic() + BULK_SECONDS
    far = BulkProgress(0, 0, None)
    for progress in steps:
        far = progress
        if time.monotonic() > end:
            break
    return far


OPERATIONS = (
    Operation(
        method="GET", path="/counts", name="count_runs", summary="How many runs there are, by state, queue and task.",
        do=_counts, answer=Counts, all_tenants=True,
    ),
    Operation(
        method="GET", path="/stats", name="read_stats",
        summary="Throughput, failures, waiting and running times, over a while or by spans of it.",
        do=_stats, query=StatsQuery, answer=StatsAnswer, all_tenants=True,
    ),
    Operation(
        method="POST", path="/bulk/preview", name="preview_bulk", summary="What an act on many runs would be done to.",
        do=_preview, body=PreviewRequest, answer=BulkPreview,
    ),
    Operation(
        method="POST", path="/bulk/cancel", name="cancel_many", summary="Cancel all unfinished runs that fit a filter.",
        do=_cancel, body=BulkRequest, answer=Far,
    ),
    Operation(
        method="POST", path="/bulk/retry", name="retry_many", summary="Retry all failed and cancelled runs that fit.",
        do=_retry, body=BulkRequest, answer=Far,
    ),
)  # fmt: skip
"""What can be asked about many runs at once, and done to them."""
