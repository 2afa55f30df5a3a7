"""Which operation each method of a context creates, and what both contexts reject.

A fake executor that only records operations replaces the engine.
"""

import asyncio
import functools
import inspect
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast.errors import BadArguments, ConfigError, NotSerializable, PayloadError, TaskError
from holdfast.model.clock import MICROS_PER_SECOND, time_to_micros
from holdfast.model.retry import Retry
from holdfast.task import operations as op
from holdfast.task.context import Context
from holdfast.task.operation_factory import NO_ARGUMENTS, arguments_digest
from holdfast.task.sync_context import SyncContext
from tests.support.contexts import DURABLE, NOON, PAY, REMOTE, RUN, Recorder, apay, asking, pay


def insert(connection, amount):
    return amount


def needs_name(name):
    return name


def fetch(url, timeout=3):
    return url


class Till:
    def close(self):
        return 1

    def __call__(self):
        return 1


class Drawer(Till):
    def close(self):
        return super().close()


def decorate(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


@decorate
def decorated(amount):
    return amount


@pytest.fixture(params=[Context, SyncContext])
def ctx(request):
    return asking(request.param)


# Steps


def test_a_step_operation_has_the_function_and_its_arguments(ctx):
    step = ctx.step(pay, 5, note="x")
    assert (step.name, step.fn, step.args, step.kwargs) == ("pay", pay, (5,), {"note": "x"})
    assert (step.retry, step.timeout, step.undo, step.raises) == (None, None, None, ())
    assert step.base == f"pay-{arguments_digest('pay', (5,), {'note': 'x'})}"


def test_a_step_returns_the_answer_of_the_engine(ctx):
    assert ctx.answer("step", pay, 5) == "answer"


def test_a_step_without_arguments_has_the_digest_of_no_arguments(ctx):
    assert ctx.step(Till).base == f"Till-{NO_ARGUMENTS}"


def test_step_options_are_not_passed_to_the_function(ctx):
    step = ctx.step(pay, 5, name="buy", retry=Retry(2), timeout=timedelta(seconds=3), undo=print, note="x")
    assert (step.name, step.kwargs) == ("buy", {"note": "x"})
    assert (step.retry, step.timeout, step.undo) == (Retry(2), 3 * MICROS_PER_SECOND, print)


def test_with_options_all_step_arguments_are_passed_to_the_function(ctx):
    given = ctx.context.options(name="buy", retry=Retry(2), timeout=3, undo=print, raises=(OSError, KeyError))
    ctx.settle(given.step(needs_name, name="Ada"))
    step = ctx.executor.asked.pop()
    assert (step.name, step.kwargs) == ("buy", {"name": "Ada"})
    assert (step.retry, step.timeout, step.undo, step.raises) == (
        Retry(2),
        3 * MICROS_PER_SECOND,
        print,
        (OSError, KeyError),
    )


def test_only_steps_accept_options(ctx):
    assert [verb for verb in dir(ctx.context.options()) if not verb.startswith("_")] == ["step"]


def test_raises_accepts_a_single_class(ctx):
    ctx.settle(ctx.context.options(raises=OSError).step(pay, 1))
    assert ctx.executor.asked.pop().raises == (OSError,)


def test_an_error_mentions_an_argument_that_is_named_like_an_option(ctx):
    with pytest.raises(TaskError, match=r"name= is a step option, but needs_name needs.*ctx\.options"):
        ctx.step(needs_name, name="Ada")
    assert ctx.step(needs_name, "Ada", name="hello").args == ("Ada",)
    assert ctx.step(fetch, "u", timeout=9).timeout == 9 * MICROS_PER_SECOND


@pytest.mark.parametrize(
    ("fn", "args", "name"),
    [
        (pay, (1,), "pay"),
        (decorated, (1,), "decorated"),
        (len, ("ab",), "len"),
        (Till, (), "Till"),
    ],
)
def test_a_step_is_named_after_its_function(ctx, fn, args, name):
    assert ctx.step(fn, *args).name == name


def closure():
    captured = 5
    return lambda: captured


def inner():
    captured = 5

    def nested():
        return captured

    return nested


NAMED_PARTIAL = functools.update_wrapper(functools.partial(pay, 1), pay)


@pytest.mark.parametrize(
    "fn", [lambda: 1, closure(), inner(), decorate(pay), functools.partial(pay, 1), NAMED_PARTIAL, Till()]
)
def test_a_function_without_a_stable_name_needs_an_explicit_one(ctx, fn):
    for verb in (ctx.step, ctx.transaction):
        with pytest.raises(TaskError, match=r"ctx\.\w+: .*name=.*captured values .* are not part of that"):
            verb(fn)
        assert verb(fn, name="mine").name == "mine"
        assert verb(fn, name="mine").fn is fn


@pytest.mark.parametrize("fn", [Till().close, Drawer().close, "abc".upper, [].append])
def test_a_bound_method_needs_a_name_because_its_object_is_not_part_of_the_identity(ctx, fn):
    name = fn.__name__
    for verb in (ctx.step, ctx.transaction):
        with pytest.raises(TaskError, match=rf'{name} is a method of a \w+ object: set name="{name}"'):
            verb(fn)
        assert verb(fn, name=name).name == name


def test_methods_of_classes_and_functions_of_modules_need_no_name(ctx):
    class Local(Till):
        @classmethod
        def count(cls):
            return super().__name__

        @staticmethod
        def fixed():
            return 1

    assert ctx.step(Local.count).name == "count"
    assert ctx.step(Local.fixed).name == "fixed"
    assert ctx.step(len, "ab").name == "len"
    assert ctx.step(str.upper, "ab").name == "upper"


def test_a_transaction_refuses_a_name_for_a_function_with_a_parameter_of_that_name(ctx):
    def insert_named(connection, name):
        return name

    with pytest.raises(TaskError, match=r"name= names the transaction, but .*insert_named has a parameter"):
        ctx.transaction(insert_named, name="Ada")
    assert ctx.transaction(insert_named, "Ada").args == ("Ada",)


def test_a_transaction_refuses_options_of_steps(ctx):
    def insert(connection, amount):
        return amount

    def insert_later(connection, timeout):
        return timeout

    with pytest.raises(TaskError, match=r"ctx\.transaction has no undo=: register a compensation with ctx\.undo"):
        ctx.transaction(insert, 5, undo=insert)
    with pytest.raises(TaskError, match=r"ctx\.transaction has no retry=: only steps have it"):
        ctx.transaction(insert, 5, retry=Retry())
    assert ctx.transaction(insert_later, timeout=5).kwargs == {"timeout": 5}


@pytest.mark.parametrize("name", ["$sleep", "", "a\nb", "x" * 201, 5])
def test_an_invalid_step_name_is_rejected(ctx, name):
    with pytest.raises(ConfigError, match="the name of a step"):
        ctx.step(pay, 1, name=name)
    with pytest.raises(ConfigError, match="the name of a step"):
        ctx.context.options(name=name)


def test_a_job_passed_as_a_step_is_called_as_a_plain_function(ctx):
    step = ctx.step(PAY, 5)
    assert (step.name, step.fn) == ("pay", pay)


def test_a_durable_function_is_rejected_as_a_step(ctx):
    with pytest.raises(TaskError, match=r"app\.durable is a durable function.*ctx\.call"):
        ctx.step(DURABLE, 5)


def test_a_remote_task_is_rejected_as_a_step(ctx):
    with pytest.raises(TaskError, match=r"far is in another application.*ctx\.call"):
        ctx.step(REMOTE, 5)


def test_a_coroutine_in_place_of_a_function_is_rejected(ctx):
    call = apay(5)
    with pytest.raises(TaskError, match=r"not a coroutine: write ctx\.step\(apay, …\)"):
        ctx.step(call)
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED  # no "never awaited" warning follows
    with pytest.raises(TaskError, match="takes a function and its arguments, not str"):
        ctx.step(pay(5))


def test_a_generator_function_is_rejected_as_a_step(ctx):
    def items():
        yield 1

    with pytest.raises(TaskError, match="items is a generator function: return a list"):
        ctx.step(items)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"retry": 3}, "the retry of a step must be a Retry"),
        ({"timeout": 0}, "the timeout of a step must be greater than 0"),
        ({"timeout": "1"}, "the timeout of a step must be a timedelta"),
        ({"raises": (5,)}, "raises= takes exception classes"),
        ({"raises": KeyboardInterrupt}, "raises= takes exception classes"),
    ],
)
def test_invalid_step_options_are_rejected(ctx, options, match):
    with pytest.raises(ConfigError, match=match):
        ctx.context.options(**options)


