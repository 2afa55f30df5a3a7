"""Flow control as applications use it: debounced calls."""

from __future__ import annotations

import pytest

from holdfast import Context, Holdfast
from holdfast.control import Control
from holdfast.errors import ConfigError, GraphError
from holdfast.task.graph import Graph


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
