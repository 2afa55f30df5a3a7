"""A TCP proxy that can stop forwarding in both directions without closing connections, as if packets were dropped."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class BlackHole:
    """Forwards connections to a local port.

    After `block()` nothing is forwarded; new connections are accepted by the system and get no reply. `unblock()`
    forwards what was delayed.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._unblocked = threading.Event()
        self._unblocked.set()
        self._ended = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.accepted: list[float] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def block(self) -> None:
        self._unblocked.clear()

    def unblock(self) -> None:
        self._unblocked.set()

    def close(self) -> None:
        self._ended = True
        self._unblocked.set()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.accepted.append(time.monotonic())
            self._sockets.append(near)
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._unblocked.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        self._sockets.append(far)
        threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()
        self._pass_on(far, near)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._unblocked.wait()
                target.sendall(data)
        self._unblocked.wait()
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
