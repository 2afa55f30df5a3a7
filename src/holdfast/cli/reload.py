"""`holdfast worker --reload`: restart the worker when its code changes, for development.

This process watches the Python files below the current directory by polling their times of modification, and runs the
worker as a child. The child has its own process group: signals, including Ctrl-C, reach it only through this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from holdfast.cli.output import note

POLL_INTERVAL_S = 0.3
HURRY_AFTER_S = 2.0
"""How long running runs may continue before a restart, which then releases them."""
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}


def modified_at(root: Path) -> dict[str, int]:
    """Return the times of modification of the Python files below a folder, without those of virtual environments."""
    found: dict[str, int] = {}
    for folder, folders, files in os.walk(root):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)  # noqa: PTH118 - a Path per file would take several times as long
                try:
                    found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116
                except FileNotFoundError:
                    continue
    return found


class ReloadingWorker:
    """Runs a worker as a child process, and restarts it when a file has changed."""

    def __init__(self, command: list[str], root: Path) -> None:
        self._command = command
        self._root = root
        # Cached bytecode is valid for files of the same size and second, so that a quick edit might be ignored.
        self._environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        self._seen: dict[str, int] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> int:
        """Run until this process gets SIGTERM or Ctrl-C, or the worker ends by itself; return its exit code."""
        with self._signal_handlers():
            while True:
                self._seen = modified_at(self._root)
                self._child = child = subprocess.Popen(self._command, env=self._environment, process_group=0)
                changed = self._wait(child)
                if changed is not None:
                    note(f"{changed} changed: restarting the worker")
                    self._stop(child)
                elif self._stopping or child.returncode == 0:
                    return child.returncode
                else:
                    note(f"the worker ended with exit code {child.returncode}; it is restarted after a change")
                    if self._wait_for_change() is None:
                        return child.returncode

    def _wait(self, child: subprocess.Popen[bytes]) -> str | None:
        """Wait until a file has changed, and return it; None if the worker ends first."""
        while True:
            try:
                child.wait(POLL_INTERVAL_S)
            except subprocess.TimeoutExpired:
                if not self._stopping and (changed := self._changed()) is not None:
                    return changed
            else:
                return None

    def _wait_for_change(self) -> str | None:
        while not self._stopping:
            if (changed := self._changed()) is not None:
                return changed
            time.sleep(POLL_INTERVAL_S)
        return None

    def _changed(self) -> str | None:
        """Return a file that was changed, added or removed since the worker was started."""
        now = modified_at(self._root)
        for path in now.keys() | self._seen.keys():
            if now.get(path) != self._seen.get(path):
                return os.path.relpath(path, self._root)
        return None

    def _stop(self, child: subprocess.Popen[bytes]) -> None:
        child.terminate()
        try:
            child.wait(HURRY_AFTER_S)
        except subprocess.TimeoutExpired:
            child.terminate()  # the second signal releases the runs at once
            child.wait()

    @contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        """Pass signals on to the worker, which stops with the first and hurries with the second."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            self._stopping = True
            if self._child is not None:
                self._child.terminate()

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
