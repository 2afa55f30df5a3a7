"""`holdfast worker --queues a=2,b=1 --label gpu=a100` with real processes, and what `workers` and `why` show of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.control import Control
from tests.support.ledger import Ledger
from tests.support.processes import Processes
from tests.support.wait_until import wait_until

SHOP = """
import os, time
from pathlib import Path
from holdfast import Holdfast

app = Holdfast()
ledger = Path(os.environ["LEDGER"])

def note(*words):
    with ledger.open("a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

@app.task(name="flood", queue="a")
def flood(n: int) -> None:
    note("begin", "a", os.getpid())
    while not Path(os.environ["GO"]).exists():
        time.sleep(0.01)
    note("end", "a", os.getpid())

@app.task(name="quick", queue="b")
def quick(n: int) -> int:
    return n

@app.task(name="train", queue="b", requires={"gpu": "a100"})
async def train() -> int:
    return os.getpid()
"""


@pytest.fixture
def processes(tmp_path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.close()


def test_two_workers_keep_to_their_slots_and_labels(tmp_path, database_url, processes, shell):
    ledger, go = Ledger(tmp_path / "ledger"), tmp_path / "go"
    (tmp_path / "shop.py").write_text(SHOP)
    env = {"HOLDFAST_URL": database_url, "LEDGER": str(ledger.path), "GO": str(go), "PYTHONPATH": str(tmp_path)}
    command = (
        "-m",
        "holdfast.cli",
        "worker",
        "--app",
        "shop:app",
        "--fail-fast",
        "--grace",
        "1",
        "--queues",
        "a=2,b=1",
    )
    with Holdfast(database_url) as app:
        runs = app.remote("flood", queue="a").enqueue_many([(n,) for n in range(8)])
        trained = [app.remote("train", queue="b").enqueue() for _ in range(5)]
        control = Control(app.store)
        first = processes.start(*command, env=env)
        wait_until(lambda: len(control.workers.list()) == 1, 60, lambda: first.log)
        assert control.whys.why(trained[0].id).reasons[0].code == "no_label"
        second = processes.start(*command, "--label", "gpu=a100", env=env)
        wait_until(lambda: len(ledger.lines()) == 4, 60, lambda: first.log + second.log)
        pids = {run.result(timeout=60) for run in trained}  # while queue a is flooded
        assert app.remote("quick", queue="b").enqueue(5).result(timeout=60) == 5
        assert len(ledger.lines()) == 4
        assert set(Counter(pid for _, _, pid in ledger.words()).values()) == {2}
        shown = {worker.name.rpartition(":")[2]: worker for worker in control.workers.list()}
        assert pids == {int(pid) for pid, worker in shown.items() if worker.labels == {"gpu": "a100"}}
        assert {tuple(worker.shown_queues()) for worker in shown.values()} == {("a=2", "b=1")}
        listed = shell("workers", "--url", database_url).stdout
        assert "a=2,b=1" in listed
        assert "gpu=a100" in listed
        go.touch()
        for run in runs:
            run.result(timeout=60)


def test_supervised_processes_get_slots_and_labels(tmp_path, sqlite_url, processes):
    (tmp_path / "shop.py").write_text(SHOP)
    env = {"HOLDFAST_URL": sqlite_url, "LEDGER": str(tmp_path / "l"), "GO": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    command = ("-m", "holdfast.cli", "worker", "--app", "shop:app", "--processes", "1", "--queues", "a=2,b")
    started = processes.start(*command, "--concurrency", "3", "--label", "gpu=a100", env=env)
    with Holdfast(sqlite_url) as app:
        control = Control(app.store)
        wait_until(control.workers.list, 60, lambda: started.log)
        (worker,) = control.workers.list()
        assert (worker.concurrency, worker.queue_slots, worker.labels) == (5, {"a": 2}, {"gpu": "a100"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--queues", "a=x"), "'a=x' has no number of slots, such as a=20."),
        (("--queues", "a=1,a=2"), "queue a is named twice."),
        (("--queues", "a=0"), "the slots of a must be an integer from 1 to 10,000, not 0"),
        (("--queues", "a=1", "--concurrency", "5"), "each of these queues has its own"),
        (("--label", "gpu"), "'gpu' is not NAME=VALUE, such as gpu=a100."),
        (("--label", "gpu=a", "--label", "gpu=b"), "gpu is given twice."),
        (("--label", "gpu=*"), "which tasks use for any value"),
    ],
)
def test_bad_options_are_explained(shell, shop, sqlite_url, options, message):
    result = shell("worker", "--app", shop, "--url", sqlite_url, *options)
    assert result.exit_code == 2
    assert message in result.output
