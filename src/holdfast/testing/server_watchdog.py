"""Ends a PostgreSQL server whose starter is gone. Run as a program by `server`, never imported.

    python watch.py PID DATA [FOLDER ...]

Its standard input is a pipe whose other end only the starter holds, so that it closes however the starter ends, by
SIGKILL too. Then the server PID on the folder DATA is ended at once, and the temporary FOLDERs are removed. (A signal
on the parent's death would need code between fork and exec, which isn't safe in a process with threads.)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def main(pid: int, data: Path, temporary: list[Path]) -> None:
    """Wait for the end of the starter, then clean up after it."""
    sys.stdin.buffer.read()
    if _runs_on(pid, data):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
        _wait_for_end(data)
    for folder in temporary:
        shutil.rmtree(folder, ignore_errors=True)


def _runs_on(pid: int, data: Path) -> bool:
    """Whether the server on `data` is still that process: its number may have been given to another."""
    try:
        return (data / "postmaster.pid").read_text().split("\n", 1)[0] == str(pid)
    except OSError:
        return False


def _wait_for_end(data: Path) -> None:
    deadline = time.monotonic() + 10
    while (data / "postmaster.pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [Path(folder) for folder in sys.argv[3:]])
