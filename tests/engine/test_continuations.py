"""Work continues with the commit that makes it possible: no poll, no second transaction, no needless claim."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import Context, Done, Graph, Holdfast, Retry, State, SyncContext
from holdfast.client import results
from holdfast.database.faults import DataFault
from holdfast.engine.loops import claimer as claimer_module
from holdfast.engine.loops.claimer import Claimer, CommitClaim
from holdfast.store import command_batch
from holdfast.store.commands import SpawnCommand
from tests.support.statement_log import statements
from tests.support.wait_until import wait_until


@pytest.fixture
def job(app):
    @app.task(name="job")
    async def job(n: int) -> int:
        return n + 1

    return job


@pytest.fixture
def parent(app, job):
    @app.task(name="parent")
    async def parent(ctx: Context, count: int) -> list[int]:
        return [await ctx.call(job, n) for n in range(count)]

    return parent


class Walk(State):
    """Moves until `left` is zero."""

    left: int

    async def run(self, ctx: Context) -> Walk | Done[str]:
        return Walk(left=self.left - 1) if self.left else Done("arrived")


@pytest.fixture
def commits_wait_for_the_claimer(monkeypatch):
    """Let commits claim always. Usually they don't if the claimer is claiming at that moment."""
    begin = Claimer.begin_commit_claim

    def begin_when_free(self, session, wait_s=0.0):
        found = []
        wait_until(lambda: found.append(begin(self, session, wait_s)) or (found[-1] is not None and found[-1].max_runs))
        return found[-1]

    monkeypatch.setattr(Claimer, "begin_commit_claim", begin_when_free)


@pytest.fixture
def no_claims_of_the_claimer(app, monkeypatch, commits_wait_for_the_claimer):
    """Let the claimer claim until it has started the first run; then only commits claim."""
    first = threading.Event()
    claim = app.store.claims.claim

    def once(session, lanes, wanted):
        if first.is_set():
            return []
        claims = claim(session, lanes, 1)
        if claims:
            first.set()
        return claims

    monkeypatch.setattr(app.store.claims, "claim", once)
    monkeypatch.setattr(app.store.claims, "has_ready", lambda lanes: False)


def test_children_are_claimed_by_the_commit_that_spawns_them(app, parent, job, no_claims_of_the_claimer):
    job.options(delay=3600).enqueue(0)  # so that the worker knows the lane before it starts
    with app.worker():
        assert parent.enqueue(5).result(timeout=30) == [1, 2, 3, 4, 5]


def test_a_machine_is_claimed_by_the_commit_of_its_move(app, no_claims_of_the_claimer):
    machine = app.machine("walk", Walk)
    with app.worker():
        assert machine.enqueue(Walk(left=10)).result(timeout=30) == "arrived"


def test_nodes_are_claimed_by_the_commit_that_releases_them(app, job, no_claims_of_the_claimer):
    graph = Graph("chain")
    last = graph.add(job, 0, name="n0")
    for n in range(1, 6):
        last = graph.add(job, n, name=f"n{n}", after=[last])
    with app.worker():
        assert app.submit(graph).result(timeout=30)["n5"] == 6


# Claims in the commit of a client


@pytest.fixture
def unclaiming_worker(app, job, monkeypatch, commits_wait_for_the_claimer):
    """Start a worker whose claimer claims nothing; then only clients of this process claim."""
    job.options(delay=3600).enqueue(0)  # so that the worker knows the lane before it starts
    monkeypatch.setattr(claimer_module, "POLL_INTERVAL_S", 3600.0)
    worker = app.worker(concurrency=3)
    with worker:
        wait_until(lambda: worker._components.claimer._idle_session is not None)
        monkeypatch.setattr(app.store.claims, "claim", lambda *_: [])
        yield worker


def test_a_run_is_claimed_by_the_commit_that_enqueues_it(app, job, unclaiming_worker, monkeypatch):
    names = statements(app, monkeypatch)
    assert [run.result(timeout=60) for run in job.enqueue_many([(1,), (2,)])] == [2, 3]
    assert names.count("claim") == 1
    assert "mark_idle" not in names, "no worker had to be woken"


