"""The family of a run over time: the whole tree as a Gantt chart, with its critical path, and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from holdfast.model.run import FINAL_STATES, RunInfo
from holdfast.web.pages.formats import duration, utc
from holdfast.web.pages.page import PageRequest, PageSpec
from holdfast.web.pages.render import link

MAX_RUNS = 500
"""Further runs aren't drawn."""
PAGE_RUNS = 200
ZOOMS = (1, 2, 4, 8, 16)
CHART_WIDTH = 900
"""The width of the time axis without zoom."""
LABEL_WIDTH = 300
ROW_HEIGHT = 24
MIN_BAR_WIDTH = 3.0
MAX_LABEL_CHARS = 30
MAX_INDENT = 8
TICKS_PER_ZOOM = 5


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """One run: its bars, in pixels. `waited`: until its first start."""

    run: RunInfo[Any]
    name: str
    depth: int
    is_critical: bool
    waited: tuple[float, float] | None
    ran: tuple[float, float] | None
    took: float | None
    title: str


@dataclass(frozen=True, slots=True)
class FamilyChart:
    """The rows, the ticks of the time axis, and the size of the picture."""

    rows: list[FamilyRow]
    ticks: list[tuple[float, str]]
    width: float
    height: float
    zoom: int


def build_chart(runs: Iterable[RunInfo[Any]], root: UUID, now: datetime, zoom: int) -> FamilyChart:
    """Lay out a tree of runs: parents before their children, which are in the order of creation."""
    known = {run.id: run for run in runs}
    children: dict[UUID | None, list[RunInfo[Any]]] = {}
    for run in sorted(known.values(), key=lambda run: (run.created_at, run.id)):
        children.setdefault(run.parent if run.id != root else None, []).append(run)
    critical = critical_path(known[root], children, now)
    begin = min(run.created_at for run in known.values())
    end = max([*(_end(run, now) for run in known.values()), begin + timedelta(milliseconds=1)])
    scale = CHART_WIDTH * zoom / (end - begin).total_seconds()

    def bar(since: datetime, until: datetime) -> tuple[float, float]:
        left = LABEL_WIDTH + (since - begin).total_seconds() * scale
        return round(left, 1), round(max((until - since).total_seconds() * scale, MIN_BAR_WIDTH), 1)

    rows: list[FamilyRow] = []
    stack = [(known[root], 0)]
    while stack:
        run, depth = stack.pop()
        ended = _end(run, now)
        took = None if run.started_at is None else max((ended - run.started_at).total_seconds(), 0.0)
        rows.append(
            FamilyRow(
                run,
                run.task,
                min(depth, MAX_INDENT),
                run.id in critical,
                bar(run.created_at, run.started_at or ended),
                None if run.started_at is None else bar(run.started_at, ended),
                took,
                f"{run.task}, {run.state}: created {utc(run.created_at)}"
                + ("" if took is None else f", ran for {duration(took)}"),
            )
        )
        stack += [(child, depth + 1) for child in reversed(children.get(run.id, []))]
    number = TICKS_PER_ZOOM * zoom
    seconds = (end - begin).total_seconds()
    ticks = [
        (round(LABEL_WIDTH + CHART_WIDTH * zoom * at / number, 1), f"+{duration(seconds * at / number)}")
        for at in range(number + 1)
    ]
    return FamilyChart(rows, ticks, LABEL_WIDTH + CHART_WIDTH * zoom + 60, len(rows) * ROW_HEIGHT + 30, zoom)


def critical_path(root: RunInfo[Any], children: dict[UUID | None, list[RunInfo[Any]]], now: datetime) -> set[UUID]:
    """Return the runs that determined when the root ended: from its end backwards, always the child that ended last.

    A child that was still running when the next one on the path began isn't on it: nothing waited for its end.
    """
    found: set[UUID] = set()
    left = [root]
    while left:
        run = left.pop()
        found.add(run.id)
        at = _end(run, now)
        for child in sorted(children.get(run.id, []), key=lambda child: _end(child, now), reverse=True):
            if child.state != "skipped" and _end(child, now) <= at:
                left.append(child)
                at = child.started_at or child.created_at
    return found


def _end(run: RunInfo[Any], now: datetime) -> datetime:
    return run.finished_at if run.finished_at is not None else max(now, run.created_at)


def parse_zoom(text: str) -> int:
    """Return the zoom that an address asks for."""
    return int(text) if text.isdecimal() and len(text) < 3 and int(text) in ZOOMS else 1


def zoom_links(path: str, zoom: int, **query: str) -> dict[str, Any]:
    """Return the addresses of the next smaller and larger zoom; None at the ends."""
    at = ZOOMS.index(zoom)
    smaller, larger = ZOOMS[at - 1] if at else None, ZOOMS[at + 1] if at + 1 < len(ZOOMS) else None
    return {
        "zoom": zoom,
        "out": None if smaller is None else link(path, **query, zoom="" if smaller == 1 else str(smaller)),
        "in": None if larger is None else link(path, **query, zoom=str(larger)),
    }


def _show(request: PageRequest) -> dict[str, Any]:
    info = request.run()
    runs: dict[UUID, RunInfo[Any]] = {info.id: info}
    after: str | None = None
    more = False
    while True:
        page = request.control.runs.page(family=info.id, limit=PAGE_RUNS, after=after)
        runs |= {run.id: run for run in page if run.id != info.id}
        after = page.after
        if after is None or len(runs) > MAX_RUNS:
            more = after is not None or len(runs) > MAX_RUNS
            break
    kept = sorted(runs.values(), key=lambda run: (run.id != info.id, run.created_at, run.id))[:MAX_RUNS]
    zoom = parse_zoom(request.query.get("zoom", ""))
    return {
        "info": info,
        "chart": build_chart(kept, info.id, datetime.now(UTC), zoom),
        "zooms": zoom_links(f"/runs/{info.id}/family", zoom),
        "more": more,
        "MAX_RUNS": MAX_RUNS,
        "ROW_HEIGHT": ROW_HEIGHT,
        "LABEL_CHARS": MAX_LABEL_CHARS,
        "live": f"/api/v1/runs/{info.id}/live" if info.state not in FINAL_STATES else None,
    }


PAGES = (PageSpec(path="/runs/{id}/family", template="family.html", section="runs", do=_show),)