def test_an_uncallable_undo_is_rejected(ctx):
    with pytest.raises(TaskError, match=r"ctx\.step: undo takes a function"):
        ctx.step(pay, 1, undo="pay")
    with pytest.raises(TaskError, match=r"ctx\.step: undo: app\.durable is a durable function"):
        ctx.step(pay, 1, undo=DURABLE)
    assert ctx.step(pay, 1, undo=PAY).undo is pay


def test_unserializable_step_arguments_are_rejected_with_advice(ctx):
    with pytest.raises(NotSerializable, match=r"the arguments of step pay: .*pass plain values.*name="):
        ctx.step(pay, object())


def test_the_async_context_accepts_async_functions():
    ctx = asking(Context)
    assert ctx.step(apay, 5).fn is apay
    assert ctx.undo(apay, 5).fn is apay
    assert ctx.step(pay, 5, undo=apay).undo is apay


class AsyncCaller:
    async def __call__(self): ...


@pytest.mark.parametrize("fn", [apay, functools.partial(apay, 1), AsyncCaller()])
def test_the_sync_context_rejects_async_functions(fn):
    ctx = asking(SyncContext)
    with pytest.raises(TaskError, match=r"is an async def: write it as a plain def"):
        ctx.step(fn, name="mine")
    with pytest.raises(TaskError, match=r"ctx\.step: undo: .*is an async def"):
        ctx.step(pay, 1, undo=fn)


