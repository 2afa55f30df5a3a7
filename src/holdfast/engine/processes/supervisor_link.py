"""The connection between a worker process and its supervisor: a pair of sockets, so that each notices the other's end
however it comes, SIGKILL included.

Both sides send lines. The supervisor's orders come this way, not as signals: Ctrl-C and systemd signal the whole group,
and a worker that is signalled twice hurries. (Not the worker's standard input: a program that author code starts would
inherit that, and read our orders.)

| line | from | meaning |
| --- | --- | --- |
| `stop` | supervisor | finish within the grace; the second time, hurry |
| `ended SESSION` | supervisor | the process of this session has ended: recover its runs now |
| `ready` | worker | the start went well |
| `session SESSION` | worker | the session that this process is about to open |
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
MAX_READ_BYTES = 4096


class LineReader:
    """Splits the data that a socket receives into lines."""

    def __init__(self, source: socket.socket) -> None:
        self._socket = source
        self._rest = b""

    def read(self) -> list[tuple[str, str]] | None:
        """Return the lines that have arrived, each as its first word and the rest; None when the other side is gone.

        Raises BlockingIOError if the socket is non-blocking and nothing has arrived.
        """
        received = self._socket.recv(MAX_READ_BYTES)
        if not received:
            return None
        *lines, self._rest = (self._rest + received).split(b"\n")
        words = (line.decode(errors="replace").partition(" ") for line in lines)
        return [(word, rest) for word, _, rest in words]


class SupervisorLink:
    """The worker's end. An order to stop before there is anything to stop ends the process."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._lines = LineReader(self._socket)
        self._stop: Callable[[], None] | None = None
        self._session_ended: Callable[[str], None] | None = None
        self._ended_early: list[str] = []
        self._orders = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="holdfast-leash", daemon=True).start()

    def hold(self, stop: Callable[[], None], session_ended: Callable[[str], None]) -> None:
        """Call `stop` for each order to stop from now on, and `session_ended` for each session whose process ended,
        including sessions that the supervisor has reported before."""
        with self._lock:
            self._stop = stop
            self._session_ended = session_ended
            early, self._ended_early = self._ended_early, []
        for session in early:
            session_ended(session)

    def ready(self) -> None:
        """Tell the supervisor that the start went well."""
        self._send(READY)

    def report_session(self, session: str) -> None:
        """Tell the supervisor which session this process is about to open."""
        self._send(f"{SESSION} {session}")

    def _send(self, line: str) -> None:
        with suppress(OSError):
            self._socket.sendall(f"{line}\n".encode())

    def _listen(self) -> None:
        while (lines := self._next_lines()) is not None:
            for word, rest in lines:
                if word == STOP:
                    self._orders += 1
                    self._obey()
                elif word == ENDED:
                    self._pass_on(rest)
        _let_go_of_output()
        if not self._orders:  # a supervisor that is gone is an order to stop, but none to hurry
            self._obey()

    def _next_lines(self) -> list[tuple[str, str]] | None:
        try:
            return self._lines.read()
        except OSError:
            return None

    def _pass_on(self, session: str) -> None:
        with self._lock:
            known = self._session_ended
            if known is None:
                self._ended_early.append(session)
        if known is not None:
            known(session)

    def _obey(self) -> None:
        if self._stop is None:
            os._exit(0)
        self._stop()


def _let_go_of_output() -> None:
    """Nobody reads it any more: author code that prints must not fail for that."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
