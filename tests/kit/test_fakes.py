"""Fakes for step functions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast import Context, Retry, StepFailed, SyncContext
from holdfast.errors import ConfigError
from holdfast.testing import fake_step

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
        charged = await ctx.step(bank.charge, "ada", amount=3)
        return [charged.year, await ctx.step(ship, "anchor")]

    return order


def test_the_result_of_a_fake_is_decoded_as_the_annotated_type(kit, order):
    with fake_step(bank.charge, returns=NOON) as charged, fake_step(ship, returns="gone") as shipped:
        run = order.enqueue()
        kit.drain()
    assert run.result(timeout=0) == [2027, "gone"]
    assert charged.calls == [(("ada",), {"amount": 3})]
    assert shipped.calls == [(("anchor",), {})]
    first, _ = kit.steps(run)
    assert (first.name, first.value) == ("charge", "2027-01-01T12:00:00Z")


def test_a_method_is_faked_for_all_instances(kit, order):
    with fake_step(Bank.charge, returns=NOON), fake_step("ship", returns="by name"):
        run = order.enqueue()
        kit.drain()
    assert run.result(timeout=0)[1] == "by name"


@pytest.mark.parametrize("raises", [ValueError("no"), ValueError])
def test_a_fake_raises_at_every_attempt_of_the_step(kit, raises):
    @kit.app.task(name="tries", retry=Retry(max_attempts=1))
    def tries(ctx: SyncContext) -> str:
        try:
            return str(ctx.step(bank.charge, "ada", retry=Retry(max_attempts=3)))
        except StepFailed as error:
            return error.error.type

    with fake_step(bank.charge, raises=raises) as fake:
        run = tries.enqueue()
        kit.drain()
    assert (run.result(timeout=0), len(fake.calls)) == ("ValueError", 3)


def test_a_fake_may_call_another_function(kit, order):
    async def ship_elsewhere(what: str) -> str:
        return f"{what} elsewhere"

    with fake_step(bank.charge, does=lambda who, amount: NOON), fake_step(ship, does=ship_elsewhere):
        run = order.enqueue()
        kit.drain()
    assert run.result(timeout=0)[1] == "anchor elsewhere"


def test_the_innermost_fake_wins_until_its_block_ends(kit, order):
    with fake_step(bank.charge, returns=NOON), fake_step(ship, returns="outer") as outer:
        with fake_step(ship, returns="inner"):
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
    with fake_step(ship, returns="gone") as fake:
        kit.drain()
    kit.clock.advance(seconds=1)
    kit.drain()
    assert (run.result(timeout=0), len(fake.calls)) == ("gone", 1)


def test_fake_step_rejects_invalid_arguments():
    with pytest.raises(ConfigError, match="takes only one of returns=, raises= and does="):
        with fake_step(ship, returns=1, raises=ValueError):
            pass
    with pytest.raises(ConfigError, match="a step's function or name, not int"):
        with fake_step(3):
            pass
