"""A TCP proxy in front of a PostgreSQL server that can break a connection at a chosen point.

    proxy.lose_answer(COMMIT)    the server executes it; the reply is dropped and the connection closed
    proxy.lose_request(COMMIT)   the connection is closed before the server receives it
    proxy.delay_request(COMMIT)  the connection is closed; the server receives it after `let_late_through`

Each happens once, to the first connection that sends those bytes, and sets `fired`. Afterwards everything is forwarded.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict

COMMIT = b"COMMIT\0"
"""The message in the protocol. It doesn't match the READ COMMITTED of a BEGIN."""


class Proxy:
    """Listens on a local port and forwards to the server of a URL."""

    def __init__(self, url: str, port: int = 0) -> None:
        self._given = conninfo_to_dict(url)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.fired = threading.Event()
        self.accepted = 0
        self.delay = 0.0
        """The delay in seconds, in each direction."""
        self._answer: bytes | None = None
        self._request: bytes | None = None
        self._delayed: bytes | None = None
        self._late = threading.Event()
        self._late_clients: set[socket.socket] = set()
        self.late_answered = threading.Event()
        """Set when the server has answered the delayed request."""
        self._quiet: set[socket.socket] = set()  # clients whose next reply is dropped
        self._open = threading.Event()
        self._open.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        user = self._given.get("user", "postgres")
        return f"postgresql://{user}@127.0.0.1:{self.port}/{self._given['dbname']}?sslmode=disable&gssencmode=disable"

    def lose_answer(self, trigger: bytes) -> None:
        self.fired.clear()
        self._answer = trigger

    def lose_request(self, trigger: bytes) -> None:
        self.fired.clear()
        self._request = trigger

    def delay_request(self, trigger: bytes) -> None:
        self.fired.clear()
        self._late.clear()
        self.late_answered.clear()
        self._delayed = trigger

    def let_late_through(self) -> None:
        self._late.set()

    def pause(self) -> None:
        """Forward nothing in either direction, like a network that drops packets."""
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Close all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _break(*pair)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.resume()
        self.let_late_through()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                server = self._connect()
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._return, args=(server, client), daemon=True).start()

    def _hold_up(self) -> None:
        self._open.wait()
        if self.delay:
            time.sleep(self.delay)

    def _connect(self) -> socket.socket:
        host, port = str(self._given.get("host") or "127.0.0.1"), str(self._given.get("port") or 5432)
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
            return server
        return socket.create_connection((host, int(port)))

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        while said := _receive(client):
            self._hold_up()
            if self._request is not None and self._request in said:
                self._request = None
                self.fired.set()
                _break(client, server)
                return
            if self._delayed is not None and self._delayed in said:
                self._delayed = None
                _break(client)
                self.fired.set()
                self._late.wait()
                self._late_clients.add(client)
                with contextlib.suppress(OSError):
                    server.sendall(said)
                return  # nobody reads the reply; the server closes at the end of the connection
            if self._answer is not None and self._answer in said:
                self._answer = None
                self._quiet.add(client)
            with contextlib.suppress(OSError):
                server.sendall(said)
        _break(client, server)

    def _return(self, server: socket.socket, client: socket.socket) -> None:
        while said := _receive(server):
            self._hold_up()
            if client in self._late_clients:
                self.late_answered.set()
            if client in self._quiet:  # the dropped reply: the server has executed the request
                self._quiet.discard(client)
                self.fired.set()
                break
            with contextlib.suppress(OSError):
                client.sendall(said)
        _break(client, server)


def _receive(wire: socket.socket) -> bytes:
    try:
        return wire.recv(65536)
    except OSError:
        return b""


def _break(*wires: socket.socket) -> None:
    for wire in wires:
        with contextlib.suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)
        wire.close()
