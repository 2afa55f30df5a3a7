"""Another program on a SQLite file, which holds the write lock for 100 ms again and again."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable

ROOT = Path(__file__).resolve().parents[2]
HOLD_S = 0.1
FAILED = "failed"
TABLE = "create table if not exists busy_writes (at real)"


class BusyWriter:
    """The running program, as a context manager."""

    def __init__(self, url: str, pause: float = 0.0) -> None:
        self._command = [sys.executable, "-m", "tests.support.busy_writer", url, str(pause)]
        self._lines: list[str] = []

    def __enter__(self) -> BusyWriter:
        self._output = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=self._output, stderr=self._output
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._output.seek(0)
        self._lines = self._output.read().splitlines()
        self._output.close()

    def commits(self) -> list[float]:
        """The commit times of its transactions by the monotonic clock. Only after the block."""
        return [float(line) for line in self._lines if line.replace(".", "").isdigit()]

    def failures(self) -> list[str]:
        """The errors of its transactions."""
        return [line for line in self._lines if line.startswith(FAILED)]


def write_again_and_again(url: str, pause: float) -> None:
    """Insert a row and keep the transaction open; print the time of the commit. Repeat."""
    with Holdfast(url) as app:
        with app.transaction() as connection:
            connection.execute(TABLE)
        while True:
            try:
                with app.transaction() as connection:
                    connection.execute("insert into busy_writes values (?)", (time.monotonic(),))
                    time.sleep(HOLD_S)
                said = f"{time.monotonic():.4f}"
            except StoreUnavailable as error:
                said = f"{FAILED}: {error}"
            print(said, flush=True)  # noqa: T201 - read by the test
            time.sleep(pause)


def end_with_starter() -> None:
    """Exit when standard input ends, because the starting process has exited."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_starter, daemon=True).start()
    write_again_and_again(sys.argv[1], float(sys.argv[2]))
