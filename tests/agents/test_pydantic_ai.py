"""pydantic-ai agents in durable functions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, FunctionToolset, ModelRetry, RunContext, UsageLimits
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import ModelHTTPError, UsageLimitExceeded
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests, ToolDefinition
from pydantic_ai.toolsets import DynamicToolset, ExternalToolset

from holdfast import ConfigError, Context, Holdfast, Retry, Run, RunFailed, SyncContext, TaskError, current_context
from holdfast.integrations.pydantic_ai import Approval, HoldfastDurability, Price
from holdfast.testing import Kit
from tests.support.agent_calls import AgentCalls, final_chunks

ONCE = Retry(max_attempts=1)


@pytest.fixture
def holdfast_app() -> Holdfast:
    return Holdfast("sqlite:///never-made.db")


@pytest.fixture
def calls(holdfast_app: Holdfast) -> AgentCalls:
    return AgentCalls(holdfast_app)


@pytest.fixture
def holdfast_database() -> str:
    """Nothing here depends on the database; `test_pydantic_ai_crashes.py` uses both."""
    return "sqlite"


def start(kit: Kit, body: Callable[[Context], Any], retry: Retry = ONCE) -> Run[Any]:
    """Run a durable function until it ends or waits."""
    run = kit.app.task(name=f"task{len(kit.app.registry.names())}", retry=retry)(body).enqueue()
    kit.drain()
    return run


def ask(kit: Kit, agent: Agent[None, Any], **options: Any) -> Run[Any]:
    """Run an agent in a durable function."""

    async def go(ctx: Context) -> Any:
        return (await agent.run("hello", **options)).output

    return start(kit, go)


def result(run: Run[Any]) -> Any:
    return run.result(timeout=1)


def durable(model: Any = None, *, toolsets: Any = None, output_type: Any = str, **options: Any) -> Agent[None, Any]:
    capabilities = [HoldfastDurability[None](**options)]
    return Agent(
        model or TestModel(), name="shop", toolsets=toolsets, output_type=output_type, capabilities=capabilities
    )


def answers(*turns: Any) -> FunctionModel:
    """Return a model that gives one answer after the other: text, or a tool to call; a list has several parts."""

    def respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        parts = turns[turn] if isinstance(turns[turn], list) else [turns[turn]]
        return ModelResponse(parts=[
            ToolCallPart(part[5:], {}, tool_call_id=f"{part}-{turn}") if part.startswith("call ") else TextPart(part)
            for part in parts
        ])  # fmt: skip

    return FunctionModel(respond)


def returned(messages: list[ModelMessage]) -> list[Any]:
    parts = [part for message in messages for part in message.parts]
    return [part.content for part in parts if isinstance(part, ToolReturnPart)]


def test_names_of_steps_are_pinned(kit: Kit):
    """They identify what is recorded of runs in flight: never change them."""
    shelf = FunctionToolset[None](id="shelf")
    shelf.add_function(lambda: "rope", name="look")
    agent = durable(toolsets=[shelf])

    @agent.tool_plain
    def search(about: str) -> str:
        return about

    run = ask(kit, agent)
    assert sorted(step.key for step in kit.steps(run)) == [
        "shop.model-1:5eed25f9aa1c6813#1",
        "shop.model-1:5eed25f9aa1c6813#2",
        "shop.tool.look-1:dcce93cfd8844303#1",
        "shop.tool.search-1:7ccd85d5abd49779#1",
    ]


def test_another_default_model_takes_over_open_runs(kit: Kit):
    models = {"first": answers("call search", "done"), "second": answers("call search", "done, too")}
    tried: list[str] = []

    async def go(ctx: Context) -> str:
        agent = durable("first" if ctx.attempt == 1 else "second", models=models)

        @agent.tool_plain
        def search() -> str:
            tried.append("search")
            return "found"

        if ctx.attempt == 1:
            agent.output_validator(lambda _: 1 / 0)
        return (await agent.run("hello")).output

    run = start(kit, go, Retry(max_attempts=2, delay=0))
    assert result(run) == "done"
    assert tried == ["search"]
    assert [step.name for step in kit.steps(run)] == ["shop.model", "shop.tool.search", "shop.model"]


def test_an_agent_outside_a_durable_function_is_refused(kit: Kit):
    with pytest.raises(TaskError, match=r'agent shop was run outside a durable function.*outside="run"'):
        durable().run_sync("hello")

    async def job() -> str:
        return (await durable().run("hello")).output

    def blocking(ctx: SyncContext) -> str:
        return durable().run_sync("hello").output

    with pytest.raises(RunFailed, match="outside a durable function"):
        result(start(kit, job))
    with pytest.raises(RunFailed, match="with a SyncContext"):
        result(start(kit, blocking))


def test_an_agent_outside_a_durable_function_runs_if_that_is_allowed():
    agent = Agent(TestModel(), capabilities=[HoldfastDurability(outside="run", stream="text")])
    assert agent.run_sync("hello").output == "success (no tool calls)"


def test_an_agent_without_a_name_is_durable_too(kit: Kit):
    run = ask(kit, Agent(TestModel(), capabilities=[HoldfastDurability()]))
    assert [step.name for step in kit.steps(run)] == ["agent.model"]


def test_an_agent_in_a_step_is_part_of_the_step_and_says_so(kit: Kit, caplog: pytest.LogCaptureFixture):
    helper = Agent(TestModel(), name="helper", capabilities=[HoldfastDurability()])
    agent = durable()

    @agent.tool_plain
    async def consult() -> str:
        return (await helper.run("hello")).output

    with caplog.at_level(logging.WARNING):
        run = ask(kit, agent)
    assert [step.name for step in kit.steps(run)] == ["shop.model", "shop.tool.consult", "shop.model"]
    assert "agent=helper step=shop.tool.consult advice='give the tool metadata=" in caplog.text


class Item(BaseModel):
    name: str
    tags: set[str]


@dataclass
class Box:
    item: Item
    at: timedelta


def test_results_of_any_type_are_the_same_live_and_replayed(kit: Kit):
    agent = durable(answers(["call box", "call photo"], "done"))

    @agent.tool_plain
    def box() -> Box:
        return Box(Item(name="rope", tags={"new"}), timedelta(seconds=1))

    @agent.tool_plain
    def photo() -> BinaryContent:
        return BinaryContent(b"\x00\xff", media_type="image/png")

    seen: list[Any] = []

    async def go(ctx: Context) -> str:
        run = await agent.run("hello")
        seen.append(returned(run.all_messages()))
        if ctx.attempt == 1:
            raise ConnectionError
        return run.output

    assert result(start(kit, go, Retry(max_attempts=2, delay=0))) == "done"
    live, replayed = seen
    assert live == replayed
    assert live[0] == {"item": {"name": "rope", "tags": ["new"]}, "at": "PT1S"}
    assert live[1].data == b"\x00\xff"


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [("x" * 3_000_000, "too_large", "result of step shop.tool.tool"), (object(), "fatal", "can't be stored as JSON")],
    ids=["large", "odd"],
)
def test_a_result_that_cannot_be_stored_fails_the_run_at_once(kit: Kit, value: Any, code: str, text: str):
    agent = durable(answers("call tool", "done"))

    @agent.tool_plain
    def tool() -> Any:
        return value

    async def go(ctx: Context) -> Any:
        return (await agent.run("hello")).output

    run = start(kit, go, Retry(max_attempts=10))
    with pytest.raises(RunFailed, match=text) as failed:
        result(run)
    assert failed.value.error.code == code
    assert run.info().attempt == 1


def test_a_mistake_in_the_code_of_an_agent_fails_the_run_at_once(kit: Kit):
    agent = durable(answers("call tool", "done"))

    @agent.tool
    def tool(ctx: RunContext[None]) -> None:
        ctx.enqueue("more")  # would get lost in a replay

    async def go(ctx: Context) -> Any:
        return (await agent.run("hello")).output

    with pytest.raises(RunFailed, match=r"`ctx.enqueue\(\)` is not supported inside a durable step"):
        result(start(kit, go, Retry(max_attempts=10)))


def test_a_tool_is_retried_by_the_model_and_by_its_step(kit: Kit, calls: AgentCalls):
    agent = durable(answers("call picky", "call picky", "call shaky", "done"))
    failures = iter([ModelRetry("say please"), None, ConnectionError(), None])

    def call(name: str) -> str:
        calls.note(name)
        if (failure := next(failures)) is not None:
            raise failure
        return "ok"

    agent.tool_plain(lambda: call("picky"), name="picky")
    agent.tool_plain(
        lambda: call("shaky"), name="shaky", metadata={"holdfast": {"retry": Retry(max_attempts=2, delay=0)}}
    )
    run = ask(kit, agent)
    assert result(run) == "done"
    assert calls.names == ["picky", "picky", "shaky"]
    assert list(calls.tries().values()) == [1, 1, 2]


def test_a_model_error_is_itself_live_and_replayed(kit: Kit):
    def fail(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(429, "big", {"error": "slow down"})

    seen: list[tuple[type, int, Any]] = []

    async def go(ctx: Context) -> str:
        try:
            await durable(FunctionModel(fail)).run("hello")
        except ModelHTTPError as error:
            seen.append((type(error), error.status_code, error.body))
        await ctx.step(len, "done")
        if ctx.attempt == 1:
            raise ConnectionError
        return "caught"

    assert result(start(kit, go, Retry(max_attempts=2, delay=0))) == "caught"
    assert seen[0][1:] == (429, {"error": "slow down"})
    assert seen[0] == seen[1]


def test_a_fallback_model_is_asked_in_a_step_of_its_own(kit: Kit):
    def fail(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(503, "big")

    capabilities = [HoldfastDurability(models={"small": answers("small talk")}), ModelFallback("small")]
    agent = Agent(FunctionModel(fail), name="shop", capabilities=capabilities)
    run = ask(kit, agent)
    assert result(run) == "small talk"
    assert [step.name for step in kit.steps(run)] == ["shop.model", "shop.model(small)"]


def test_usage_limits_count_what_tools_use_also_after_a_replay(kit: Kit):
    helper = Agent(answers("fine"), name="helper")
    agent = durable(answers("call consult", "call consult", "done"))

    @agent.tool
    async def consult(ctx: RunContext[None]) -> str:
        return (await helper.run("hello", usage=ctx.usage)).output

    seen: list[int] = []

    async def go(ctx: Context) -> str:
        run = await agent.run("hello", usage_limits=UsageLimits(request_limit=5))
        seen.append(run.usage.requests)
        if ctx.attempt == 1:
            raise ConnectionError
        with pytest.raises(UsageLimitExceeded):
            await agent.run("hello", usage_limits=UsageLimits(request_limit=4))
        return run.output

    assert result(start(kit, go, Retry(max_attempts=2, delay=0))) == "done"
    assert seen == [5, 5]


def test_an_approval_waits_at_a_gate(kit: Kit, calls: AgentCalls):
    agent = durable(answers("call delete", "call delete", "done"))
    agent.tool_plain(lambda: calls.note("delete"), name="delete", requires_approval=True)
    seen: list[Any] = []

    async def go(ctx: Context) -> str:
        run = await agent.run("hello")
        seen[:] = returned(run.all_messages())
        return run.output

    run = start(kit, go)
    assert calls.names == []
    run.gate("approve:delete").complete(Approval(False, "not today"))
    kit.drain()
    run.gate("approve:delete").complete(Approval(True))
    kit.drain()
    assert result(run) == "done"
    assert calls.names == ["delete"]
    assert seen[0] == "not today"


def test_a_rejected_gate_and_a_timeout_deny_the_call(kit: Kit):
    agent = durable(answers("call delete", "call delete", "done"), approval_timeout=60)
    agent.tool_plain(lambda: 1 / 0, name="delete", requires_approval=True)
    seen: list[Any] = []

    async def go(ctx: Context) -> str:
        run = await agent.run("hello")
        seen[:] = returned(run.all_messages())
        return run.output

    run = start(kit, go)
    run.gate("approve:delete").fail("no")
    kit.drain()
    kit.clock.advance(61)
    kit.drain()
    assert result(run) == "done"
    assert seen == ["no", "Nobody approved the call in time."]


def test_an_agent_whose_output_has_deferred_requests_returns_them(kit: Kit):
    agent = durable(answers("call delete"), output_type=[str, DeferredToolRequests])
    agent.tool_plain(lambda: 1 / 0, name="delete", requires_approval=True)

    async def go(ctx: Context) -> list[str]:
        output = (await agent.run("hello")).output
        return [call.tool_name for call in output.approvals]

    assert result(start(kit, go)) == ["delete"]


def test_an_external_tool_waits_for_its_result_at_a_gate(kit: Kit):
    outside = ExternalToolset[None]([ToolDefinition(name="survey")], id="outside")
    run = ask(kit, durable(answers("call survey", "done"), toolsets=[outside]))
    run.gate("result:survey").complete({"votes": 3})
    kit.drain()
    assert result(run) == "done"


async def chatter(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
    for word in ("one ", "two ", "three"):
        yield word


def test_text_streams_while_the_model_answers_and_again_when_it_is_asked_again(kit: Kit):
    seen: list[int] = []

    async def shaky(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
        yield "one "
        await current_context().progress(1)
        seen.append(1)
        if len(seen) == 1:
            raise ConnectionError
        yield "two"

    retry = Retry(max_attempts=2, delay=0)
    run = ask(kit, durable(FunctionModel(stream_function=shaky), stream="text", model_options={"retry": retry}))
    assert result(run) == "one two"
    assert [(chunk.step_try, chunk.data) for chunk in run.stream()] == [(1, "one "), (2, "one "), (2, "two")]
    assert final_chunks(run) == ["one ", "two"]


def test_events_stream_with_those_of_tools_and_a_handler_gets_them_too(kit: Kit):
    handled: list[str] = []

    async def handler(ctx: RunContext[None], events: Any) -> None:
        handled.extend([event.event_kind async for event in events])

    agent = durable(stream="events", event_stream_handler=handler)
    agent.tool_plain(lambda: "rope", name="look")
    run = ask(kit, agent)
    result(run)
    streamed = [chunk.data["event_kind"] for chunk in run.stream()]
    assert "function_tool_result" in streamed
    assert "part_delta" in streamed
    assert handled == streamed


def test_a_function_chooses_the_chunks(kit: Kit):
    def deltas(event: AgentStreamEvent) -> Any:
        return {"delta": event.delta.content_delta} if isinstance(event, PartDeltaEvent) else None

    run = ask(kit, durable(FunctionModel(stream_function=chatter), stream=deltas))
    assert result(run) == "one two three"
    assert [chunk.data for chunk in run.stream()] == [{"delta": "two "}, {"delta": "three"}]


def test_model_requests_take_limits_and_correct_their_estimate(kit: Kit):
    kit.app.limit("tokens", rate="100000/min", cost=1)
    kit.app.limit("requests", concurrency=1)
    run = ask(kit, durable(model_options={"limits": ["tokens", "requests"]}))
    result(run)
    assert kit.app.limits.get("tokens").counters[0].started == 55, "the tokens of the test model, not the estimate"


def test_model_requests_take_limits_that_count_no_tokens(kit: Kit):
    kit.app.limit("requests", concurrency=2)
    result(ask(kit, durable(model_options={"limits": ["requests"]})))


def test_toolsets_that_are_added_to_a_run_are_refused(kit: Kit):
    with pytest.raises(RunFailed, match="cannot be"):
        result(ask(kit, durable(), toolsets=[FunctionToolset[None]([lambda: "x"], id="late")]))


def test_a_run_that_is_restarted_from_its_record_has_the_same_ids(kit: Kit):
    seen: list[tuple[str | None, str | None]] = []

    async def go(ctx: Context) -> None:
        for _ in range(2):
            run = await durable().run("hello")
            seen.append((run.run_id, run.conversation_id))
        if ctx.attempt == 1:
            raise ConnectionError

    result(start(kit, go, Retry(max_attempts=2, delay=0)))
    assert seen[:2] == seen[2:]
    assert seen[0] != seen[1]


def test_options_of_a_tool_are_checked(kit: Kit):
    agent = durable(answers("call tool", "done"))
    agent.tool_plain(lambda: "x", name="tool", metadata={"holdfast": True})
    with pytest.raises(RunFailed, match="tool tool: metadata"):
        result(ask(kit, agent))


def test_model_requests_spend_a_budget_once_and_wait_when_it_is_exceeded(kit: Kit):
    kit.app.budget("usd", limit=0.01)
    prices = {"test": Price(input=100, output=200), "*": Price(0, 0)}

    async def go(ctx: Context) -> str:
        run = await durable(budget="usd", prices=prices).run("hello")
        if ctx.attempt == 1:
            raise ConnectionError
        return (await durable(budget="usd", prices=prices).run("hello", message_history=run.all_messages())).output

    run = start(kit, go, Retry(max_attempts=2, delay=0))
    assert run.info().state == "waiting"
    assert run.spent() == {"usd": Decimal("0.0127")}, "51 tokens and an answer of 4, then 52 and 8"
    kit.app.budgets.set("usd", 1, run=run.id)
    kit.drain()
    assert result(run) == "success (no tool calls)"


def test_a_model_without_a_price_fails_the_run_and_tokens_are_spent_without_prices(kit: Kit):
    kit.app.budget("tokens", limit=1000)
    with pytest.raises(RunFailed, match="model test has no price"):
        result(ask(kit, durable(budget="tokens", prices={"gpt": Price(1, 1)})))
    run = ask(kit, durable(budget="tokens"))
    assert run.spent() == {"tokens": Decimal(55)}
    with pytest.raises(ConfigError, match="without budget="):
        durable(prices={})


def test_a_dynamic_toolset_is_listed_and_called_in_steps(kit: Kit, calls: AgentCalls):
    shelf = FunctionToolset[None](id="shelf")
    shelf.add_function(lambda: calls.note("look"), name="look")
    agent = durable(answers("call look", "done"), toolsets=[DynamicToolset[None](lambda _: shelf, id="chosen")])

    async def go(ctx: Context) -> str:
        output = (await agent.run("hello")).output
        if ctx.attempt == 1:
            raise ConnectionError
        return output

    run = start(kit, go, Retry(max_attempts=2, delay=0))
    assert result(run) == "done"
    assert calls.names == ["look"]
    assert {step.name for step in kit.steps(run)} == {"shop.list_tools.chosen", "shop.model", "shop.tool.look"}


@pytest.mark.slow
def test_an_mcp_toolset_is_listed_and_called_in_steps(kit: Kit):
    from mcp.server.mcpserver import MCPServer  # these load slowly
    from pydantic_ai.mcp import MCPToolset

    server, rains = MCPServer("weather"), []

    @server.tool()
    def rain() -> str:
        rains.append("rain")
        return "it pours"

    agent = durable(answers("call rain", "done"), toolsets=[MCPToolset[None](server, id="weather")])

    async def go(ctx: Context) -> Any:
        run = await agent.run("hello")
        if ctx.attempt == 1:
            raise ConnectionError
        return returned(run.all_messages())

    run = start(kit, go, Retry(max_attempts=2, delay=0))
    assert "it pours" in str(result(run))
    assert rains == ["rain"]
    assert {step.name for step in kit.steps(run)} == {
        "shop.list_tools.weather",
        "shop.model",
        "shop.tool.rain",
    }
