"""How the demo looks: a live picture in a terminal, plain lines everywhere else, and the words at the end."""

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
WIDEST = 100
ROOMY = 70
MOST_EVENTS = 6
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
    if console.width > WIDEST:
        console.width = WIDEST
    return console


@contextmanager
def shown(console: Console, scene: DemoState) -> Iterator[Callable[[], None]]:
    """What draws the scene, for the length of the block."""
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
            yield lambda: live.update(_picture(console, scene), refresh=True)
    else:
        yield _Plain(console, scene).draw
        console.print()


class _Plain:
    """Events as they come, and the progress at each quarter. No control characters, no wrapping."""

    def __init__(self, console: Console, scene: DemoState) -> None:
        self._console = console
        self._scene = scene
        self._told = 0
        self._quarter = 0

    def draw(self) -> None:
        scene = self._scene
        for at, event in scene.events[self._told :]:
            self._say(at, event)
        self._told = len(scene.events)
        quarter = scene.states["done"] * QUARTERS // scene.jobs
        if quarter > self._quarter:
            self._quarter = quarter
            self._say(
                scene.now(), ", ".join(f"{scene.states[state]} {state}" for state in ("done", "running", "ready"))
            )

    def _say(self, at: float, what: str) -> None:
        self._console.print(f"{at:5.1f} s  {what}", soft_wrap=True, markup=False)


# The picture


def _picture(console: Console, scene: DemoState) -> RenderableType:
    title = Text.assemble(("Holdfast demo", "bold"), f"   {scene.jobs} invoices, {WORKERS} workers, one gets killed")
    title.no_wrap, title.overflow = True, "ellipsis"
    place = Text(scene.database, style="dim", no_wrap=True, overflow="ellipsis")
    head: list[RenderableType] = [title, place, Text(), _workers(scene, console.width), Text()]
    progress: list[RenderableType] = [_bar(console, scene), _counts(scene), Text(), _events(scene)]
    return Padding(Group(*head, *progress), (1, 2))


def _grid(*columns: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    for column in columns:
        grid.add_column(no_wrap=True, overflow="ellipsis", **column)
    return grid


def _workers(scene: DemoState, width: int) -> Table:
    grid = _grid({}, {}, {"min_width": 8}, {"ratio": 1}, {"justify": "right", "min_width": 8})
    for figure in scene.figures:
        style = STYLES[figure.state]
        done = Text(f"{figure.done} done", style="dim" if figure.state == "killed" else "")
        cells = Text(f"worker {figure.number}", style=style), Text(f"pid {figure.pid}", style="dim")
        grid.add_row(*cells, Text(figure.state, style=style), _doing(figure, scene, width), done)
    for _ in range(WORKERS - len(scene.figures)):
        grid.add_row("")
    return grid


def _doing(figure: WorkerView, scene: DemoState, width: int) -> Text:
    """The invoices in hand; those that the dead worker held are marked wherever they turn up."""
    text = Text()
    if figure.state == "killed" and not figure.in_hand:
        text.append("taken over", style="red")
    if figure.state in ("working", "killed"):
        if figure.in_hand and width >= ROOMY:
            text.append("held " if figure.state == "killed" else "invoices ", style="dim")
        for number in figure.in_hand:
            text.append(f"{number} ", style="bold yellow" if number in scene.taken_from_the_dead else "")
    return text


def _bar(console: Console, scene: DemoState) -> Text:
    width = max(console.width - 4, 10)
    done = width * scene.states["done"] // scene.jobs
    running = min(max(width * scene.states["running"] // scene.jobs, bool(scene.states["running"])), width - done)
    full, half, empty = "#=." if console.options.ascii_only else "█▓░"
    ready = width - done - running
    return Text.assemble((full * done, "green"), (half * running, "yellow"), (empty * ready, "dim"), no_wrap=True)


def _counts(scene: DemoState) -> Table:
    grid = _grid({}, {}, {}, {"ratio": 1, "justify": "right"})
    styles = {"done": "green", "running": "yellow", "ready": "dim"}
    counts = [Text(f"{scene.states[state]:>4} {state}", style=style) for state, style in styles.items()]
    grid.add_row(*counts, Text(f"{scene.now():.1f} s", style="dim"))
    return grid


def _events(scene: DemoState) -> Table:
    """The last events; as many lines from the beginning as there will be, so that nothing jumps."""
    grid = _grid({"justify": "right", "min_width": 6}, {"ratio": 1})
    last = scene.events[-MOST_EVENTS:]
    for at, event in last:
        style = "bold red" if "kill -9" in event else "yellow" if "ready again" in event else ""
        grid.add_row(Text(f"{at:.1f} s", style="dim"), Text(event, style=style, no_wrap=True, overflow="ellipsis"))
    for _ in range(MOST_EVENTS - len(last)):
        grid.add_row("", "")
    return grid


# The end


def tell_verdict(console: Console, verdict: DemoResult) -> None:
    """What happened, counted."""
    kill = verdict.kill
    if verdict.good:
        _say(console, "Nothing was lost, and nothing that was finished ran again.", "bold green")
    else:
        _say(console, "Something went wrong. This is a bug: please report it.", "bold red")
    console.print()
    _count(console, verdict.jobs, "invoices were enqueued")
    _count(console, len(verdict.done_by_database & verdict.done_by_ledger), "are done, by the database and the ledger")
    if verdict.lost:
        _count(console, len(verdict.lost), f"are lost: {listed(verdict.lost)}")
    _count(console, len(kill.held), f"were in the hands of worker {kill.worker} when it was killed")
    _count(console, len(verdict.again), f"of them had begun, and ran again: {listed(verdict.again)}")
    _count(console, len(verdict.finished_again), f"of the {len(kill.finished)} finished by then ran again")
    if verdict.others_again:
        _count(console, len(verdict.others_again), "more ran again: the machine was too slow for so short a lease")
    console.print()
    if verdict.takeover is not None:
        lease = f"when its lease of {verdict.lease:g} s ran out"
        _say(console, f"The others took over {verdict.takeover:.1f} s after the kill, {lease}.")
    _say(console, "A run whose worker dies runs again from its beginning: write tasks that may be repeated.")
    console.print()


def tell_kept(console: Console, folder: str, look: str) -> None:
    _say(console, "Kept: the database, the invoices, the ledger and the logs of the workers.", "bold")
    _type(console, f"ls {folder}", look)


def tell_next(console: Console) -> None:
    """What to type next."""
    _say(console, "Your turn. Put this into app.py:", "bold")
    _type(console, *FIRST_TASK.splitlines())
    _say(console, "Start a worker, and enqueue a run from another terminal:", "bold")
    _type(console, *_activation(), FIRST_WORKER, FIRST_RUN)
    _say(console, "holdfast --help shows all commands; README.md and docs/ tell the rest.")


def _activation() -> list[str]:
    """What makes the names `holdfast` and `python` known, where the shell doesn't know ours."""
    ours = Path(sys.executable).parent
    script = ours / "activate"
    if not script.exists() or shutil.which("holdfast") == str(ours / "holdfast"):
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
    """Lines to be copied: never wrapped by us."""
    console.print()
    for line in lines:
        console.print(Text(f"      {line}", style="cyan"), soft_wrap=True)
    console.print()
