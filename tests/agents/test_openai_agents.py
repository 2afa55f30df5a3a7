"""Agents of the OpenAI Agents SDK in durable functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from agents import (
    Agent,
    ComputerTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    SQLiteSession,
    UserError,
    WebSearchTool,
    add_trace_processor,
    function_tool,
    handoff,
    output_guardrail,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.mcp import MCPServer
from agents.tracing import TracingProcessor
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool

from holdfast import Context, Holdfast, Retry, Run, RunFailed, TaskError, current_context
from holdfast.integrations.openai_agents import Approval, HoldfastRunner, Price
from holdfast.testing import Kit
from tests.support.agent_calls import AgentCalls, final_chunks
from tests.support.openai_model import FakeModel

ONCE = Retry(max_attempts=1)
TWICE = Retry(max_attempts=2, delay=0)


@pytest.fixture(autouse=True)
def no_traces_are_sent() -> None:
    set_tracing_disabled(False)
    set_trace_processors([])


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


def start(kit: Kit, body: Callable[[Context], Any], retry: Retry = ONCE) -> Run[Any]:
    """Run a durable function until it ends or waits."""
    run = kit.app.task(name=f"task{len(kit.app.registry.names())}", retry=retry)(body).enqueue()
    kit.drain()
    return run


def ask(kit: Kit, agent: Agent[Any], runner: HoldfastRunner | None = None, **options: Any) -> Run[Any]:
    """Run an agent in a durable function."""

    async def go(ctx: Context) -> Any:
        return (await (runner or HoldfastRunner()).run(agent, "hello", **options)).final_output

    return start(kit, go)


def result(run: Run[Any]) -> Any:
    return run.result(timeout=1)


def says(*parts: str) -> FakeModel:
    return FakeModel(lambda _: list(parts))


def calls_once(tool: str) -> FakeModel:
    """Return a model that calls a tool, then says what it returned."""
    return FakeModel(lambda seen: [str(seen["a"])] if "a" in seen else {"a": (tool, "{}")})


def test_names_of_steps_are_pinned(kit: Kit):
    """They identify what is recorded of runs in flight: never change them."""

    @function_tool
    def look() -> str:
        return "rope"

    guardrail = InputGuardrail(lambda *_: GuardrailFunctionOutput(None, False), name="polite", run_in_parallel=False)
    agent = Agent("shop", model=calls_once("look"), tools=[look], input_guardrails=[guardrail])
    run = ask(kit, agent, session=SQLiteSession("s"))
    assert sorted({step.name for step in kit.steps(run)}) == [
        "shop.guardrail.polite",
        "shop.model",
        "shop.session.add_items",
        "shop.session.count",
        "shop.session.get_items",
        "shop.tool.look",
    ]
    assert [step.key for step in kit.steps(run) if ".tool." in step.key] == ["shop.tool.look-1:ca1ab0b9c83ad0fd#1"]


async def test_an_agent_outside_a_durable_function_is_refused_or_runs():
    agent = Agent("shop", model=says("hi"))
    with pytest.raises(TaskError, match="agent shop was run outside a durable function"):
        await HoldfastRunner().run(agent, "hello")
    assert (await HoldfastRunner(outside="run", stream="text").run(agent, "hello")).final_output == "hi"


@pytest.mark.parametrize("stream", [None, "text"])
def test_the_model_sees_the_same_as_without_durability(kit: Kit, stream: Any):
    @function_tool
    def look() -> str:
        return "rope"

    agent = Agent("shop", model=calls_once("look"), tools=[look])

    async def go(ctx: Context) -> Any:
        return (await HoldfastRunner(stream=stream).run(agent, "hello")).to_input_list()

    plain = asyncio.run(Runner.run(agent, "hello")).to_input_list()
    assert result(start(kit, go)) == plain


def test_a_rejected_call_and_one_that_nobody_decides_are_told_to_the_model(kit: Kit):
    @function_tool(needs_approval=True)
    def delete() -> str:
        raise AssertionError

    agent = Agent("shop", model=calls_once("delete"), tools=[delete])
    runner = HoldfastRunner(approval_timeout=60)
    first, second = ask(kit, agent, runner), ask(kit, agent, runner)
    first.gate("approve:delete").complete(Approval(False, "not today"))
    kit.drain()
    kit.clock.advance(61)
    kit.drain()
    assert result(first) == "not today"
    assert result(second) == "Nobody approved the call in time."


def test_an_approval_may_change_the_arguments(kit: Kit):
    @function_tool(needs_approval=True)
    def refund(amount: int = 100) -> str:
        return f"refunded {amount}"

    run = ask(kit, Agent("shop", model=calls_once("refund"), tools=[refund]))
    run.gate("approve:refund").complete(Approval(True, arguments={"amount": 5}))
    kit.drain()
    assert result(run) == "refunded 5"


def test_a_tool_in_the_body_can_use_the_context(kit: Kit):
    @function_tool
    async def nap() -> str:
        await current_context().sleep(3600)
        return "rested"

    agent = Agent("shop", model=calls_once("nap"), tools=[nap])
    run = ask(kit, agent, HoldfastRunner(tools={"nap": False}))
    kit.clock.advance(3601)
    kit.drain()
    assert result(run) == "rested"
    assert "$sleep" in [step.name for step in kit.steps(run)]


def test_a_tool_is_tried_again_by_its_step(kit: Kit, calls: AgentCalls):
    @function_tool(failure_error_function=None)
    def shaky() -> str:
        calls.note("shaky")
        if len(calls.made) == 1:
            raise ConnectionError
        return "ok"

    agent = Agent("shop", model=calls_once("shaky"), tools=[shaky])
    assert result(ask(kit, agent, HoldfastRunner(tools={"shaky": {"retry": TWICE}}))) == "ok"
    assert list(calls.tries().values()) == [2]


def test_a_tripwire_is_itself_live_and_replayed(kit: Kit):
    checked: list[int] = []

    @output_guardrail
    def strict(*_: Any) -> GuardrailFunctionOutput:
        checked.append(1)
        return GuardrailFunctionOutput({"rude": True}, tripwire_triggered=True)

    agent = Agent("shop", model=says("hi"), output_guardrails=[strict])
    seen: list[Any] = []

    async def go(ctx: Context) -> None:
        with pytest.raises(OutputGuardrailTripwireTriggered) as tripped:
            await HoldfastRunner().run(agent, "hello")
        seen.append(tripped.value.guardrail_result.output.output_info)
        if ctx.attempt == 1:
            raise ConnectionError

    result(start(kit, go, TWICE))
    assert seen == [{"rude": True}, {"rude": True}]
    assert checked == [1]


def test_handoffs_run_agents_durably_also_circular_ones(kit: Kit):
    clerk, boss = Agent("clerk"), Agent("boss", model=says("fine"))
    told: list[str] = []
    clerk.handoffs = [handoff(boss, on_handoff=lambda _: told.append("boss"))]
    boss.handoffs = [clerk]
    clerk.model = FakeModel(lambda _: {"a": ("transfer_to_boss", "{}")})
    run = ask(kit, clerk)
    assert result(run) == "fine"
    assert [step.name for step in kit.steps(run)] == ["clerk.model", "boss.model"]
    assert told == ["boss"]


def test_tools_that_run_in_the_process_are_refused_and_hosted_ones_are_not(kit: Kit):
    assert result(ask(kit, Agent("shop", model=says("hi"), tools=[WebSearchTool()]))) == "hi"
    computer: Any = object()
    with pytest.raises(RunFailed, match="can't record the calls of a ComputerTool"):
        result(ask(kit, Agent("shop", model=says("hi"), tools=[ComputerTool(computer)])))


def test_a_mistake_in_the_code_of_an_agent_fails_the_run_at_once(kit: Kit):
    def fail(_: Any) -> Any:
        raise UserError("wrong")

    async def go(ctx: Context) -> Any:
        return (await HoldfastRunner().run(Agent("shop", model=FakeModel(fail)), "hello")).final_output

    with pytest.raises(RunFailed, match="wrong"):
        result(start(kit, go, Retry(max_attempts=10)))


def test_events_stream_and_a_function_chooses_the_chunks(kit: Kit):
    agent = Agent("shop", model=says("one ", "two"))
    run = ask(kit, agent, HoldfastRunner(stream="events"))
    assert result(run) == "one two"
    assert [chunk.data["type"] for chunk in run.stream()] == [*["response.output_text.delta"] * 2, "response.completed"]
    run = ask(kit, agent, HoldfastRunner(stream=lambda event: {"kind": event.type}))
    assert final_chunks(run)[-1] == {"kind": "response.completed"}


def test_model_calls_take_limits_and_correct_their_estimate(kit: Kit):
    kit.app.limit("tokens", rate="100000/min", cost=1)
    result(ask(kit, Agent("shop", model=says("hi")), HoldfastRunner(model_options={"limits": ["tokens"]})))
    assert kit.app.limits.get("tokens").counters[0].started == 15


def test_model_calls_take_limits_that_count_no_tokens(kit: Kit):
    kit.app.limit("calls", concurrency=2)
    run = ask(kit, Agent("shop", model=says("hi")), HoldfastRunner(model_options={"limits": ["calls"]}))
    assert result(run) == "hi"


def test_model_calls_spend_a_budget(kit: Kit):
    kit.app.budget("usd", limit=1)
    runner = HoldfastRunner(budget="usd", prices={"*": Price(input=1000, output=2000)}, stream="text")
    run = ask(kit, Agent("shop", model=says("hi")), runner)
    assert result(run) == "hi"
    assert run.spent() == {"usd": Decimal("0.02")}


class Recorder(TracingProcessor):
    def __init__(self) -> None:
        self.traces: list[Any] = []

    def on_trace_start(self, trace: Any) -> None:
        self.traces.append(trace.export())

    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def on_span_end(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


def test_traces_name_the_run_and_have_the_same_id_in_a_replay(kit: Kit):
    recorder = Recorder()
    add_trace_processor(recorder)

    async def go(ctx: Context) -> None:
        config = RunConfig(tracing_disabled=False, trace_metadata={"shop": "7"})
        await HoldfastRunner().run(Agent("shop", model=says("hi")), "hello", run_config=config)
        if ctx.attempt == 1:
            raise ConnectionError

    run = start(kit, go, TWICE)
    result(run)
    first, second = recorder.traces
    assert first["metadata"] == {"holdfast_run_id": str(run.id), "shop": "7"}
    assert first["id"] == second["id"]


class Weather(MCPServer):
    """A connected MCP server with one tool."""

    name = "weather"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    async def list_tools(self, *_: Any) -> list[MCPTool]:
        self.calls.append("list")
        return [MCPTool(name="rain", inputSchema={"type": "object", "properties": {}})]

    async def call_tool(self, tool_name: str, *_: Any, **__: Any) -> CallToolResult:
        self.calls.append(tool_name)
        return CallToolResult(content=[TextContent(type="text", text="it pours")])

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...
    async def list_prompts(self) -> Any: ...
    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


def test_requests_to_mcp_servers_are_steps(kit: Kit):
    server = Weather()
    agent = Agent("shop", model=calls_once("rain"), mcp_servers=[server])

    async def go(ctx: Context) -> str:
        output = (await HoldfastRunner().run(agent, "hello")).final_output
        if ctx.attempt == 1:
            raise ConnectionError
        return output

    run = start(kit, go, TWICE)
    assert "it pours" in result(run)
    assert server.calls == ["list", "rain", "list"]
    assert [step.name for step in kit.steps(run)] == [
        "shop.mcp.weather.list_tools", "shop.model", "shop.mcp.weather.rain",
        "shop.mcp.weather.list_tools", "shop.model",
    ]  # fmt: skip
