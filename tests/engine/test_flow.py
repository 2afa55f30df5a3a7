"""Flow control as applications use it: debounced calls, and runs whose unique name is taken."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Holdfast, RunCancelled
from holdfast.control import Control
from holdfast.errors import ConfigError, GraphError
from holdfast.task.graph import Graph
from tests.support.wait_until import wait_until

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def index(timed_app: Holdfast):
    @timed_app.task(name="index")
    async def index(text: str) -> str:
        return text

    return index


def test_debounced_calls_run_once_with_the_newest_arguments(timed_app, index, clock):
    often = index.options(debounce="user-7", delay=5, max_delay=60)
    first = often.enqueue("draft")
    clock.forward(4)
    second = often.enqueue("final")
    assert (second, first.created, second.created) == (first, True, False)
    assert timed_app.worker().drain() == 0
    why = Control(timed_app.store).whys.why(first.id)
    assert [reason.code for reason in why.reasons] == ["debounce"]
    clock.forward(5)
    assert timed_app.worker().drain() == 1
    assert first.result() == "final"
    assert often.enqueue("next") != first


def test_a_durable_function_enqueues_debounced_runs(timed_app, index, clock):
    @timed_app.task(name="edit")
    async def edit(ctx: Context, text: str) -> str:
        run = await ctx.enqueue(index.options(debounce="doc", delay=5), text)
        return str(run.id)

    first, second = edit.enqueue("draft"), edit.enqueue("final")
    timed_app.worker().drain()
    assert first.result() == second.result()
    clock.forward(5)
    timed_app.worker().drain()
    assert timed_app.get_run(first.result()).result() == "final"


def test_a_run_that_is_queued_behind_another_starts_when_that_has_ended(timed_app, index):
    first = index.options(unique="crm").enqueue("first")
    second = index.options(unique="crm", if_taken="queue").enqueue("second")
    assert (second != first, second.created) == (True, True)
    (reason,) = Control(timed_app.store).whys.why(second.id).reasons
    assert (reason.code, reason.data["run"]) == ("queued", str(first.id))
    assert timed_app.worker().drain() == 2
    assert (first.result(), second.result()) == ("first", "second")


def test_a_running_function_is_cancelled_and_its_successor_starts_when_its_code_has_stopped(app):
    ran: list[str] = []

    @app.task(name="sync")
    async def sync(name: str) -> str:
        ran.append(f"begin {name}")
        try:
            await asyncio.sleep(3600 if name == "first" else 0)
        finally:
            ran.append(f"end {name}")
        return name

    with app.worker():
        first = sync.options(unique="crm", if_taken="cancel").enqueue("first")
        wait_until(lambda: ran)
        second = sync.options(unique="crm", if_taken="cancel").enqueue("second")
        assert second.result(timeout=30) == "second"
    assert first.info().state == "cancelled"
    assert ran == ["begin first", "end first", "begin second", "end second"]


def test_a_function_that_replaces_its_own_run_ends(app):
    @app.task(name="again")
    async def again(ctx: Context, last: bool) -> str:
        if not last:
            await ctx.enqueue(again.options(unique="x", if_taken="cancel"), True)
        return "done"

    first = again.options(unique="x").enqueue(False)
    app.worker().drain(timeout=60)
    assert first.info().state == "cancelled"
    assert [run.state for run in app.runs()] == ["done", "cancelled"]


def test_a_run_that_no_worker_starts_in_time_is_cancelled(timed_app, index, clock):
    late = index.options(start_by=5).enqueue("late")
    other = index.options(start_by=timedelta(minutes=1)).enqueue("other")
    clock.forward(5)
    assert timed_app.worker().drain() == 1
    with pytest.raises(RunCancelled, match="not started in time"):
        late.result()
    assert other.result() == "other"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_ttl": 5}, "needs key="),
        ({"start_by": 0}, "must be greater than 0"),
        ({"start_by": 5, "delay": 5}, "start_by must be later than delay"),
        ({"start_by": NOON, "run_at": NOON + timedelta(hours=1)}, "start_by must be later than run_at"),
        ({"if_taken": "queue"}, "needs unique="),
        ({"unique": "x", "if_taken": "wait"}, "must be one of 'return', 'queue', 'replace', 'cancel'"),
        ({"debounce": "x"}, "needs delay="),
        ({"debounce": "x", "delay": 0}, "needs delay="),
        ({"debounce": "x", "delay": 5, "max_delay": 4}, "must not be less than delay"),
        ({"delay": 5, "max_delay": 6}, "needs debounce="),
        ({"debounce": "x", "delay": 5, "unique": "x"}, "mutually exclusive"),
        ({"debounce": "", "delay": 5}, "option debounce"),
    ],
)
def test_options_that_contradict_each_other_are_refused(index, options, message):
    with pytest.raises(ConfigError, match=message):
        index.options(**options)


def test_debounce_is_refused_where_each_call_has_its_own_run(timed_app, index):
    often = index.options(debounce="x", delay=5)
    with pytest.raises(ConfigError, match="can't use one debounce for 2 runs"):
        often.enqueue_many([("a",), ("b",)])
    with pytest.raises(GraphError, match="option debounce"):
        Graph("g").add(often, "a")
    with pytest.raises(ConfigError, match="remove option debounce"):
        timed_app.schedule("often", often, cron="@daily", args=("a",))

    @timed_app.task(name="parent")
    async def parent(ctx: Context) -> str:
        return await ctx.call(often, "a")

    run = parent.enqueue()
    timed_app.worker().drain()
    assert "remove option debounce" in str(run.info().error)
