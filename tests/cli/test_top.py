"""`holdfast top`: in a pseudo-terminal with keys, resizing and Ctrl-C, and its output elsewhere."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from holdfast.cli.top_view import TopView, parse_filter, read_snapshot, render
from holdfast.control import Control
from tests.support.terminal import open_terminal

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TIMEOUT_S = 20


class Terminal:
    """A process in a pseudo-terminal, and what it shows."""

    def __init__(self, *args: str, columns: int = 160, lines: int = 24) -> None:
        self.end, other = open_terminal()
        self.resize(columns, lines, notify=False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *args],
            stdin=other, stdout=other, stderr=other, start_new_session=True, preexec_fn=self._own_terminal(other),
            env={**os.environ, "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        os.close(other)
        self.raw = ""

    @staticmethod
    def _own_terminal(end: int):
        return lambda: fcntl.ioctl(end, termios.TIOCSCTTY, 0)

    def resize(self, columns: int, lines: int, *, notify: bool = True) -> None:
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if notify:
            self.process.send_signal(signal.SIGWINCH)

    def screen(self) -> str:
        """Return the text of the last frame that was drawn completely."""
        frames = [frame for frame in self.raw.split("\x1b[H") if frame.partition("\x1b[J")[1]]
        return ESCAPES.sub("", frames[-1]) if frames else ""

    def until(self, text: str) -> str:
        """Read until the screen shows a text."""
        end = time.monotonic() + TIMEOUT_S
        while text not in self.screen():
            assert time.monotonic() < end, f"{text!r} isn't shown:\n{self.screen()}"
            ready, _, _ = select.select([self.end], [], [], 0.5)
            if ready:
                try:
                    self.raw += os.read(self.end, 65536).decode(errors="replace")
                except OSError:  # the process has ended
                    assert text in self.raw, self.raw
                    return self.raw
        return self.screen()

    def press(self, keys: str) -> None:
        os.write(self.end, keys.encode())

    def close(self) -> int:
        try:
            return self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
            os.close(self.end)


@pytest.fixture
def broken(shop_app):
    """Three failed runs, the newest last."""
    runs = [shop_app["boom"].enqueue(f"bad {n}") for n in range(3)]
    shop_app["app"].worker().drain()
    return runs


@pytest.fixture
def shop_app(sqlite_url):
    from holdfast import Holdfast, Retry

    with Holdfast(sqlite_url) as app:

        @app.task(name="boom", retry=Retry(max_attempts=1))
        def boom(text: str) -> None:
            raise ValueError(text)

        yield {"app": app, "boom": boom}


def test_keys_filter_open_retry_and_cancel(shop_app, broken, sqlite_url):
    control = Control(shop_app["app"].store)
    terminal = Terminal("top", "--url", sqlite_url, "--interval", "60", "--by", "ada")
    terminal.until("ValueError: bad 2")
    terminal.press("j\r")  # the second run
    assert "finished: failed" in terminal.until(f"boom  {broken[1].id}")
    terminal.press("r")
    terminal.until("Retry boom")
    terminal.press("n")
    terminal.until("nothing was changed")
    terminal.press("r")
    terminal.until("[y/N]")
    terminal.press("y")
    terminal.until("retried")
    assert control.runs.info(broken[1].id).state == "ready"
    terminal.press("c")
    terminal.until("Cancel boom")
    terminal.press("y")
    terminal.until("1 cancelled")
    assert control.runs.info(broken[1].id).state == "cancelled"
    terminal.press("\x1b")
    terminal.until("ValueError: bad 0")
    terminal.press("/cancelled\r")
    shown = terminal.until("showing  state cancelled")
    assert (str(broken[1].id) in shown, str(broken[0].id) in shown) == (True, False)
    terminal.press("/color=red\r")
    terminal.until("unknown filter 'color'")
    terminal.press("q")
    assert terminal.close() == 0
    assert [(each.by, each.action, each.via) for each in control.audit.page().entries] == [
        ("ada", "cancel run", "cli"), ("ada", "retry run", "cli"),
    ]  # fmt: skip


def test_the_screen_follows_the_window_and_ctrl_c_restores_the_terminal(broken, sqlite_url):
    terminal = Terminal("top", "--url", sqlite_url, "--interval", "60")
    before = termios.tcgetattr(terminal.end)
    terminal.until("ValueError: bad 2")
    terminal.resize(60, 12)
    shown = terminal.until("…")
    assert max(map(len, shown.splitlines())) <= 60
    assert "ValueError: bad 2" not in shown
    terminal.press("\x03")
    terminal.until("\x1b[?1049l")
    assert terminal.close() == 130
    assert before[3] & termios.ECHO


def test_without_a_terminal_the_state_is_printed_once(shell, broken, sqlite_url):
    out = shell("top", "--url", sqlite_url).stdout
    assert "3 failed" in out
    assert f"{broken[2].id} failed" in out
    assert "\x1b" not in out
    found = shell.json("top", "--state", "failed", "--url", sqlite_url)
    assert [each["id"] for each in found["runs"]] == [str(run.id) for run in broken[::-1]]
    assert shell("top", "--interval", "soon", "--url", sqlite_url).exit_code == 2


def test_lines_fit_the_window_and_escape_what_controls_terminals(shop_app, sqlite_url):
    shop_app["boom"].options(key="k").enqueue("x\x1b[2J" * 50)
    data = read_snapshot(Control(shop_app["app"].store), {})
    for width, height in ((20, 6), (80, 24), (300, 4)):
        lines = render(data, TopView(), "db\x1b", width, height)
        assert len(lines) == height
        assert all(len(line.plain) <= width and "\x1b" not in line.plain for line in lines)


def test_filters_are_parsed():
    assert parse_filter('failed task=shop.charge error="no funds"') == {
        "state": "failed", "task": "shop.charge", "error": "no funds",
    }  # fmt: skip
    assert parse_filter("0199a3f2") == {"id_prefix": "0199a3f2"}
    assert parse_filter("shop.charge") == {"task": "shop.charge"}
    assert parse_filter("") == {}
    with pytest.raises(ValueError, match="unknown filter"):
        parse_filter("color=red")
    with pytest.raises(ValueError, match="quotation mark"):
        parse_filter('"open')
