"""Batches whose process dies: the item that kills it fails alone, and the others are done."""

from __future__ import annotations

import pytest

from tests.faults.conftest import APPS
from tests.support.history_queries import states
from tests.support.wait_until import wait_until


@pytest.mark.slow
def test_an_item_that_kills_its_process_fails_alone(app, processes, ledger, database_url):
    runs = app.remote("batched").enqueue_many([(number,) for number in range(20)])
    worker = processes.start(APPS / "batched.py", database_url, ledger.path)

    def is_finished() -> bool:
        nonlocal worker
        if not worker.alive:
            worker = processes.start(APPS / "batched.py", database_url, ledger.path)
        return not set(states(app)) - {"done", "failed"}

    wait_until(is_finished, 120, lambda: f"{states(app)} {ledger.lines()}")
    assert states(app) == {"done": 19, "failed": 1}
    assert [run.info().error.code for run in runs if run.info().state == "failed"] == ["crashed"]
    assert runs[13].info().state == "failed"
    sizes = [len(words) - 1 for words in ledger.words() if "13" in words[1:]]
    assert sizes[:5] == [20, 20, 5, 2, 1], "suspects are isolated in smaller and smaller groups"
    assert set(sizes[5:]) <= {1}
