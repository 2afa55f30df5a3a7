"""The demo's display: a live view on a terminal, plain lines elsewhere, and the summary."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.demo.scenario import WORKERS, listed
from holdfast.cli.demo.state import DemoResult, DemoState, WorkerView

STYLES = {"starting": "dim", "working": "green", "killed": "bold red", "stopped": "dim"}
MAX_WIDTH = 100
WIDE = 70
MAX_EVENTS = 6
QUARTERS = 4

FIRST_TASK = """\
from holdfast import Holdfast
app = Holdfast("sqlite:///jobs.db")
@app.task
def greet(name: str) -> str:
    return f"Hello, {name}!"
"""
FIRST_WORKER = "holdfast worker --app app:app"
FIRST_RUN = "python -c 'from app import greet; print(greet.enqueue(\"Ada\").result(10))'"


def make_console() -> Console:
    console = Console(highlight=False, soft_wrap=False)
    if console.width > MAX_WIDTH:
        console.width = MAX_WIDTH
    return console


@contextmanager
def show_live(console: Console, state: DemoState) -> Iterator[Callable[[], None]]:
    """Yield a function that draws the state, for the duration of the block."""
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
            yield lambda: live.update(_picture(console, state), refresh=True)
    else:
        yield _Plain(console, state).draw
        console.print()


class _Plain:
    """Prints events, and the progress at each quarter, without control characters or wrapping."""

    def __init__(self, console: Console, state: DemoState) -> None:
        self._console = console
        self._state = state
        self._told = 0
        self._quarter = 0

    def draw(self) -> None:
        state = self._state
        for at, event in state.events[self._told :]:
            self._say(at, event)
        self._told = len(state.events)
        quarter = state.states["done"] * QUARTERS // state.jobs
        if quarter > self._quarter:
            self._quarter = quarter
            self._say(state.now(), ", ".join(f"{state.states[name]} {name}" for name in ("done", "running", "ready")))

    def _say(self, at: float, what: str) -> None:
        self._console.print(f"{at:5.1f} s  {what}", soft_wrap=True, markup=False)


# The picture


def _picture(console: Console, state: DemoState) -> RenderableType:
    title = Text.assemble(("Holdfast demo", "bold"), f"   {state.jobs} invoices, {WORKERS} workers, one gets killed")
    title.no_wrap, title.overflow = True, "ellipsis"
    place = Text(state.database, style="dim", no_wrap=True, overflow="ellipsis")
    head: list[RenderableType] = [title, place, Text(), _workers(state, console.width), Text()]
    progress: list[RenderableType] = [_bar(console, state), _counts(state), Text(), _events(state)]
    return Padding(Group(*head, *progress), (1, 2))


def _grid(*columns: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    for column in columns:
        grid.add_column(no_wrap=True, overflow="ellipsis", **column)
    return grid


def _workers(state: DemoState, width: int) -> Table:
    grid = _grid({}, {}, {"min_width": 8}, {"ratio": 1}, {"justify": "right", "min_width": 8})
    for view in state.workers:
        style = STYLES[view.state]
        done = Text(f"{view.done} done", style="dim" if view.state == "killed" else "")
        cells = Text(f"worker {view.number}", style=style), Text(f"pid {view.pid}", style="dim")
        grid.add_row(*cells, Text(view.state, style=style), _doing(view, state, width), done)
    for _ in range(WORKERS - len(state.workers)):
        grid.add_row("")
    return grid


def _doing(view: WorkerView, state: DemoState, width: int) -> Text:
    """Show the claimed invoices; those of the killed worker are highlighted wherever they run."""
    text = Text()
    if view.state == "killed" and not view.claimed:
        text.append("recovered", style="red")
    if view.state in ("working", "killed"):
        if view.claimed and width >= WIDE:
            text.append("had " if view.state == "killed" else "invoices ", style="dim")
        for number in view.claimed:
            text.append(f"{number} ", style="bold yellow" if number in state.recovered else "")
    return text


def _bar(console: Console, state: DemoState) -> Text:
    width = max(console.width - 4, 10)
    done = width * state.states["done"] // state.jobs
    running = min(max(width * state.states["running"] // state.jobs, bool(state.states["running"])), width - done)
    full, half, empty = "#=." if console.options.ascii_only else "█▓░"
    ready = width - done - running
    return Text.assemble((full * done, "green"), (half * running, "yellow"), (empty * ready, "dim"), no_wrap=True)


def _counts(state: DemoState) -> Table:
    grid = _grid({}, {}, {}, {"ratio": 1, "justify": "right"})
    styles = {"done": "green", "running": "yellow", "ready": "dim"}
    counts = [Text(f"{state.states[name]:>4} {name}", style=style) for name, style in styles.items()]
    grid.add_row(*counts, Text(f"{state.now():.1f} s", style="dim"))
    return grid


def _events(state: DemoState) -> Table:
    """Show the last events in a fixed number of lines, so that nothing jumps."""
    grid = _grid({"justify": "right", "min_width": 6}, {"ratio": 1})
    last = state.events[-MAX_EVENTS:]
    for at, event in last:
        style = "bold red" if "kill -9" in event else "yellow" if "ready again" in event else ""
        grid.add_row(Text(f"{at:.1f} s", style="dim"), Text(event, style=style, no_wrap=True, overflow="ellipsis"))
    for _ in range(MAX_EVENTS - len(last)):
        grid.add_row("", "")
    return grid


# Summary


def print_result(console: Console, result: DemoResult) -> None:
    kill = result.kill
    if result.passed:
        _say(console, "Nothing was lost, and no finished invoice ran again.", "bold green")
    else:
        _say(console, "Something went wrong. This is a bug: please report it.", "bold red")
    console.print()
    _count(console, result.jobs, "invoices were enqueued")
    _count(
        console,
        len(result.done_by_database & result.done_by_ledger),
        "are done, according to the database and the ledger",
    )
    if result.lost:
        _count(console, len(result.lost), f"are lost: {listed(result.lost)}")
    _count(console, len(kill.held), f"were claimed by worker {kill.worker} when it was killed")
    _count(console, len(result.again), f"of them had started and ran again: {listed(result.again)}")
    _count(console, len(result.finished_again), f"of the {len(kill.finished)} finished by then ran again")
    if result.others_again:
        _count(console, len(result.others_again), "more ran again: the machine was too slow for this short lease")
    console.print()
    if result.recovery_s is not None:
        lease = f"after its lease of {result.lease:g} s expired"
        _say(console, f"The other workers recovered its runs {result.recovery_s:.1f} s after the kill, {lease}.")
    _say(console, "A job whose worker dies runs again from the start: write idempotent tasks.")
    console.print()


def print_kept(console: Console, folder: str, look: str) -> None:
    _say(console, "LoadedHistory: the database, the invoices, the ledger and the workers' logs.", "bold")
    _type(console, f"ls {folder}", look)


def print_next_steps(console: Console) -> None:
    _say(console, "Try it yourself. Save this as app.py:", "bold")
    _type(console, *FIRST_TASK.splitlines())
    _say(console, "Start a worker, then enqueue a run from another terminal:", "bold")
    _type(console, *_activation(), FIRST_WORKER, FIRST_RUN)
    _say(console, "holdfast --help lists all commands; see README.md and docs/ for more.")


def _activation() -> list[str]:
    """Return the command that activates our virtual environment, if the shell hasn't."""
    scripts = Path(sys.executable).parent
    script = scripts / "activate"
    if not script.exists() or shutil.which("holdfast") == str(scripts / "holdfast"):
        return []
    here = Path.cwd()
    return [f". {script.relative_to(here) if script.is_relative_to(here) else script}"]


def _say(console: Console, text: str, style: str = "") -> None:
    for line in textwrap.wrap(text, console.width - 4):
        console.print(Text(f"  {line}", style=style), soft_wrap=True)


def _count(console: Console, number: int, what: str) -> None:
    first, *more = textwrap.wrap(what, console.width - 10)
    console.print(Text.assemble((f"  {number:>4}", "bold"), f"  {first}"), soft_wrap=True)
    for line in more:
        console.print(Text(f"        {line}"), soft_wrap=True)


def _type(console: Console, *lines: str) -> None:
    """Print lines to copy, never wrapped."""
    console.print()
    for line in lines:
        console.print(Text(f"      {line}", style="cyan"), soft_wrap=True)
    console.print()
