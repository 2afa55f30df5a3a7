"""A research agent: parallel tools, a streamed report, an approval before it publishes, and a budget of one dollar.

    python research_agent.py
    python research_agent.py "Why do ropes have knots?"

It is an agent of pydantic-ai (`pip install "holdfast[pydantic-ai]"`). Its model is faked, so you need no API key and no
network; set MODEL=openai:gpt-5, for example, to use a real one. Kill the program (`kill -9`) at any moment and ask the
same question again: no finished call is repeated, and an approval that you gave counts.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from threading import Thread

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from holdfast import Context, Holdfast, Run
from holdfast.integrations.pydantic_ai import Approval, HoldfastDurability, Price

app = Holdfast("sqlite:///research_agent.db")
app.budget("usd", limit=1.0, per="run")  # over it, the run waits until `holdfast budgets set` raises it
PRICES = {"gpt-5": Price(input=1.25, output=10), "*": Price(input=5, output=25)}  # per million tokens


async def pretend(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Answer like a model: search twice at once, write a report, publish it, and say so."""
    results: dict[str, list[str]] = {"search": [], "publish": []}
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, ToolReturnPart):
                results[part.tool_name].append(str(part.content))
    await asyncio.sleep(0.2)
    if not results["search"]:
        yield {0: DeltaToolCall("search", '{"topic": "ropes"}'), 1: DeltaToolCall("search", '{"topic": "knots"}')}
    elif not results["publish"]:
        for word in f"Report: {' '.join(results['search'])}".split():
            await asyncio.sleep(0.05)
            yield f"{word} "
        yield {1: DeltaToolCall("publish", '{"title": "Ropes and knots"}')}
    else:
        yield f"I am done: {results['publish'][0]}."


agent = Agent(
    os.environ.get("MODEL") or FunctionModel(stream_function=pretend),
    name="research",
    instructions="Search for all parts of the question at once. Write a short report, then publish it.",
    capabilities=[HoldfastDurability(stream="text", approval_timeout=7 * 24 * 3600, budget="usd", prices=PRICES)],
)


@agent.tool_plain
async def search(topic: str) -> str:
    """Search articles about a topic."""
    await asyncio.sleep(0.3)  # stands for a search engine
    print(f"[searched {topic}]", flush=True)
    return f"Three articles are about {topic}."


@agent.tool_plain(requires_approval=True)
def publish(title: str) -> str:
    """Publish the report."""
    print(f"[published {title}]", flush=True)
    return f"{title} is published"


@app.task
async def research(ctx: Context, question: str) -> str:
    return (await agent.run(question)).output


def print_stream(run: Run[str]) -> None:
    for chunk in run.stream():
        print(chunk.data, end="", flush=True)


def decide(run: Run[str]) -> None:
    """Ask for each approval until the run has ended."""
    while run.info().state not in ("done", "failed", "cancelled"):
        for gate in run.gates():
            reply = input(f"\n{gate.name}? [y/N] ")
            gate.complete(Approval(reply.strip() == "y", "The user said no."))
        time.sleep(0.1)


def main() -> None:
    question = " ".join(sys.argv[1:]) or "Why do ropes have knots?"
    run = research.options(key=question).enqueue(question)
    with app.worker(lease=5, grace=1):
        printing = Thread(target=print_stream, args=(run,), daemon=True)
        printing.start()
        decide(run)
        printing.join()
        print(f"\nspent {run.spent()['usd']} dollars")
        print("answer:", run.result())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstopped; ask the same question to continue")
