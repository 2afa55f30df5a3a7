"""A support agent that waits for its customer, for days if necessary.

    python support_agent.py

It is an agent of pydantic-ai (`pip install "holdfast[pydantic-ai]"`). Its model is faked, so you need no API key and no
network; set MODEL=openai:gpt-5, for example, to use a real one. The agent asks the customer a question and waits for
the answer without occupying a worker. Kill the program while it waits, and start it again: it still waits. Another
program can answer, too: holdfast send RUN reply '"the red one"' --app support_agent:app
"""

import asyncio
import os
import sys
import time
from datetime import timedelta

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Context, Holdfast, Run, WaitTimeout, current_context
from holdfast.integrations.pydantic_ai import HoldfastDurability

app = Holdfast("sqlite:///support_agent.db")
PATIENCE = timedelta(days=3)


async def pretend(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Answer like a model: ask the customer, look the order up, and answer."""
    await asyncio.sleep(0.2)
    results: dict[str, str] = {}
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, ToolReturnPart):
                results[part.tool_name] = str(part.content)
    if "ask_customer" not in results:
        return ModelResponse([ToolCallPart("ask_customer", {"question": "Which order is it?"})])
    if "look_up" not in results:
        return ModelResponse([ToolCallPart("look_up", {"order": results["ask_customer"]})])
    return ModelResponse([TextPart(f"{results['look_up']}.")])


agent = Agent(
    os.environ.get("MODEL") or FunctionModel(pretend),
    name="support",
    instructions="Find out which order the customer means, look it up and answer.",
    capabilities=[HoldfastDurability()],
)


@agent.tool_plain(metadata={"holdfast": False})  # in the body of the durable function, where it can wait
async def ask_customer(question: str) -> str:
    """Ask the customer a question."""
    ctx = current_context()
    await ctx.set("question", question)
    try:
        reply = await ctx.receive("reply", timeout=PATIENCE, type=str)
    except WaitTimeout:
        reply = "The customer didn't answer."
    await ctx.set("question", None)
    return reply


@agent.tool_plain
def look_up(order: str) -> str:
    """Look up an order."""
    print(f"[looked up {order}]", flush=True)
    return f"Order {order} was shipped this morning"


@app.task
async def support(ctx: Context, complaint: str) -> str:
    return (await agent.run(complaint)).output


def talk(run: Run[str]) -> None:
    """Answer the agent's questions until the run has ended."""
    while run.info().state not in ("done", "failed", "cancelled"):
        if question := run.get("question", default=None, type=str | None):
            run.send("reply", input(f"{question} "))
            while run.get("question", default=None, type=str | None) == question:
                time.sleep(0.05)
        time.sleep(0.1)


def main() -> None:
    run = support.options(key="complaint-1").enqueue("Where is my order?")
    with app.worker(lease=5, grace=1):
        talk(run)
        print("answer:", run.result())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstopped; start it again to continue")
