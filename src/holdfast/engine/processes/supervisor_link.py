"""The connection between a worker process and its supervisor.

It is a pair of sockets, so that each side notices the death of the other, even after SIGKILL. Both sides send lines.
The supervisor requests a stop this way, not with a signal: Ctrl-C and systemd signal the whole process group, and a
worker that is signaled twice skips its grace period. (Standard input won't do: programs that user code starts would
inherit it and read the lines.)

| line | from | meaning |
| --- | --- | --- |
| `stop` | supervisor | finish within the grace period; the second time, end the grace period |
| `ended SESSION` | supervisor | the process of this session has ended: recover its runs now |
| `ready` | worker | the worker has started |
| `session SESSION` | worker | the session that this process is about to open |
| `alive SECONDS` | worker | its threads run; without another such line within these seconds, it is frozen |
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

STOP = "stop"
ENDED = "ended"
READY = "ready"
SESSION = "session"
ALIVE = "alive"
MAX_READ_BYTES = 4096


class LineReader:
    """Splits the data that a socket receives into lines."""

    def __init__(self, source: socket.socket) -> None:
        self._socket = source
        self._rest = b""

    def read(self) -> list[tuple[str, str]] | None:
        """Return the lines that have arrived, each as its first word and the rest; None if the other side is gone.

        Raises BlockingIOError if the socket is non-blocking and nothing has arrived.
        """
        received = self._socket.recv(MAX_READ_BYTES)
        if not received:
            return None
        *lines, self._rest = (self._rest + received).split(b"\n")
        words = (line.decode(errors="replace").partition(" ") for line in lines)
        return [(word, rest) for word, _, rest in words]


class SupervisorLink:
    """The worker's side of the connection. A stop before `connect` ends the process."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._lines = LineReader(self._socket)
        self._stop: Callable[[], None] | None = None
        self._session_ended: Callable[[str], None] | None = None
        self._ended_early: list[str] = []
        self._stop_requests = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="holdfast-supervisor-link", daemon=True).start()

    def connect(self, stop: Callable[[], None], session_ended: Callable[[str], None]) -> None:
        """Call `stop` for each request to stop, and `session_ended` for each session whose process has ended.

        Includes the sessions that the supervisor has reported before.
        """
        with self._lock:
            self._stop = stop
            self._session_ended = session_ended
            early, self._ended_early = self._ended_early, []
        for session in early:
            session_ended(session)

    def ready(self) -> None:
        """Report to the supervisor that the worker has started."""
        self._send(READY)

    def report_session(self, session: str) -> None:
        """Report to the supervisor which session this process is about to open."""
        self._send(f"{SESSION} {session}")

    def report_alive(self, silence_s: float) -> None:
        """Report to the supervisor that this process's threads run, and after how much silence it is frozen."""
        self._send(f"{ALIVE} {silence_s:g}")

    def _send(self, line: str) -> None:
        with suppress(OSError):
            self._socket.sendall(f"{line}\n".encode())

    def _listen(self) -> None:
        while (lines := self._next_lines()) is not None:
            for word, rest in lines:
                if word == STOP:
                    self._stop_requests += 1
                    self._request_stop()
                elif word == ENDED:
                    self._report_ended(rest)
        _discard_output()
        if not self._stop_requests:  # the supervisor's death is a request to stop, but not to skip the grace
            self._request_stop()

    def _next_lines(self) -> list[tuple[str, str]] | None:
        try:
            return self._lines.read()
        except OSError:
            return None

    def _report_ended(self, session: str) -> None:
        with self._lock:
            callback = self._session_ended
            if callback is None:
                self._ended_early.append(session)
        if callback is not None:
            callback(session)

    def _request_stop(self) -> None:
        if self._stop is None:
            os._exit(0)
        self._stop()


def _discard_output() -> None:
    """Redirect output to /dev/null: nobody reads it any more, and user code that prints must not fail."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
