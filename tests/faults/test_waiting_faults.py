"""Waits while workers die, events race, children run elsewhere and clocks are wrong."""

from __future__ import annotations

import queue
import random
import threading
from pathlib import Path

import pytest

from holdfast import Context
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until


def kinds(run):
    return [entry.kind for entry in run.history()]


@pytest.mark.variants
@pytest.mark.parametrize("where", ["suspended", "in memory"])
@pytest.mark.parametrize("task", ["waiting", "waiting_plainly"])
def test_a_run_whose_worker_is_killed_while_it_waits_wakes_elsewhere(
    app, database_url, start_durable, ledger, task, where
):
    dead = start_durable(database_url, lease=1, linger=600 if where == "in memory" else 0.01)
    run = app.remote(task).enqueue("m")
    if where == "suspended":
        wait_until(lambda: run.info().state == "waiting")
    else:
        wait_until(lambda: fetch(app, "select 1 from {}waits"))
        assert run.info().state == "running"
    dead.kill()
    peer = start_durable(database_url, lease=60)
    if task == "waiting":
        assert app.emit("go m", "gone")
    else:
        run.send("go", "gone")
    assert run.result(timeout=30) == "gone"
    assert [words[1] for words in ledger.words()] == ["s1"]
    assert run.history()[-1].worker.split(":")[1] == str(peer.pid)
    if where == "suspended":
        assert kinds(run).count("crashed") == 0
        assert run.info().attempt == 1
    else:
        assert kinds(run).count("crashed") == 1


@pytest.mark.variants
@pytest.mark.parametrize("where", ["suspended", "in memory"])
def test_a_child_that_ends_on_one_worker_wakes_its_parent_on_another(app, database_url, start_durable, ledger, where):
    parents = start_durable(database_url, lease=60, queues="parents", linger=600 if where == "in memory" else 0.01)
    children = start_durable(database_url, lease=60, queues="children")
    run = app.remote("parent", queue="parents").enqueue("m")
    wait_until(lambda: ledger.lines())
    wait_until(lambda: fetch(app, "select 1 from {}waits where kind = 'children'"))
    if where == "suspended":
        wait_until(lambda: run.info().state == "waiting")
    ledger.path.with_name("release0").touch()
    assert run.result(timeout=30) == [parents.pid, children.pid]
    assert kinds(run).count("waiting") == (1 if where == "suspended" else 0)
    if where == "suspended":
        child_done, woken = (
            fetch(app, "select finished_at from {}runs order by seq desc limit 1")[0][0],
            run.info(),
        )
        assert woken.finished_at.timestamp() - child_done / 1e6 < 5


def race(app, connect, url, pairs, emitters=4):
    """Race runs that register waits against emits of their events."""
    about_to: queue.SimpleQueue[int] = queue.SimpleQueue()
    chance = random.Random(pairs)
    quiet = {n for n in range(pairs) if n % 20 == 7}  # their events aren't emitted

    @app.task(name="pair")
    async def pair(ctx: Context, n: int) -> int:
        about_to.put(n)
        return int(await ctx.wait_for(f"event {n}"))

    def emit(other):
        while (n := about_to.get()) >= 0:
            if n in emitted or n in quiet:
                continue
            emitted.add(n)
            gap.wait(chance.random() * 0.004)
            assert other.emit(f"event {n}", n)

    emitted: set[int] = set()
    gap = threading.Event()
    threads = [threading.Thread(target=emit, args=(connect(url),)) for _ in range(emitters)]
    for thread in threads:
        thread.start()
    for at in range(0, pairs, 1000):
        pair.enqueue_many([(n,) for n in range(at, min(at + 1000, pairs))])
    done, waiting = (
        "select count(*) from {}runs where state = 'done'",
        "select args from {}runs where state = 'waiting'",
    )
    looker = connect(url)  # with a connection of its own: on SQLite those of the worker write
    with app.worker(concurrency=20):
        heard = lambda: gap.wait(min(pairs / 1e5, 1)) or fetch(looker, done)[0][0] == pairs - len(quiet)  # noqa: E731
        wait_until(heard, 60 + pairs / 50, "all that was emitted to be heard of")
        wait_until(lambda: len(fetch(looker, waiting)) == len(quiet), 60)
        for _ in threads:
            about_to.put(-1)
        for thread in threads:
            thread.join()
    wrong = [(n, text) for n, text in results(app) if str(n) != text]
    assert wrong == []
    assert sorted(n for n, _ in results(app)) == sorted(set(range(pairs)) - quiet)
    settled = {"event"} | {outcome for (outcome,) in fetch(app, "select outcome from {}waits") if outcome is not None}
    assert settled == {"event"}
    assert len(fetch(app, "select 1 from {}waits")) == len(quiet), "a spurious wake-up, or a lost one"


