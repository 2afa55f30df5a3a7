"""A worker process for fault tests of agents: buying_agents.py URL LEDGER LIMIT [--lease S].

An agent of the OpenAI Agents SDK calls the tool of an MCP server in each of its turns. Its model calls spend the budget
`usd`, which all runs share, and count against the rate `tokens`. The ledger has a line per call of the model and of
the tool.
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
parser.add_argument("--lease", type=float, default=1.0)
options = parser.parse_args()

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from agents import Agent, set_tracing_disabled  # noqa: E402
from agents.mcp import MCPServer  # noqa: E402
from mcp.types import CallToolResult, TextContent  # noqa: E402
from mcp.types import Tool as MCPTool  # noqa: E402

from holdfast import Context, Holdfast, current_context, idempotency_key  # noqa: E402
from holdfast.integrations.openai_agents import HoldfastRunner, Price  # noqa: E402
from tests.support.ledger import Ledger  # noqa: E402
from tests.support.openai_model import Answer, FakeModel  # noqa: E402

TURNS = 3

set_tracing_disabled(True)
app = Holdfast(options.url)
app.budget("usd", limit=options.limit, per="tenant")
app.limit("tokens", rate="6000000/min", cost=1)
ledger = Ledger(options.ledger)


class SlowModel(FakeModel):
    async def get_response(self, *request: Any, **settings: Any) -> Any:
        ledger.write("model", current_context().run_id, idempotency_key())
        await asyncio.sleep(0.01)
        return await super().get_response(*request, **settings)


class Shop(MCPServer):
    """A connected MCP server whose tool has an effect."""

    name = "shop"

    async def list_tools(self, *_: Any) -> list[MCPTool]:
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        return [MCPTool(name="pay", inputSchema=schema)]

    async def call_tool(self, tool_name: str, arguments: dict[str, Any] | None, **_: Any) -> CallToolResult:
        assert arguments is not None
        ledger.write(tool_name, current_context().run_id, idempotency_key(), arguments["number"])
        await asyncio.sleep(0.01)
        return CallToolResult(content=[TextContent(type="text", text=f"paid {arguments['number']}")])

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...
    async def list_prompts(self) -> Any: ...
    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any: ...


def answer(seen: dict[str, Any]) -> Answer:
    turn = len(seen)
    return ["paid"] if turn == TURNS else {f"call-{turn}": ("pay", json.dumps({"number": turn}))}


agent = Agent("buyer", model=SlowModel(answer), mcp_servers=[Shop()])
prices = {"*": Price(input=1000, output=2000)}  # a call takes 10 and 5 tokens: 0.02
runner = HoldfastRunner(budget="usd", prices=prices, model_options={"limits": ["tokens"]})


@app.task(name="buy", max_crashes=1000)
async def buy(ctx: Context) -> str:
    return str((await runner.run(agent, "buy all")).final_output)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    app.worker(lease=options.lease, concurrency=20).run()
