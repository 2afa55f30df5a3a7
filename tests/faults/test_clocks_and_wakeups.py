"""Workers whose clocks are wrong, and how soon an idle worker starts new work."""

from __future__ import annotations

import time

import pytest

from holdfast import RunFailed
from tests.support.wait_until import wait_until


def test_workers_whose_clocks_are_off_keep_leases_and_delays(app, database_url, start_worker, ledger):
    ahead = start_worker(database_url, lease=1.5, clock_off=600, concurrency=2)
    behind = start_worker(database_url, lease=1.5, clock_off=-600, concurrency=2)
    holds = app.remote("hold").enqueue_many([()] * 4)
    delayed = app.remote("count").options(delay=3, priority=5).enqueue(1)
    wait_until(lambda: len(ledger.lines()) == 4)
    assert {int(words[1]) for words in ledger.words()} == {ahead.pid, behind.pid}
    now = time.time()
    for row in app.store.sessions.list_live():
        assert abs(row[3] / 1e6 - now) < 60, "the lease was computed with the worker's own clock"
    seen: set[int] = set()

    def renewed() -> bool:
        seen.update(row[3] for row in app.store.sessions.list_live())
        return len(seen) >= 20

    wait_until(renewed)  # each of the two has been renewed for more than two leases
    for n in range(4):
        ledger.path.with_name(f"release{n}").touch()
    for run in holds:
        run.result(timeout=30)
        assert [entry.kind for entry in run.history()] == ["enqueued", "started", "done"]
    assert delayed.result(timeout=30) == 1
    created, started = delayed.history()[0].at, delayed.history()[1].at
    assert 3 <= (started - created).total_seconds() < 60


@pytest.mark.variants
@pytest.mark.parametrize(
    "wrong",
    [{"clock_off": 3600}, {"clock_off": -3600}, {"clock_jumps": 3600}],
    ids=["ahead", "behind", "jumping"],
)
def test_an_hour_on_a_workers_clock_changes_no_lease_timeout_deadline_or_retry(
    app, database_url, start_worker, ledger, wrong
):
    start_worker(database_url, lease=1.5, **wrong)
    (session,) = (row[0] for row in app.store.sessions.list_live())
    retried = app.remote("try_twice").enqueue()
    hung = app.remote("hang").enqueue()
    overdue = app.remote("hold").options(deadline=3).enqueue()
    assert retried.result(timeout=60) == 1
    for run, code in ((hung, "timeout"), (overdue, "deadline")):
        with pytest.raises(RunFailed) as failed:
            run.result(timeout=60)
        assert failed.value.error.code == code
    assert 2 <= seconds_between(retried, "retrying", "done") < 60
    assert 1 <= seconds_between(hung, "started", "failed") < 60
    assert 3 <= seconds_between(overdue, "enqueued", "failed") < 60
    assert [row[0] for row in app.store.sessions.list_live()] == [session], "its lease was renewed all the time"


def seconds_between(run, first: str, last: str) -> float:
    """Return the time by the database's clock from the first entry of a kind to the last one of another."""
    entries = run.history()
    begin = next(entry.at for entry in entries if entry.kind == first)
    return float(([entry.at for entry in entries if entry.kind == last][-1] - begin).total_seconds())


def test_an_idle_worker_starts_what_another_process_enqueues(app, database_url, start_worker, ledger):
    start_worker(database_url, lease=60)
    for n in range(5):
        began = time.monotonic()
        assert app.remote("count").enqueue(n).result(timeout=30) == n
        assert time.monotonic() - began < 5
    later = app.remote("count").options(delay=0.5).enqueue(9)
    assert later.result(timeout=30) == 9
    assert sorted(words[0] for words in ledger.words()) == ["0", "1", "2", "3", "4", "9"]