def test_the_sync_context_rejects_an_async_compensation():
    with pytest.raises(TaskError, match=r"ctx\.undo: apay is an async def"):
        asking(SyncContext).undo(apay, 1)


# Compensations and transactions


def test_an_undo_operation_has_the_function_and_its_arguments(ctx):
    undo = ctx.undo(pay, 5, note="x")
    assert (undo.name, undo.args, undo.kwargs) == ("pay", (5,), {"note": "x"})
    assert undo.base == f"$undo:pay-{arguments_digest('pay', (5,), {'note': 'x'})}"


def test_a_transaction_operation_has_the_function_and_the_arguments_after_the_connection(ctx):
    transaction = ctx.transaction(insert, amount=5)
    assert (transaction.name, transaction.fn) == ("insert", insert)
    assert (transaction.args, transaction.kwargs) == ((), {"amount": 5})


def test_an_async_transaction_function_is_rejected(ctx):
    with pytest.raises(TaskError, match=r"ctx\.transaction: apay is an async def: .*plain def"):
        ctx.transaction(apay, 5)


def test_a_function_needs_a_name_where_none_can_be_passed(ctx):
    with pytest.raises(TaskError, match=r"ctx\.undo: a lambda has no name: write it as a def"):
        ctx.undo(lambda: 1)
    assert ctx.undo(inner()).name == "nested"


# Waiting


def test_sleeps_are_identified_by_name_not_by_duration(ctx):
    assert ctx.sleep(1.5) == op.Sleep(delay=1_500_000)
    assert ctx.sleep(timedelta(hours=1), name="nap") == op.Sleep("nap", delay=3600 * MICROS_PER_SECOND)
    assert ctx.sleep_until(NOON, "nap") == op.Sleep("nap", until=time_to_micros(NOON))
    assert ctx.sleep(1).base == ctx.sleep(2).base == "$sleep"


def test_wait_operations_have_their_target(ctx):
    assert ctx.wait_for("paid") == op.WaitFor("paid")
    assert ctx.wait_for("paid", 60, type=int | None) == op.WaitFor("paid", 60 * MICROS_PER_SECOND, int | None)
    assert ctx.receive("note", timeout=0) == op.Receive("note", 0)
    assert ctx.receive("note", type=list[Any]) == op.Receive("note", None, list[Any])
    assert ctx.wait_for("paid", type=Any).type is None


def test_an_emitted_event_has_its_payload_as_json(ctx):
    assert ctx.emit("paid") == op.Emit("paid", "null")
    assert ctx.emit("paid", {"at": NOON}) == op.Emit("paid", '{"at":"2026-01-02T12:00:00Z"}')


