"""`@crash_at_every_step` finds unsafe code and reports its location; safe code passes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest

from holdfast import Context, Holdfast, Retry, SyncContext, idempotency_key
from holdfast.testing import Kit, crash_at_every_step
from holdfast.testing.crash_injection import CrashInjector, CrashPoint, active_injectors
from tests.support.wait_until import wait_until

SHOP = """\
from holdfast import Context, Holdfast, SyncContext

app = Holdfast("sqlite:///never-made.db")
log = []


def reserve(what: str) -> str:
    return f"reserved {what}"


def pack(what: str) -> str:
    return f"packed {what}"


@app.task
async def order(ctx: Context, what: str) -> str:
    await ctx.step(reserve, what)
    log.append("mail")  # the planted bug: an effect outside a step
    return await ctx.step(pack, what)


@app.task
def sync_order(ctx: SyncContext, what: str) -> str:
    ctx.step(reserve, what)
    log.append("mail")
    return ctx.step(pack, what)


def mail(what: str) -> None:
    log.append("mail")


@app.task
async def order_with_step(ctx: Context, what: str) -> str:
    await ctx.step(reserve, what)
    await ctx.step(mail, what)
    return await ctx.step(pack, what)
"""
CONFTEST = """\
import pytest

import shop


@pytest.fixture
def holdfast_app():
    return shop.app


@pytest.fixture(params=["sqlite", "postgres"])
def holdfast_database(request):
    return request.param


@pytest.fixture
def log():
    shop.log.clear()
    return shop.log
"""
TESTS = """\
import shop
from holdfast.testing import crash_at_every_step


@crash_at_every_step
def test_order(kit, log):
    run = shop.{task}.enqueue("anchor")
    kit.drain()
    assert run.result(timeout=0) == "packed anchor"
    assert log == ["mail"]
"""


@pytest.mark.parametrize(("task", "lines"), [("order", (17, 19)), ("sync_order", (24, 26))])
def test_an_effect_outside_a_step_is_found_with_its_location(run_pytest, task, lines):
    outcome = run_pytest(postgres=True, shop=SHOP, conftest=CONFTEST, test_shop=TESTS.format(task=task))
    before, behind = lines
    assert outcome.returncode == 1
    assert "2 failed" in outcome.stdout
    told = (
        "The test passes without a crash. It fails with a crash after step pack of"
        f" shop.{task} was done but not recorded, at shop.py:{behind}.\n"
        f"It passed with a crash after step reserve of shop.{task} was recorded, at shop.py:{before}.\n"
    )
    assert outcome.stdout.count(told) == 2, outcome.stdout
    assert outcome.stdout.count("assert ['mail', 'mail'] == ['mail']") >= 2
    summary = rf"FAILED test_shop.py::test_order\[\w+\] - with a crash after step pack of shop.{task} was done but"
    assert len(re.findall(summary, outcome.stdout)) == 2


def test_a_non_idempotent_effect_in_a_step_is_found(run_pytest):
    text = TESTS.format(task="order_with_step")
    outcome = run_pytest("-k", "sqlite", shop=SHOP, conftest=CONFTEST, test_shop=text)
    assert outcome.returncode == 1
    assert "a crash after step mail of shop.order_with_step was done but not recorded, at shop.py:36" in outcome.stdout
    text = text.replace("@crash_at_every_step", "@crash_at_every_step(unrecorded=False)")
    outcome = run_pytest("-k", "sqlite", "-rP", shop=SHOP, conftest=CONFTEST, test_shop=text)
    assert outcome.returncode == 0, outcome.stdout
    assert "4 crashes, at 4 points where a worker wrote" in outcome.stdout


ASYNC = """\
import pytest

import shop
from holdfast.testing import crash_at_every_step

setups = []


@pytest.fixture
def fresh():
    setups.append("set up")
    yield []
    setups.append("torn down")


