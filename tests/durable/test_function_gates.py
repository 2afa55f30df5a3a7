"""Gates that a durable function opens: it waits until a person or another system decides."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from holdfast import Context, GateRejected, Holdfast, RunFailed, SyncContext, WaitTimeout
from holdfast.control import Control
from holdfast.errors import BadArguments, GraphError, KeyConflict, RunFinished
from holdfast.testing import Kit, crash_at_every_step
from tests.support.durable import drain, state


@dataclass
class Decision:
    ok: bool
    note: str = "none"


@pytest.fixture
def refund(app, effects):
    @app.task(name="refund")
    async def refund(ctx: Context, timeout: float | None = None) -> str:
        await ctx.step(effects.note, "before")
        decision = await ctx.gate("approve", type=Decision, payload={"amount": 50}, timeout=timeout)
        await ctx.step(effects.note, "after")
        return f"{decision.ok}, {decision.note}"

    return refund


def test_the_output_of_a_gate_reaches_the_function(app, refund, effects):
    run = refund.enqueue()
    drain(app)
    assert state(run) == "waiting"
    assert run.gate("approve").complete(Decision(ok=True), by="ada") is True
    assert run.gate("approve").complete(Decision(ok=True)) is False
    with pytest.raises(KeyConflict, match="approve"):
        run.gate("approve").complete(Decision(ok=False))
    drain(app)
    assert run.result(timeout=5) == "True, none"
    assert effects.ledger.lines() == ["before", "after"], "nothing was repeated"


def test_an_output_of_another_type_is_refused_and_the_gate_stays_open(app, refund):
    run = refund.enqueue()
    drain(app)
    with pytest.raises(BadArguments, match="ok"):
        run.gate("approve").complete({"ok": "perhaps"})
    assert run.gate("approve").complete({"ok": False, "note": "late"})
    drain(app)
    assert run.result(timeout=5) == "False, late"


def test_a_rejected_gate_fails_the_function_at_once(app, refund):
    run = refund.enqueue()
    drain(app)
    run.gate("approve").fail("too expensive", by="ada")
    drain(app)
    with pytest.raises(RunFailed, match="gate approve was rejected: too expensive"):
        run.result(timeout=5)
    assert run.info().attempt == 1


def test_the_function_can_handle_a_rejection_and_a_timeout(timed_app, clock):
    @timed_app.task(name="asks")
    async def asks(ctx: Context) -> list[str]:
        found = []
        try:
            await ctx.gate("first")
        except GateRejected as rejected:
            found.append(f"{rejected.gate}: {rejected.error.message}")
        try:
            await ctx.gate("second", timeout=60)
        except WaitTimeout as timeout:
            found.append(str(timeout))
        return found

    run = asks.enqueue()
    drain(timed_app)
    run.gate("first").fail("no")
    drain(timed_app)
    clock.forward(61)
    drain(timed_app)
    assert run.result(timeout=5) == ["first: no", "gate second was not completed within 60 s"]


def test_gates_of_one_name_are_decided_one_after_the_other(app):
    @app.task(name="rounds")
    async def rounds(ctx: Context) -> list[int]:
        return [await ctx.gate("vote", type=int) for _ in range(3)]

    run = rounds.enqueue()
    for vote in range(3):
        drain(app)  # each a new worker, which replays
        assert run.gate("vote").complete(vote)
    drain(app)
    assert run.result(timeout=5) == [0, 1, 2]


def test_open_gates_of_one_name_are_decided_the_newest_first(app):
    @app.task(name="both")
    async def both(ctx: Context) -> list[int]:
        return list(await asyncio.gather(ctx.gate("vote", type=int), ctx.gate("vote", type=int)))

    run = both.enqueue()
    drain(app)
    assert [gate.name for gate in run.gates()] == ["vote", "vote"]
    run.gate("vote").complete(2)
    (left,) = run.gates()
    left.complete(1)
    assert run.gates() == []
    drain(app)
    assert run.result(timeout=5) == [1, 2]


def test_plain_functions_open_gates(app):
    @app.task(name="plain")
    def plain(ctx: SyncContext) -> bool:
        return ctx.gate("approve", type=Decision).ok

    run = plain.enqueue()
    drain(app)
    run.gate("approve").complete(Decision(ok=True))
    drain(app)
    assert run.result(timeout=5) is True


def test_a_gate_that_is_not_open_yet_is_an_error_that_names_ctx_gate(app, refund):
    run = refund.enqueue()
    with pytest.raises(GraphError, match=r"has opened no gate 'approve'.*ctx\.gate"):
        run.gate("approve").complete(Decision(ok=True))


kit_app = Holdfast("sqlite:///never-made.db")


@kit_app.task(name="guarded")
async def guarded(ctx: Context) -> bool:
    return bool(await ctx.gate("approve", type=bool))


@pytest.fixture
def holdfast_app():
    return kit_app


@crash_at_every_step
def test_a_crash_opens_no_second_gate_and_loses_no_decision(kit: Kit):
    run = guarded.enqueue()
    kit.drain()
    (gate,) = run.gates()
    gate.complete(True)
    kit.drain()
    assert run.result() is True
    assert len(kit.app.runs(task="approve")) == 1


def test_operators_see_and_decide_the_gates_of_functions(app, refund):
    control = Control(app.store)
    run = refund.enqueue()
    drain(app)
    (gate,) = control.graphs.gates(run.id)
    (reason,) = control.whys.why(run.id).reasons
    graph = str(gate.graph)
    assert (reason.code, reason.data["graph"], reason.data["gate"]) == ("gate", graph, "approve")
    assert reason.text == "waiting for approval of gate approve"
    assert reason.command == f"holdfast gate {graph} approve complete OUTPUT"
    assert (gate.name, gate.state) == ("approve", "waiting")
    (listed,) = control.gates.open()
    assert (listed.name, listed.task, listed.payload, listed.asked) == ("approve", "refund", {"amount": 50}, [])
    assert listed.since == gate.since == reason.data["since"]
    assert control.gates.read(control.graphs.node(run.id, "approve")).payload == {"amount": 50}
    control.graphs.complete(run.id, "approve", {"ok": True}, by="ada")
    (decided,) = control.graphs.gates(run.id)
    assert (decided.state, decided.decided_by) == ("done", "ada")


def test_the_gate_ends_with_its_function(app, refund):
    run = refund.enqueue()
    drain(app)
    run.cancel()
    with pytest.raises(RunFinished, match="cancelled"):
        run.gate("approve").complete(Decision(ok=True))


def test_a_restarted_function_opens_a_new_gate(app):
    @app.task(name="again")
    async def again(ctx: Context, votes: int) -> int:
        votes += await ctx.gate("vote", type=int)
        if votes < 3:
            await ctx.restart(votes)
        return votes

    run = again.enqueue(0)
    drain(app)
    run.gate("vote").complete(1)
    drain(app)
    run.gate("vote").complete(2)
    drain(app)
    assert run.result(timeout=5) == 3