@pytest.fixture
def ends_when_awaited(app, unclaiming_worker, monkeypatch):
    """Create a task that ends when a caller waits for its result; callers rely on the worker longer than usual."""
    is_awaited = threading.Event()
    sleep, poll_once = results.WaitingThread._sleep, results.LoopPoller._poll_once

    def sleep_awaited(self, pause):
        is_awaited.set()
        sleep(self, pause)

    async def poll_awaited(self):
        try:
            return await poll_once(self)
        finally:
            is_awaited.set()

    monkeypatch.setattr(results.WaitingThread, "_sleep", sleep_awaited)
    monkeypatch.setattr(results.LoopPoller, "_poll_once", poll_awaited)
    monkeypatch.setattr(results, "LISTEN_FROM_S", 3600.0)

    @app.task(name="awaited")
    def awaited(n: int) -> int:
        is_awaited.wait(60)
        return n + 1

    awaited.options(delay=3600).enqueue(0)
    unclaiming_worker._components.lanes.refresh()
    return awaited


def statements_of_a_run(names: list[str]) -> list[str]:
    kinds = ("add_runs", "add_new_runs", "pick_claimable", "claim", "end_attempts", "read_outcome", "read_outcomes")
    return [name for name in names if name in kinds]


RESULT = {
    "sqlite": ["add_runs", "pick_claimable", "claim", "end_attempts"],
    "postgres": ["add_new_runs", "claim", "end_attempts"],
}


def test_a_result_in_the_same_process_takes_no_read(app, ends_when_awaited, monkeypatch):
    names = statements(app, monkeypatch)
    assert ends_when_awaited.enqueue(1).result(timeout=60) == 2
    assert statements_of_a_run(names) == RESULT[app.store.database.dialect.name]


async def test_a_result_for_a_coroutine_takes_no_read(app, ends_when_awaited, monkeypatch):
    names = statements(app, monkeypatch)
    assert await (await ends_when_awaited.aenqueue(1)).aresult(timeout=60) == 2
    assert statements_of_a_run(names) == RESULT[app.store.database.dialect.name]


def test_ends_of_children_make_a_waiting_client_read_nothing(postgres_url, monkeypatch):
    """It is registered for ends in other processes; its own worker doesn't notify it."""
    with Holdfast(postgres_url) as app, ThreadPoolExecutor(1) as threads:

        @app.task(name="job")
        async def job(n: int) -> int:
            return n

        @app.task(name="parent")
        async def parent(ctx: Context) -> int:
            await ctx.wait_for("go")
            return sum([await ctx.call(job, n) for n in range(5)])

        # Nothing but a notification makes the client read.
        monkeypatch.setattr(results, "MAX_POLL_INTERVAL_S", 3600.0)
        monkeypatch.setattr(results, "MAX_POLL_INTERVAL_LISTENING_S", 3600.0)
        monkeypatch.setattr(results, "BACKOFF_FACTOR", 10_000.0)
        names = statements(app, monkeypatch)
        with app.worker():
            run = parent.enqueue()
            result = threads.submit(run.result, 3000)
            wait_until(lambda: app.store._context.watcher is not None and "read_outcomes" in names)
            wait_until(lambda: run.info().state == "waiting")
            names.clear()
            app.emit("go")
            assert result.result(60) == 10
        assert names.count("end_tree_attempts") >= 5
        assert "read_outcomes" not in names


async def test_a_run_is_claimed_by_the_commit_of_a_coroutine(job, unclaiming_worker):
    assert await (await job.aenqueue(1)).aresult(timeout=60) == 2


def test_a_suspended_function_is_claimed_by_the_commit_of_the_event(app, unclaiming_worker):
    @app.task(name="waits")
    async def waits(ctx: Context) -> str:
        return str(await ctx.wait_for("go"))

    waits.options(delay=3600).enqueue()
    unclaiming_worker._components.lanes.refresh()
    run = waits.enqueue()
    wait_until(lambda: run.info().state == "waiting")
    app.emit("go", "now")
    assert run.result(timeout=60) == "now"


def test_a_client_does_not_overtake_runs_that_were_ready_before(app, unclaiming_worker, monkeypatch):
    released = threading.Event()

    @app.task(name="blocked")
    def blocked(n: int) -> int:
        released.wait(60)
        return n + 1

    blocked.options(delay=3600).enqueue(0)
    unclaiming_worker._components.lanes.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(Claimer, "begin_commit_claim", lambda *_, **__: None)
        older = [blocked.enqueue(n) for n in range(2)]
    newer = blocked.enqueue(2)
    states = [run.info().state for run in (*older, newer)]
    released.set()
    assert states == ["running", "running", "ready"], "its commit claims the older ones, as many as it may"
    assert [run.result(timeout=60) for run in older] == [1, 2]


