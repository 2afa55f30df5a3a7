"""What ties a worker process to its supervisor: a pair of sockets, so that each notices the other's end however it
comes, by SIGKILL too.

The supervisor's orders come this way, not as signals: Ctrl-C and systemd signal the whole group, and a worker that is
signalled twice hurries. The worker's answer is one byte, when it has started. (Not its standard input: a program that
author code starts would inherit that, and read our orders.)
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

STOP = b"s"
READY = b"r"


class Leash:
    """The worker's end. An order before there is anything to stop ends the process."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._stop: Callable[[], None] | None = None
        self._orders = 0
        threading.Thread(target=self._listen, name="holdfast-leash", daemon=True).start()

    def hold(self, stop: Callable[[], None]) -> None:
        """Call `stop` for each order from now on."""
        self._stop = stop

    def ready(self) -> None:
        """Tell the supervisor that the start went well."""
        with suppress(OSError):
            self._socket.send(READY)

    def _listen(self) -> None:
        while self._next_order():
            self._orders += 1
            self._obey()
        _let_go_of_output()
        if not self._orders:  # a supervisor that is gone is an order to stop, but none to hurry
            self._obey()

    def _next_order(self) -> bool:
        try:
            return bool(self._socket.recv(1))
        except OSError:
            return False

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
