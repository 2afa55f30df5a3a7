"""A pydantic-ai agent while the worker crashes at every write: no recorded call is made again, nothing gets lost.

The agent has three turns: two parallel tools, then a tool that needs an approval beside one that runs another agent,
then a streamed answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from holdfast import Context, Holdfast
from holdfast.integrations.pydantic_ai import Approval, HoldfastDurability
from holdfast.testing import Kit, crash_at_every_step
from tests.support.agent_calls import AgentCalls, final_chunks

app = Holdfast("sqlite:///never-made.db")
calls = AgentCalls(app)


@pytest.fixture
def holdfast_app():
    calls.clear()
    return app


def returned(messages: list[ModelMessage]) -> dict[str, Any]:
    """Return the results of tools that the model has seen, by tool."""
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    return {part.tool_name: part.content for part in parts}


async def converse(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    seen = returned(messages)
    if not seen:
        calls.note("first turn")
        yield {
            0: DeltaToolCall("search", '{"about": "rope"}', tool_call_id="a"),
            1: DeltaToolCall("price", '{"of": "rope"}', tool_call_id="b"),
        }
    elif "delete" not in seen:
        calls.note("second turn")
        yield "Deleting"
        yield " now."
        yield {
            1: DeltaToolCall("delete", '{"path": "/tmp"}', tool_call_id="c"),
            2: DeltaToolCall("ask_expert", '{"question": "why"}', tool_call_id="d"),
        }
    else:
        calls.note("third turn")
        for part in (seen["search"], ", ", seen["delete"], ", ", seen["ask_expert"]):
            yield part


def advise(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    calls.note("expert")
    return ModelResponse(parts=[TextPart("because")])


expert = Agent(FunctionModel(advise), name="expert", capabilities=[HoldfastDurability()])
agent = Agent(FunctionModel(stream_function=converse), name="shop", capabilities=[HoldfastDurability(stream="text")])


@agent.tool_plain
async def search(about: str) -> str:
    calls.note("search")
    return f"found {about}"


@agent.tool_plain
def price(of: str) -> int:
    calls.note("price")
    return 42


@agent.tool_plain(requires_approval=True)
def delete(path: str) -> str:
    calls.note("delete")
    return f"deleted {path}"


@agent.tool(metadata={"holdfast": False})
async def ask_expert(ctx: RunContext[None], question: str) -> str:
    result = await expert.run(question, usage=ctx.usage)
    return result.output


@app.task(name="assist")
async def assist(ctx: Context, question: str) -> dict[str, Any]:
    result = await agent.run(question)
    usage = result.usage
    return {
        "output": result.output,
        "transcript": without_times(ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json")),
        "requests": usage.requests,
        "tools": usage.tool_calls,
    }


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: without_times(each)
            for name, each in value.items()
            if name not in ("timestamp", "run_id", "conversation_id")
        }
    return [without_times(each) for each in value] if isinstance(value, list) else value


EXPECTED_CALLS = ["delete", "expert", "first turn", "price", "search", "second turn", "third turn"]
transcripts: list[Any] = []


@pytest.mark.slow
@crash_at_every_step
def test_a_crash_repeats_no_recorded_call_and_changes_no_transcript(kit: Kit):
    run = assist.enqueue("what about ropes?")
    kit.drain()
    run.gate("approve:delete").complete(Approval(True))
    kit.drain()
    result = run.result()
    assert result["output"] == "found rope, deleted /tmp, because"
    assert (result["requests"], result["tools"]) == (4, 4)
    transcripts.append(result["transcript"])
    assert result["transcript"] == transcripts[0], "the same as without a crash"
    assert calls.repeated == []
    assert sorted(calls.names) == EXPECTED_CALLS, "each call has one idempotency key"
    assert final_chunks(run) == ["Deleting", " now.", "found rope", ", ", "deleted /tmp", ", ", "because"]


@app.task(name="brief")
async def brief(ctx: Context) -> str:
    return (await expert.run("why?")).output


@crash_at_every_step
def test_a_crash_repeats_no_recorded_model_request(kit: Kit):
    run = brief.enqueue()
    kit.drain()
    assert run.result() == "because"
    assert calls.repeated == []
    assert calls.names == ["expert"]
