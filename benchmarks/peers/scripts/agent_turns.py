"""An agent of pydantic-ai with a faked model, and the time of its turns: a model request and a tool call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

WARM_UP = 5


class TimedAgent:
    """An agent that takes a number of turns. Its model notes when each one starts."""

    def __init__(self, turns: int, capabilities: Sequence[Any], wrap_tool: Any = None) -> None:
        self._turns = turns + WARM_UP
        self._starts: list[float] = []
        self.agent = Agent(FunctionModel(self._answer), name="bench", capabilities=list(capabilities))
        self.agent.tool_plain(name="look_up")(look_up if wrap_tool is None else wrap_tool(look_up))

    def _answer(self, messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        self._starts.append(time.perf_counter())
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if turn == self._turns:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("look_up", {"number": turn}, tool_call_id=str(turn))])

    async def run(self) -> str:
        self._starts.clear()
        return (await self.agent.run("hello", usage_limits=UsageLimits(request_limit=None))).output

    def median_ms(self) -> float:
        """Return the median milliseconds of a turn."""
        times = [end - start for start, end in zip(self._starts, self._starts[1:], strict=False)]
        return statistics.median(times[WARM_UP:]) * 1000


async def look_up(number: int) -> str:
    return f"result {number}"