def test_an_enqueue_that_fails_claims_nothing(app, job, unclaiming_worker, monkeypatch):
    claimer = unclaiming_worker._components.claimer
    monkeypatch.setattr(CommitClaim, "__call__", lambda self, tx: tx.execute("no such statement"))
    with pytest.raises(LookupError):
        job.enqueue(2)
    wait_until(lambda: not claimer._claiming.locked())
    assert len(unclaiming_worker._components.state) == 0


def test_a_transaction_of_the_user_claims_nothing(tmp_path):
    app = Holdfast(f"sqlite:///{tmp_path}/store.db")

    @app.task(name="job")
    async def job() -> None: ...

    with app, app.worker():
        with app.transaction():
            run = job.enqueue()
            assert app.store._context.client_claim() is None
        run.result(timeout=60)


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
def test_only_the_claimer_claims_runs_with_limits(app, parent, monkeypatch, limited):
    app.limit("one", concurrency=1)

    @app.task(name="other", limits=["one"] if limited else [])
    async def other() -> None: ...

    other.enqueue()
    begun = []
    begin = Claimer.begin_commit_claim
    monkeypatch.setattr(
        Claimer, "begin_commit_claim", lambda *given, **more: begun.append(found := begin(*given, **more)) or found
    )
    with app.worker():
        parent.enqueue(3).result(timeout=30)
    assert begun
    assert limited == all(each is None for each in begun)


def test_a_commit_does_not_overtake_runs_that_were_ready_before(app, job):
    worker = app.worker(concurrency=1)
    components = worker._components
    older, newer = job.enqueue(1), job.enqueue(2)
    components.heartbeat.tick()
    components.lanes.refresh()
    claim = CommitClaim(app.store, components.state.session, components.lanes.tasks, max_runs=1)

    def work(tx):
        tx.ready_runs = 1  # the newer one
        claim(tx)

    app.store.claims._transaction("commit", work)
    assert [each.id for each in claim.claims()] == [str(older.id)]
    assert not claim.is_complete, "the newer one is left to the claimer"
    assert newer.info().state == "ready"


def test_a_transaction_that_is_rolled_back_claims_nothing(app, job):
    worker = app.worker()
    components = worker._components
    run = job.enqueue(1)
    components.heartbeat.tick()
    components.lanes.refresh()
    claim = CommitClaim(app.store, components.state.session, components.lanes.tasks, max_runs=8)

    def work(tx):
        tx.ready_runs = 1
        claim(tx)
        assert [each.id for each in claim.claims()] == [str(run.id)]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        app.store.claims._transaction("commit", work)
    assert run.info().state == "ready"


def test_a_child_in_the_same_worker_needs_no_registered_wait(app, parent, monkeypatch, commits_wait_for_the_claimer):
    with app.worker():
        parent.enqueue(1).result(timeout=30)
        names = statements(app, monkeypatch)
        assert parent.enqueue(3).result(timeout=30) == [1, 2, 3]
    assert "add_waits" not in names
    assert "read_children_page" not in names


def test_the_wait_for_a_local_child_is_registered_before_the_parent_is_suspended(app):
    @app.task(name="slow")
    async def slow(ctx: Context) -> str:
        return str(await ctx.wait_for("go"))

    @app.task(name="calls")
    async def calls(ctx: Context) -> str:
        return await ctx.call(slow)

    run = calls.enqueue()
    with app.worker():
        wait_until(lambda: run.info().state == "waiting")
    app.emit("go", "now")
    with app.worker():
        assert run.result(timeout=30) == "now"


