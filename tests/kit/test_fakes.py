"""Fakes for steps, compensations, children and whole tasks."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from holdfast import ConfigError, Context, Done, Graph, Retry, RunFailed, State, StepFailed, SyncContext
from holdfast.testing import fake

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)


class Bank:
    def charge(self, who: str, amount: int = 1) -> datetime:
        raise AssertionError("the real one was called")


bank = Bank()


async def ship(what: str) -> str:
    raise AssertionError("the real one was called")


@pytest.fixture
def order(kit):
    @kit.app.task(name="order")
    async def order(ctx: Context) -> list[object]:
        charged = await ctx.step(bank.charge, "ada", 3, name="charge")
        return [charged.year, await ctx.step(ship, "anchor")]

    return order


def test_the_result_of_a_fake_is_decoded_as_the_annotated_type(kit, order):
    with fake(bank.charge, returns=NOON) as charged, fake(ship, returns="gone") as shipped:
        run = order.enqueue()
        kit.drain()
    assert run.result(timeout=0) == [2027, "gone"]
    assert charged.calls == [(("ada", 3), {})]
    assert shipped.calls == [(("anchor",), {})]
    first, _ = kit.steps(run)
    assert (first.name, first.value) == ("charge", "2027-01-01T12:00:00Z")


def test_a_method_is_faked_for_all_instances(kit, order):
    with fake(Bank.charge, returns=NOON), fake("ship", returns="by name"):
        run = order.enqueue()
        kit.drain()
    assert run.result(timeout=0)[1] == "by name"


@pytest.mark.parametrize("raises", [ValueError("no"), ValueError])
def test_a_fake_raises_at_every_attempt_of_the_step(kit, raises):
    @kit.app.task(name="tries", retry=Retry(max_attempts=1))
    def tries(ctx: SyncContext) -> str:
        try:
            return str(ctx.step(bank.charge, "ada", name="charge", retry=Retry(max_attempts=3)))
        except StepFailed as error:
            return error.error.type

    with fake(bank.charge, raises=raises) as faked:
        run = tries.enqueue()
        kit.drain()
    assert (run.result(timeout=0), len(faked.calls)) == ("ValueError", 3)


def test_a_fake_may_call_another_function(kit, order):
    async def ship_elsewhere(what: str) -> str:
        return f"{what} elsewhere"

    with fake(bank.charge, does=lambda who, amount: NOON), fake(ship, does=ship_elsewhere):
        run = order.enqueue()
        kit.drain()
    assert run.result(timeout=0)[1] == "anchor elsewhere"


def test_the_innermost_fake_wins_until_its_block_ends(kit, order):
    with fake(bank.charge, returns=NOON), fake(ship, returns="outer") as outer:
        with fake(ship, returns="inner"):
            run = order.enqueue()
            kit.drain()
        assert (run.result(timeout=0)[1], outer.calls) == ("inner", [])
    run = order.options(retry=Retry(max_attempts=1)).enqueue()
    kit.drain()
    assert "the real one was called" in run.info().error.message


def test_a_recorded_step_does_not_call_the_fake(kit):
    @kit.app.task(name="naps")
    async def naps(ctx: Context) -> str:
        shipped = await ctx.step(ship, "anchor")
        await ctx.sleep(1)
        return shipped

    run = naps.enqueue()
    with fake(ship, returns="gone") as faked:
        kit.drain()
    kit.clock.advance(seconds=1)
    kit.drain()
    assert (run.result(timeout=0), len(faked.calls)) == ("gone", 1)


def test_fake_rejects_invalid_arguments():
    with pytest.raises(ConfigError, match="takes only one of returns=, raises= and does="):
        with fake(ship, returns=1, raises=ValueError):
            pass
    with pytest.raises(ConfigError, match="a function, a task or a name, not int"):
        with fake(3):
            pass


# Compensations


async def refund(charged: str) -> None:
    raise AssertionError("the real one was called")


def unship(what: str) -> None:
    raise AssertionError("the real one was called")


def pay(amount: int) -> str:
    return f"paid {amount}"


@pytest.fixture
def failing(kit):
    @kit.app.task(name="failing", retry=Retry(max_attempts=1))
    async def failing(ctx: Context, undo: bool) -> None:
        await ctx.undo(unship, "anchor")
        await ctx.step(pay, 3, undo=refund if undo else lambda charged: refund(charged))
        raise ValueError("sold out")

    return failing


@pytest.mark.parametrize(
    ("target", "named"), [(refund, True), ("refund", True), ("undo pay", True), ("undo pay", False)]
)
def test_compensations_are_faked(kit, failing, target, named):
    with fake(target) as refunded, fake(unship) as unshipped:
        run = failing.enqueue(named)
        kit.drain()
    assert (run.info().state, run.info().error.code) == ("failed", "error")
    assert (refunded.calls, unshipped.calls) == ([(("paid 3",), {})], [(("anchor",), {})])


def test_a_fake_compensation_may_fail(kit, failing):
    with fake(refund, raises=ValueError("no connection")), fake(unship) as unshipped:
        run = failing.enqueue(True)
        kit.drain()
    assert (run.info().error.code, unshipped.calls) == ("undo", [])


def test_compensations_of_a_sync_function_are_faked(kit):
    @kit.app.task(name="sync", retry=Retry(max_attempts=1))
    def sync(ctx: SyncContext) -> None:
        ctx.step(pay, 3, undo=unship)
        raise ValueError("sold out")

    with fake(unship) as unshipped:
        sync.enqueue()
        kit.drain()
    assert unshipped.calls == [(("paid 3",), {})]


# Tasks


@pytest.fixture
def tasks(kit):
    @kit.app.task(name="shop.resize", retry=Retry(max_attempts=1))
    def resize(name: str, width: int = 10) -> datetime:
        raise AssertionError("the real one was called")

    @kit.app.task(name="shop.buy", aliases=["shop.order"], retry=Retry(max_attempts=1))
    async def buy(ctx: Context, what: str) -> str:
        raise AssertionError("the real one was called")

    @kit.app.task(name="shop.all", retry=Retry(max_attempts=1))
    async def everything(ctx: Context) -> list[object]:
        resized = await ctx.call(resize, "a", width=7)
        mapped = await ctx.map(resize, ["b", "c"])
        run = await ctx.spawn(buy, "rope")
        return [resized.year, [each.year for each in mapped], await ctx.join(run)]

    return SimpleNamespace(resize=resize, buy=buy, everything=everything)


@pytest.mark.parametrize("by_name", [False, True])
def test_children_are_faked(kit, tasks, by_name):
    resize, buy = ("shop.resize", "shop.order") if by_name else (tasks.resize, tasks.buy)
    with fake(resize, returns=NOON) as resized, fake(buy, does=lambda what: f"no {what}") as bought:
        run = tasks.everything.enqueue()
        kit.drain()
    assert run.result(timeout=0) == [2027, [2027, 2027], "no rope"]
    assert sorted(resized.calls) == [(("a", 7), {}), (("b",), {}), (("c",), {})]
    assert bought.calls == [(("rope",), {})]


def test_enqueued_runs_and_nodes_are_faked_and_may_fail(kit, tasks):
    graph = Graph("pictures")
    graph.add(tasks.resize, "a", name="first")

    async def not_found(what: str) -> str:
        raise LookupError(what)

    with fake(tasks.resize, returns=NOON), fake(tasks.buy, does=not_found) as bought:
        node, run = kit.app.submit(graph), tasks.buy.enqueue("rope")
        kit.drain()
    assert node.result(timeout=0)["first"] == "2027-01-01T12:00:00Z"
    assert bought.calls == [(("rope",), {})]
    with pytest.raises(RunFailed, match="LookupError: rope"):
        run.result(timeout=0)


def test_a_task_is_faked_as_a_step_too(kit, tasks):
    @kit.app.task(name="steps")
    async def steps(ctx: Context) -> int:
        return (await ctx.step(tasks.resize, "a")).year

    with fake(tasks.resize, returns=NOON):
        run = steps.enqueue()
        kit.drain()
    assert run.result(timeout=0) == 2027


@pytest.mark.parametrize("by_name", [False, True])
def test_a_remote_task_runs_as_its_fake(kit, by_name):
    remote = kit.app.remote("billing.charge", queue="billing")

    @kit.app.task(name="pays")
    async def pays(ctx: Context) -> object:
        return await ctx.call(remote, 7, currency="NOK")

    with fake("billing.charge" if by_name else remote, returns={"paid": 7}) as faked:
        run = pays.enqueue()
        kit.drain()
    assert (run.result(timeout=0), faked.calls) == ({"paid": 7}, [((7,), {"currency": "NOK"})])


def test_a_machine_is_faked_as_a_whole(kit):
    class Trial(State):
        days: int

        async def run(self, ctx: Context) -> Done[str]:
            raise AssertionError("the real one was called")

    subscription = kit.app.machine("subscription", Trial)
    with fake(subscription, returns="cancelled") as faked:
        run = subscription.enqueue(Trial(days=3))
        kit.drain()
    assert (run.result(timeout=0), faked.calls) == ("cancelled", [((Trial(days=3),), {})])


def test_a_fake_of_a_task_does_not_replace_its_compensations(kit):
    @kit.app.task(name="undoes", retry=Retry(max_attempts=1))
    async def undoes(ctx: Context) -> None:
        await ctx.step(pay, 3, undo=refund)
        await ctx.sleep(1)

    run = undoes.enqueue()
    kit.drain()
    run.cancel()
    with fake(undoes, required=False) as faked, fake(refund) as refunded:
        kit.drain()
    assert (run.info().state, faked.calls, refunded.calls) == ("cancelled", [], [(("paid 3",), {})])


# Fakes that replace nothing


def test_a_name_that_replaces_nothing_fails_the_block_and_names_close_ones(kit, order):
    message = (
        "nothing named 'chrage' ran inside the block, so the fake replaced nothing; did you mean 'charge'? "
        "These ran: order, charge, ship. If nothing should run, pass required=False"
    )
    with pytest.raises(AssertionError) as failure:
        with fake(bank.charge, returns=NOON), fake(ship, returns="gone"), fake("chrage", returns=NOON):
            order.enqueue()
            kit.drain()
    assert str(failure.value) == message


def test_a_name_that_replaces_nothing_says_so_when_nothing_ran(kit, order):
    with pytest.raises(AssertionError, match="no step, compensation or task ran at all: drain inside the block"):
        with fake("charge"):
            order.enqueue()


def test_a_function_that_a_step_wraps_is_reported(kit):
    @kit.app.task(name="wraps")
    async def wraps(ctx: Context) -> str:
        return await ctx.step(lambda amount: pay(amount), 3, name="pay")

    with pytest.raises(AssertionError, match="'pay' ran with another function than the one that was faked"):
        with fake(pay, returns="nothing"):
            wraps.enqueue()
            kit.drain()
    with fake("pay", returns="nothing"):
        run = wraps.enqueue()
        kit.drain()
    assert run.result(timeout=0) == "nothing"


def test_a_function_that_is_not_reached_is_no_error_and_a_name_can_be_optional(kit, order):
    with fake(ship) as shipped, fake(bank.charge, raises=ValueError), fake("pack", required=False):
        order.options(retry=Retry(max_attempts=1)).enqueue()
        kit.drain()
    assert shipped.calls == []


def test_an_error_in_the_block_is_not_replaced(kit):
    with pytest.raises(KeyError), fake("nothing"):
        raise KeyError("mine")
