"""Operations that contexts create for children, maps and independent runs, and what they reject."""

import inspect
from itertools import count
from uuid import UUID

import pytest

from holdfast.errors import BadArguments, ConfigError, TaskError
from holdfast.task import operations as op
from holdfast.task.context import Context
from holdfast.task.sync_context import SyncContext
from tests.support.contexts import DURABLE, PAY, REMOTE, RUN, Waits, apay, asking, pay


@pytest.fixture(params=[Context, SyncContext])
def ctx(request):
    return asking(request.param)


def test_a_spawn_operation_has_the_request_of_the_child(ctx):
    spawn = ctx.spawn(PAY.options(priority=3), 5, note="x")
    assert isinstance(spawn, op.Spawn)
    assert (spawn.request.task, spawn.request.args) == ("app.pay", '{"amount":5,"note":"x"}')
    assert spawn.request.options.priority == 3
    assert spawn.base == f"$spawn:app.pay-{spawn.digest}"


def test_durable_functions_and_remote_tasks_can_be_children(ctx):
    assert ctx.spawn(DURABLE, 5).request.args == '{"amount":5}'
    assert ctx.spawn(REMOTE, 5).request.args == '{"*":[5]}'


def test_spawn_returns_the_run(ctx):
    assert ctx.answer("spawn", PAY, 5) is RUN


def test_a_join_operation_has_the_run(ctx):
    assert ctx.join(RUN) == op.Join(UUID(int=1), "pay")


def test_a_call_is_a_spawn_and_a_join(ctx):
    assert ctx.answer("call", PAY, 5) == "answer"
    spawn, join = ctx.executor.asked
    assert (spawn.request.args, join) == ('{"amount":5}', op.Join(RUN.id, RUN.task))


def test_an_independent_run_may_have_a_key(ctx):
    enqueue = ctx.enqueue(PAY.options(key="k", unique="u"), 5)
    assert isinstance(enqueue, op.Enqueue)
    assert (enqueue.request.options.key, enqueue.request.options.unique) == ("k", "u")
    assert enqueue.base == f"$enqueue:app.pay-{enqueue.digest}"


def test_a_map_operation_has_a_request_per_item(ctx):
    asked = ctx.map(PAY, (n for n in (1, 2)), concurrency=2, errors="return")
    assert [request.args for request in asked.requests] == ['{"amount":1}', '{"amount":2}']
    assert (asked.task, asked.concurrency, asked.errors) == ("app.pay", 2, "return")
    assert ctx.map(PAY, []).requests == []


@pytest.mark.parametrize("verb", ["spawn", "call", "enqueue"])
def test_only_tasks_can_be_spawned_called_or_started(ctx, verb):
    with pytest.raises(TaskError, match=rf"ctx\.{verb} takes a task, not pay: decorate it with @app\.task, or"):
        getattr(ctx, verb)(pay, 5)
    with pytest.raises(TaskError, match=rf"ctx\.{verb} takes a task, not 'app\.pay'"):
        getattr(ctx, verb)("app.pay", 5)


def test_only_tasks_can_be_mapped(ctx):
    with pytest.raises(TaskError, match=r"ctx\.map takes a task, not pay"):
        ctx.map(pay, [5])


@pytest.mark.parametrize("verb", ["spawn", "call", "enqueue"])
def test_arguments_that_do_not_match_the_task_are_rejected(ctx, verb):
    with pytest.raises(BadArguments, match="Expected `int`"):
        getattr(ctx, verb)(PAY, "five")


@pytest.mark.parametrize(("verb", "what"), [("spawn", 5), ("call", 5), ("enqueue", 5), ("map", [5])])
def test_a_connection_option_is_rejected(ctx, verb, what):
    with pytest.raises(ConfigError, match=rf"ctx\.{verb}: remove connection="):
        getattr(ctx, verb)(PAY.options(connection=object()), what)


@pytest.mark.parametrize("option", ["key", "unique"])
@pytest.mark.parametrize(("verb", "what"), [("spawn", 5), ("call", 5), ("map", [5])])
def test_a_key_is_rejected_for_a_child(ctx, verb, what, option):
    with pytest.raises(TaskError, match=rf"ctx\.{verb}: remove option {option}.*ctx\.enqueue"):
        getattr(ctx, verb)(PAY.options(**{option: "x"}), what)


@pytest.mark.parametrize(
    ("items", "kwargs", "match"),
    [
        ("abc", {}, "takes a list of items, not str"),
        (5, {}, "takes a list of items, not int"),
        ({1, 2}, {}, "a set has a different order at every replay.*sorted"),
        ([1], {"concurrency": 0}, "must be at least 1, not 0"),
        ([1], {"concurrency": True}, "must be an int or None, not bool"),
        ([1], {"concurrency": "2"}, "must be an int or None, not str"),
        ([1], {"errors": "ignore"}, 'must be "raise" or "return"'),
    ],
)
def test_an_invalid_map_is_rejected(ctx, items, kwargs, match):
    with pytest.raises(ConfigError, match=match):
        ctx.map(PAY, items, **kwargs)


def test_an_endless_map_is_rejected(ctx):
    with pytest.raises(ConfigError, match=r"ctx\.map takes at most 100,000 items; pass batches"):
        ctx.map(PAY, count())


def test_an_invalid_item_is_named_by_its_index(ctx):
    with pytest.raises(BadArguments, match=r"item 1 of ctx\.map: task app\.pay"):
        ctx.map(PAY, [1, "two"])


def test_only_runs_can_be_joined(ctx):
    with pytest.raises(TaskError, match=r"ctx\.join takes a run returned by ctx\.spawn, not str"):
        ctx.join("run")
    call = apay(5)
    with pytest.raises(TaskError, match=r"write `run = await ctx\.spawn\(…\)` first"):
        ctx.join(call)
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED  # no "never awaited" warning follows


def test_a_call_that_is_never_awaited_performs_nothing():
    executor = Waits(DURABLE)
    Context(executor).call(PAY, 1).close()
    assert executor.asked == []