@pytest.fixture(scope="module")
def shared():
    setups.append("shared")
    yield
    assert setups.count("shared") == 1


@crash_at_every_step
@pytest.mark.{mark}
async def test_order(kit, log, fresh, shared):
    fresh.append(1)
    assert fresh == [1]
    run = await shop.{task}.aenqueue("anchor")
    await kit.adrain()
    assert await run.aresult(timeout=1) == "packed anchor"
    assert "mail" in log


def test_each_run_had_its_own_fixtures():
    assert setups == ["shared", *["set up", "torn down"] * {runs}]
"""


@pytest.mark.parametrize("mark", ["asyncio", "anyio"])
@pytest.mark.parametrize(("task", "runs"), [("order", 7), ("order_with_step", 9)])
def test_async_tests_run_with_crashes_and_new_fixtures(run_pytest, mark, task, runs):
    backend = '\n\n@pytest.fixture\ndef anyio_backend():\n    return "asyncio"\n'
    conftest = CONFTEST.replace('params=["sqlite", "postgres"]', 'params=["sqlite"]') + backend
    text = ASYNC.format(mark=mark, task=task, runs=runs)
    outcome = run_pytest("-rP", shop=SHOP, conftest=conftest, test_shop=text)
    assert outcome.returncode == 0, outcome.stdout
    assert f"{runs - 1} crashes, at {runs - 1} points" in outcome.stdout
    assert "2 passed" in outcome.stdout


def test_a_test_that_fails_without_a_crash_is_an_ordinary_failure(run_pytest):
    text = TESTS.format(task="order").replace('["mail"]', '["bail"]')
    outcome = run_pytest("-k", "sqlite", shop=SHOP, conftest=CONFTEST, test_shop=text)
    assert outcome.returncode == 1
    assert "with a crash" not in outcome.stdout


def test_a_test_without_worker_writes_fails_with_a_hint(run_pytest):
    text = "from holdfast.testing import crash_at_every_step\n\n@crash_at_every_step\ndef test_it(kit):\n    pass\n"
    outcome = run_pytest(test_it=text)
    assert outcome.returncode == 1
    assert "no worker wrote anything in this test: call drain() of the kit" in outcome.stdout


def test_skipped_tests_and_xdist_are_supported(run_pytest):
    text = TESTS.format(task="sync_order").replace('assert log == ["mail"]', 'assert "mail" in log')
    text += "\n\n@crash_at_every_step\ndef test_skipped(kit):\n    import pytest\n    pytest.skip('not now')\n"
    outcome = run_pytest("-k", "sqlite", "-n", "2", shop=SHOP, conftest=CONFTEST, test_shop=text)
    assert outcome.returncode == 0, outcome.stdout
    assert "1 passed, 1 skipped" in outcome.stdout


# Every kind of place, in this process

app = Holdfast("sqlite:///never-made.db")
done: Counter[str] = Counter()


def once(what: str) -> str:
    """An effect that an outside system takes once."""
    done[f"{what} {idempotency_key()}"] = 1
    return what


async def aonce(what: str) -> str:
    return once(what)


@app.task(name="inner", retry=Retry(max_attempts=2, delay=1))
def inner(what: str) -> str:
    return once(what)


@app.task(name="everything")
async def everything(ctx: Context) -> list[str]:
    await ctx.now()
    first = await ctx.step(once, "first", undo=print)
    await ctx.progress(1)
    await ctx.write("a piece")
    await ctx.emit(f"{ctx.run_id} began")
    child = await ctx.spawn(inner, "child")
    await ctx.options(name="both").step(aonce, "second")
    await ctx.sleep(60)
    await ctx.enqueue(inner, "independent")
    return [first, await ctx.join(child), *await ctx.map(inner, ["m1", "m2"])]


@app.task(name="plainly")
def plainly(ctx: SyncContext) -> list[str]:
    child = ctx.spawn(inner, "child")
    first = ctx.step(once, "first")
    ctx.enqueue(inner.options(key=f"{ctx.run_id}"), "independent")
    ctx.sleep(60)
    ctx.step(once, "second")
    return [first, ctx.join(child), *ctx.map(inner, ["m1", "m2"])]


class TestAllThatAFunctionCanDo:
    @pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
    def holdfast_database(self, request):
        return request.param

    @pytest.fixture
    def holdfast_app(self):
        return app

    @crash_at_every_step
    @pytest.mark.parametrize("task", [everything, plainly], ids=lambda task: task.name)
    def test_effects_happen_once_at_every_crash_point(self, kit, task):
        done.clear()
        run = task.enqueue()
        for _ in range(2):
            kit.drain()
            kit.clock.advance(seconds=60)
        assert run.result(timeout=0) == ["first", "child", "m1", "m2"]
        assert Counter(what.split()[0] for what in done) == Counter(
            ["first", "second", "child", "independent", "m1", "m2"]
        )
        assert len(kit.enqueued(inner)) == 4


def test_runs_of_a_crashed_worker_are_taken_over_after_its_code_stops(kit):
    """A killed process takes its code with it: here, two tries of a step must not run side by side."""
    crashes, seen = kit.app.store.journal._crashes, []

    def linger() -> None:
        if not seen:
            wait_until(lambda: crashes.where, what="the crash")
            wait_until(lambda: kit.clock.worker(session) is None, what="the end of the session")
            seen.append(kit.app.store.sessions.find_dead())

    @kit.app.task(name="both")
    async def both(ctx: Context) -> list[None]:
        nonlocal session
        ((session, *_),) = kit.app.store.sessions.list_live() if not seen else [[session]]
        return await asyncio.gather(ctx.step(linger, name="linger"), ctx.step(aonce, "quick"))

    session = ""
    crashes.at = CrashPoint("step aonce of both", 1, recorded=True)
    run = both.enqueue()
    kit.drain()
    assert run.result(timeout=0) == [None, "quick"]
    assert (seen, run.info().crashes) == ([{}], 1)


def add_row(connection, name: str) -> str:
    connection.execute("insert into rows (name) values (?)", (name,))
    return name


def test_a_crash_after_a_committed_transaction_does_not_repeat_it():
    places = []
    for at in range(20):
        crashes = CrashInjector(places[at - 1] if at else None)
        active_injectors.append(crashes)
        try:
            with Kit() as kit:

                @kit.app.task(name="writes")
                async def writes(ctx: Context) -> list[str]:
                    return [await ctx.transaction(add_row, "a"), await ctx.transaction(add_row, "b")]

                with kit.app.transaction() as connection:
                    connection.execute("create table rows (name text)")
                run = writes.enqueue()
                kit.drain()
                assert run.result(timeout=0) == ["a", "b"]
                with kit.app.transaction() as connection:
                    assert connection.execute("select name from rows order by name") == [("a",), ("b",)]
        finally:
            active_injectors.remove(crashes)
        places = places or crashes.points
        assert (crashes.where is None) is (at == 0)
        if at == len(places):
            break
    assert [place.what for place in places] == [
        "transaction add_row of writes", "transaction add_row of writes", "the end of writes", "the end of writes",
    ]  # fmt: skip


def test_a_job_runs_again_if_its_end_was_not_recorded():
    effects = []
    crashes = CrashInjector()
    for _ in range(2):
        active_injectors.append(crashes)
        try:
            with Kit() as kit:

                @kit.app.task(name="job")
                def job() -> str:
                    effects.append(1)
                    return "done"

                run = job.enqueue()
                kit.drain()
                assert (run.result(timeout=0), run.info().crashes) == ("done", len(effects) // 2)
        finally:
            active_injectors.remove(crashes)
        (unrecorded, _) = crashes.points[:2]
        assert str(unrecorded) == "a crash after the end of job was done but not recorded"
        crashes = CrashInjector(unrecorded)
    assert len(effects) == 3
