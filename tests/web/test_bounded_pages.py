"""Every page, filter, search and preview reads a bounded number of rows, however many runs there are.

The bounds are lowered, so that tens of thousands of runs are far beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlencode

import apsw
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.control import bulk
from holdfast.database.base import DatabaseConnection
from holdfast.database.postgres import PostgresConnection
from holdfast.database.sqlite_connection import SqliteConnection
from holdfast.store import admin, run_list, sessions, sorted_runs, stats
from holdfast.web import dashboard
from holdfast.web.pages import overview, queues, tasks, tenants
from tests.store.test_plans import explain, walk
from tests.support.plans import NOW, fill_runs
from tests.support.store_harness import StoreHarness
from tests.support.web import Visitor

COUNT = 30_000
MAX_ROWS = 1_000
"""How many rows and index entries a statement may read on PostgreSQL. At least 1,500 runs are in each state."""
MAX_STEPS = 50_000
"""How many steps of its virtual machine a statement may take on SQLite."""
BOUNDS: dict[Any, dict[str, Any]] = {
    run_list: {
        "MAX_STREAM_CANDIDATES": 100, "MAX_STREAM_CANDIDATES_WITH_ERRORS": 50, "FIRST_STREAM_CANDIDATES": 20,
        "MAX_HEAP_RUNS": 100, "MAX_HEAP_RUNS_TOTAL": 200, "MAX_SCANNED_RUNS": 200, "SCAN_SIZES": (50, 100),
        "FIRST_INDEX_SCAN": 50, "PORTION_SIZES": (20, 100),
    },
    sorted_runs: {"MAX_STREAM_CANDIDATES": 100, "FIRST_CANDIDATES": 20},
    admin: {"MAX_INDEX_ENTRIES": 200, "MAX_SCATTERED_ROWS": 200, "MAX_OLDEST_ROWS": 100, "MAX_SUSPENDED": 200},
    stats: {"MAX_LAST_ENDS": 200, "MAX_TENANT_ENDS": 200},
    sessions: {"MAX_CLAIMED_ROWS": 200},
    bulk: {"MAX_COUNTED": 100},
    **{page: {"RECENT_FAILURES": 40} for page in (overview, queues, tasks, tenants)},
}  # fmt: skip
FILTERS: tuple[dict[str, Any], ...] = (
    {}, {"task": "t1"}, {"queue": "q1"}, {"tenant": "t3"}, {"tag": "tag 7"}, {"tag": "absent"}, {"error": "absent"},
    {"search": "absent"}, {"search": "absent", "tenant": "t3"}, {"top_level": "1"}, {"metadata": "order=42"},
    {"key": "k7"}, {"task": "t1", "state": "failed"}, {"tenant": "t3", "state": "failed"},
    {"tenant": "absent", "state": ["failed", "cancelled"]}, {"finished_from": "2001-01-01"},
    {"created_to": "2001-01-01"}, {"parent": "00000000-0000-7000-8000-000000000290"},
    {"family": "00000000-0000-7000-8000-000000000290"}, {"paused": "1"},
    *({"sort": sort} for sort in ("created", "finished", "-finished", "due", "-due")),
    *({"state": state} for state in ("ready", "scheduled", "running", "waiting", "undoing", "done", "failed")),
)  # fmt: skip
PREVIEWS: tuple[dict[str, Any], ...] = (
    {"verb": "retry"}, {"verb": "retry", "task": "t1"}, {"verb": "retry", "tenant": "t3", "tag": "absent"},
    {"verb": "cancel"}, {"verb": "cancel", "tenant": "t3"}, {"verb": "cancel", "queue": "q1", "search": "absent"},
)  # fmt: skip
PATHS = (
    "/", "/?last=week", "/tasks", "/tasks?last=day", "/tasks/t1", "/tasks/t1?last=week", "/queues", "/queues/q1",
    "/tenants", "/tenants/t3", "/tenants/t3?last=week", "/api/v1/queues",
    "/gates", "/workers", "/limits", "/budgets", "/schedules", "/events", "/topics",
    "/find?q=absent", "/find?q=42", "/runs/00000000-0000-7000-8000-000000000290", "/metrics", "/api/v1/counts",
    "/api/v1/stats", "/api/v1/runs?limit=100", "/api/v1/search?text=absent",
    *("/runs?" + urlencode(given, doseq=True) for given in FILTERS),
    *("/bulk?" + urlencode(given, doseq=True) for given in PREVIEWS),
)  # fmt: skip


@pytest.fixture
def visitor(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visitor]:
    """A visitor of an open dashboard of many runs in all states."""
    for module, bounds in BOUNDS.items():
        for name, bound in bounds.items():
            monkeypatch.setattr(module, name, bound)
    with closing(StoreHarness(database_url)) as harness, closing(Holdfast(database_url, clock=lambda: NOW)) as app:
        for n in range(1, 6):
            harness.lane(f"t{n}", f"q{n}")
        fill_runs(harness, COUNT)
        harness.sql("update {schema}runs set finished_at = finished_at - seq where finished_at is not null")
        harness.sql("analyze")
        with closing(dashboard(app, unlocked=True)) as site:
            yield Visitor(site)


def test_every_page_reads_a_bounded_number_of_rows(
    visitor: Visitor, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_postgres = database_url.startswith("postgresql")
    cost = _record_rows(database_url, monkeypatch) if on_postgres else _record_steps(monkeypatch)
    expensive = {}
    for path in PATHS:
        assert visitor.get(path).status in (200, 303), path
        found = {name: number for name, number in cost() if number > (MAX_ROWS if on_postgres else MAX_STEPS)}
        if found:
            expensive[path] = found
    assert expensive == {}


def _record_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[str, int]]]:
    """Return a function that returns the statements since its last call, each with its steps."""
    found: list[tuple[str, int]] = []
    execute = SqliteConnection._execute

    def traced(self: SqliteConnection, statement: Any, values: Any) -> Any:
        steps: list[int] = []
        self._apsw.trace_v2(
            apsw.SQLITE_TRACE_PROFILE,
            lambda event: steps.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]),
        )
        rows = execute(self, statement, values)
        found.append((statement.name, sum(steps)))
        return rows

    monkeypatch.setattr(SqliteConnection, "_execute", traced)
    return lambda: [found.pop() for _ in range(len(found))]


def _record_rows(url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[str, int]]]:
    """Return a function that explains the statements since its last call and returns the rows that each read."""
    found: list[tuple[Any, Any]] = []
    execute = PostgresConnection.execute

    def recorded(self: DatabaseConnection, statement: Any, values: Any) -> Any:
        if not statement.writes and not any(same is statement and values == given for same, given in found):
            found.append((statement, dict(values)))
        return execute(self, statement, values)

    monkeypatch.setattr(PostgresConnection, "execute", recorded)

    def explained() -> list[tuple[str, int]]:
        with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
            calls = [found.pop() for _ in range(len(found))]
            return [
                (statement.name, _rows_read(explain(connection, statement, values, "analyze, timing off,")))
                for statement, values in calls
            ]

    return explained


def _rows_read(plan: dict[str, Any]) -> int:
    scans = [node for node in walk(plan) if "Scan" in node["Node Type"] and "Relation Name" in node]
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return round(
        sum((node["Actual Rows"] + sum(node.get(name, 0) for name in removed)) * node["Actual Loops"] for node in scans)
    )
