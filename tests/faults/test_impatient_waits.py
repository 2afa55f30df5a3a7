"""A durable wait inside `asyncio.timeout` never waits forever, in separate worker processes."""

from __future__ import annotations

from pathlib import Path

APP = Path(__file__).resolve().parent / "apps" / "impatient.py"


def test_forty_waits_inside_a_timeout_are_all_rejected(app, database_url, processes, ledger):
    impatient = app.remote("impatient")
    runs = impatient.enqueue_many([(number,) for number in range(40)])
    for worker in [processes.start(APP, database_url, ledger.path) for _ in range(2)]:
        worker.wait_for("worker started", timeout=60)
    assert {run.result(timeout=90) for run in runs} == {"refused"}
    assert sorted(ledger.lines()) == sorted(f"{number} True" for number in range(40))
