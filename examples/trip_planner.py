"""A trip planner built with LangGraph: two parallel searches, an approval, and a booking that is made once.

    python trip_planner.py
    python trip_planner.py Bergen

Needs `pip install "holdfast[langgraph]"`. The model is faked, so you need no API key and no network; with `pip install
langchain langchain-openai`, set MODEL=openai:gpt-5, for example, to use a real one. Kill the program (`kill -9`) at any
moment and ask for the same trip again: the nodes that had finished don't run again, and an approval that you gave
counts. Another program can decide, too: holdfast gate RUN approve complete true --app trip_planner:app
"""

import asyncio
import importlib
import os
import sys
import time
from threading import Thread
from typing import Any, TypedDict

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from holdfast import Context, Holdfast, Run, idempotency_key
from holdfast.integrations.langgraph import run_graph

app = Holdfast("sqlite:///trip_planner.db")


class Trip(TypedDict):
    town: str
    train: str
    hotel: str
    plan: str
    outcome: str


def chat_model() -> Any:
    """Return the model that writes the plan."""
    name = os.environ.get("MODEL")
    if name is None:
        return FakeListChatModel(responses=["Take the early train, and walk to the hotel by the harbor."])
    return importlib.import_module("langchain.chat_models").init_chat_model(name)


async def find_train(state: Trip) -> dict[str, str]:
    await asyncio.sleep(0.3)  # stands for a search
    print("[searched trains]", flush=True)
    return {"train": f"07:25 to {state['town']}"}


async def find_hotel(state: Trip) -> dict[str, str]:
    await asyncio.sleep(0.2)  # stands for a search
    print("[searched hotels]", flush=True)
    return {"hotel": f"Hotel Anchor in {state['town']}"}


async def write_plan(state: Trip) -> dict[str, str]:
    answer = await chat_model().ainvoke(f"Describe in one sentence a trip with {state['train']}, {state['hotel']}.")
    return {"plan": str(answer.content)}


async def approve(state: Trip) -> dict[str, str]:
    return {"outcome": "" if interrupt({"plan": state["plan"]}) else "not booked"}


async def book(state: Trip) -> dict[str, str]:
    key = idempotency_key()  # the same in each try: the other system books once for it
    print(f"[booked {state['hotel']} with the key {key}]", flush=True)
    return {"outcome": f"booked {state['train']} and {state['hotel']}"}


def after_approval(state: Trip) -> str:
    return END if state["outcome"] else "book"


builder = StateGraph(Trip)
builder.add_node("find_train", find_train)
builder.add_node("find_hotel", find_hotel)
builder.add_node("write_plan", write_plan)
builder.add_node("approve", approve)
builder.add_node("book", book)
builder.add_edge(START, "find_train")
builder.add_edge(START, "find_hotel")
builder.add_edge(["find_train", "find_hotel"], "write_plan")
builder.add_edge("write_plan", "approve")
builder.add_conditional_edges("approve", after_approval, ["book", END])
builder.add_edge("book", END)
graph = builder.compile()


@app.task
async def plan_trip(ctx: Context, town: str) -> str:
    trip = await run_graph(ctx, graph, {"town": town}, gates={"approve": bool}, stream_mode="updates")
    return str(trip["outcome"])


def print_updates(run: Run[str]) -> None:
    """Print what the nodes return, while the graph runs."""
    for chunk in run.stream():
        for node_name, update in chunk.data["data"].items():
            if node_name == "write_plan":
                print("plan:", update["plan"], flush=True)


def decide(run: Run[str]) -> None:
    """Ask for the approval, unless the run ends without it."""
    while not run.info().final:
        for gate in run.gates():
            gate.complete(input("book it? [y/N] ").strip() == "y", by="the traveler")
        time.sleep(0.1)


def main() -> None:
    town = sys.argv[1] if len(sys.argv) > 1 else "Oslo"
    run = plan_trip.options(key=town).enqueue(town)
    with app.worker(lease=5, grace=1):
        printing = Thread(target=print_updates, args=(run,), daemon=True)
        printing.start()
        decide(run)
        printing.join()
        print("answer:", run.result())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstopped; ask for the same trip to continue")
