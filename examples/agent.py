"""An agent: a language model that calls tools until it has an answer, and streams the answer to readers.

    python agent.py
    python agent.py "What is 12 * 12?"

The model is faked, so you need no API key and no network; replace `ask_model` to use a real one. Each turn of the model
and each tool call is a step. Kill the program (`kill -9`) and ask the same question again: the conversation resumes
after the last finished step. Ask once more, and it prints the stored answer.
"""

import ast
import asyncio
import operator
import re
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, TypedDict

from holdfast import Context, Fatal, Holdfast, Retry, Run

app = Holdfast("sqlite:///agent.db")
app.limit("model", concurrency=4, rate="60/min")  # across all workers

MOST_TURNS = 10


class Call(TypedDict):
    tool: str
    argument: str


class Turn(TypedDict):
    """The model's reply: an answer, or tools to call first."""

    text: str
    calls: list[Call]


class Message(TypedDict):
    role: str
    text: str


@app.task(limits=["model"], retry=Retry(max_attempts=5, delay=2))
async def agent(ctx: Context, question: str) -> str:
    messages: list[Message] = [{"role": "user", "text": question}]

    async def think(said: list[Message]) -> Turn:
        """Run one turn of the model and stream its output as it arrives."""
        turn: Turn = {"text": "", "calls": []}
        async for part in ask_model(said):
            if isinstance(part, str):
                turn["text"] += part
                await ctx.write({"turn": len(said), "text": part})
            else:
                turn["calls"].append(part)
        return turn

    for _ in range(MOST_TURNS):
        turn = await ctx.options(name="think", timeout=120).step(think, messages)
        if not turn["calls"]:
            return turn["text"].strip()
        async with asyncio.TaskGroup() as group:  # tool calls of one turn run concurrently
            used = [group.create_task(ctx.step(use_tool, call)) for call in turn["calls"]]
        messages.append({"role": "assistant", "text": str(turn["calls"])})
        messages.extend(Message(role="tool", text=each.result()) for each in used)
    raise Fatal(f"no answer after {MOST_TURNS} turns")


# Tools are ordinary functions. The model receives their errors and may try something else.


async def weather(town: str) -> str:
    await asyncio.sleep(0.3)  # stands for an API
    return f"{town}: rain, {len(town)} degrees"


async def calculate(expression: str) -> str:
    return f"{expression} = {evaluate(ast.parse(expression, mode='eval').body)}"


def evaluate(node: ast.expr) -> float:
    """Evaluate arithmetic only: never pass a model's output to `eval`."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(left), evaluate(right))
        case _:
            raise ValueError("only numbers, + - * and /")


OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
}
TOOLS = {"weather": weather, "calculate": calculate}


async def use_tool(call: Call) -> str:
    print(f"[{call['tool']}: {call['argument']}]")
    try:
        return await TOOLS[call["tool"]](call["argument"])
    except Exception as error:
        return f"{call['tool']} failed: {error}"


# The fake model asks for tools first, then builds its answer from their output, word by word.


async def ask_model(messages: list[Message]) -> AsyncIterator[str | Call]:
    question = messages[0]["text"]
    known = [message["text"] for message in messages if message["role"] == "tool"]
    if not known:
        for town in re.findall(r"\bin ([A-Z]\w+)", question):
            yield {"tool": "weather", "argument": town}
        for sum_ in re.findall(r"\d+(?: *[-+*/] *\d+)+", question):
            yield {"tool": "calculate", "argument": sum_}
        known = [] if re.search(r"\bin [A-Z]|\d *[-+*/] *\d", question) else ["I only know weather and sums."]
    for word in " and ".join(known).split():
        await asyncio.sleep(0.1)
        yield word + " "


def show(run: Run[Any]) -> None:
    """Print the answer as it streams in. After a crash, the next attempt streams the interrupted turn again."""
    attempt = 0
    for chunk in run.stream():
        if attempt and chunk.attempt != attempt:
            print("\n(again)")
        attempt = chunk.attempt
        print(chunk.data["text"], end="", flush=True)
    print()


def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else "What is the weather in Oslo and in Rome, and what is 17 * 23?"
    run = agent.options(key=question).enqueue(question)
    with app.worker(lease=5, grace=1):
        show(run)
        print("answer:", run.result())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstopped; ask the same question to continue")
