"""Stop a PostgreSQL server whose parent process is gone. Run as a program by `server.py`, never imported for use.

    python server_watchdog.py PID DATA [DIRECTORY ...]

Its standard input is a pipe that only the parent holds open, so it closes however the parent ends, SIGKILL included.
Then the server PID on the data directory DATA is stopped, and the temporary directories are removed. (A parent-death
signal would need code between fork and exec, which isn't safe in a process with threads.)
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
    """Wait until the parent is gone, then clean up."""
    sys.stdin.buffer.read()
    if _runs_on(pid, data):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
        _wait_for_end(data)
    for folder in temporary:
        shutil.rmtree(folder, ignore_errors=True)


def _runs_on(pid: int, data: Path) -> bool:
    """Return whether the server on `data` is still this process: the pid may have been reused."""
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
