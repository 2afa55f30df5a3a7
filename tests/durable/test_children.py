"""Children: call, spawn and join, map; how their ends reach the parent, and how its end reaches them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Context, Fatal, KeyConflict, Retry, RunCancelled, RunFailed, SyncContext
from holdfast.engine import services
from holdfast.engine.loops.committer import Committer
from holdfast.errors import ConfigError, StoreUnavailable, TaskError
from tests.support.durable import drain, kinds, state
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


@pytest.fixture
def child(app, ledger):
    """End as the argument says."""

    @app.task(name="child", retry=ONCE)
    async def child(what: str) -> dict[str, int]:
        ledger.write(what)
        if what.startswith("bad"):
            raise Fatal(what)
        return {what: len(what)}

    return child


@pytest.fixture
def waiter(app, ledger):
    """A durable child that waits for an event."""

    @app.task(name="waiter")
    async def waiter(ctx: Context, name: str) -> str:
        ledger.write("began", name)
        await ctx.wait_for(name)
        ledger.write("ended", name)
        return name

    return waiter


def children(app, run):
    return {info.id: info for info in app.runs(limit=1000) if info.parent == run.id}


def test_a_call_creates_a_child_once_and_returns_its_result(app, child, ledger):
    @app.task(name="parent")
    async def parent(ctx: Context) -> dict[str, int]:
        got = await ctx.call(child, "one")
        await ctx.wait_for("go")
        return got

    run = parent.options(tenant="acme").enqueue()
    drain(app)
    app.emit("go", tenant="acme")
    drain(app)
    assert run.result(timeout=5) == {"one": 3}
    assert ledger.lines() == ["one"]
    [info] = children(app, run).values()
    assert (info.parent, info.tenant, info.state) == (run.id, "acme", "done")


def test_a_replay_reads_the_ends_of_all_children_with_one_query(app, child, monkeypatch):
    """Not with a thread and a query for each of thousands of joins."""

    @app.task(name="parent")
    async def parent(ctx: Context) -> int:
        got = await asyncio.gather(*(ctx.call(child, f"c{number}") for number in range(40)))
        await ctx.wait_for("go")
        return len(got)

    run = parent.enqueue()
    drain(app)
    app.emit("go")
    reads = []
    for name in ("child_results", "spawned_results"):
        real = getattr(app.store.journal, name)

        def read(*given, name=name, real=real):
            reads.append(name)
            return real(*given)

        monkeypatch.setattr(app.store.journal, name, read)
    drain(app)
    assert run.result(timeout=5) == 40
    assert reads == ["spawned_results"]


def test_parent_child_and_grandchild_share_one_slot(app, child):
    @app.task(name="middle")
    async def middle(ctx: Context, depth: int) -> int:
        return 0 if depth == 0 else 1 + await ctx.call(middle, depth - 1)

    @app.task(name="parent")
    async def parent(ctx: Context) -> int:
        await ctx.call(child, "job")
        return await ctx.call(middle, 5)

    run = parent.enqueue()
    with app.worker(concurrency=1):
        assert run.result(timeout=30) == 5


def test_spawned_children_run_beside_the_parent_and_are_joined_in_any_order(app, waiter, ledger):
    @app.task(name="parent")
    async def parent(ctx: Context) -> list[str]:
        first, second = await ctx.spawn(waiter, "a"), await ctx.spawn(waiter, "b")
        return [await ctx.join(second), await ctx.join(first)]

    run = parent.enqueue()
    drain(app)
    assert sorted(ledger.lines()) == ["began a", "began b"]
    app.emit("a")
    drain(app)
    assert state(run) == "waiting"
    app.emit("b")
    drain(app)
    assert run.result(timeout=5) == ["b", "a"]
    assert [line for line in ledger.lines() if "ended" in line] == ["ended a", "ended b"]


def test_a_childs_failure_is_run_failed_with_its_id_and_error_live_and_on_replay(app, child, ledger):
    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        try:
            await ctx.call(child, "bad one")
        except RunFailed as failed:
            ledger.write("saw", failed.run_id, failed.error.code, failed.error.message)
        await ctx.wait_for("go")

    run = parent.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    [info] = children(app, run).values()
    assert ledger.lines() == ["bad one", *[f"saw {info.id} fatal bad one"] * 2]


def test_a_cancelled_child_is_run_cancelled_with_its_reason(app, waiter, ledger):
    @app.task(name="parent")
    async def parent(ctx: Context) -> str:
        made = await ctx.spawn(waiter, "a")
        try:
            return await ctx.join(made)
        except RunCancelled as cancelled:
            return f"{cancelled.run_id == made.id} {cancelled.reason}"

    run = parent.enqueue()
    drain(app)
    [info] = children(app, run).values()
    assert app.get_run(info.id).cancel("not needed")
    drain(app)
    assert run.result(timeout=5) == "True not needed"


def test_map_gives_results_in_the_order_of_its_items(app, child):
    @app.task(name="parent")
    async def parent(ctx: Context) -> list[dict[str, int]]:
        return await ctx.map(child, ["c", "a", "b", "a"]) + await ctx.map(child, [])

    run = parent.enqueue()
    drain(app)
    assert run.result(timeout=5) == [{"c": 1}, {"a": 1}, {"b": 1}, {"a": 1}]


def test_a_map_of_a_thousand_resumes_its_parent_once_and_keeps_its_concurrency(app, ledger):
    """The children count how many of them run at once."""
    lock = threading.Lock()
    now: list[int] = []
    most = 0

    @app.task(name="item")
    async def item(n: int) -> int:
        nonlocal most
        with lock:
            now.append(n)
            most = max(most, len(now))
        await asyncio.sleep(0)
        with lock:
            now.remove(n)
        return n * 2

    @app.task(name="parent")
    async def parent(ctx: Context) -> int:
        ledger.write("body")
        got = await ctx.map(item, range(1000), concurrency=5)
        assert got == [n * 2 for n in range(1000)]
        return len(got)

    run = parent.enqueue()
    drain(app, max_resident=0)
    assert run.result(timeout=5) == 1000
    assert len(ledger.lines()) == 2
    assert kinds(run) == ["enqueued", "started", "waiting", "resumed", "done"]
    assert 1 < most <= 5


def test_children_that_end_in_the_same_instant_resume_their_parent_once(app, ledger):
    """All of them wait for one event."""

    @app.task(name="item")
    async def item(ctx: Context, n: int) -> int:
        await ctx.wait_for("go")
        return n

    @app.task(name="parent")
    async def parent(ctx: Context) -> list[int]:
        ledger.write("body")
        return await ctx.map(item, range(50))

    run = parent.enqueue()
    drain(app)
    assert state(run) == "waiting"
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == list(range(50))
    assert len(ledger.lines()) == 2
    assert kinds(run) == ["enqueued", "started", "waiting", "resumed", "done"]


def test_map_with_errors_returned_has_run_failed_in_place_live_and_on_replay(app, child, ledger):
    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        got = await ctx.map(child, ["a", "bad 1", "b", "bad 2"], errors="return", concurrency=2)
        shown = [each.error.message if isinstance(each, RunFailed) else str(each) for each in got]
        ledger.write("saw", *shown)
        await ctx.wait_for("go")

    run = parent.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    assert ledger.lines()[4:] == ["saw {'a': 1} bad 1 {'b': 1} bad 2"] * 2


def test_map_with_errors_raised_ends_with_the_first_failure(app, child, waiter, ledger):
    @app.task(name="either")
    async def either(ctx: Context, what: str) -> None:
        await (ctx.call(child, what) if what.startswith("bad") else ctx.call(waiter, what))

    @app.task(name="parent", retry=ONCE)
    async def parent(ctx: Context) -> str:
        try:
            await ctx.map(either.options(retry=ONCE), ["never", "bad", "never too"])
        except RunFailed as failed:
            return failed.error.type
        return ""

    run = parent.enqueue()
    drain(app)
    assert "RunFailed" in run.result(timeout=5)
    assert "ended never" not in ledger.lines()


def test_a_parent_that_fails_cancels_its_unfinished_children_and_theirs(app, waiter, child, effects, ledger):
    @app.task(name="middle")
    async def middle(ctx: Context) -> str:
        return await ctx.call(waiter, "leaf")

    @app.task(name="parent", retry=ONCE)
    async def parent(ctx: Context) -> None:
        await ctx.call(child, "finished")
        await ctx.spawn(middle)
        await ctx.wait_for("fail")
        raise ValueError("enough")

    run = parent.enqueue()
    drain(app)
    assert "began leaf" in ledger.lines()
    app.emit("fail")
    drain(app)
    assert state(run) == "failed"
    states = {info.task: info.state for info in app.runs()}
    assert states == {"parent": "failed", "child": "done", "middle": "cancelled", "waiter": "cancelled"}
    app.emit("leaf")
    drain(app)
    assert "ended leaf" not in ledger.lines()


@pytest.mark.parametrize("how", ["waiting", "blocked in map"])
def test_cancel_while_waiting_ends_the_children_too_and_no_later_step_runs(app, waiter, effects, ledger, how):
    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        await (ctx.map(waiter, ["a", "b"], concurrency=1) if how != "waiting" else ctx.call(waiter, "a"))
        await ctx.step(effects.note, "later")

    run = parent.enqueue()
    drain(app)
    assert run.cancel("stop")
    assert {info.state for info in app.runs()} == {"cancelled"}
    app.emit("a")
    app.emit("b")
    drain(app)
    assert ledger.lines() == ["began a"]
    assert kinds(run)[-1] == "cancelled"


def test_a_parent_that_is_done_leaves_unjoined_children_running(app, waiter, ledger):
    @app.task(name="parent")
    async def parent(ctx: Context) -> str:
        return str((await ctx.spawn(waiter, "a")).id)

    run = parent.enqueue()
    drain(app)
    made = app.get_run(run.result(timeout=5))
    assert state(made) == "waiting"
    app.emit("a")
    drain(app)
    assert made.result(timeout=5) == "a"


def test_enqueue_makes_an_independent_run_once(app, waiter, ledger):
    @app.task(name="parent", retry=ONCE)
    async def parent(ctx: Context) -> None:
        made = await ctx.enqueue(waiter, "a")
        ledger.write("made", made.id)
        await ctx.wait_for("go")
        raise ValueError("fails")

    run = parent.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert state(run) == "failed"
    first, again = [line.split()[1] for line in ledger.lines() if line.startswith("made")]
    assert first == again
    assert (app.get_run(first).info().parent, state(app.get_run(first))) == (None, "waiting")
    assert fetch(app, "select count(*) from {}runs") == [(2,)]


def test_enqueue_with_a_key_finds_the_run_that_has_it_and_a_conflict_reaches_user_code(app, child):
    @app.task(name="parent")
    async def parent(ctx: Context) -> list[str]:
        keyed = child.options(key="order-1")
        same = await ctx.enqueue(keyed, "one")
        try:
            await ctx.enqueue(keyed, "two")
        except KeyConflict as conflict:
            return [str(same.id), str(conflict.run_id)]
        return []

    known = child.options(key="order-1").enqueue("one")
    run = parent.enqueue()
    drain(app)
    assert run.result(timeout=5) == [str(known.id)] * 2


def test_plain_enqueue_in_the_body_is_refused_and_inside_a_step_it_works(app, child, ledger):
    def enqueue() -> str:
        return str(child.enqueue("inside").id)

    @app.task(name="parent", retry=ONCE)
    async def parent(ctx: Context) -> list[str]:
        refused = []
        for attempt in (child.aenqueue, lambda what: asyncio.to_thread(child.enqueue, what)):
            try:
                await attempt("body")
            except TaskError as error:
                refused.append(str(error))
        await ctx.step(enqueue, name="enqueue")
        return refused

    run = parent.enqueue()
    drain(app)
    refused = run.result(timeout=5)
    assert len(refused) == 2
    assert all("ctx.enqueue" in text and "ctx.spawn" in text for text in refused)
    assert ledger.lines() == ["inside"]


def test_only_what_was_spawned_here_can_be_joined_and_children_take_no_key(app, child):
    @app.task(name="parent")
    async def parent(ctx: Context) -> int:
        independent = await ctx.enqueue(child, "x")
        with pytest.raises(TaskError, match="spawn"):
            await ctx.join(independent)
        with pytest.raises(TaskError, match="key"):
            await ctx.call(child.options(key="k"), "x")
        with pytest.raises(ConfigError, match="sorted"):
            await ctx.map(child, {"a", "b"})
        return 1

    run = parent.enqueue()
    drain(app)
    assert run.result(timeout=5) == 1


def test_children_wait_in_the_queue_for_a_worker_that_knows_them(app, make_app):
    @app.task(name="parent")
    async def parent(ctx: Context) -> int:
        return await ctx.call(app.remote("far"), 20)

    run = parent.enqueue()
    drain(app)
    assert state(run) == "waiting"
    other = make_app()

    @other.task(name="far")
    def far(n: int) -> int:
        return n + 1

    drain(other)
    with app.worker():
        wait_until(lambda: state(run) == "done")
    assert run.result(timeout=5) == 21


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_reading_a_childs_end_waits_for_an_unavailable_database(app, child, ledger, monkeypatch, plain):
    """User code must not mistake the outage for the child's failure: a replay would show it another end."""

    async def on_the_loop(ctx: Context) -> dict[str, int]:
        ledger.write("began")
        return await ctx.call(child, "one")

    def in_a_thread(ctx: SyncContext) -> dict[str, int]:
        ledger.write("began")
        return ctx.call(child, "one")

    parent = app.task(name="parent", retry=ONCE)(in_a_thread if plain else on_the_loop)
    monkeypatch.setattr(services, "FIRST_RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(Committer, "_report_to_parent", lambda *_: None)  # as if another worker had run the child
    troubles = iter([StoreUnavailable("away")] * 3)
    for name in ("child_results", "spawned_results"):
        real = getattr(app.store.journal, name)

        def read(*given, real=real):
            if trouble := next(troubles, None):
                raise trouble
            return real(*given)

        monkeypatch.setattr(app.store.journal, name, read)
    run = parent.enqueue()
    with app.worker():
        assert run.result(timeout=30) == {"one": 3}
    assert next(troubles, None) is None, "it was in trouble"
    assert run.info().attempt == 1
