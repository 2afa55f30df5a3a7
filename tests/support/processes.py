"""Python programs in processes of their own. Workers are observed through their logs and always killed at the end."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

import psutil

from tests.support.fork_server import can_fork, fork_server
from tests.support.wait_until import wait_until


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or dead and not waited for by its parent."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def run_python(
    *command: object, cwd: Path, env: Mapping[str, str], answer: str = "", timeout: float = 60, fork: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, this environment and this standard input until it ends.

    A fork has already imported Holdfast; without `fork`, the program runs in a new interpreter.
    """
    arguments, environment = [str(word) for word in command], dict(env)
    if not (fork and can_fork(arguments, environment)):
        return subprocess.run(
            [sys.executable, *arguments], cwd=cwd, env=environment, input=answer, capture_output=True, text=True,
            timeout=timeout,
        )  # fmt: skip
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        streams[0].write(answer)
        streams[0].seek(0)
        pid = fork_server().start(arguments, cwd, environment, [stream.fileno() for stream in streams])
        try:
            wait_until(lambda: fork_server().poll(pid) is not None, timeout, lambda: f"end of python {arguments}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        code = fork_server().poll(pid)
        assert code is not None
        output, errors = (_read(stream) for stream in streams[1:])
        return subprocess.CompletedProcess(arguments, code, output, errors)


def _read(stream: TextIO) -> str:
    stream.seek(0)
    return stream.read()


class Process:
    """A running Python program, whose output goes to a file."""

    def __init__(self, command: list[str], log: Path, cwd: Path, env: dict[str, str] | None = None) -> None:
        self._log = log
        environment = {**os.environ, **(env or {})}
        with log.open("wb") as output, Path(os.devnull).open() as no_input:
            if can_fork(command, environment):
                streams = [no_input.fileno(), output.fileno(), output.fileno()]
                self.pid = fork_server().start(command, cwd, environment, streams)
                self._poll: Callable[[], int | None] = functools.partial(fork_server().poll, self.pid)
            else:
                popen = subprocess.Popen(
                    [sys.executable, *command],
                    stdin=no_input,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    env=environment,
                    start_new_session=True,
                )
                self.pid, self._poll = popen.pid, popen.poll

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def code(self) -> int | None:
        return self._poll()

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and its children with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        wait_until(lambda: not self.alive, 30, lambda: f"end of process {self.pid}")

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
        process = Process([*map(str, command)], log, cwd or self._folder, env)
        self._all.append(process)
        return process

    def close(self) -> None:
        for process in self._all:
            process.kill()
