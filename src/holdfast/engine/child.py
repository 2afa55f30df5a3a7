"""One worker process of a supervisor: how it is started, told to stop, killed, and how its output is read."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from holdfast.engine.leash import ENDED, READY, SESSION, STOP, LineReader

LONGEST_LINE = 64 * 1024

Show: TypeAlias = Callable[[int, list[bytes]], None]
"""Shows whole lines of the worker with that number."""


class Output:
    """What a process writes, cut into lines. Outlives it when a program that it started still holds the other end."""

    def __init__(self, number: int, descriptor: int, show: Show) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._number = number
        self._show = show
        self._rest = b""
        self._closed = False

    def read(self) -> bool | None:
        """Show what has come; False at its end, None when nothing has."""
        if self._closed:
            return False
        try:
            piece = os.read(self.descriptor, LONGEST_LINE)
        except BlockingIOError:
            return None
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if self._rest and (not piece or len(self._rest) >= LONGEST_LINE):
            lines.append(self._rest)
            self._rest = b""
        if lines:
            self._show(self._number, lines)
        return bool(piece)

    def read_all(self) -> None:
        """Show what is there already."""
        while self.read():
            pass

    def close(self) -> None:
        """Show what is there, the beginning of a line too, and be done with it."""
        self.read_all()
        if self._rest:
            self._show(self._number, [self._rest])
        self._closed = True
        os.close(self.descriptor)


class Child:
    """A fresh interpreter, in a process group of its own: Ctrl-C in a terminal doesn't reach it but through us."""

    def __init__(self, number: int, command: Sequence[str], show: Show) -> None:
        ours, theirs = socket.socketpair()
        readable, writable = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, "--supervised", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=writable,
                stderr=writable,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        except BaseException:
            ours.close()
            os.close(readable)
            raise
        finally:
            theirs.close()
            os.close(writable)
        ours.setblocking(False)
        self._leash = ours
        self._lines = LineReader(ours)
        self.number = number
        self.pid = self._process.pid
        self.output = Output(number, readable, show)
        self._ready = False
        self._session: str | None = None

    @property
    def ready(self) -> bool:
        """Whether its start went well."""
        self._read()
        return self._ready

    @property
    def session(self) -> str | None:
        """The last session that it opened, or was about to open."""
        self._read()
        return self._session

    def _read(self) -> None:
        """Process the lines that it has sent."""
        with suppress(OSError):
            while (lines := self._lines.read()) is not None:
                for word, rest in lines:
                    if word == READY:
                        self._ready = True
                    elif word == SESSION:
                        self._session = rest

    def tell_to_stop(self) -> None:
        """Once to finish within the grace, twice to hurry."""
        self._send(STOP)

    def tell_ended(self, session: str) -> None:
        """Tell it to recover the runs of a session whose process has ended."""
        self._send(f"{ENDED} {session}")

    def _send(self, line: str) -> None:
        with suppress(OSError):
            self._leash.send(f"{line}\n".encode())

    def signal(self, number: int) -> None:
        if self._process.returncode is None:  # not reaped, so the number is still its own
            self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Signal the process and what it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. What it started and left behind is killed."""
        if self._process.returncode is None and self._process.poll() is not None:
            self._read()  # what it reported last
            self.signal_group(signal.SIGKILL)
            self._leash.close()
        return self._process.returncode


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