@pytest.mark.parametrize(
    ("verb", "args", "kwargs", "match"),
    [
        ("sleep", (-1,), {}, r"the duration of ctx\.sleep must not be negative"),
        ("sleep", ("1",), {}, r"the duration of ctx\.sleep must be a timedelta"),
        ("sleep", (1, ""), {}, "the name of a sleep must not be empty"),
        ("sleep_until", (datetime(2026, 1, 1),), {}, r"the time of ctx\.sleep_until needs a time zone"),  # noqa: DTZ001
        ("sleep_until", (5,), {}, r"the time of ctx\.sleep_until must be a datetime"),
        ("wait_for", (5,), {}, r"the event of ctx\.wait_for must be a str"),
        ("wait_for", ("e", -1), {}, r"the timeout of ctx\.wait_for must not be negative"),
        ("wait_for", ("e",), {"type": "int"}, r"ctx\.wait_for: type= must be a type.*quotes"),
        ("receive", ("",), {}, r"the topic of ctx\.receive must not be empty"),
        ("receive", ("t", "x"), {}, r"the timeout of ctx\.receive must be a timedelta"),
        ("emit", (None,), {}, r"the event of ctx\.emit must be a str"),
        ("progress", ("half",), {}, r"ctx\.progress: done must be a finite number"),
        ("progress", (float("nan"),), {}, r"ctx\.progress: done must be a finite number"),
        ("progress", (1, True), {}, r"ctx\.progress: total must be a finite number"),
        ("progress", (1, 2, 3), {}, r"ctx\.progress: note must be a str"),
    ],
)
def test_invalid_events_topics_and_timeouts_are_rejected(ctx, verb, args, kwargs, match):
    with pytest.raises(ConfigError, match=match):
        getattr(ctx, verb)(*args, **kwargs)


@pytest.mark.parametrize("verb", ["wait_for", "receive"])
def test_a_type_that_cannot_be_decoded_is_rejected(ctx, verb):
    with pytest.raises(TaskError, match=rf"ctx\.{verb}: type= is Till, which can't be decoded from JSON"):
        getattr(ctx, verb)("e", type=Till)


def test_unserializable_payloads_are_rejected_by_name(ctx):
    with pytest.raises(PayloadError, match="the payload of event paid"):
        ctx.emit("paid", object())
    with pytest.raises(PayloadError, match=r"the chunk of ctx\.write"):
        ctx.write(float("nan"))


# The run itself


def test_values_that_differ_between_replays_are_recorded(ctx):
    assert [ctx.now(), ctx.random(), ctx.uuid()] == [op.Value("now"), op.Value("random"), op.Value("uuid")]


def test_progress_and_chunks_are_encoded_as_json(ctx):
    assert ctx.progress(3) == op.ProgressReport('{"done":3,"total":null,"note":null}')
    assert ctx.progress(0.5, 1, "half") == op.ProgressReport('{"done":0.5,"total":1,"note":"half"}')
    assert ctx.write([1, "a"]) == op.Write('[1,"a"]')


def test_a_restart_takes_the_functions_arguments_without_the_context(ctx):
    assert ctx.restart(5) == op.Restart('{"amount":5}')
    with pytest.raises(BadArguments, match=r"task app\.durable\(amount: .*too many positional"):
        ctx.restart("many", 5)


def test_a_context_has_the_data_of_its_run(ctx):
    context = ctx.context
    assert (context.run_id, context.attempt, context.scheduled_for) == (UUID(int=5), 2, NOON)
    assert repr(context) == f"<{type(context).__name__} of run {UUID(int=5)}>"


def test_check_is_called_immediately(ctx):
    ctx.context.check()
    assert ctx.executor.checks == 1


# Both contexts


def test_both_contexts_have_the_same_methods_with_the_same_parameters():
    def shape(context):
        methods = inspect.getmembers(context, inspect.isfunction)
        return {
            name: list(inspect.signature(fn).parameters)
            for name, fn in methods
            if not name.startswith("_")
        }  # fmt: skip

    assert shape(Context) == shape(SyncContext)


def test_operations_start_when_called_in_the_order_of_the_code():
    class Eager(Recorder):
        def perform(self, operation):
            self.asked.append(operation)
            return self.later(operation)

        async def later(self, operation):
            return RUN

    executor = Eager(DURABLE)
    context = Context(executor)

    async def body():
        sleep, step = context.sleep(1), context.step(pay, 2)
        before = [type(asked).__name__ for asked in executor.asked]
        await step
        await sleep
        return before

    assert asyncio.run(body()) == ["Sleep", "Step"]
