"""The HTTP server for probes and metrics, and `holdfast health`."""

from __future__ import annotations

import http.client
import socket
import threading

import pytest

from holdfast import Holdfast
from holdfast.cli.worker import metrics_endpoint
from holdfast.telemetry import probe_server
from holdfast.telemetry.probe_server import ProbeAnswer, ProbeServer, probe_answer
from tests.cli.conftest import shell  # noqa: F401
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.no_tables


@pytest.fixture
def serve():
    started = []

    def start(endpoints):
        server = ProbeServer("127.0.0.1", 0, endpoints)
        server.start()
        started.append(server)
        return server.server_address[1]

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def ask(port, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_probe_lists_its_checks_and_fails_with_503(serve):
    port = serve(
        {
            "/livez": lambda _: probe_answer({"event_loop": None, "lease": None}),
            "/readyz": lambda _: probe_answer({"database": "down", "claiming": None}),
        }
    )
    assert ask(port, "/livez?verbose=1") == (200, "event_loop ok\nlease ok\n")
    assert ask(port, "/readyz") == (503, "database failed: down\nclaiming ok\n")
    assert ask(port, "/livez", "HEAD") == (200, "")
    assert ask(port, "/")[0] == 404
    assert ask(port, "/livez", "POST")[0] == 501


def test_requests_for_which_no_thread_could_start_use_up_no_places(serve, monkeypatch):
    monkeypatch.setattr(probe_server, "MAX_REQUESTS", 1)
    port = serve({"/livez": lambda _: probe_answer({})})

    def no_thread(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        for _ in range(3):
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                ask(port, "/livez")
    assert ask(port, "/livez")[0] == 200


def test_requests_beyond_the_bound_are_refused_until_others_end(serve, monkeypatch):
    monkeypatch.setattr(probe_server, "MAX_REQUESTS", 1)
    entered, release = threading.Event(), threading.Event()

    def slow(_accept):
        entered.set()
        release.wait(30)
        return ProbeAnswer(200, b"done")

    port = serve({"/slow": slow, "/livez": lambda _: ProbeAnswer(200, b"")})
    found = []
    waiting = threading.Thread(target=lambda: found.append(ask(port, "/slow")))
    waiting.start()
    assert entered.wait(30)
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(port, "/livez")
    release.set()
    waiting.join()
    assert found == [(200, "done")]
    wait_until(lambda: _answers(port))


def _answers(port):
    try:
        return ask(port, "/livez")[0] == 200
    except (http.client.HTTPException, OSError):
        return False


def test_metrics_say_which_package_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    monkeypatch.delitem(__import__("sys").modules, "holdfast.telemetry.prometheus", raising=False)
    with Holdfast("sqlite:///:memory:") as app:
        answer = metrics_endpoint(app)["/metrics"]("")
    assert answer.status == 404
    assert b"holdfast[prometheus]" in answer.body


def test_the_health_command_prints_what_failed_and_exits_with_1(serve, shell):  # noqa: F811
    well = serve({path: lambda _: probe_answer({"lease": None}) for path in ("/livez", "/readyz")})
    ill = serve({"/livez": lambda _: probe_answer({"lease": None, "event_loop": "blocked"})})
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = unused.getsockname()[1]
        result = shell("health", str(well), str(ill), str(nobody))
    assert result.exit_code == 1
    first, second = result.stderr.splitlines()
    assert first == f"{ill}: event_loop failed: blocked"
    assert second.startswith(f"{nobody}: no answer: ")
    assert shell("health", str(well), "--ready").exit_code == 0
    assert shell("health", str(ill), "--ready").exit_code == 1, "it has no such path"
    assert shell("health", "nonsense").exit_code == 2
