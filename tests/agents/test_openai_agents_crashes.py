"""Agents of the OpenAI SDK while the worker crashes at every write: no recorded call is made again, nothing gets lost.

The agent has three turns: two parallel tools, then a tool that needs an approval beside another agent as a tool, then
a handoff to an agent that streams its answer. A guardrail checks the input, and a session keeps the conversation.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    RunContextWrapper,
    SQLiteSession,
    function_tool,
    input_guardrail,
    set_tracing_disabled,
)

from holdfast import Context, Holdfast
from holdfast.integrations.openai_agents import Approval, HoldfastRunner
from holdfast.testing import Kit, crash_at_every_step
from tests.support.agent_calls import AgentCalls, final_chunks
from tests.support.openai_model import Answer, FakeModel

app = Holdfast("sqlite:///never-made.db")
calls = AgentCalls(app)
sessions: dict[str, SQLiteSession] = {}
set_tracing_disabled(True)


@pytest.fixture
def holdfast_app():
    calls.clear()
    sessions.clear()
    return app


def converse(seen: dict[str, Any]) -> Answer:
    if not seen:
        calls.note("first turn")
        return {"a": ("search", '{"about": "rope"}'), "b": ("price", '{"of": "rope"}')}
    if "c" not in seen:
        calls.note("second turn")
        return {"c": ("delete", '{"path": "/tmp"}'), "d": ("ask_expert", '{"input": "why"}')}
    calls.note("third turn")
    return {"e": ("transfer_to_closer", "{}")}


def conclude(seen: dict[str, Any]) -> Answer:
    calls.note("closing turn")
    return [seen["a"], ", ", seen["c"], ", ", seen["d"]]


def advise(_: dict[str, Any]) -> Answer:
    calls.note("expert")
    return ["because"]


@function_tool
async def search(about: str) -> str:
    calls.note("search")
    return f"found {about}"


@function_tool
def price(of: str) -> int:
    calls.note("price")
    return 42


@function_tool(needs_approval=True)
def delete(path: str) -> str:
    calls.note("delete")
    return f"deleted {path}"


@input_guardrail
def polite(_: RunContextWrapper[Any], agent: Agent[Any], given: Any) -> GuardrailFunctionOutput:
    calls.note("guardrail")
    return GuardrailFunctionOutput({"polite": True}, tripwire_triggered=False)


expert = Agent("expert", model=FakeModel(advise))
closer = Agent("closer", model=FakeModel(conclude))
shop = Agent(
    "shop", model=FakeModel(converse), handoffs=[closer], input_guardrails=[polite],
    tools=[search, price, delete, expert.as_tool("ask_expert", "Asks an expert.")],
)  # fmt: skip
runner = HoldfastRunner(stream="text")


@app.task(name="assist")
async def assist(ctx: Context, question: str, streamed: bool) -> dict[str, Any]:
    session = sessions.setdefault(str(ctx.run_id), SQLiteSession(str(ctx.run_id)))
    result: Any
    events: list[str] = []
    if streamed:
        result = runner.run_streamed(shop, question, session=session)
        async for event in result.stream_events():
            await ctx.set("events", len(events))  # the body uses the context between events
            events.append(getattr(event, "name", event.type))
    else:
        result = await runner.run(shop, question, session=session)
    items, agent = result.to_input_list(), result.last_agent.name
    return {"output": result.final_output, "items": items, "agent": agent, "events": events}


EXPECTED_CALLS = ["closing turn", "delete", "expert", "first turn", "guardrail", "price", "search"]
EXPECTED_CALLS += ["second turn", "third turn"]
transcripts: dict[bool, Any] = {}
kept: list[Any] = []


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True], ids=["run", "run_streamed"])
@crash_at_every_step
def test_a_crash_repeats_no_recorded_call_and_changes_no_transcript(kit: Kit, streamed: bool):
    run = assist.enqueue("what about ropes?", streamed)
    kit.drain()
    run.gate("approve:delete").complete(Approval(True))
    kit.drain()
    result = run.result()
    assert result["output"] == "found rope, deleted /tmp, because"
    assert result["agent"] == "closer"
    first = transcripts.setdefault(streamed, result)
    assert result == first, "the same as without a crash"
    assert calls.repeated == []
    assert sorted(calls.names) == EXPECTED_CALLS, "each call has one idempotency key"
    assert final_chunks(run) == ["because", "found rope", ", ", "deleted /tmp", ", ", "because"]
    kept.append(stored_items(sessions[str(run.id)]))
    assert kept[-1] == kept[0], "items of the session are there once"


def stored_items(session: SQLiteSession) -> list[Any]:
    return asyncio.run(session.get_items())


@app.task(name="brief")
async def brief(ctx: Context) -> str:
    return str((await runner.run(expert, "why?")).final_output)


@crash_at_every_step
def test_a_crash_repeats_no_recorded_model_call(kit: Kit):
    run = brief.enqueue()
    kit.drain()
    assert run.result() == "because"
    assert calls.repeated == []
    assert calls.names == ["expert"]
    assert final_chunks(run) == ["because"]