def test_a_failed_local_child_fails_its_parent(app):
    @app.task(name="fails", retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("no")

    @app.task(name="catches")
    async def catches(ctx: Context) -> str:
        try:
            await ctx.call(fails)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing was raised"

    with app.worker():
        run = catches.enqueue()
        assert run.result(timeout=30).startswith("RunFailed: ")


def test_children_that_end_before_they_are_joined_are_joined_from_memory(app, job):
    @app.task(name="joins")
    async def joins(ctx: Context) -> list[int]:
        handles = [await ctx.spawn(job, n) for n in (1, 2)]
        await ctx.step(lambda: wait_until(lambda: all(run.info().state == "done" for run in handles)), name="wait")
        return [await ctx.join(handle) for handle in handles]

    with app.worker():
        assert joins.enqueue().result(timeout=30) == [2, 3]


def test_a_commit_of_steps_claims_nothing_and_wakes_nobody(app, monkeypatch):
    claims = []
    claim = app.store.claims.claim
    monkeypatch.setattr(app.store.claims, "claim", lambda *given: claims.append(1) or claim(*given))

    async def add(n: int) -> int:
        return n + 1

    @app.task(name="steps")
    async def steps(ctx: Context) -> int:
        n = 0
        for _ in range(50):
            n = await ctx.step(add, n)
        return n

    monkeypatch.setattr(claimer_module, "POLL_INTERVAL_S", 3600.0)
    with app.worker():
        assert steps.enqueue().result(timeout=30) == 50
    assert len(claims) < 20


@pytest.fixture
def no_polls(monkeypatch):
    monkeypatch.setattr(results, "FIRST_POLL_INTERVAL_S", 3600.0)
    monkeypatch.setattr(results, "MAX_POLL_INTERVAL_S", 3600.0)
    monkeypatch.setattr(results, "LISTEN_FROM_S", 7200.0)


def test_the_end_of_a_run_wakes_a_waiting_thread_of_the_same_process(app, job, no_polls):
    with app.worker():
        assert [job.enqueue(n).result(timeout=60) for n in range(3)] == [1, 2, 3]


async def test_the_end_of_a_run_wakes_a_waiting_coroutine_of_the_same_process(app, job, no_polls):
    async with app.worker():
        assert await (await job.aenqueue(1)).aresult(timeout=60) == 2


def test_the_end_of_a_graph_wakes_a_waiting_thread_of_the_same_process(app, job, no_polls):
    graph = Graph("small")
    graph.add(job, 1, name="a")
    with app.worker():
        assert app.submit(graph).result(timeout=60) == {"a": 2}


# Spawns ahead of their commits


def add_spawner(app, job, kind, body):
    """Add a durable function of either kind that spawns `count` children and then calls `body` with their ids."""
    if kind == "async":

        @app.task(name="spawner", retry=Retry(max_attempts=2, delay=0))
        async def spawner(ctx: Context, count: int) -> list[int]:
            runs = [await ctx.spawn(job, n) for n in range(count)]
            await ctx.step(body, [str(run.id) for run in runs], name="body")
            return [await ctx.join(run) for run in runs]

        return spawner

    @app.task(name="spawner", retry=Retry(max_attempts=2, delay=0))
    def sync_spawner(ctx: SyncContext, count: int) -> list[int]:
        runs = [ctx.spawn(job, n) for n in range(count)]
        ctx.step(body, [str(run.id) for run in runs], name="body")
        return [ctx.join(run) for run in runs]

    return sync_spawner


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_loop_of_spawns_is_committed_in_groups_and_before_the_next_step(app, job, monkeypatch, kind):
    existing = []

    def count_existing(ids: list[str]) -> int:
        existing.append(sum(app.store.outcomes.read(id) is not None for id in ids))
        return len(ids)

    names = statements(app, monkeypatch)
    with app.worker():
        assert add_spawner(app, job, kind, count_existing).enqueue(150).result(timeout=60) == [*range(1, 151)]
    assert existing == [150]
    assert names.count("add_children") < 40, "one commit per child would be 150"


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_spawn_that_cannot_be_written_fails_the_attempt_and_is_repeated(app, job, monkeypatch, kind):
    spawn, failed, reached = command_batch.CommandBatch._spawn, [], []

    def fail_once(self):
        if not failed and any(self._unanswered(SpawnCommand)):
            failed.append(True)
            raise DataFault("planted")
        spawn(self)

    monkeypatch.setattr(command_batch.CommandBatch, "_spawn", fail_once)
    with app.worker():
        run = add_spawner(app, job, kind, lambda ids: reached.append(len(ids))).enqueue(1)
        assert run.result(timeout=60) == [1]
    assert failed == [True]
    assert reached == [1], "no step started before the child was durable"
    assert [each.kind for each in run.history()] == ["enqueued", "started", "retrying", "started", "done"]
