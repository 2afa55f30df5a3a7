"""Events for operators: what is awaited, by whom and in which tenant; what happened; clear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import ConfigError, Context, Holdfast, Run
from holdfast.control import Control
from holdfast.model.access import AccessScope
from tests.support.durable import drain


@pytest.fixture
def app(database_url: str) -> Iterator[Holdfast]:
    with Holdfast(database_url) as app:
        yield app


@pytest.fixture
def control(app: Holdfast) -> Control:
    return Control(app.store, app.registry)


@pytest.fixture
def wait(app: Holdfast) -> Any:
    @app.task(name="wait")
    async def wait(ctx: Context, event: str) -> Any:
        return await ctx.wait_for(event)

    def start(event: str, tenant: str | None = None) -> Run[Any]:
        run = (wait if tenant is None else wait.options(tenant=tenant)).enqueue(event)
        drain(app)
        return run

    return start


def test_what_is_awaited_and_what_happened_is_listed_by_tenant(control, wait):
    first, second = wait("paid", "acme"), wait("paid", "acme")
    other = wait("shipped")
    control.events.emit("opened", {"n": 1})
    control.events.emit("closed", None, "acme")
    found = control.events.list()
    assert [(each.name, each.tenant, each.waiters, each.run, each.task) for each in found.awaited] == [
        ("paid", "acme", 2, first.id, "wait"), ("shipped", None, 1, other.id, "wait")
    ]  # fmt: skip
    assert found.awaited[0].since <= found.awaited[1].since
    assert [(each.name, each.tenant, each.payload) for each in found.emitted] == [
        ("closed", "acme", None), ("opened", None, {"n": 1})
    ]  # fmt: skip
    own = control.events.list("acme")
    assert ([each.name for each in own.awaited], [each.name for each in own.emitted]) == (["paid"], ["closed"])
    assert len(control.events.list(limit=1).awaited) == 1
    assert (found.partial, second.info().state) == (False, "waiting")


def test_of_very_many_waits_only_some_are_read_and_the_list_says_so(control, wait, monkeypatch):
    wait("paid")
    monkeypatch.setattr("holdfast.store.waits.MAX_LISTED_ROWS", 1)
    assert control.events.list().partial is True


def test_an_event_is_shown_in_every_tenant_with_who_waits(control, wait):
    run = wait("paid", "acme")
    control.events.emit("paid", 1)
    control.events.emit("other", 1)
    found = {each.tenant: each for each in control.events.show("paid")}
    assert set(found) == {None, "acme"}
    assert (found[None].emitted_at is not None, found[None].payload, found[None].waiters) == (True, 1, [])
    assert (found["acme"].emitted_at, [waiter.run for waiter in found["acme"].waiters]) == (None, [run.id])
    assert [each.tenant for each in control.events.show("paid", "acme")] == ["acme"]
    assert control.events.show("never") == []
    assert [each.tenant for each in control.events.awaited_elsewhere("paid")] == ["acme"]
    assert control.events.awaited_elsewhere("paid", "acme") == []
    assert [waiter.run for waiter in control.events.waiters("paid", "acme")] == [run.id]


@pytest.mark.parametrize("undo", [None, print])
def test_a_cancelled_run_waits_for_nothing_until_it_is_retried(app, control, undo):
    @app.task(name="order")
    async def order(ctx: Context) -> Any:
        await ctx.step(int, undo=undo)
        return await ctx.wait_for("paid", timeout=3600)

    def waiters() -> tuple[int, int, int]:
        awaited = control.events.list().awaited
        return (
            sum(each.waiters for each in awaited),
            len(control.events.waiters("paid")),
            len(control.runs.waits(run.id)),
        )

    run, other = order.enqueue(), order.enqueue()
    drain(app)
    assert waiters() == (2, 2, 1)
    run.cancel()
    assert run.info().state == ("cancelled" if undo is None else "undoing")
    assert (waiters(), control.events.list().awaited[0].run) == ((1, 1, 0), other.id)
    drain(app)
    assert (run.info().state, waiters()) == ("cancelled", (1, 1, 0))
    other.cancel()
    drain(app)
    assert (control.events.list().awaited, control.events.show("paid")) == ([], [])
    run.retry()
    drain(app)
    assert (run.info().state, waiters()) == ("waiting", (1, 1, 1))
    control.events.emit("paid", 7)
    drain(app)
    assert run.result() == 7


def test_why_names_the_tenant_of_an_awaited_event_and_one_emitted_for_another(control, wait):
    run, plain = wait("paid", "acme"), wait("paid")
    (reason,) = control.whys.why(run.id).reasons
    assert (reason.code, reason.text) == ("event", "waiting for event paid of tenant acme")
    assert reason.data["tenant"] == "acme"
    (reason,) = control.whys.why(plain.id).reasons
    assert (reason.text, reason.data["tenant"]) == ("waiting for event paid", None)

    control.events.emit("paid", tenant="other corp")
    (reason,) = control.whys.why(run.id).reasons
    assert reason.text.startswith("waiting for event paid of tenant acme; it was emitted for tenant other corp at 20")
    assert reason.text.endswith(", which doesn't reach this run")
    assert reason.command == "holdfast emit paid --tenant acme"
    assert reason.data["emitted_for"] == ["other corp"]
    (reason,) = control.whys.why(plain.id).reasons
    assert reason.text.endswith("which doesn't reach this run")
    assert reason.command == "holdfast emit paid"
    third = wait("paid", "third")
    control.events.emit("paid")
    (reason,) = control.whys.why(third.id).reasons
    assert "; it was emitted without a tenant, for tenant other corp at 20" in reason.text
    (reason,) = control.whys.why(run.id, AccessScope(tenant="acme")).reasons
    assert reason.text == "waiting for event paid of tenant acme"  # other tenants aren't shown to one


def test_an_event_is_cleared_and_later_waiters_wait(app, control, wait):
    control.events.emit("paid", 1)
    first = wait("paid")
    assert first.info().result == 1
    assert (control.events.clear("paid"), control.events.clear("paid")) == (True, False)
    assert control.events.list().emitted == []
    second = wait("paid")
    assert (second.info().state, first.info().result) == ("waiting", 1)
    control.events.emit("paid", 2)
    drain(app)
    assert second.info().result == 2


def test_a_replay_after_a_clear_sees_what_was_received(app, control):
    @app.task(name="twice")
    async def twice(ctx: Context) -> list[Any]:
        first = await ctx.wait_for("paid")
        return [first, await ctx.receive("go")]

    control.events.emit("paid", 1)
    run = twice.enqueue()
    drain(app)
    control.events.clear("paid")
    control.events.emit("paid", 2)
    run.send("go", "on")
    drain(app)
    assert run.info().result == [1, "on"]


@pytest.mark.parametrize("name", ["", "a\x1bb", "x" * 2000])
def test_invalid_name_is_rejected(control, name):
    for act in (control.events.emit, control.events.clear, control.events.show, control.events.waiters):
        with pytest.raises(ConfigError):
            act(name)
