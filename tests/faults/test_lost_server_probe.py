"""The probes of `holdfast worker --health` while its PostgreSQL server is killed and started again."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket

import psutil
import pytest

from tests.support.processes import Process
from tests.support.wait_until import wait_until

TASKS = """
from holdfast import Holdfast

app = Holdfast({url!r})


@app.task
def double(n: int) -> int:
    return 2 * n
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, path):
    """Return status and text of a probe; status 0 before the worker listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


@contextlib.contextmanager
def lost(server, how):
    """Kill the server, or stop all its processes, so that it holds its connections but doesn't answer."""
    if how == "killed":
        server.kill()
        yield
        server.start()
        return
    postmaster = psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))
    stopped = [postmaster, *postmaster.children(recursive=True)]
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            process.resume()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_only_readiness_fails_while_the_server_is_lost(tmp_path, durable_server, how):
    server, port = durable_server, free_port()
    (tmp_path / "shop.py").write_text(TASKS.format(url=server.create_database()))
    command = ["-m", "holdfast.cli", "worker", "--app", "shop:app", "--health", str(port), "--lease", "9"]
    worker = Process(command, tmp_path / "log", tmp_path)
    try:
        wait_until(lambda: ask(port, "/readyz")[0] == 200, 60, lambda: worker.log)
        with lost(server, how):
            wait_until(lambda: ask(port, "/readyz")[0] == 503, 60, lambda: worker.log)
            status, text = ask(port, "/readyz")
            assert (status, "database failed: " in text) == (503, True), text
            assert ask(port, "/livez")[0] == 200, "a restart doesn't bring the server back"
        wait_until(lambda: ask(port, "/readyz")[0] == 200, 60, lambda: worker.log)
        assert ask(port, "/livez")[0] == 200
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.kill()
