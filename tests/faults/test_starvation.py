"""A run that reschedules itself without pause queues behind earlier work, so no run starves."""

from __future__ import annotations

import pytest

from holdfast import Context, Done, State
from tests.faults.conftest import APPS
from tests.support.wait_until import wait_until

JOBS = 5


class Round(State):
    """The state of the worker's state machine, without its code."""

    async def run(self, ctx: Context) -> Done[None]: ...


@pytest.mark.variants
@pytest.mark.parametrize("what", ["machine", "retry", "sleeper", "sync_sleeper"])
def test_jobs_start_in_order_beside_a_run_that_reschedules_itself(app, database_url, processes, ledger, what):
    """Regression: five jobs on a worker with one slot waited until the state machine ended."""
    worker = processes.start(APPS / "rescheduled.py", database_url, ledger.path)
    if what == "machine":
        restless = app.machine("machine", Round, history=10).enqueue(Round())
    else:
        restless = app.remote(what).enqueue()
    wait_until(lambda: len(ledger.lines()) >= 3, 60, lambda: worker.log)
    app.remote("job").enqueue_many([(n,) for n in range(JOBS)])
    wait_until(lambda: sum(words[0] == "job" for words in ledger.words()) == JOBS, 60)
    ledger.path.with_name("stop").touch()
    restless.result(timeout=60)
    lines = ledger.lines()
    assert [line for line in lines if line != "again"] == [f"job {n}" for n in range(JOBS)], "in their order"
    first, last = lines.index("job 0"), lines.index(f"job {JOBS - 1}")
    assert last - first < JOBS + 2, "what became ready later has to wait for them"
