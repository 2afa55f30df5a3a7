"""Streamed runs of the OpenAI Agents SDK in durable functions: what the body gets, and what readers get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from agents import Agent, Runner, function_tool, set_tracing_disabled

from holdfast import Context, Holdfast, Retry, Run, TaskError
from holdfast.integrations.openai_agents import Approval, HoldfastRunner
from holdfast.testing import Kit
from tests.support.agent_calls import AgentCalls, final_chunks
from tests.support.openai_model import FakeModel

ONCE = Retry(max_attempts=1)
TWICE = Retry(max_attempts=2, delay=0)


@pytest.fixture(autouse=True)
def no_traces_are_sent() -> None:
    set_tracing_disabled(True)


@pytest.fixture
def holdfast_app() -> Holdfast:
    return Holdfast("sqlite:///never-made.db")


@pytest.fixture
def holdfast_database() -> str:
    """Nothing here depends on the database; `test_openai_agents_crashes.py` uses both."""
    return "sqlite"


@pytest.fixture
def calls(holdfast_app: Holdfast) -> AgentCalls:
    return AgentCalls(holdfast_app)


@function_tool(needs_approval=True)
def delete(path: str) -> str:
    return f"deleted {path}"


def deleter(note: Callable[[str], None] = lambda _: None) -> Agent[Any]:
    """Return an agent that deletes something, then says so in two pieces."""

    def answer(seen: dict[str, Any]) -> Any:
        note("model")
        return [seen["a"], " for good"] if "a" in seen else {"a": ("delete", '{"path": "/tmp"}')}

    return Agent("shop", model=FakeModel(answer), tools=[delete])


def start(kit: Kit, body: Callable[[Context], Any], retry: Retry = ONCE) -> Run[Any]:
    """Run a durable function until it ends or waits."""
    run = kit.app.task(name="streamed", retry=retry)(body).enqueue()
    kit.drain()
    return run


async def events_of(streamed: Any) -> list[str]:
    """Read all events. Text is shown as it is."""
    found = []
    async for event in streamed.stream_events():
        if event.type == "raw_response_event":
            delta = event.data.type == "response.output_text.delta"
            found.append(f"text {event.data.delta}" if delta else event.data.type)
        else:
            found.append(getattr(event, "name", event.type))
    return found


RECORDED = [
    "agent_updated_stream_event", "response.output_item.done", "response.completed", "tool_called",
    "agent_updated_stream_event", "tool_output",  # after the approval
    "text deleted /tmp for good", "response.output_item.done", "response.completed", "message_output_created",
]  # fmt: skip


def test_the_body_gets_recorded_events_and_readers_get_text_while_the_model_answers(kit: Kit, calls: AgentCalls):
    agent = deleter(calls.note)
    attempts: list[list[str]] = []

    async def go(ctx: Context) -> Any:
        streamed = HoldfastRunner().run_streamed(agent, "hello")
        attempts.append(await events_of(streamed))
        if ctx.attempt == 1:
            raise ConnectionError
        return [streamed.final_output, streamed.last_agent.name, len(streamed.to_input_list())]

    run = start(kit, go, TWICE)
    run.gate("approve:delete").complete(Approval(True))
    kit.drain()
    assert run.result(timeout=1) == ["deleted /tmp for good", "shop", 4]
    assert attempts[0] == attempts[-1] == RECORDED, "the same live and in a replay"
    assert calls.names == ["model", "model"]
    assert calls.repeated == []
    assert final_chunks(run) == ["deleted /tmp", " for good"]
    assert [step.name for step in kit.steps(run) if "." in step.name] == [
        "shop.model",
        "shop.tool.delete",
        "shop.model",
    ]


def test_the_transcript_is_that_of_a_run_that_is_not_streamed_and_of_one_without_durability(kit: Kit):
    agent = Agent("shop", model=FakeModel(lambda _: ["hi"]))

    async def go(ctx: Context) -> Any:
        streamed = HoldfastRunner(stream=lambda _: None).run_streamed(agent, "hello")
        await events_of(streamed)
        other = await HoldfastRunner().run(agent, "hello")
        return [streamed.to_input_list(), other.to_input_list(), streamed.context_wrapper.usage.total_tokens]

    plain = asyncio.run(Runner.run(agent, "hello")).to_input_list()
    assert start(kit, go).result(timeout=1) == [plain, plain, 15]


def test_a_failed_model_fails_the_stream_and_its_next_attempt_replaces_the_text(kit: Kit):
    failures = [ConnectionError("gone")]

    class Breaking(FakeModel):
        async def stream_response(self, *request: Any, **options: Any) -> Any:
            async for event in super().stream_response(*request, **options):
                yield event
                if failures:
                    raise failures.pop()

    agent = Agent("shop", model=Breaking(lambda _: ["all ", "well"]))

    async def go(ctx: Context) -> Any:
        streamed = HoldfastRunner().run_streamed(agent, "hello")
        return [await events_of(streamed), streamed.final_output][1]

    run = start(kit, go, TWICE)
    assert run.result(timeout=1) == "all well"
    assert [chunk.data for chunk in run.stream()] == ["all ", "all ", "well"]
    assert final_chunks(run) == ["all ", "well"]


def test_an_agent_that_a_tool_streams_is_durable_too(kit: Kit, calls: AgentCalls):
    def advise(_: dict[str, Any]) -> Any:
        calls.note("expert")
        return ["because"]

    def ask(seen: dict[str, Any]) -> Any:
        return [seen["a"]] if "a" in seen else {"a": ("ask_expert", '{"input": "why"}')}

    seen: list[str] = []
    expert = Agent("expert", model=FakeModel(advise))
    tool = expert.as_tool("ask_expert", "Asks an expert.", on_stream=lambda given: seen.append(given["event"].type))
    agent = Agent("shop", model=FakeModel(ask), tools=[tool])

    async def go(ctx: Context) -> Any:
        return (await HoldfastRunner().run(agent, "hello")).final_output

    run = start(kit, go)
    assert run.result(timeout=1) == "because"
    assert "raw_response_event" in seen
    assert calls.names == ["expert"]
    assert "expert.model" in [step.name for step in kit.steps(run)]


async def test_a_streamed_run_outside_a_durable_function_is_refused_or_runs() -> None:
    agent = Agent("shop", model=FakeModel(lambda _: ["hi"]))
    with pytest.raises(TaskError, match="agent shop was run outside a durable function"):
        HoldfastRunner().run_streamed(agent, "hello")
    streamed = HoldfastRunner(outside="run").run_streamed(agent, "hello")
    assert "text hi" in await events_of(streamed)
    assert streamed.final_output == "hi"
