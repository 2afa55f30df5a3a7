"""Dependency injection: parameters with the default `inject()` receive what `on_start` functions yield."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Protocol, runtime_checkable

import pytest

from holdfast import Context, Fatal, Holdfast, ResourceMissing, Retry, SyncContext, inject
from holdfast.control import Control
from holdfast.errors import BadArguments, ConfigError, TaskError
from holdfast.testing import Kit, context
from tests.support.durable import drain, state

ONCE = Retry(max_attempts=1)


class Pool:
    def __init__(self, name: str = "real") -> None:
        self.name = name


class Mailer:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, text: str) -> str:
        self.sent.append(text)
        return text


@runtime_checkable
class Sender(Protocol):
    def send(self, text: str) -> str: ...


def charge(order: int, *, db: Pool = inject()) -> str:
    return f"{db.name} {order}"


async def notify(text: str, mailer: Sender = inject()) -> str:
    return mailer.send(text)


def refund(paid: str, mailer: Annotated[Mailer, "smtp"] = inject()) -> None:
    mailer.send(f"refund {paid}")


def ledger_row(connection: Any, text: str, db: Pool = inject("db")) -> str:
    connection.execute("select 1")
    return f"{db.name} {text}"


@pytest.fixture
def resources(app: Holdfast) -> dict[str, list[str]]:
    """An app with two resources, and the log of their lives."""
    log: list[str] = []

    @app.on_start
    async def db():
        log.append("open")
        yield Pool()
        log.append("close")

    @app.on_start
    def smtp():
        yield {"mailer": Mailer()}

    return {"log": log}


def test_jobs_and_durable_functions_receive_resources_by_type(app, resources):
    @app.task(name="job")
    async def job(order: int, db: Pool = inject()) -> str:
        return f"{db.name} {order}"

    @app.task(name="threaded")
    def threaded(*orders: int, note: str = "", db: Pool = inject(), **more: int) -> str:
        return f"{db.name} {orders} {note} {more}"

    @app.task(name="durable")
    async def durable(ctx: Context, order: int, db: Pool = inject()) -> list[str]:
        paid = await ctx.step(charge, order)
        told = await asyncio.gather(ctx.step(notify, "a"), ctx.step(notify, "b"))
        row = await ctx.transaction(ledger_row, "row")
        return [db.name, paid, *told, row]

    @app.task(name="plain")
    def plain(ctx: SyncContext, order: int, db: Pool = inject()) -> str:
        return f"{db.name} {ctx.step(charge, order)}"

    runs = [job.enqueue(1), threaded.enqueue(1, 2, note="n", x=3), durable.enqueue(4), plain.enqueue(5)]
    drain(app)
    assert [run.result(timeout=10) for run in runs] == [
        "real 1", "real (1, 2) n {'x': 3}", ["real", "real 4", "a", "b", "real row"], "real real 5",
    ]  # fmt: skip
    assert runs[0].info().args == {"order": 1}  # the resource is no argument
    steps = [step.key for step in Control(app.store).runs.steps(runs[2].id)]
    assert steps[0].startswith("charge-")
    assert resources["log"] == ["open", "close"]
    with pytest.raises(BadArguments):
        job.enqueue(1, db=Pool())


def test_the_identity_of_a_step_does_not_depend_on_its_resources(app, resources):
    seen = []

    @app.task(name="once")
    async def once(ctx: Context, way: str) -> str:
        if way == "explicit":  # what a caller passes is an argument
            return await ctx.step(charge, 1)
        return await ctx.step(charge_without, 1, name="charge")

    def charge_without(order: int) -> str:
        seen.append(order)
        return f"without {order}"

    first, second = once.enqueue("explicit"), once.enqueue("other")
    drain(app)
    keys = [Control(app.store).runs.steps(run.id)[0].key for run in (first, second)]
    assert keys[0] == keys[1]


def test_compensations_receive_resources(app, resources):
    sent = []

    @app.on_start
    def remember():
        yield None
        sent.extend(app.resources["mailer"].sent)

    @app.task(name="book", retry=ONCE)
    async def book(ctx: Context) -> None:
        await ctx.options(undo=refund).step(charge, 7)
        raise Fatal("no seat")

    run = book.enqueue()
    drain(app)
    assert (state(run), sent) == ("failed", ["refund real 7"])


def test_a_missing_resource_stops_the_worker_at_its_start(app, resources):
    @app.task(name="job")
    def job(number: int, cache: dict = inject("cache")) -> None: ...

    job.enqueue(1)
    with pytest.raises(ResourceMissing, match=r"task job: there is no resource 'cache'; the resources are db \(Pool\)"):
        drain(app)
    assert resources["log"] == ["open", "close"]


def test_resources_of_one_type_are_ambiguous(make_app):
    class SubPool(Pool): ...

    def build(*found: Any, parameter: Any = None) -> Holdfast:
        app = make_app()

        @app.on_start
        def pools():
            yield {f"pool{at}": each for at, each in enumerate(found)}

        @app.task(name="job")
        def job(db: Pool = inject(parameter)) -> str:
            return db.name

        job.enqueue()
        return app

    with pytest.raises(ResourceMissing, match=r"pool0 and pool1 are: name one, inject\('pool0'\)"):
        drain(build(Pool("a"), Pool("b")))
    for app, wanted in (
        (build(Pool("a"), Pool("b"), parameter="pool1"), "b"),
        (build(SubPool("a"), Pool("b")), "b"),  # the exact class wins
    ):
        drain(app)
        assert app.runs(task="job", state="done")[0] is not None
        assert app.get_run(app.runs(task="job")[0].id).result() == wanted
    with pytest.raises(ResourceMissing, match=r"no @app.on_start function yields one; the worker has no resources"):
        drain(build())


def test_a_step_without_its_resource_fails_with_a_typed_error(app):
    @app.task(name="durable", retry=ONCE)
    async def durable(ctx: Context) -> str:
        return await ctx.step(charge, 1)

    run = durable.enqueue()
    drain(app)
    assert (run.info().error.type, "step charge: parameter db needs" in run.info().error.message) == (
        "holdfast.errors.ResourceMissing", True,
    )  # fmt: skip


def test_declarations_that_cannot_work_are_refused(app):
    def declare(fn: Any, **settings: Any) -> None:
        app.task(name="job", **settings)(fn)

    with pytest.raises(TaskError, match="annotate db with the class of its resource"):
        declare(lambda db=inject(): None)
    with pytest.raises(TaskError, match="move db, which is injected, behind n"):

        def early(db: Pool = inject(), n: int = 1) -> None: ...

        declare(early)
    with pytest.raises(TaskError, match="positional-only"):

        def hidden(db: Pool = inject(), /) -> None: ...

        declare(hidden)
    with pytest.raises(ConfigError, match="inject takes the name of a resource, not type"):
        inject(Pool)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='run_in="process"'):
        declare(charge, run_in="process")


def test_outside_a_worker_the_parameter_says_what_to_do():
    assert charge(1, db=Pool("own")) == "own 1"
    with pytest.raises(ResourceMissing, match=r"default inject\(\) was used outside a worker: pass the resource"):
        charge(1)
    assert repr(inject("db")) == "inject('db')"

    async def body(ctx: Any) -> str:
        return await ctx.step(charge, 1, db=Pool("own"))

    with pytest.raises(Exception, match="Pool"):  # an argument must be JSON
        asyncio.run(body(context()))


def test_tests_override_resources(database_url):
    app = Holdfast("sqlite:///:memory:")
    opened = []

    @app.on_start
    def db():
        opened.append(1)
        yield Pool()

    @app.task(name="job")
    def job(order: int, db: Pool = inject()) -> str:
        return f"{db.name} {app.resources['db'].name} {order}"

    with Kit(app, url=database_url) as kit:
        with kit.override(db=Pool("fake")):
            run = job.enqueue(1)
            kit.drain()
        assert (run.result(), opened, app.resources) == ("fake fake 1", [], {})
        again = job.enqueue(2)
        kit.drain()
        assert (again.result(), opened) == ("real real 2", [1])
        with kit.override(other=1), pytest.raises(ConfigError, match=r"no @app.on_start function provides other"):
            kit.drain()
    app.close()
