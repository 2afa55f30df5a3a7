"""Case 48: a DBA ends connections of workers with pg_terminate_backend, any of them, again and again."""

from __future__ import annotations

import random
from collections import Counter

import psycopg

from tests.faults.conftest import APPS
from tests.support.counting import ask
from tests.support.waiting import wait_until

ROUND = 30
ENOUGH = 5
"""How often each kind of connection is ended at least."""
MOST_ROUNDS = 10
KINDS = {"claim", "commit", "heartbeat", "housekeeping", "listener", "client", "author-1"}
"""The purposes of a worker's connections, as `application_name` tells them."""
VICTIMS = (
    "select pid, application_name from pg_stat_activity"
    " where datname = current_database() and application_name like 'holdfast %' and pid <> pg_backend_pid()"
)


def effects(ledger):
    return Counter(tuple(words[:2]) for words in ledger.words())


def test_connections_that_a_dba_ends_lose_nothing_and_stick_nothing(postgres_url, connect, processes, ledger, capsys):
    """Case 48."""
    app = connect(postgres_url)
    with psycopg.connect(postgres_url) as own:
        own.execute("create table paid (n int not null)")
    workers = [processes.start(APPS / "terminated.py", postgres_url, ledger.path) for _ in range(2)]
    for worker in workers:
        worker.wait_for("works on", timeout=60)
    chance = random.Random(48)
    ended: Counter[str] = Counter()
    runs = []
    asked = 0
    with psycopg.connect(postgres_url, autocommit=True) as dba:

        def end_one():
            """Seldom used connections first, so that all kinds get their share."""
            nonlocal asked
            asked += 1
            found = dba.execute(VICTIMS).fetchall() if asked % 3 == 0 else []
            if not found:
                return
            chance.shuffle(found)
            pid, name = min(found, key=lambda victim: ended[victim[1]])
            if dba.execute("select pg_terminate_backend(%s)", [pid]).fetchone() == (True,):
                ended[name] += 1

        def done():
            end_one()
            return ask(app, "select 1 from {}runs where finished_at is null limit 1") == []

        for number in range(MOST_ROUNDS):
            marks = range(number * ROUND, (number + 1) * ROUND)
            for task in ("job", "limited", "function"):
                runs += app.remote(task).enqueue_many([(n,) for n in marks])
                end_one()
            for n in marks:
                app.emit(f"go {n}", n)
            wait_until(done, 60, lambda: str(ask(app, "select id, state, held from {}runs where finished_at is null")))
            if all(ended[f"holdfast {kind}"] >= ENOUGH for kind in KINDS):
                break
    with capsys.disabled():
        print(f"\n{sum(ended.values())} connections ended, {len(runs)} runs: {dict(ended)}")  # noqa: T201
    assert {kind for kind in KINDS if ended[f"holdfast {kind}"] < ENOUGH} == set(), ended
    for run in runs:
        info = run.info()
        assert info.state == "done", info
    happened = effects(ledger)
    marks = [str(n) for n in range((number + 1) * ROUND)]
    expected = {(what, n) for what in ("job", "limited", "first", "last") for n in marks}
    expected |= {("job", str(-int(n) - 1)) for n in marks}
    assert set(happened) == expected
    assert set(happened.values()) == {1}, "no worker died, and no lease ended: nothing is done twice"
    assert ask(app, "select count(*), count(distinct n) from paid") == [(len(marks), len(marks))]
    assert ask(app, "select count(*) from {}runs where session is not null") == [(0,)]
    assert ask(app, "select count(*) from {}limits where used > 0") == [(0,)]
    assert all(worker.alive for worker in workers)
    assert not [worker.log for worker in workers if "Traceback" in worker.log]
