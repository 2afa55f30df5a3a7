"""SQLite: programs that write all the time share the write lock fairly, and heartbeats come first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from holdfast import Holdfast
from tests.faults.conftest import APPS
from tests.support.ledger import Ledger
from tests.support.processes import Process, Processes
from tests.support.wait_until import wait_until

LOST = ("lease ran out", "lost", "did not answer in time", "database is locked", "Traceback")


@pytest.fixture
def app(sqlite_url: str, connect: Callable[[str], Holdfast]) -> Holdfast:
    app = connect(sqlite_url)
    with app.transaction() as connection:
        connection.execute("create table effects (n integer)")
    return app


@pytest.fixture
def start(sqlite_url: str, processes: Processes, ledger: Ledger) -> Iterator[Callable[..., Process]]:
    def start(role: str, **settings: object) -> Process:
        given = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return processes.start(APPS / "writers.py", sqlite_url, ledger.path, role, *given)

    yield start
    ledger.path.with_name("stop").touch()


def counted(ledger: Ledger) -> Counter[str]:
    return Counter(words[0] for words in ledger.words())


def test_two_programs_that_hold_transactions_starve_neither_a_heartbeat_nor_an_enqueue(
    app: Holdfast, start: Callable[..., Process], ledger: Ledger
) -> None:
    loops = [start("loop"), start("loop")]
    worker = start("worker", lease=2)
    worker.wait_for("worker started", timeout=60)
    run = app.remote("count").enqueue(-1, 6.0)
    start("enqueue")
    wait_until(lambda: counted(ledger)["held"] >= 60 and counted(ledger)["acknowledged"] >= 20, 120, "work")
    assert run.result(timeout=60) == -1
    assert ledger.counts()["ran -1"] == 1
    assert counted(ledger)["error"] == 0
    assert all(process.alive for process in (*loops, worker))
    assert not [line for line in worker.log.splitlines() if any(word in line for word in LOST)]
    assert "crashed" not in [entry.kind for entry in run.history()]
    waits = sorted(float(words[2]) for words in ledger.words() if words[0] == "acknowledged")
    assert waits[-1] < 5  # three writers before it, 0.1 s each; unfair, it took 5 to 40 s


def test_runs_with_user_transactions_all_finish_in_a_worker_with_a_short_lease(
    app: Holdfast, start: Callable[..., Process], ledger: Ledger
) -> None:
    runs = [app.remote("transact").enqueue(n, 5) for n in range(1, 7)]
    worker = start("worker", lease=2, hold=0.2)
    assert [run.result(timeout=120) for run in runs] == [1, 2, 3, 4, 5, 6]
    assert not [line for line in worker.log.splitlines() if any(word in line for word in LOST)]
    with app.transaction() as connection:
        rows = connection.execute("select n, count(*) from effects group by n order by n")
    assert rows == [(n, 5) for n in range(1, 7)]


def test_writers_killed_while_queued_or_writing_block_no_others(
    app: Holdfast, start: Callable[..., Process], ledger: Ledger
) -> None:
    """Of three busy writers, one holds the lock and the others wait for it."""
    loops = [start("loop", hold=0.05) for _ in range(3)]
    for process in loops:
        before = counted(ledger)["held"]
        wait_until(lambda before=before: counted(ledger)["held"] >= before + 5, 60, "turns")
        process.kill()
    began = time.monotonic()
    app.remote("count").enqueue(1)
    assert time.monotonic() - began < 5
