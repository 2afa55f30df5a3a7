"""Messages and events that don't have the expected type: they are set aside, and the function waits for the next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from holdfast import BadMessage, Context, Fatal, MessageNotFound, Retry, RunFailed, RunFinished, SyncContext
from holdfast.control import Control
from holdfast.errors import ConfigError, TaskError
from tests.support.durable import drain, kinds, state

ONCE = Retry(max_attempts=1)


@dataclass
class Approval:
    by: str
    ok: bool


GOOD = {"by": "ada", "ok": True}
BAD = {"by": "ada", "ok": "yes"}


@pytest.fixture
def control(app):
    return Control(app.store, app.registry)


@pytest.fixture(params=["async", "sync"])
def waiter(app, request):
    """A task whose function receives one approval; its declaration doesn't say so."""
    if request.param == "sync":

        @app.task(name="waiter", retry=ONCE)
        def waits(ctx: SyncContext) -> str:
            return ctx.receive("approvals", type=Approval).by

        return waits

    @app.task(name="waiter", retry=ONCE)
    async def awaits(ctx: Context) -> str:
        return (await ctx.receive("approvals", type=Approval)).by

    return awaits


@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_a_message_of_another_type_is_set_aside_and_the_next_one_is_received(app, control, waiter, when):
    run = waiter.enqueue()
    if when == "while it waits":
        drain(app)
    run.send("approvals", BAD)
    drain(app)
    assert state(run) == "waiting"
    (message,) = control.runs.details(run.id).set_aside
    assert (message.n, message.topic, message.payload) == (1, "approvals", BAD)
    assert "Expected `bool`, got `str`" in (message.error or "")
    run.send("approvals", GOOD)
    drain(app)
    assert run.result(timeout=5) == "ada"
    assert kinds(run).count("set_aside") == 1
    assert [step.superseded for step in control.runs.steps(run.id)] == [True, False]


def test_a_message_that_was_set_aside_is_sent_again_corrected_or_as_it_is(app, control, waiter):
    run = waiter.enqueue()
    run.send("approvals", BAD)
    drain(app)
    assert control.runs.resend(run.id, 1, by="ada") == "approvals"
    drain(app)
    assert [message.n for message in control.runs.set_aside(run.id)] == [2], "the same message doesn't fit either"
    with pytest.raises(MessageNotFound, match="no message 1"):
        control.runs.resend(run.id, 1)
    control.runs.resend(run.id, 2, GOOD, by="ada")
    assert control.runs.set_aside(run.id) == []
    drain(app)
    assert run.result(timeout=5) == "ada"
    sent = [entry.data for entry in run.history() if entry.kind == "sent"]
    assert sent[-1] == {"by": "ada", "topic": "approvals", "message": 2}
    with pytest.raises(RunFinished):
        control.runs.resend(run.id, 2)


def test_a_retry_doesnt_read_a_message_again_that_was_set_aside(app, control, ledger):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> int:
        number: int = await ctx.receive("numbers", type=int)
        if not ledger.lines():
            ledger.write("failed once")
            raise Fatal("once")
        return number

    run = work.enqueue()
    run.send("numbers", "one")
    run.send("numbers", 2)
    drain(app)
    assert state(run) == "failed"
    run.retry()
    drain(app)
    assert run.result(timeout=5) == 2
    assert [message.payload for message in control.runs.set_aside(run.id)] == ["one"]


def test_branches_that_receive_at_once_get_the_messages_that_fit(app, control):
    @app.task(name="work")
    async def work(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.receive("numbers", type=int) for _ in range(3)))

    run = work.enqueue()
    drain(app)
    for payload in ("a", 1, "b", 2, "c", 3):
        run.send("numbers", payload)
    drain(app)
    assert sorted(run.result(timeout=5)) == [1, 2, 3]
    assert sorted(message.payload for message in control.runs.set_aside(run.id)) == ["a", "b", "c"]


def test_why_counts_the_messages_that_were_set_aside(app, control, waiter):
    run = waiter.enqueue()
    run.send("approvals", BAD)
    drain(app)
    (reason,) = control.whys.why(run.id).reasons
    assert "1 message set aside" in reason.text
    assert reason.data["set_aside"] == 1


# Events


@pytest.fixture(params=["async", "sync"])
def awaiter(app, request):
    """A task whose function waits for the approval of a page."""
    if request.param == "sync":

        @app.task(name="awaiter", retry=ONCE)
        def waits(ctx: SyncContext) -> str:
            return ctx.wait_for("approved", type=Approval).by

        return waits

    @app.task(name="awaiter", retry=ONCE)
    async def awaits(ctx: Context) -> str:
        return (await ctx.wait_for("approved", type=Approval)).by

    return awaits


