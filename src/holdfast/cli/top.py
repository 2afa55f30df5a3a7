"""The command that shows what happens now, live in a terminal: `top`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import DURATION, filter_options
from holdfast.cli.output import is_interactive, show_json, show_line
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.errors import HoldfastError
from holdfast.model.names import actor_or_user

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.cli.top_view import Snapshot, TopView
    from holdfast.control import Control

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
ESCAPES = {"[A": "up", "[B": "down", "OA": "up", "OB": "down", "[5~": "page up", "[6~": "page down"}
ESCAPE_WAIT_S = 0.05
"""How long after an escape character the rest of a key's sequence may come."""
MIN_INTERVAL_S = 0.2


@holdfast.command()
@filter_options
@click.option(
    "--interval", type=DURATION, default="2", show_default=True, metavar="SECONDS", help="How often to refresh."
)
@click.option("--by", metavar="WHO", help="Operator name for the history.  [default: user@host]")
@pass_shared
def top(shared: SharedOptions, interval: float, by: str | None, **flags: Any) -> None:
    """Watch runs, workers and queues, and act on runs with keys.

    Keys: arrows select, Enter opens a run and says why it isn't running, / filters, f shows the next state, r retries,
    c cancels and p pauses the selected run after a question, ? lists all keys, q quits. If the output isn't a terminal,
    the state is printed once.

    \b
    Examples:
      holdfast top
      holdfast top --state failed --interval 5
      holdfast top --queue mail | head -5
    """
    from holdfast.cli.connect import connect
    from holdfast.cli.options import build_filter
    from holdfast.cli.top_view import TopView, read_snapshot

    with connect(shared) as control:
        view = TopView()
        given = build_filter(control, flags)
        filters = {name: value for name, value in given.items() if value not in (None, [], (), False)}
        data = read_snapshot(control, filters)
        if shared.json:
            parts = {"counts": data.counts, "workers": data.workers, "oldest_ready": data.oldest_ready}
            show_json(parts | {"runs": data.runs})
        elif is_interactive() and sys.stdin.isatty() and _can_read_keys():
            view.filters = filters
            TopScreen(control, view, max(interval, MIN_INTERVAL_S), actor_or_user(by)).run(data)
        else:
            _print_once(control, view, data)


def _can_read_keys() -> bool:
    try:
        import termios  # noqa: F401
    except ImportError:  # Windows
        return False
    return os.environ.get("TERM", "dumb") != "dumb"


def _print_once(control: Control, view: TopView, data: Snapshot) -> None:
    from holdfast.cli.top_view import HEADER_LINES, header, run_cells

    for line in header(data, control.database, view)[: HEADER_LINES - 1]:
        show_line(line.plain.rstrip())
    for run in data.runs:
        show_line(" ".join(run_cells(run)).rstrip())


