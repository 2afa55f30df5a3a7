"""A small HTTP server for probes and metrics, in threads of its own.

It answers while the event loop of the process is blocked (decision 53). It speaks to the kubelet, a load balancer and
Prometheus, not to the internet: it serves a fixed set of paths without authentication and reads no request body.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, socket
from typing import Any, NamedTuple

from holdfast.errors import ConfigError

TEXT = "text/plain; charset=utf-8"
CLIENT_TIMEOUT_S = 5.0
"""How long a client may take to send its request or read the response."""
MAX_REQUESTS = 16
"""How many requests are answered at the same time; further ones are refused."""


class ProbeAnswer(NamedTuple):
    """The response to a request."""

    status: int
    body: bytes
    content_type: str = TEXT


Endpoint = Callable[[str], ProbeAnswer]
"""Answers a request, given its Accept header."""


def probe_answer(checks: Mapping[str, str | None]) -> ProbeAnswer:
    """Return the response to a probe: one line per check, and status 503 if a check failed."""
    lines = [f"{name} ok" if reason is None else f"{name} failed: {reason}" for name, reason in checks.items()]
    failed = any(reason is not None for reason in checks.values())
    return ProbeAnswer(503 if failed else 200, "".join(f"{line}\n" for line in lines).encode(errors="replace"))


class ProbeServer(ThreadingHTTPServer):
    """Serves `endpoints` by path until the process ends."""

    daemon_threads = True

    def __init__(self, host: str, port: int, endpoints: Mapping[str, Endpoint]) -> None:
        if ":" in host:
            self.address_family = AF_INET6
        self.endpoints = endpoints
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        try:
            super().__init__((host, port), _ProbeHandler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot serve health at {host}:{port}: {error}") from error

    def start(self) -> None:
        """ProbeAnswer requests in a daemon thread."""
        threading.Thread(target=self.serve_forever, name="holdfast-probes", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Ignore clients that go away or are too slow."""


class _ProbeHandler(BaseHTTPRequestHandler):
    server: ProbeServer
    timeout = CLIENT_TIMEOUT_S
    server_version = "holdfast"
    sys_version = ""

    def do_GET(self) -> None:
        endpoint = self.server.endpoints.get(self.path.partition("?")[0])
        if endpoint is None:
            answer = ProbeAnswer(404, f"no such path; there are {' '.join(self.server.endpoints)}\n".encode())
        else:
            answer = endpoint(self.headers.get("Accept") or "")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks up

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing: probes arrive every few seconds."""
