"""Durable functions on worker processes that are stopped past their lease, or killed at the worst moments."""

from __future__ import annotations

import json
import signal
from collections import Counter
from contextlib import closing

import apsw
import psutil
import psycopg
import pytest

from holdfast import Context, SyncContext
from tests.faults.apps.durable import TABLE
from tests.faults.conftest import APPS
from tests.support.history_queries import fetch
from tests.support.proxy import COMMIT, Proxy
from tests.support.wait_until import wait_until

LATE = ["step", "spawn", "enqueue", "emit", "transaction", "write", "finish"]


@pytest.fixture
def own_table(app, database_url):
    """Create a user table in the same database."""
    if database_url.startswith("sqlite"):
        with app.transaction() as connection:
            connection.execute(TABLE)
    else:
        with psycopg.connect(database_url) as connection:
            connection.execute(TABLE)


def said(ledger, what):
    """Return the ledger entries of processes: (mark, pid)."""
    return {(words[0], int(words[3])) for words in ledger.words() if words[1] == what}


def kinds(run):
    return [entry.kind for entry in run.history()]


def stop_between_transactions(process, database_url):
    """Stop a process while it doesn't hold SQLite's write lock: the others would wait for it."""
    stop(process)
    if database_url.startswith("sqlite"):
        with closing(apsw.Connection(database_url.removeprefix("sqlite:///"))) as other:
            while not can_write(other):
                process.signal(signal.SIGCONT)
                stop(process)


def stop(process):
    process.signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)


def can_write(connection):
    try:
        connection.execute("begin immediate")
    except apsw.BusyError:
        return False
    connection.execute("rollback")
    return True


@pytest.mark.variants
@pytest.mark.parametrize("task", ["late", "late_plainly"])
def test_writes_of_a_worker_stopped_past_its_lease_are_rejected(
    app, database_url, own_table, start_durable, ledger, task
):
    """Each run is stopped before a different operation; a peer performs it, then the first worker resumes."""
    stopped = start_durable(database_url, lease=2)
    runs = {mark: app.remote(task).enqueue(mark) for mark in LATE}
    wait_until(lambda: said(ledger, "began") == {(mark, stopped.pid) for mark in LATE})
    [(old, *_)] = app.store.sessions.list_live()
    stop_between_transactions(stopped, database_url)
    peer = start_durable(database_url, lease=60)
    wait_until(lambda: said(ledger, "began") >= {(mark, peer.pid) for mark in LATE})
    ledger.path.with_name("release1").touch()
    for run in runs.values():
        assert run.result(timeout=30) == peer.pid
    wait_until(lambda: not fetch(app, "select 1 from {}runs where finished_at is null"))
    facts = everything_in(app)
    ledger.path.with_name("release0").touch()
    stopped.signal(signal.SIGCONT)
    stopped.wait_for(f"session lost session={old}")
    if task == "late":
        wait_until(lambda: said(ledger, "cancelled") | said(ledger, "passed") >= {(mark, stopped.pid) for mark in LATE})
    peer.signal(signal.SIGTERM)
    assert peer.wait() == 0
    assert app.remote("bystander").enqueue("after").result(timeout=30) is None  # by the stopped one, in a new session
    assert ("after", stopped.pid) in said(ledger, "bystander")
    # A spawn returns before its commit, which is rejected.
    assert {mark for mark, pid in said(ledger, "passed") if pid == stopped.pid} <= {"finish", "spawn"}
    assert said(ledger, "passed") >= {(mark, peer.pid) for mark in LATE}
    assert everything_in(app) == facts, "a write of the stopped worker was accepted"
    assert fetch(app, "select payload from {}events where emitted_at is not null") == [(str(peer.pid),)]
    assert fetch(app, "select name from effects") == [(str(peer.pid),)]
    assert fetch(app, "select data from {}chunks") == [(str(peer.pid),)]
    assert [kinds(run) for run in runs.values()] == [["enqueued", "started", "worker_lost", "started", "done"]] * len(
        LATE
    )


