"""Makes the databases of a release: python -m tests.upgrades.make VERSION, once, when it is released.

Runs of every kind are brought to where they wait, or are in the middle of something when their worker is killed. Then
the database is written down, and the ledger of effects beside it.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
from pathlib import Path

from holdfast import Holdfast
from holdfast.testing.server import PostgresServer
from tests.support.history_queries import fetch
from tests.support.processes import Processes
from tests.support.wait_until import wait_until
from tests.upgrades import dumps, tasks

HERE = Path(__file__).resolve().parent
WAITING = ("event", "message", "child", "map", "time")


def main(version: str) -> None:
    folder = HERE / version
    folder.mkdir()
    with tempfile.TemporaryDirectory() as name, PostgresServer(fsync=False) as server:
        place = Path(name)
        file = place / "jobs.db"
        (folder / "sqlite.ledger").write_text(bring_into_flight(f"sqlite:///{file}", place / "sqlite.ledger"))
        (folder / "sqlite.sql").write_text(_neutral(dumps.dump_sqlite(file)))
        url = server.create_database("jobs")
        (folder / "postgres.ledger").write_text(bring_into_flight(url, place / "postgres.ledger"))
        (folder / "postgres.sql").write_text(_neutral(dumps.dump_postgres(server, url)))


def bring_into_flight(url: str, ledger: Path) -> str:
    """Leave runs behind in all states; the ledger's text."""
    app = tasks.make_app(url, ledger)
    with contextlib.closing(Processes(ledger.parent)) as processes, contextlib.closing(app):
        worker = processes.start(HERE / "tasks.py", url, ledger)
        enqueue_what_waits(app)
        wait_until(lambda: all_in_place(app), 60)
        worker.kill()
        app.registry.get("job").options(key="ready").enqueue("ready")
        app.registry.get("job").options(delay=tasks.AWAY).enqueue("scheduled")
    return ledger.read_text()


def enqueue_what_waits(app: Holdfast) -> None:
    function = app.registry.get("function")
    for waits_for in WAITING:
        function.enqueue(waits_for, waits_for)
    function.enqueue("step", "step")
    app.registry.get("plain").enqueue("plain")
    app.registry.get("held").enqueue("held")
    app.registry.get("undoing").enqueue("undoing")
    app.registry.get("job").enqueue("done")
    app.registry.get("machine").enqueue(tasks.Begin(mark="machine"))
    app.submit(tasks.graph(app, "graph"))


def all_in_place(app: Holdfast) -> bool:
    """Functions and the graph wait, the machine is scheduled, and three are in the middle of something."""
    found = dict(fetch(app, "select state, count(*) from {}runs group by state"))
    text = tasks.ledger.counts()
    held = all(text[line] for line in ("held held", "step held", "undoing undo-two"))
    return held and found.get("waiting", 0) >= 8 and found.get("scheduled", 0) == 1 and not found.get("ready")


def _neutral(text: str) -> str:
    """Sessions are named after the machine, and tracebacks name the folder."""
    return text.replace(f"{socket.gethostname()}:", "host:").replace(f"{HERE.parents[1]}/", "")


if __name__ == "__main__":
    main(sys.argv[1])
