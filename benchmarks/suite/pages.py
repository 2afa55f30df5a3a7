"""Latency of every page, filter and search of the dashboard, and of API lists, with a million runs."""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MeasurementFailed, Metrics, log
from benchmarks.databases import Backend, BenchmarkError
from benchmarks.suite.sample_runs import QUEUES, TASKS, SampleRuns

SIZE = 1_000_000
QUICK_SIZE = 2_000
WARM_UP_REQUESTS = 3
STATES = ("ready", "scheduled", "running", "waiting", "blocked", "undoing", "done", "failed", "cancelled", "skipped")


class Pages(Benchmark):
    """Requests pages in this process, without a network, from a database that doesn't change."""

    name = "pages"
    purpose = "milliseconds (p95) for each dashboard page, filter and search with a million runs"
    unit = "ms"
    count = 40
    quick_count = 2

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--size", type=int, help=f"runs in the table (default: {SIZE:,})")

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"requests": options.count, "warm-up": WARM_UP_REQUESTS, "size": _size(options)}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:
        try:
            from holdfast.web import dashboard
        except ModuleNotFoundError as error:
            raise BenchmarkError(f"this benchmark needs {error.name}: pip install 'holdfast[dashboard]'") from None
        db = backend.create_database()
        stack.callback(db.close)
        log(f"{backend.name}: creating {_size(options):,} runs of all kinds")
        sample = SampleRuns(db)
        sample.insert(_size(options))
        db.settle()
        site = dashboard(db.app, unlocked=True)
        stack.callback(site.close)
        return [
            Case(backend.name, HOLDFAST, partial(_measure, site, name, path, options.count), name)
            for name, path in page_urls(sample.parent).items()
        ]


def page_urls(parent: str) -> dict[str, str]:
    """Return the pages to request by the name of their metric."""
    now = datetime.now(UTC)
    filters: dict[str, dict[str, str]] = {
        "task": {"task": TASKS[0]},
        "queue": {"queue": QUEUES[1]},
        "tenant": {"tenant": "tenant7"},
        "tag": {"tag": "nightly"},
        "tag without matches": {"tag": "absent"},
        "error": {"error": "order 1"},
        "error without matches": {"error": "absent"},
        "error of done runs": {"error": "absent", "state": "done"},
        "task without matches": {"task": "absent"},
        "tenant without matches": {"tenant": "absent"},
        "task, tag without matches": {"task": TASKS[0], "tag": "absent"},
        "queue, tag without matches": {"queue": QUEUES[1], "tag": "absent"},
        "tenant, tag without matches": {"tenant": "tenant7", "tag": "absent"},
        "task, state": {"task": TASKS[0], "state": "failed"},
        "tenant, task, state": {"tenant": "tenant7", "task": TASKS[0], "state": "failed"},
        "queue, state ready": {"queue": QUEUES[1], "state": "ready"},
        "created within a day": {"created_from": _days_ago(now, 3), "created_to": _days_ago(now, 2)},
        "finished within a day": {"finished_from": _days_ago(now, 3), "finished_to": _days_ago(now, 2)},
        "finished within a day, tag without matches": {
            "finished_from": _days_ago(now, 3), "finished_to": _days_ago(now, 2), "tag": "absent",
        },
        "id prefix": {"id_prefix": parent[:12]},
        "key": {"key": "order-4200"},
        "metadata": {"metadata": "order=4200"},
        "metadata without matches": {"metadata": "order=absent"},
        "text in arguments": {"search": "number=999000"},
        "text without matches": {"search": "absent"},
        "text in most runs": {"search": "hello"},
        "text, tenant": {"search": "absent", "tenant": "tenant7"},
        "text, state failed": {"search": "absent", "state": "failed"},
        "top level": {"top_level": "1"},
        "last hour": {"within": "1h"},
        "oldest first": {"sort": "created"},
        "finished last": {"sort": "-finished"},
        "finished last, failed": {"sort": "-finished", "state": "failed"},
        "due first": {"sort": "due"},
        "parent": {"parent": parent},
        "family": {"family": parent},
    }  # fmt: skip
    filters |= {f"state {state}": {"state": state} for state in STATES}
    found = {f"runs: {name}": "/runs?" + urlencode(given) for name, given in filters.items()}
    texts = {
        "id": parent[:18], "key": "order-4200", "tag": "nightly", "metadata": "order=4200", "metadata value": "4200",
        "task": "task7", "error": "order 1", "argument": "number=999000", "nothing": "absent", "most runs": "hello",
    }  # fmt: skip
    found |= {f"search: {name}": "/find?" + urlencode({"q": text}) for name, text in texts.items()}
    found |= {
        "bulk: retry all failed": "/bulk?verb=retry&state=failed",
        "bulk: cancel all of a tenant": "/bulk?verb=cancel&tenant=tenant7",
        "bulk: retry a selection": f"/bulk?verb=retry&run={parent}",
    }
    whole = {
        "overview": "/", "runs": "/runs", "runs: a later page": f"/runs?after={parent}", "gates": "/gates",
        "schedules": "/schedules", "limits": "/limits", "workers": "/workers", "a run": f"/runs/{parent}",
        "overview: a week": "/?last=week", "tasks": "/tasks", "tasks: a week": "/tasks?last=week",
        "a task": f"/tasks/{TASKS[0]}", "a task: a week": f"/tasks/{TASKS[0]}?last=week", "queues": "/queues",
        "a queue": f"/queues/{QUEUES[1]}", "tenants": "/tenants", "a tenant": "/tenants/tenant7", "budgets": "/budgets",
        "events": "/events", "topics": "/topics", "audit": "/audit", "tokens": "/tokens",
    }  # fmt: skip
    api = {
        "API: runs": "/runs?limit=200", "API: search": "/search?text=absent", "API: counts": "/counts",
        "API: stats": "/stats", "API: gates": "/gates",
    }  # fmt: skip
    return whole | found | {name: "/api/v1" + path for name, path in api.items()} | {"metrics": "/metrics"}


def _days_ago(now: datetime, days: int) -> str:
    return (now - timedelta(days=days)).isoformat()


def _size(options: argparse.Namespace) -> int:
    if options.size is not None:
        return int(options.size)
    return QUICK_SIZE if options.quick else SIZE


def _measure(site: Any, name: str, path: str, count: int) -> Metrics:
    """Return the 95th percentile of the durations of the requests after the warm-up."""
    elapsed = sorted([asyncio.run(_request(site, path)) for _ in range(WARM_UP_REQUESTS + count)][WARM_UP_REQUESTS:])
    return {name: elapsed[min(math.ceil(0.95 * len(elapsed)), len(elapsed)) - 1] * 1000}


async def _request(site: Any, path: str) -> float:
    """Return the seconds until the response is complete."""
    plain, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": plain, "raw_path": plain.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    started = time.perf_counter()
    await site(scope, receive, send)
    elapsed = time.perf_counter() - started
    if statuses not in ([200], [303]):
        raise MeasurementFailed(f"{path}: status {statuses}")
    return elapsed