def results(app):
    rows = fetch(app, "select args, result from {}runs where state = 'done'")
    return [(int("".join(filter(str.isdigit, args))), result) for args, result in rows]


def test_events_emitted_while_runs_register_their_waits_are_delivered(app, connect, database_url):
    race(app, connect, database_url, 500)


@pytest.mark.slow
def test_none_of_a_hundred_thousand_racing_events_is_lost(app, connect, database_url):
    race(app, connect, database_url, 100_000)


def test_sleeps_and_timeouts_ignore_the_clocks_of_workers(app, database_url, start_durable):
    """Each starts on the worker of its queue; both workers run timers."""
    start_durable(database_url, clock_off=600, queues="ahead")
    start_durable(database_url, clock_off=-600, queues="behind")
    runs = [app.remote("timed", queue=queue).enqueue(0.4) for queue in ("ahead", "behind") for _ in range(2)]
    for run in runs:
        took = run.result(timeout=60)
        assert all(0.4 <= seconds < 60 for seconds in took), took
        assert kinds(run).count("waiting") >= 1
    workers = {entry.worker for run in runs for entry in run.history() if entry.worker}
    assert len(workers) == 2


def memory(pid):
    """Return the resident memory of a process in megabytes."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@pytest.mark.slow
def test_suspended_runs_cost_a_worker_no_memory_and_each_wakes_within_a_second(app, database_url, start_durable):
    sizes = {}
    for count in (1_000, 99_000):
        for at in range(0, count, 1000):
            app.remote("waiting").enqueue_many([(f"{count}-{at + n}",) for n in range(1000)])
        first = start_durable(database_url, lease=60)
        wait_until(lambda: not fetch(app, "select 1 from {}runs where state <> 'waiting' limit 1"), 600)
        first.kill()
        fresh = start_durable(database_url, lease=60)
        app.remote("bystander").enqueue("x").result(timeout=60)
        fetch(app, "delete from {}runs where state = 'done'")
        for n in range(100, 110):
            assert app.emit(f"go {count}-{n}", n)
        wait_until(lambda: len(fetch(app, "select 1 from {}runs where state = 'done'")) == 10)
        fetch(app, "delete from {}runs where state = 'done'")
        sizes[count] = memory(fresh.pid)
        if count == 1_000:
            fresh.kill()
    assert sizes[99_000] < sizes[1_000] + 10, sizes
    sample = random.Random(1).sample(range(1000, 99_000), 100)
    usual = []  # how long this machine currently takes for a run without a wait
    for n in sample:
        assert app.emit(f"go 99000-{n}", n)
        beside = app.remote("bystander").enqueue("x")
        beside.result(timeout=60)
        info = beside.info()
        usual.append((info.finished_at - info.created_at).total_seconds())

    def woken():
        """Return how many are done and the longest time from event to end, in microseconds."""
        return fetch(
            app,
            "select count(*), max(r.finished_at - e.emitted_at) from {}runs r join {}events e"
            " on e.name = 'go ' || replace(replace(r.args, '{\"*\":[\"', ''), '\"]}', '') where r.state = 'done'",
        )[0]

    wait_until(lambda: woken()[0] == len(sample))
    assert 0 < woken()[1] / 1e6 < 1 + max(usual)