def everything_in(app):
    """Return runs and their records, except the run that shows that a worker is alive."""
    runs = [
        row
        for row in fetch(app, "select id, state, result, fence, args from {}runs order by seq")
        if "after" not in row[4]
    ]
    tables = ("checkpoints", "events", "messages", "waits", "chunks")
    return runs, [sorted(map(str, fetch(app, f"select * from {{}}{table}"))) for table in tables]


@pytest.mark.variants
@pytest.mark.parametrize("task", ["holding", "holding_plainly"])
def test_a_step_killed_between_its_effect_and_its_checkpoint_runs_once_more_with_the_same_key(
    app, database_url, start_durable, ledger, task
):
    first = start_durable(database_url, lease=1)
    run = app.remote(task).enqueue("m")
    wait_until(lambda: said(ledger, "held") == {("m", first.pid)})
    first.kill()
    second = start_durable(database_url, lease=60)
    wait_until(lambda: said(ledger, "held") == {("m", first.pid), ("m", second.pid)})
    ledger.path.with_name("release1").touch()
    assert run.result(timeout=30) == ["s1", "held"]
    effects = Counter((name, key) for _, name, key, _ in ledger.words())
    assert sorted((name, count) for (name, _), count in effects.items()) == [("held", 2), ("s1", 1)]
    assert kinds(run) == ["enqueued", "started", "crashed", "started", "done"]


@pytest.mark.variants
@pytest.mark.parametrize("task", ["paying", "paying_plainly"])
def test_a_transaction_killed_at_any_statement_takes_effect_once(database_url, processes, tmp_path, task):
    """Kill between its statements, right before the commit and right after it."""
    points = []
    for mode, first, statements in (
        ("inside", 0, []),
        ("before", 99, ["record_checkpoints"]),
        ("after", 99, ["record_checkpoints"]),
    ):
        folder = tmp_path / mode
        folder.mkdir()
        process = processes.start(APPS / "fuzz.py", database_url, folder, task, mode, first, 1, *statements)
        assert process.wait(timeout=120) == 0, process.log
        points += [json.loads(line) for line in (folder / "facts").read_text().splitlines()]
    killed = [facts for facts in points if facts["codes"] == [-9, 0]]
    assert len(killed) == 4 + 1 + 1
    assert all(len(facts["places"]) == 1 for facts in killed)
    there = [facts["looks"][0]["rows"] for facts in killed]
    assert there == [[]] * 5 + [["p1", "p2", "p3"]], "only a commit makes it durable"
    for facts in points:
        assert facts["looks"][-1]["rows"] == ["p1", "p2", "p3"]
        [run] = facts["looks"][-1]["runs"]
        assert run[2:4] == ["done", '"paid"']


@pytest.mark.parametrize("lost", ["answer", "request"])
@pytest.mark.parametrize("kind", ["awaited", "plain"])
def test_a_transaction_whose_connection_is_cut_around_its_commit_takes_effect_once(postgres_url, connect, lost, kind):
    with psycopg.connect(postgres_url) as own, Proxy(postgres_url) as proxy:
        own.execute(TABLE)
        own.commit()
        app = connect(proxy.url)
        calls = []

        def pay(connection, mark):
            connection.execute("insert into effects values (%s, 'paid')", (mark,))
            calls.append(mark)
            if len(calls) == 1:
                getattr(proxy, f"lose_{lost}")(COMMIT)
            return len(calls)

        @app.task(name="awaited")
        async def awaited(ctx: Context) -> int:
            return await ctx.options(name="before").step(len, "x") + await ctx.transaction(pay, "m", name="pay")

        @app.task(name="plain")
        def plain(ctx: SyncContext) -> int:
            return ctx.options(name="before").step(len, "x") + ctx.transaction(pay, "m", name="pay")

        with app.worker(lease=60):
            run = app.remote(kind).enqueue()
            assert run.result(timeout=30) == (2 if lost == "answer" else 3)
        assert proxy.fired.is_set()
        assert len(calls) == (1 if lost == "answer" else 2)
        assert own.execute("select count(*) from effects").fetchone() == (1,)
        assert kinds(run) == ["enqueued", "started", "done"]
