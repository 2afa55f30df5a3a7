"""What `holdfast top` shows: a snapshot of the database, and its rendering as lines. No input or output here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.text import Text

from holdfast.cli.output import STYLES, escape_control, format_ago, format_duration
from holdfast.cli.render_history import one_line, short
from holdfast.model.names import counted
from holdfast.model.previews import arguments_line
from holdfast.model.run import RUN_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.control import Control
    from holdfast.control.stats import Counts, RecentStats
    from holdfast.control.workers import WorkerInfo
    from holdfast.model.run import RunInfo

HEADER_LINES = 5
FOOTER_LINES = 2
MAX_RUNS = 200
MAX_HISTORY = 50
FILTERS = ("task", "queue", "tenant", "tag", "key", "error")
STATE_CYCLE = ("", "running", "waiting", "scheduled", "ready", "failed", "cancelled")
KEYS = "↑↓ select  ⏎ open  / filter  f state  r retry  c cancel  p pause  ? help  q quit"
HELP = (
    "↑ ↓ j k       select a run; PgUp PgDn by pages",
    "Enter         open the run: why it isn't running, arguments, error, last history",
    "Esc           back; clear the filter",
    "/             filter: task=shop.charge queue=mail tenant=acme tag=x key=order-42 error=\"no funds\",",
    "              a state such as failed, or the beginning of a run id",
    "f             next state: all, running, waiting, scheduled, ready, failed, cancelled",
    "r c p         retry, cancel, pause or resume the selected run; asks first",
    "Space         stop or start refreshing",
    "q Ctrl-C      quit",
)  # fmt: skip


@dataclass
class Snapshot:
    """What was read from the database at one time."""

    counts: Counts
    recent: RecentStats
    workers: list[WorkerInfo]
    oldest_ready: dict[str, float]
    runs: list[RunInfo[Any]]
    partial: bool = False


@dataclass
class RunView:
    """An open run."""

    info: RunInfo[Any]
    reasons: list[str]
    history: list[str]
    paused: bool = False


@dataclass
class TopView:
    """What the user sees, apart from the data."""

    filters: dict[str, Any] = field(default_factory=dict)
    selected: int = 0
    top: int = 0
    """The first run in the window."""
    prompt: str | None = None
    """The filter that is being typed."""
    question: str | None = None
    """An action that awaits its confirmation."""
    message: str = ""
    open: RunView | None = None
    help: bool = False
    frozen: bool = False


def parse_filter(text: str) -> dict[str, str]:
    """Parse a typed filter: `name=value` pairs, a state, or the beginning of a run id."""
    import shlex

    found: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("a quotation mark isn't closed") from None
    for word in words:
        name, given, value = word.partition("=")
        if given:
            if name not in FILTERS:
                raise ValueError(f"unknown filter {name!r}: use {', '.join(FILTERS)}, a state or a run id")
            found[name] = value
        elif word in RUN_STATES:
            found["state"] = word
        elif all(c in "0123456789abcdef-" for c in word) and len(word) >= 4:
            found["id_prefix"] = word
        else:
            found["task"] = word
    return found


def read_snapshot(control: Control, filters: dict[str, Any]) -> Snapshot:
    """Read the counts, the workers and the newest runs that match."""
    page = control.runs.page(**filters, limit=MAX_RUNS)
    return Snapshot(
        control.counts.overview(),
        control.stats.lately(),
        control.workers.list(),
        control.queues.oldest_ready(),
        list(page),
        page.partial,
    )


def read_run(control: Control, run: RunInfo[Any]) -> RunView:
    """Read what is shown of an open run."""
    from holdfast.control.history_text import describe_entry, entry_label

    details = control.runs.details(run.id)
    reasons = [str(reason) for reason in control.whys.why(run.id).reasons]
    history = [
        "  ".join([f"{entry.at:%H:%M:%S}", entry_label(entry), *describe_entry(entry)])
        for entry in details.history[-MAX_HISTORY:]
    ]
    return RunView(details.info, reasons, history, details.paused_at is not None)


def render(data: Snapshot, view: TopView, title: str, width: int, height: int) -> list[Text]:
    """Return the lines of the screen, exactly `height` of them."""
    room = max(height - HEADER_LINES - FOOTER_LINES, 1)
    if view.help:
        body = [Text(line) for line in HELP]
    elif view.open is not None:
        body = _run_lines(view.open, width)
    else:
        body = _table(data, view, room)
    body = body[:room] + [Text()] * (room - len(body))
    lines = [*header(data, title, view), *body, *_footer(view, data)][:height]
    for line in lines:
        line.no_wrap = True
        line.truncate(max(width, 1), overflow="ellipsis")
    return lines


def header(data: Snapshot, title: str, view: TopView) -> list[Text]:
    """Return the summary above the runs."""
    states = Text("runs     ")
    for state in RUN_STATES:
        estimate = data.counts.states.get(state)
        if estimate is not None and estimate.value:
            states.append(f"{estimate.value:,}{'' if estimate.exact else '+'} {state}  ", STYLES.get(state, ""))
    dead = sum(worker.state == "dead" for worker in data.workers)
    unhealthy = sum(worker.state == "unhealthy" for worker in data.workers)
    slots = sum(worker.concurrency or 0 for worker in data.workers if worker.state != "dead")
    used = sum(worker.runs for worker in data.workers if worker.state != "dead")
    workers = Text(f"workers  {counted(len(data.workers) - dead, 'live worker')}, slots in use: {used:,} of {slots:,}")
    if dead or unhealthy:
        workers.append(f", {dead} dead, {unhealthy} unhealthy", "red")
    oldest = max(data.oldest_ready.items(), key=lambda item: item[1], default=None)
    if oldest is not None:
        workers.append(f"   oldest ready run: {format_duration(oldest[1])} in queue {escape_control(oldest[0])}")
    hour = data.recent.whole
    rates = Text(f"hour     {counted(hour.runs, 'run')} finished, {hour.failed:,} failed, {hour.cancelled:,} cancelled")
    if hour.run.p95 is not None:
        rates.append(f"   p95 {format_duration(hour.run.p95)}")
    shown = ", ".join(f"{name} {value}" for name, value in view.filters.items()) or "all runs"
    first = Text(f"holdfast top  {escape_control(title)}", "bold")
    frozen = "  (not refreshed)" if view.frozen else ""
    return [first, states, workers, rates, Text(f"showing  {escape_control(shown)}{frozen}", "dim")]


def _table(data: Snapshot, view: TopView, room: int) -> list[Text]:
    if not data.runs:
        return [Text("no runs match" if view.filters else "no runs")]
    view.selected = min(max(view.selected, 0), len(data.runs) - 1)
    view.top = min(max(view.top, view.selected - room + 1), view.selected)
    lines = []
    for at, run in list(enumerate(data.runs))[view.top : view.top + room]:
        line = Text(" ".join(run_cells(run)))
        state = STYLES.get(run.state)
        if state is not None:
            line.stylize(state, 37, 37 + len(run.state))
        if at == view.selected:
            line.stylize("reverse")
        lines.append(line)
    return lines


def run_cells(run: RunInfo[Any]) -> Sequence[str]:
    """Return the columns of a run."""
    what = short(run.error) if run.error else arguments_line(run.args, 200)
    return [
        str(run.id), f"{run.state:<9}", f"{escape_control(run.task):<24}", f"{run.attempt:>2}",
        f"{format_ago(run.created_at):>10}", escape_control(run.key or ""), escape_control(one_line(what)),
    ]  # fmt: skip


def _run_lines(run: RunView, width: int) -> list[Text]:
    info = run.info
    found = [Text(f"{info.task}  {info.id}", "bold"), Text(info.state, STYLES.get(info.state, ""))]
    if run.paused:
        found[-1].append("  paused", "yellow")
    texts = [f"attempt {info.attempt}, queue {info.queue}, created {format_ago(info.created_at)}"]
    texts += [f"key {info.key}"] if info.key else []
    texts += [f"arguments {arguments_line(info.args, 1000)}"]
    texts += [f"error {short(info.error)}"] if info.error else []
    found += [Text(escape_control(one_line(text))) for text in texts]
    found += [line for text in run.reasons for line in _wrapped(text, width)]
    found.append(Text("history", "bold"))
    return found + [Text("  " + escape_control(one_line(text))) for text in run.history[::-1]]


def _wrapped(text: str, width: int) -> list[Text]:
    import textwrap

    lines = textwrap.wrap(escape_control(one_line(text)), max(width - 4, 10)) or [""]
    return [Text(("→ " if at == 0 else "  ") + line) for at, line in enumerate(lines)]


def _footer(view: TopView, data: Snapshot) -> list[Text]:
    if view.prompt is not None:
        return [Text(), Text(f"filter: {escape_control(view.prompt)}█")]
    if view.question is not None:
        return [Text(), Text(f"{view.question} [y/N]", "bold yellow")]
    partial = "scanned only part of the runs" if data.partial else ""
    return [Text(escape_control(view.message) or partial, "yellow"), Text(KEYS, "dim")]