@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_an_event_of_another_type_is_set_aside_and_its_next_emit_is_received(app, control, awaiter, when):
    run = awaiter.enqueue()
    if when == "while it waits":
        drain(app)
    app.emit("approved", BAD)
    drain(app)
    assert state(run) == "waiting"
    assert not app.emit("approved", GOOD), "an event stays what it is"
    drain(app)
    assert state(run) == "waiting"
    (reason,) = control.whys.why(run.id).reasons
    assert "payload of another type, which was set aside" in reason.text
    assert reason.command.startswith("holdfast events clear approved; holdfast emit approved")
    (entry,) = [entry for entry in run.history() if entry.kind == "set_aside"]
    assert entry.data["event"] == "approved"
    assert "Expected `bool`, got `str`" in entry.data["reason"]
    assert app.events.clear("approved")
    assert not app.events.clear("approved")
    drain(app)
    assert state(run) == "waiting"
    app.emit("approved", GOOD)
    drain(app)
    assert run.result(timeout=5) == "ada"
    assert [step.superseded for step in control.runs.steps(run.id)] == [True, False]
    assert control.runs.set_aside(run.id) == []


def test_another_emit_of_the_wrong_type_is_set_aside_again(app, awaiter):
    run = awaiter.enqueue()
    for payload in (BAD, BAD, "nonsense"):
        app.emit("approved", payload)
        drain(app)
        assert state(run) == "waiting"
        app.events.clear("approved")
    app.emit("approved", GOOD)
    drain(app)
    assert run.result(timeout=5) == "ada"
    assert kinds(run).count("set_aside") == 3


def test_others_receive_an_event_that_a_function_has_set_aside(app, awaiter):
    @app.task(name="reader")
    async def reader(ctx: Context) -> str:
        return (await ctx.wait_for("approved"))["ok"]

    runs = [awaiter.enqueue(), reader.enqueue()]
    drain(app)
    app.emit("approved", BAD)
    drain(app)
    assert [state(run) for run in runs] == ["waiting", "done"]


def test_a_function_that_has_set_an_event_aside_times_out(timed_app, clock):
    @timed_app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> str:
        return (await ctx.wait_for("approved", type=Approval, timeout=60)).by

    run = work.enqueue()
    timed_app.emit("approved", BAD)
    drain(timed_app)
    assert state(run) == "waiting"
    clock.forward(61)
    drain(timed_app)
    with pytest.raises(RunFailed, match="timed out waiting for event 'approved'"):
        run.result(timeout=5)


# Declared types


@pytest.fixture
def order(app):
    @app.task(name="order", receives={"approvals": Approval, "notes": list[str]})
    async def order(ctx: Context) -> str:
        return f"{(await ctx.receive('approvals')).by}, {await ctx.receive('notes')}"

    return order


def test_a_declared_type_applies_to_receive_and_refuses_other_messages_at_once(app, control, order):
    run = order.enqueue()
    for refused in (BAD, "yes", None):
        with pytest.raises(BadMessage, match=r"task order receives Approval on topic 'approvals'"):
            run.send("approvals", refused)
    with pytest.raises(BadMessage):
        app.get_run(run.id).send("notes", [1])
    with pytest.raises(BadMessage):
        control.runs.send(run.id, "notes", "text")
    run.send("approvals", Approval("ada", True))
    run.send("notes", ["fine"])
    with pytest.raises(BadMessage, match="no messages on topic 'note'; it has approvals, notes"):
        run.send("note", ["fine"])
    drain(app)
    assert run.result(timeout=5) == "ada, ['fine']"


def test_a_corrected_message_is_checked_against_the_declared_type(app, make_app, control, order):
    run = order.enqueue()
    make_app().get_run(run.id).send("approvals", BAD)  # a program without the task's code
    drain(app)
    with pytest.raises(BadMessage):
        control.runs.resend(run.id, 1, "nonsense")
    control.runs.resend(run.id, 1, GOOD)
    run.send("notes", [])
    drain(app)
    assert run.result(timeout=5) == "ada, []"


def test_a_type_given_to_receive_overrides_the_declared_one(app):
    @app.task(name="work", receives={"n": int})
    async def work(ctx: Context) -> float:
        return await ctx.receive("n", type=float)

    run = work.enqueue()
    run.send("n", 2)
    drain(app)
    assert run.result(timeout=5) == 2.0


@pytest.mark.parametrize(
    ("given", "error"),
    [([int], ConfigError), ({"n": "int"}, ConfigError), ({"n": object()}, TaskError), ({"": int}, ConfigError)],
)
def test_invalid_declarations_are_refused(app, given, error):
    with pytest.raises(error, match="receives"):

        @app.task(name="work", receives=given)
        async def work(ctx: Context) -> None: ...


def test_a_job_declares_no_messages(app):
    with pytest.raises(ConfigError, match="is a job"):

        @app.task(name="job", receives={"n": int})
        def job() -> None: ...
