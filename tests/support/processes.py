"""Worker processes for fault tests, observed through their logs and always killed at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.wait_until import wait_until


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or dead and not waited for by its parent."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Process:
    """A running script, whose output goes to a file."""

    def __init__(self, command: list[str], log: Path, cwd: Path, env: dict[str, str] | None = None) -> None:
        self._log = log
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )
        self.pid = self._popen.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def code(self) -> int | None:
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill the process and its children with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def wait(self, timeout: float = 30) -> int:
        """Wait for the exit and return the exit code."""
        wait_until(lambda: not self.alive, timeout, lambda: f"end of process {self.pid}; its log:\n{self.log}")
        assert self.code is not None
        return self.code

    def wait_for(self, text: str, timeout: float = 30) -> None:
        """Wait until the log contains this text."""
        wait_until(lambda: text in self.log or not self.alive, timeout, lambda: f"{text!r} in the log:\n{self.log}")
        assert text in self.log, f"ended with {self.code} before {text!r}; its log:\n{self.log}"


class Processes:
    """All processes of a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[Process] = []

    def start(self, *command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> Process:
        """Run Python with these arguments."""
        log = self._folder / f"process{len(self._all)}.log"
        process = Process([sys.executable, *map(str, command)], log, cwd or self._folder, env)
        self._all.append(process)
        return process

    def close(self) -> None:
        for process in self._all:
            process.kill()