class TopScreen:
    """The live view: refreshes at an interval and reacts to keys."""

    def __init__(self, control: Control, view: TopView, interval_s: float, by: str) -> None:
        from rich.console import Console

        self._control = control
        self._view = view
        self._interval_s = interval_s
        self._by = by
        self._console: Console = Console(highlight=False)
        self._action: Callable[[], str] | None = None

    def run(self, data: Snapshot) -> None:
        """Show the screen until the user quits."""
        with _screen() as resized:
            next_at = time.monotonic() + self._interval_s
            while True:
                self._draw(data)
                key = read_key(max(next_at - time.monotonic(), 0), resized)
                if key is not None and not self.press(key, data):
                    return
                changed = key is not None and key != "resize"
                if changed or (not self._view.frozen and time.monotonic() >= next_at):
                    data = self._read(data)
                    next_at = time.monotonic() + self._interval_s

    def _draw(self, data: Snapshot) -> None:
        from rich.console import ConsoleDimensions

        from holdfast.cli.top_view import render

        size = os.get_terminal_size(sys.stdout.fileno())
        lines = render(data, self._view, self._control.database, size.columns, size.lines)
        self._console.size = ConsoleDimensions(size.columns, size.lines)
        with self._console.capture() as captured:
            for at, line in enumerate(lines):
                self._console.print(line, end="" if at == len(lines) - 1 else "\n", no_wrap=True, crop=True)
        text = captured.get().replace("\n", f"{CLEAR_LINE}\r\n")
        sys.stdout.write(f"{HOME}{text}{CLEAR_LINE}{CLEAR_BELOW}")
        sys.stdout.flush()

    def _read(self, before: Snapshot) -> Snapshot:
        """Read everything again; keep what is shown, and say why, if the database doesn't answer."""
        from holdfast.cli.top_view import read_run, read_snapshot

        selected = before.runs[self._view.selected].id if before.runs else None
        try:
            data = read_snapshot(self._control, self._view.filters)
            if self._view.open is not None:
                self._view.open = read_run(self._control, self._view.open.info)
        except HoldfastError as error:
            self._view.message = str(error)
            return before
        ids = [run.id for run in data.runs]
        self._view.selected = ids.index(selected) if selected in ids else 0
        return data

    # Keys

    def press(self, key: str, data: Snapshot) -> bool:
        """React to a key; False to quit."""
        view = self._view
        if view.prompt is not None:
            self._type(key)
        elif view.question is not None:
            self._answer(key)
        elif key == "q":
            return False
        elif key == "escape":
            view.filters = view.filters if view.open or view.help else {}
            view.open, view.help = None, False
        else:
            self._command(key, data)
        return True

    def _command(self, key: str, data: Snapshot) -> None:
        from holdfast.cli.top_view import STATE_CYCLE

        view = self._view
        view.message = ""
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}
        if key in moves:
            view.selected = min(max(view.selected + moves[key], 0), max(len(data.runs) - 1, 0))
        elif key == "/":
            view.prompt = ""
        elif key == "?":
            view.help = not view.help
        elif key == " ":
            view.frozen = not view.frozen
        elif key == "f":
            state = str(view.filters.pop("state", ""))
            following = STATE_CYCLE[(STATE_CYCLE.index(state) + 1 if state in STATE_CYCLE else 0) % len(STATE_CYCLE)]
            view.filters |= {"state": following} if following else {}
        elif key in ("enter", "r", "c", "p") and data.runs:
            self._act(key, data)

    def _act(self, key: str, data: Snapshot) -> None:
        from holdfast.cli.top_view import read_run

        view, runs = self._view, self._control.runs
        run = data.runs[view.selected] if view.open is None else view.open.info
        try:
            if key == "enter":
                view.open = read_run(self._control, run)
            elif key == "r":
                preview = runs.preview_retry(run.id).summary
                self._ask(f"Retry {run.task} {run.id}: {preview}?", lambda: runs.retry(run.id, self._by), "retried")
            elif key == "c":
                gate = " It is a gate: what depends on it is skipped." if runs.is_gate(run.id) else ""
                cancel = lambda: runs.cancel(run.id, None, self._by)  # noqa: E731
                self._ask(f"Cancel {run.task} {run.id}?{gate}", cancel, "cancelled")
            else:
                paused = runs.details(run.id).paused_at is not None
                change = runs.resume if paused else runs.pause
                verb = "Resume" if paused else "Pause"
                self._ask(f"{verb} {run.task} {run.id}?", lambda: change(run.id, self._by), f"{verb.lower()}d")
        except HoldfastError as error:
            view.message = str(error)

    def _ask(self, question: str, act: Callable[[], bool], done: str) -> None:
        self._view.question = question
        self._action = lambda: done if act() else "nothing changed"

    def _answer(self, key: str) -> None:
        action, self._action, self._view.question = self._action, None, None
        if key not in ("y", "Y") or action is None:
            self._view.message = "nothing was changed"
            return
        try:
            self._view.message = action()
        except HoldfastError as error:
            self._view.message = str(error)

    def _type(self, key: str) -> None:
        from holdfast.cli.top_view import parse_filter

        view = self._view
        if key == "enter":
            try:
                view.filters, view.message, view.selected = parse_filter(view.prompt or ""), "", 0
                view.open = None
            except ValueError as error:
                view.message = str(error)
            view.prompt = None
        elif key == "escape":
            view.prompt = None
        elif key == "backspace":
            view.prompt = (view.prompt or "")[:-1]
        elif len(key) == 1 and key.isprintable():
            view.prompt = (view.prompt or "") + key


@contextmanager
def _screen() -> Iterator[int]:
    """Show the alternate screen without echo; yield the descriptor that becomes readable when the window is resized."""
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    resized, notify = os.pipe()
    os.set_blocking(notify, False)
    previous = signal.signal(signal.SIGWINCH, lambda *_: os.write(notify, b"."))
    try:
        tty.setcbreak(stdin)
        sys.stdout.write(ENTER_SCREEN)
        sys.stdout.flush()
        yield resized
    finally:
        signal.signal(signal.SIGWINCH, previous)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        sys.stdout.write(LEAVE_SCREEN)
        sys.stdout.flush()
        os.close(resized)
        os.close(notify)


def read_key(timeout_s: float, resized: int) -> str | None:
    """Wait for a key, and return its name; `resize` if the window changed, None after the timeout."""
    import select

    stdin = sys.stdin.fileno()
    ready, _, _ = select.select([stdin, resized], [], [], timeout_s)
    if resized in ready:
        os.read(resized, 1024)
        return "resize"
    if not ready:
        return None
    first = os.read(stdin, 1)
    if not first:
        return "q"  # the terminal is gone
    if first == b"\x1b":
        more, _, _ = select.select([stdin], [], [], ESCAPE_WAIT_S)
        return ESCAPES.get(os.read(stdin, 8).decode(errors="replace"), "unknown") if more else "escape"
    length = 1 if first[0] < 0x80 else 2 if first[0] < 0xE0 else 3 if first[0] < 0xF0 else 4
    text = (first + (os.read(stdin, length - 1) if length > 1 else b"")).decode(errors="replace")
    return {"\n": "enter", "\r": "enter", "\x7f": "backspace", "\x08": "backspace"}.get(text, text)
