"""pgbouncer in transaction mode: every transaction may get another server connection. Everything works, by polling."""

from __future__ import annotations

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from tests.faults.apps.durable import TABLE
from tests.support import bouncer
from tests.support.history_queries import ended_once, fetch, states
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.skipif(
    bouncer.program() is None, reason="pgbouncer isn't installed: apt-get install pgbouncer"
)


@pytest.fixture(params=["", "ignore_startup_parameters = options"], ids=["refuses options", "ignores options"])
def through(request, postgres_url):
    with psycopg.connect(postgres_url) as own:
        own.execute(TABLE)
    with bouncer.bouncer(postgres_url, request.param) as url:
        yield url


def servers(url):
    """Count the server connections, except the one of this query."""
    query = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with psycopg.connect(url) as own:
        return own.execute(query).fetchone()[0]


def test_jobs_and_durable_functions_run_and_the_runs_of_a_killed_worker_are_taken_over(
    through, postgres_url, connect, start_durable, ledger
):
    app = connect(through)
    workers = [start_durable(through, lease=3) for _ in range(2)]
    runs = [app.remote("everything").enqueue(f"m{n}") for n in range(6)]
    runs += [app.remote("undoing_plainly").enqueue(f"u{n}") for n in range(3)]
    jobs = app.remote("alone").enqueue_many([(f"j{n}", "job") for n in range(60)])
    for run in runs[:6]:
        run.send("note", "first")
    wait_until(lambda: len(ledger.lines()) > 40)
    assert servers(postgres_url) <= bouncer.CONNECTIONS, "the connections bypass pgbouncer"
    workers[0].kill()
    for run in runs[:6]:
        assert run.result(timeout=60)[:2] == ["s1", "s2"]
    wait_until(lambda: set(states(app)) <= {"done", "failed", "cancelled"})
    assert all(app.get_run(job.id).info().state == "done" for job in jobs)
    assert {run.info().state for run in runs[6:]} == {"failed"}
    assert fetch(app, "select mark, name from effects group by mark, name having count(*) > 1") == []
    assert fetch(app, "select run from {}history where kind = 'done' group by run having count(*) > 1") == []
    assert "Traceback" not in workers[1].log
    assert "prepared statement" not in workers[1].log


def test_an_idle_worker_finds_new_work_by_polling(through, connect, start_worker, ledger):
    start_worker(through)
    app = connect(through)
    for n in range(3):
        assert app.remote("count").enqueue(n).result(timeout=10) == n
    assert ended_once(app)


def test_url_settings_that_the_pooler_rejects_are_not_dropped_silently(postgres_url):
    with bouncer.bouncer(postgres_url) as url, Holdfast(f"{url}&options=-c%20search_path%3Dx") as app:
        with pytest.raises(StoreUnavailable, match="ignore_startup_parameters"):
            app.remote("count").enqueue(1)
