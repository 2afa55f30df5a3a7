"""An agent built with LangGraph: three turns, parallel tools, an approval and a sub-graph. Its model is faked.

Each call of the model or a tool takes effect under its idempotency key, and notes whether its task had finished before.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt

from holdfast import Holdfast, idempotency_key
from holdfast.integrations.langgraph import HoldfastSaver

TURNS = [
    [ToolCall(name="weather", args={}, id="1"), ToolCall(name="news", args={}, id="2")],
    [ToolCall(name="research", args={}, id="3"), ToolCall(name="pay", args={"amount": 50}, id="4")],
    [],
]
"""The tools that the model calls in each turn."""


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Calls:
    """What the nodes of graphs have done. `repeated`: after they had finished."""

    def __init__(self, app: Holdfast) -> None:
        self._saver = HoldfastSaver(app)
        self.effects: defaultdict[str, set[str]] = defaultdict(set)
        self.count: defaultdict[str, int] = defaultdict(int)
        self.repeated: list[str] = []

    def clear(self) -> None:
        self.effects.clear()
        self.count.clear()
        self.repeated.clear()

    def note(self, name: str) -> None:
        """Take effect, in a node."""
        configurable = get_config()["configurable"]
        task = configurable["checkpoint_ns"].rpartition(":")[2]
        for found in self._saver.list({"configurable": {"thread_id": configurable["thread_id"]}}):
            if any(write[0] == task and not write[1].startswith("__") for write in found.pending_writes or ()):
                self.repeated.append(name)
        self.effects[name].add(idempotency_key())
        self.count[name] += 1


def research_graph(calls: Calls) -> Any:
    """Return a graph of two nodes, to be a node of another one."""

    class Notes(TypedDict):
        call: Any
        notes: str
        messages: Annotated[list[AnyMessage], add_messages]

    async def search(state: Notes) -> dict[str, Any]:
        calls.note("search")
        return {"notes": "found"}

    async def summarize(state: Notes) -> dict[str, Any]:
        calls.note("summarize")
        return {"messages": [ToolMessage(f"research: {state['notes']}", tool_call_id=state["call"]["id"])]}

    builder = StateGraph(Notes)
    builder.add_node("search", search)
    builder.add_node("summarize", summarize)
    builder.add_edge(START, "search")
    builder.add_edge("search", "summarize")
    builder.add_edge("summarize", END)
    return builder.compile()


def agent_graph(calls: Calls) -> Any:
    """Return the compiled agent."""

    async def model(state: State) -> dict[str, Any]:
        turn = sum(isinstance(message, AIMessage) for message in state["messages"])
        answer = AIMessage("" if TURNS[turn] else "all done", tool_calls=TURNS[turn], id=f"ai-{turn}")
        reply = await FakeMessagesListChatModel(responses=[answer]).ainvoke(state["messages"])
        calls.note(f"model {turn}")
        return {"messages": [reply]}

    def next_calls(state: State) -> Any:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        nodes = {"research": "research", "pay": "pay"}
        return [Send(nodes.get(call["name"], "tool"), {"call": call}) for call in last.tool_calls] or END

    async def tool(state: dict[str, Any]) -> dict[str, Any]:
        call = state["call"]
        calls.note(call["name"])
        return {"messages": [ToolMessage(f"{call['name']}: fine", tool_call_id=call["id"])]}

    async def pay(state: dict[str, Any]) -> dict[str, Any]:
        call = state["call"]
        if interrupt({"tool": call["name"], "amount": call["args"]["amount"]}):
            calls.note("pay")
            return {"messages": [ToolMessage("paid", tool_call_id=call["id"])]}
        return {"messages": [ToolMessage("not allowed", tool_call_id=call["id"])]}

    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_node("pay", pay)
    builder.add_node("research", research_graph(calls))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", next_calls, ["tool", "pay", "research", END])
    for each in ("tool", "pay", "research"):
        builder.add_edge(each, "model")
    return builder.compile()


def question() -> dict[str, Any]:
    return {"messages": [HumanMessage("Pay what I owe", id="human")]}


def transcript(state: Any) -> list[str]:
    """Return the messages of a state, those of parallel tools in order of their calls."""
    return [f"{message.type}: {message.content}" for message in state["messages"]]


TRANSCRIPT = [
    "human: Pay what I owe", "ai: ", "tool: weather: fine", "tool: news: fine", "ai: ", "tool: research: found",
    "tool: paid", "ai: all done",
]  # fmt: skip
EFFECTS = {"model 0", "weather", "news", "model 1", "search", "summarize", "pay", "model 2"}
