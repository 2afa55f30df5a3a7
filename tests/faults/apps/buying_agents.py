"""A worker process for fault tests of agents: buying_agents.py URL LEDGER LIMIT KIND [--lease S].

An agent buys something in each of its turns. Its model calls spend the budget `usd`, which all runs share, and count
against the rate `tokens`. The ledger has a line per call of a model and of a tool, and a line `repeated` if the call
was recorded before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("ledger")
parser.add_argument("limit", type=float)
parser.add_argument("kind", choices=["mcp", "toolset", "streamed"])
parser.add_argument("--lease", type=float, default=1.0)
options = parser.parse_args()

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Holdfast, current_context, idempotency_key  # noqa: E402
from holdfast.integrations.agents import Price, StepOptions  # noqa: E402
from tests.support.agent_calls import is_recorded  # noqa: E402
from tests.support.ledger import Ledger  # noqa: E402

TURNS = 3
CALL_S = 0.01

app = Holdfast(options.url)
app.budget("usd", limit=options.limit, per="tenant")
app.limit("tokens", rate="300/s", cost=1)
ledger = Ledger(options.ledger)
prices = {"*": Price(input=1000, output=2000)}  # a model call takes 10 and 5 tokens: 0.02
model_options: StepOptions = {"limits": ["tokens"], "cost": 20}


async def note(kind: str) -> None:
    """Record a call that is about to take effect."""
    ledger.write(kind, current_context().run_id, idempotency_key())
    if is_recorded(app):
        ledger.write("repeated", current_context().run_id, kind)
    await asyncio.sleep(CALL_S)


def declare_mcp() -> None:
    """An agent of the OpenAI Agents SDK, with a connected MCP server."""
    from agents import Agent, set_tracing_disabled
    from agents.mcp import MCPServer
    from mcp.types import CallToolResult, TextContent
    from mcp.types import Tool as MCPTool

    from holdfast.integrations.openai_agents import HoldfastRunner
    from tests.support.openai_model import Answer, FakeModel

    set_tracing_disabled(True)

    class SlowModel(FakeModel):
        async def get_response(self, *request: Any, **settings: Any) -> Any:
            await note("model")
            return await super().get_response(*request, **settings)

    class Shop(MCPServer):
        name = "shop"

        async def list_tools(self, *_: Any) -> list[MCPTool]:
            schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
            return [MCPTool(name="pay", inputSchema=schema)]

        async def call_tool(self, tool_name: str, arguments: dict[str, Any] | None, **_: Any) -> CallToolResult:
            assert arguments is not None
            await note("tool")
            return CallToolResult(content=[TextContent(type="text", text=f"paid {arguments['number']}")])

        async def connect(self) -> None: ...
        async def cleanup(self) -> None: ...
        async def list_prompts(self) -> Any: ...
        async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any: ...

    def answer(seen: dict[str, Any]) -> Answer:
        turn = len(seen)
        return ["paid all"] if turn == TURNS else {f"call-{turn}": ("pay", json.dumps({"number": turn}))}

    agent = Agent("buyer", model=SlowModel(answer), mcp_servers=[Shop()])
    runner = HoldfastRunner(budget="usd", prices=prices, model_options=model_options)

    @app.task(name="buy", max_crashes=1000)
    async def buy(ctx: Context) -> Any:
        return (await runner.run(agent, "buy all")).final_output


def declare_toolset() -> None:
    """An agent of pydantic-ai, with the toolset of an MCP server that each step connects to."""
    from mcp.server.mcpserver import MCPServer
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.usage import RequestUsage

    from holdfast.integrations.pydantic_ai import HoldfastDurability

    server = MCPServer("shop")

    @server.tool()
    def pay(number: int) -> str:
        return f"paid {number}"

    async def call(_: Any, call_tool: Any, name: str, arguments: dict[str, Any]) -> Any:
        await note("tool")
        return await call_tool(name, arguments)

    async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        await note("model")
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        part = TextPart("paid all") if turn == TURNS else ToolCallPart("pay", {"number": turn}, f"call-{turn}")
        return ModelResponse([part], usage=RequestUsage(input_tokens=10, output_tokens=5))

    agent = Agent(
        FunctionModel(answer),
        name="buyer",
        toolsets=[MCPToolset[None](server, id="shop", process_tool_call=call)],
        capabilities=[HoldfastDurability[None](budget="usd", prices=prices, model_options=model_options)],
    )

    @app.task(name="buy", max_crashes=1000)
    async def buy(ctx: Context) -> Any:
        return (await agent.run("buy all")).output


def declare_streamed() -> None:
    """An agent of the OpenAI Agents SDK whose events the function reads, with another agent as one of its tools."""
    from agents import Agent, function_tool, set_tracing_disabled

    from holdfast.integrations.openai_agents import HoldfastRunner
    from tests.support.openai_model import Answer, FakeModel

    set_tracing_disabled(True)

    class SlowModel(FakeModel):
        async def stream_response(self, *request: Any, **settings: Any) -> Any:
            await note("model")
            async for event in super().stream_response(*request, **settings):
                yield event
                await asyncio.sleep(CALL_S / 4)

    @function_tool
    async def pay(number: int) -> str:
        await note("tool")
        return f"paid {number}"

    def answer(seen: dict[str, Any]) -> Answer:
        match len(seen):
            case 0 | 2 as turn:
                return {f"call-{turn}": ("pay", json.dumps({"number": turn}))}
            case 1:
                return {"call-1": ("ask_expert", '{"input": "what?"}')}
        return ["paid", " all", f", {seen['call-1']}"]

    expert = Agent("expert", model=SlowModel(lambda _: ["buy", " rope"]))
    tools = [pay, expert.as_tool("ask_expert", "Asks an expert.")]
    agent = Agent("buyer", model=SlowModel(answer), tools=tools)
    runner = HoldfastRunner(stream="text", budget="usd", prices=prices, model_options=model_options)

    @app.task(name="buy", max_crashes=1000)
    async def buy(ctx: Context) -> Any:
        streamed = runner.run_streamed(agent, "buy all")
        events = [getattr(event, "name", event.type) async for event in streamed.stream_events()]
        return [streamed.final_output, events]


if __name__ == "__main__":
    {"mcp": declare_mcp, "toolset": declare_toolset, "streamed": declare_streamed}[options.kind]()
    logging.basicConfig(level=logging.WARNING)
    app.worker(lease=options.lease, concurrency=20).run()
