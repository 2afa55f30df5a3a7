"""Compute the timeline of a run: its attempts, waits and steps as bars, in thousandths of the width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.control.history_text import entry_label
from holdfast.control.runs import RunDetails
from holdfast.control.steps import StepInfo, StepTry, UnfinishedStep
from holdfast.model.history import Entry
from holdfast.web.pages.formats import duration, utc

WIDTH = 1000.0
MIN_BAR_WIDTH = 2.0
MAX_ROWS = 60
TICKS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """A period of time. `kind` is a state or `step`."""

    kind: str
    left: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class TimeRow:
    """A labeled row of bars."""

    label: str
    bars: list[Bar]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows of bars, and the ticks of the time axis."""

    rows: list[TimeRow]
    ticks: list[tuple[float, str]]
    omitted: int


class _Scale:
    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin = begin
        self.end = max(end, begin + timedelta(milliseconds=1))
        self.seconds = (self.end - self.begin).total_seconds()

    def bar(self, kind: str, since: datetime, until: datetime, what: str) -> Bar:
        left = self._position(since)
        width = max(self._position(until) - left, MIN_BAR_WIDTH)
        took = duration((until - since).total_seconds())
        return Bar(kind, min(left, WIDTH - MIN_BAR_WIDTH), width, f"{what}: {took}, from {utc(since)}")

    def _position(self, at: datetime) -> float:
        share = (at - self.begin).total_seconds() / self.seconds
        return round(min(max(share, 0.0), 1.0) * WIDTH, 1)

    def ticks(self) -> list[tuple[float, str]]:
        return [(WIDTH * at / TICKS, f"+{duration(self.seconds * at / TICKS)}") for at in range(TICKS + 1)]


def build_timeline(run: RunDetails, now: datetime) -> Timeline | None:
    """Build the timeline of a run; None before its first attempt."""
    info = run.info
    ends = [entry.at for entry in run.history]
    end = max([*ends, info.finished_at or now]) if ends else now
    scale = _Scale(info.created_at, end)
    attempts = list(_attempts(run.history, scale, end))
    if not attempts:
        return None
    rows = [*attempts, *(_step(step, scale) for step in run.steps if step.took is not None)]
    unfinished = [_unfinished(step, scale, end) for step in run.unfinished_steps[:MAX_ROWS]]
    drawn = rows[: MAX_ROWS - len(unfinished)]
    return Timeline([*drawn, *unfinished], scale.ticks(), len(rows) - len(drawn) + run.more_steps)


def _step(step: StepInfo, scale: _Scale) -> TimeRow:
    """Build the row of a step: its failed tries, and its outcome."""
    since = step.at - timedelta(seconds=step.took or 0)
    if step.tries:
        since = min(max(since, step.tries[-1].next_at), step.at)
    kind = "failed" if step.error is not None else "step"
    return TimeRow(step.label, [*_tries(step.label, step.tries, scale), scale.bar(kind, since, step.at, step.label)])


def _unfinished(step: UnfinishedStep, scale: _Scale, end: datetime) -> TimeRow:
    bars = _tries(step.label, step.tries, scale)
    if step.state == "retrying" and step.last.next_at < end:
        bars.append(scale.bar("running", step.last.next_at, end, f"{step.label}, try {step.last.number + 1}"))
    return TimeRow(step.label, bars)


def _tries(label: str, tries: list[StepTry], scale: _Scale) -> list[Bar]:
    return [
        scale.bar("failed", each.at - timedelta(seconds=each.took), each.at, f"{label}, try {each.number} failed")
        for each in tries
    ]


def _attempts(history: list[Entry], scale: _Scale, end: datetime) -> Iterator[TimeRow]:
    """Build one row per attempt: running, and waiting in between."""
    bars: list[Bar] = []
    number = 0
    since: datetime | None = None
    waiting: datetime | None = None
    for entry in history:
        if entry.kind in ("started", "resumed"):
            if entry.kind == "started" and bars:
                yield TimeRow(f"attempt {number}", bars)
                bars, waiting = [], None
            if waiting is not None:
                bars.append(scale.bar("waiting", waiting, entry.at, "waited"))
                waiting = None
            number, since = entry.attempt, entry.at
        elif since is not None and entry.kind not in ("drift", "sent", "set_aside", "let_go", "step_retrying"):
            bars.append(scale.bar(_bar_kind(entry.kind), since, entry.at, f"attempt {number}, {entry_label(entry)}"))
            since, waiting = None, entry.at if entry.kind == "waiting" else None
    if since is not None:
        bars.append(scale.bar("running", since, end, f"attempt {number}, running"))
    elif waiting is not None:
        bars.append(scale.bar("waiting", waiting, end, "waiting"))
    if bars:
        yield TimeRow(f"attempt {number}", bars)


def _bar_kind(kind: str) -> str:
    if kind in ("retrying", "timed_out", "crashed", "worker_lost", "failed", "undoing"):
        return "failed"
    return kind if kind in ("cancelled", "done") else "running"
