"""How long the dashboard's pages and the API's lists take among a million runs: each page and each filter, warm."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from benchmarks.crowd import QUEUES, TASKS, Crowd
from benchmarks.hosts import Host, Unusable
from benchmarks.measure import OURS, Case, Failed, Figures, Measure, note

SIZE = 1_000_000
QUICK_SIZE = 2_000
WARM = 3
STATES = ("ready", "scheduled", "running", "waiting", "blocked", "undoing", "done", "failed", "cancelled", "skipped")


class Pages(Measure):
    """One database with runs of all kinds, made once; nothing changes in it. Pages are asked for in this process."""

    name = "pages"
    purpose = "milliseconds that each list page and filter takes among a million runs"
    unit = "ms"
    count = 21
    quick_count = 2

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--size", type=int, help=f"runs in the table (default: {SIZE:,})")

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"requests": options.count, "warm-up": WARM, "size": _size(options)}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:
        try:
            from holdfast.web import dashboard
        except ModuleNotFoundError as error:
            raise Unusable(f"pages need {error.name}: pip install 'holdfast[dashboard]'") from None
        tables = host.fresh()
        stack.callback(tables.close)
        note(f"{host.name}: making {_size(options):,} runs of all kinds")
        crowd = Crowd(tables)
        crowd.make(_size(options))
        tables.settle()
        site = dashboard(tables.app, unlocked=True)
        stack.callback(site.close)
        return [
            Case(host.name, OURS, partial(_take, site, name, path, options.count), name)
            for name, path in addresses(crowd.parent).items()
        ]


def addresses(parent: str) -> dict[str, str]:
    """What is asked for, by the name of its figure."""
    now = datetime.now(UTC)
    filters: dict[str, dict[str, str]] = {
        "task": {"task": TASKS[0]},
        "queue": {"queue": QUEUES[1]},
        "tenant": {"tenant": "tenant7"},
        "tag": {"tag": "nightly"},
        "tag that nobody has": {"tag": "absent"},
        "error": {"error": "order 1"},
        "error that nobody has": {"error": "absent"},
        "error of done runs": {"error": "absent", "state": "done"},
        "task that nobody has": {"task": "absent"},
        "tenant that nobody has": {"tenant": "absent"},
        "task, tag that nobody has": {"task": TASKS[0], "tag": "absent"},
        "queue, tag that nobody has": {"queue": QUEUES[1], "tag": "absent"},
        "tenant, tag that nobody has": {"tenant": "tenant7", "tag": "absent"},
        "task, state": {"task": TASKS[0], "state": "failed"},
        "tenant, task, state": {"tenant": "tenant7", "task": TASKS[0], "state": "failed"},
        "queue, state ready": {"queue": QUEUES[1], "state": "ready"},
        "made within a day": {"created_from": _text(now, 3), "created_to": _text(now, 2)},
        "ended within a day": {"finished_from": _text(now, 3), "finished_to": _text(now, 2)},
        "ended within a day, tag that nobody has": {
            "finished_from": _text(now, 3), "finished_to": _text(now, 2), "tag": "absent",
        },
        "id prefix": {"id_prefix": parent[:12]},
        "parent": {"parent": parent},
        "family": {"family": parent},
    }  # fmt: skip
    filters |= {f"state {state}": {"state": state} for state in STATES}
    found = {f"runs: {name}": "/runs?" + urlencode(given) for name, given in filters.items()}
    whole = {
        "overview": "/", "runs": "/runs", "runs: a later page": f"/runs?after={parent}", "gates": "/gates",
        "schedules": "/schedules", "limits": "/limits", "workers": "/workers", "a run": f"/runs/{parent}",
    }  # fmt: skip
    api = {"API: runs": "/runs?limit=200", "API: counts": "/counts", "API: stats": "/stats", "API: gates": "/gates"}
    return whole | found | {name: "/api/v1" + path for name, path in api.items()} | {"metrics": "/metrics"}


def _text(now: datetime, days: int) -> str:
    return (now - timedelta(days=days)).isoformat()


def _size(options: argparse.Namespace) -> int:
    if options.size is not None:
        return int(options.size)
    return QUICK_SIZE if options.quick else SIZE


def _take(site: Any, name: str, path: str, count: int) -> Figures:
    """The median of some requests, when the first ones have made everything warm."""
    taken = [asyncio.run(_ask(site, path)) for _ in range(WARM + count)]
    return {name: statistics.median(taken[WARM:]) * 1000}


async def _ask(site: Any, path: str) -> float:
    """Seconds until the whole answer is there."""
    plain, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": plain, "raw_path": plain.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"localhost")], "client": None, "server": None,
    }  # fmt: skip
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    since = time.perf_counter()
    await site(scope, receive, send)
    taken = time.perf_counter() - since
    if statuses != [200]:
        raise Failed(f"{path} answers {statuses}")
    return taken
