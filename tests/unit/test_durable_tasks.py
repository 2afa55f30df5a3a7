"""Durable functions as tasks: how they differ from jobs, their arguments, and what is rejected."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast import Context, Holdfast, SyncContext
from holdfast import Context as Ctx
from holdfast.errors import BadArguments, BlockingCall, ConfigError, TaskError
from holdfast.task.registry import Registry, register_task, remote_task
from holdfast.task.scope import Scope, current_scope


class Order:
    """Neither a context nor a type that can be decoded from JSON."""


@pytest.fixture
def task():
    return lambda fn, **settings: register_task(fn, enqueuer=None, registry=Registry(), name="t", **settings)


async def by_name(ctx: Context, amount: int, *, note: str = "") -> str:
    return f"{ctx}: {amount} {note}"


def by_sync_name(ctx: SyncContext, amount: int) -> str:
    return f"{ctx}: {amount}"


async def by_dotted_name(ctx: holdfast.Context) -> None: ...


async def by_quoted_name(ctx: "Context") -> None: ...  # noqa: UP037


async def by_alias(ctx: Ctx) -> None: ...


async def positional_only(ctx: Context, /, ctx2: int) -> None: ...


def plain(amount: int) -> int:
    return amount


def unknown(ctx: Nowhere) -> int:  # noqa: F821  # type: ignore[name-defined]
    return 1


def later(ctx: nowhere.Context) -> int:  # noqa: F821  # type: ignore[name-defined]
    return 1


@pytest.mark.parametrize("fn", [by_name, by_sync_name, by_dotted_name, by_quoted_name, by_alias, positional_only])
def test_a_function_with_a_context_as_first_parameter_is_durable(task, fn):
    assert task(fn).durable


def test_a_class_annotation_makes_a_durable_function_too(task):
    async def fn(ctx): ...

    fn.__annotations__ = {"ctx": Context}
    assert task(fn).durable


@pytest.mark.parametrize("fn", [plain, unknown, later])
def test_any_other_function_is_a_job_also_with_unresolvable_annotations(task, fn):
    assert not task(fn).durable


def test_a_remote_task_is_not_durable_here():
    assert not remote_task("far", enqueuer=None).durable


def test_options_keep_a_durable_function_durable(task):
    assert task(by_name).options(priority=3).durable


def test_the_context_is_not_an_argument(task):
    request = task(by_name).request(5, note="x")
    assert request.args == '{"amount":5,"note":"x"}'
    assert task(by_name).signature.decode(request.args) == ((5,), {"note": "x"})
    assert task(positional_only).signature.decode('{"ctx2":1}') == ((1,), {})


def test_the_parameters_after_the_context_are_checked(task):
    with pytest.raises(BadArguments, match=r"task t\(amount: .*\).*too many positional"):
        task(by_name).request("ctx", 5)
    with pytest.raises(BadArguments, match="ctx"):
        task(by_name).request(ctx=None, amount=5)
    with pytest.raises(BadArguments, match="Expected `int`"):
        task(by_name).request("five")


class Given(str):
    __slots__ = ()
    run_id = None


def test_calling_a_durable_function_takes_the_context_first(task):
    assert task(by_sync_name)(Given("ctx"), 5) == "ctx: 5"
    assert asyncio.run(task(by_name)(Given("ctx"), 5, note="x")) == "ctx: 5 x"


@pytest.mark.parametrize("fn", [by_name, by_sync_name])
def test_calling_a_durable_function_without_a_context_says_what_to_write(task, fn):
    with pytest.raises(TaskError, match=r"needs a context: use ctx\.call\(task"):
        task(fn)(5)
    with pytest.raises(TaskError, match=r"needs a context"):
        task(fn)()


def test_the_function_takes_the_context_and_the_stored_arguments(task):
    signature = task(by_sync_name).signature
    args, kwargs = signature.decode(signature.encode((5,), {}))
    assert signature.fn("ctx", *args, **kwargs) == "ctx: 5"


def test_a_def_with_an_async_context_is_rejected(task):
    def fn(ctx: Context) -> None: ...

    with pytest.raises(TaskError, match=r"fn is a plain def.*use async def, or annotate ctx as SyncContext"):
        task(fn)


def test_an_async_def_with_a_sync_context_is_rejected(task):
    async def fn(ctx: SyncContext) -> None: ...

    with pytest.raises(TaskError, match=r"fn is an async def.*annotate ctx as Context"):
        task(fn)


async def second(a: int, ctx: Context) -> None: ...
async def both(ctx: Context, other: Context) -> None: ...
async def by_keyword(*, ctx: Context) -> None: ...
async def many(*ctx: Context) -> None: ...


@pytest.mark.parametrize("fn", [second, both, by_keyword, many])
def test_a_context_that_is_not_the_first_parameter_is_rejected(task, fn):
    with pytest.raises(TaskError, match=f"{fn.__name__}: the Context must be the first parameter"):
        task(fn)


@pytest.mark.parametrize("fn", [by_name, by_sync_name])
def test_a_durable_function_with_run_in_process_is_rejected(task, fn):
    with pytest.raises(ConfigError, match=r'durable function and.*job with run_in="process".*ctx\.call'):
        task(fn, run_in="process")


def test_a_durable_function_runs_where_its_context_is(task):
    assert task(by_name).declaration.run_in == "loop"
    assert task(by_sync_name).declaration.run_in == "thread"


def test_the_task_decorator_creates_durable_functions_with_and_without_settings(tmp_path):
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    assert app.task(by_name).durable
    assert app.task(name="other", queue="slow")(by_sync_name).durable


# Calls that a replay would repeat


@pytest.fixture
def in_body():
    """Set the scope of the body of a durable function."""
    before = current_scope.set(Scope("run", durable=True))
    yield
    current_scope.reset(before)


@pytest.fixture
def client(tmp_path):
    return Holdfast(f"sqlite:///{tmp_path}/jobs.db")._client


@pytest.mark.usefixtures("in_body")
def test_enqueue_in_the_body_of_a_durable_function_is_rejected(client):
    with pytest.raises(TaskError, match=r"^enqueue\(\) in the body.*ctx\.enqueue.*ctx\.spawn.*inside a step"):
        client.creator.enqueue([])


@pytest.mark.usefixtures("in_body")
def test_enqueue_and_aenqueue_suggest_the_context_in_an_event_loop(client):
    async def body():
        with pytest.raises(TaskError, match=r"^enqueue\(\) in the body.*ctx\.enqueue") as blocking:
            client.creator.enqueue([])
        with pytest.raises(TaskError, match=r"^aenqueue\(\) in the body.*ctx\.enqueue"):
            await client.creator.aenqueue([])
        return blocking.value

    assert not isinstance(asyncio.run(body()), BlockingCall)


def test_enqueue_is_allowed_in_steps_and_in_jobs(tmp_path):
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    job = app.task(plain)
    for place in (Scope("run", durable=True, step="s-1#1"), Scope("run")):
        before = current_scope.set(place)
        job.enqueue(1)
        current_scope.reset(before)
    assert len(app.runs()) == 2
    app.close()
