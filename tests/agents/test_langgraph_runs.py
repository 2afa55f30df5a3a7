"""Graphs inside durable functions: crashes, interrupts, streams and conflicts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send, interrupt

from holdfast import (
    Context,
    GateRejected,
    Holdfast,
    Retry,
    RunFailed,
    StepFailed,
    SyncContext,
    WaitTimeout,
    idempotency_key,
)
from holdfast.control import Control
from holdfast.errors import BadArguments, LeaseLost, TaskError
from holdfast.integrations.agents import Price
from holdfast.integrations.langgraph import HoldfastSaver, run_graph
from holdfast.store.threads import HeldClaim
from holdfast.testing import Kit, context, crash_at_every_step
from tests.support.durable import drain, state
from tests.support.langgraph_agent import EFFECTS, TRANSCRIPT, Calls, agent_graph, question, transcript

agent_app = Holdfast("sqlite:///never-made.db")
calls = Calls(agent_app)
agent = agent_graph(calls)


@pytest.fixture
def holdfast_app():
    calls.clear()
    return agent_app


@agent_app.task(name="agent")
async def agent_task(ctx: Context) -> list[str]:
    return transcript(await run_graph(ctx, agent, question(), stream_mode="updates"))


def check_agent(kit: Kit) -> None:
    run = agent_task.enqueue()
    kit.drain()
    gates = Control(kit.app.store).gates
    [gate] = gates.open()
    assert gates.read(gate.id).payload == {"tool": "pay", "amount": 50}
    run.gate("pay").complete(True)
    kit.drain()
    assert run.result(timeout=0) == TRANSCRIPT
    assert calls.repeated == [], "a call was repeated after it was recorded"
    assert calls.effects.keys() == EFFECTS
    assert all(len(keys) == 1 for keys in calls.effects.values()), "a repeated call has the same idempotency key"
    assert len(set().union(*calls.effects.values())) == len(EFFECTS), "different calls have different ones"
    roots = [chunk for chunk in final_chunks(run) if not chunk["ns"]]
    nodes = ["model", "tool", "tool", "model", "__interrupt__", "research", "pay", "model"]
    assert sorted(next(iter(chunk["data"])) for chunk in roots) == sorted(nodes)


def final_chunks(run: Any) -> list[Any]:
    """Return what a run wrote, without what repeated parts of its steps have replaced."""
    chunks = list(run.stream())
    last_try = {chunk.step: (chunk.attempt, chunk.step_try) for chunk in chunks}
    return [chunk.data for chunk in chunks if (chunk.attempt, chunk.step_try) == last_try[chunk.step]]


@pytest.fixture
def holdfast_database(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "sqlite")


@pytest.mark.slow
@pytest.mark.parametrize("holdfast_database", ["sqlite", "postgres"], indirect=True)
@crash_at_every_step
def test_a_crash_at_any_write_repeats_no_recorded_call_of_an_agent(kit: Kit):
    check_agent(kit)


def test_an_agent_calls_its_model_and_its_tools_once(kit: Kit):
    check_agent(kit)


class Pair(TypedDict):
    done: Annotated[list[str], lambda old, new: sorted(old + new)]


def pair_graph() -> Any:
    async def left(state: Pair) -> dict[str, Any]:
        calls.note("left")
        return {"done": ["left"]}

    async def right(state: Pair) -> dict[str, Any]:
        answer = interrupt("go on?")
        calls.note("right")
        return {"done": [f"right {answer}"]}

    builder = StateGraph(Pair)
    for name, node in (("left", left), ("right", right)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile()


@agent_app.task(name="pair")
async def pair_task(ctx: Context) -> list[str]:
    return list((await run_graph(ctx, pair_graph(), {"done": []}, stream_mode="updates"))["done"])


@crash_at_every_step(unrecorded=False)
def test_a_crash_at_any_write_repeats_no_recorded_node(kit: Kit):
    run = pair_task.enqueue()
    kit.drain()
    run.gate("right").complete("yes")
    kit.drain()
    assert run.result(timeout=0) == ["left", "right yes"]
    assert calls.repeated == []
    assert {name: len(keys) for name, keys in calls.effects.items()} == {"left": 1, "right": 1}
    steps = [step.name for step in kit.steps(run) if step.name.startswith("langgraph")]
    assert steps == ["langgraph input", "langgraph left+right", "langgraph right"]
    assert [next(iter(chunk["data"])) for chunk in final_chunks(run)] == ["left", "__interrupt__", "right"]


PRICES = {"small": Price(input=1, output=10), "*": Price(input=100, output=1000)}


def spending_graph() -> Any:
    """Return a graph of two turns, in each of which two models are called in parallel."""

    def call(name: str) -> Any:
        async def node(state: Bill) -> dict[str, Any]:
            usage = UsageMetadata(input_tokens=100_000, output_tokens=10_000, total_tokens=110_000)
            id, told = f"{name} {len(state['turns'])}", {"model_name": name}
            return {"messages": [AIMessage("", id=id, usage_metadata=usage, response_metadata=told)]}

        return node

    async def end_turn(state: Bill) -> dict[str, Any]:
        return {"messages": [each for each in state["messages"] if isinstance(each, AIMessage)], "turns": ["turn"]}

    builder = StateGraph(Bill)
    for name in ("small-1", "large"):
        builder.add_node(name, call(name))
        builder.add_edge(START, name)
        builder.add_edge(name, "end_turn")
    builder.add_node("end_turn", end_turn)
    builder.add_conditional_edges(
        "end_turn", lambda s: END if len(s["turns"]) == 2 else ["small-1", "large"], ["small-1", "large", END]
    )
    return builder.compile()


class Bill(MessagesState):
    turns: Annotated[list[str], lambda old, new: old + new]


agent_app.budget("usd", limit=1000)


@agent_app.task(name="spends")
async def spend_task(ctx: Context) -> None:
    await run_graph(ctx, spending_graph(), {"messages": [], "turns": []}, budget="usd", prices=PRICES)


@pytest.mark.slow
@crash_at_every_step(unrecorded=False)
def test_a_crash_at_any_write_counts_the_usage_of_models_once(kit: Kit):
    run = spend_task.enqueue()
    kit.drain()
    assert run.info().state == "done"
    assert run.spent() == {"usd": Decimal("40.4")}, "twice 0.2 and 20"


def test_a_graph_waits_while_its_budget_is_exceeded(app):
    app.budget("tokens", limit=100)

    @app.task(name="spends")
    async def spends(ctx: Context) -> str:
        await run_graph(ctx, spending_graph(), {"messages": [], "turns": []}, budget="tokens")
        return "done"

    run = spends.enqueue()
    drain(app)
    assert (state(run), run.spent()) == ("waiting", {"tokens": Decimal(110_000)})
    app.budgets.set("tokens", 1_000_000, run=run.id)
    drain(app)
    assert run.result(timeout=0) == "done"
    assert run.spent() == {"tokens": Decimal(440_000)}


class Answers(TypedDict):
    names: list[str]
    answers: Annotated[list[str], lambda old, new: sorted(old + new)]


def asking_graph() -> Any:
    def ask(state: Any) -> dict[str, Any]:
        return {"answers": [f"{state['name']}: {interrupt({'name': state['name']})}"]}

    builder = StateGraph(Answers)
    builder.add_node("ask", ask)
    builder.add_conditional_edges(
        START, lambda state: [Send("ask", {"name": name}) for name in state["names"]], ["ask"]
    )
    builder.add_edge("ask", END)
    return builder.compile()


@pytest.fixture
def app(database_url: str) -> Iterator[Holdfast]:
    app = Holdfast(database_url)
    yield app
    app.close()


def test_several_interrupts_at_once_are_gates_with_names_of_their_own(app):
    @app.task(name="asks")
    async def asks(ctx: Context) -> list[str]:
        result = await run_graph(ctx, asking_graph(), {"names": ["a", "b", "c"], "answers": []}, gates={"ask": int})
        return list(result["answers"])

    run = asks.enqueue()
    drain(app)
    assert sorted(gate.name for gate in run.gates()) == ["ask", "ask-2", "ask-3"]
    with pytest.raises(BadArguments):
        run.gate("ask").complete("many")
    for number, gate in enumerate(["ask", "ask-2", "ask-3"]):
        assert state(run) == "waiting"
        run.gate(gate).complete(number)
        drain(app)
    assert sorted(answer[0] for answer in run.result(timeout=0)) == ["a", "b", "c"]
    assert sorted(answer[-1] for answer in run.result(timeout=0)) == ["0", "1", "2"]


def test_a_rejected_gate_and_an_expired_one_raise_in_the_function(app):
    @app.task(name="asks", retry=Retry(max_attempts=1))
    async def asks(ctx: Context, timeout: float | None) -> str:
        try:
            await run_graph(ctx, asking_graph(), {"names": ["a"], "answers": []}, gate_timeout=timeout)
        except GateRejected:
            return "rejected"
        except WaitTimeout:
            return "expired"
        return "answered"

    rejected, expired = asks.enqueue(None), asks.enqueue(0.01)
    with app.worker():
        assert expired.result(timeout=30) == "expired"
        rejected.gate("ask").fail("no")
        assert rejected.result(timeout=30) == "rejected"


class Turns(TypedDict):
    turns: Annotated[list[str], lambda old, new: old + new]


def one_node(fn: Any) -> Any:
    builder = StateGraph(Turns)
    builder.add_node("node", fn)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile()


def test_runs_continue_a_thread_and_replay_what_they_recorded(app):
    graph = one_node(lambda state: {"turns": [f"reply {len(state['turns'])}"]})

    @app.task(name="talk")
    async def talk(ctx: Context, text: str) -> list[str]:
        first = await run_graph(ctx, graph, {"turns": [text]}, thread_id="ada")
        await ctx.wait_for(f"after {text}")
        second = await run_graph(ctx, graph, {"turns": ["again"]}, thread_id="ada")
        return [*first["turns"], "|", *second["turns"]]

    one = talk.enqueue("one")
    drain(app)
    two = talk.enqueue("two")
    drain(app)
    app.emit("after one")
    app.emit("after two")
    drain(app, concurrency=1)
    assert one.result(timeout=0)[:3] == ["one", "reply 1", "|"], "a replay doesn't see the later turns"
    assert two.result(timeout=0)[:5] == ["one", "reply 1", "two", "reply 3", "|"]
    found = HoldfastSaver(app).get_tuple({"configurable": {"thread_id": "ada"}})
    assert found is not None
    assert len(found.checkpoint["channel_values"]["turns"]) == 8


def test_a_failed_node_runs_again_but_not_the_ones_beside_it(app):
    tries: list[str] = []

    def work(state: Any) -> dict[str, Any]:
        tries.append(state["name"])
        if state["name"] == "fails" and tries.count("fails") < 3:
            raise ConnectionError("no answer")
        return {"answers": [f"{state['name']} {idempotency_key()[:0]}done"]}

    async def slowly(state: Any) -> dict[str, Any]:
        if state["name"] == "fails":
            while "good" not in tries:
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
        return work(state)

    builder = StateGraph(Answers)
    builder.add_node("work", slowly)
    builder.add_conditional_edges(START, lambda s: [Send("work", {"name": name}) for name in s["names"]], ["work"])
    graph = builder.compile()

    @app.task(name="works", retry=Retry(max_attempts=2, delay=0))
    async def works(ctx: Context) -> list[str]:
        state = await run_graph(
            ctx, graph, {"names": ["good", "fails"], "answers": []}, retry=Retry(max_attempts=2, delay=0)
        )
        return list(state["answers"])

    run = works.enqueue()
    with app.worker():
        assert run.result(timeout=30) == ["fails done", "good done"]
    assert tries == ["good", "fails", "fails", "fails"]


def test_a_node_that_keeps_failing_fails_the_step(app):
    def broken(state: Turns) -> Turns:
        raise ValueError("broken")

    @app.task(name="broken", retry=Retry(max_attempts=1))
    async def run_broken(ctx: Context) -> str:
        try:
            await run_graph(ctx, one_node(broken), {"turns": []})
        except StepFailed as error:
            return f"{error.error.type}: {error.error.message}"
        return "fine"

    run = run_broken.enqueue()
    with app.worker():
        assert run.result(timeout=30) == "ValueError: broken"


def test_a_plain_function_runs_a_graph_with_its_context(app):
    @app.task(name="sync")
    def sync(ctx: SyncContext) -> list[str]:
        def node(state: Any) -> dict[str, Any]:
            ctx.write("from the node")
            return {"turns": [str(interrupt("go on?"))]}

        return list(run_graph(ctx, one_node(node), {"turns": ["first"]}, stream_mode=["values"])["turns"])

    run = sync.enqueue()
    drain(app)
    run.gate("node").complete({"go": "on"})
    drain(app)
    assert run.result(timeout=0) == ["first", "{'go': 'on'}"]
    written = final_chunks(run)
    assert [data if isinstance(data, str) else data["data"]["turns"] for data in written] == [
        ["first"], "from the node", ["first"], "from the node", ["first", "{'go': 'on'}"]
    ]  # fmt: skip
    assert "__interrupt__" in written[2]["data"]


def test_tasks_of_the_functional_api_are_recorded_one_by_one(app):
    done: list[str] = []

    @task
    async def call_tool(name: str) -> str:
        done.append(name)
        return f"{name} done"

    @entrypoint()
    async def flow(names: list[str]) -> list[str]:
        results = [await call_tool(name) for name in names]
        if done.count("once") == 1:
            done.append("once")
            raise ConnectionError("after the tools")
        return results

    @app.task(name="flow")
    async def run_flow(ctx: Context) -> list[str]:
        retry = Retry(max_attempts=3, delay=0)
        return list(await run_graph(ctx, flow, ["a", "once"], retry=retry))

    run = run_flow.enqueue()
    with app.worker():
        assert run.result(timeout=30) == ["a done", "once done"]
    assert done == ["a", "once", "once"], "the second one is the note of the failure"


def test_a_thread_that_something_else_continues_is_noticed(app):
    def node(state: Any) -> dict[str, Any]:
        return {"turns": [str(interrupt("go on?"))]}

    graph = one_node(node)

    @app.task(name="talks", retry=Retry(max_attempts=1))
    async def talks(ctx: Context) -> Any:
        return await run_graph(ctx, graph, {"turns": []}, thread_id="shared")

    run = talks.enqueue()
    drain(app)
    one_node(lambda state: {"turns": ["other"]}).copy({"checkpointer": HoldfastSaver(app)}).invoke(
        {"turns": []}, {"configurable": {"thread_id": "shared"}}
    )
    run.gate("node").complete("yes")
    drain(app)
    with pytest.raises(RunFailed, match="continued by something else"):
        run.result(timeout=0)


def test_an_edited_state_is_used_when_the_graph_continues(app):
    def node(state: Any) -> dict[str, Any]:
        return {"turns": [f"{interrupt('go on?')} after {state['turns'][-1]}"]}

    graph = one_node(node)

    @app.task(name="talks")
    async def talks(ctx: Context) -> Any:
        return (await run_graph(ctx, graph, {"turns": ["a"]}))["turns"]

    run = talks.enqueue()
    drain(app)
    run.gate("node").complete("yes")
    drain(app)
    assert run.result(timeout=0) == ["a", "yes after a"]


def test_a_worker_that_lost_its_claim_writes_nothing(app):
    @app.task(name="job")
    async def job(ctx: Context) -> None:
        await ctx.wait_for("never")

    run = job.enqueue()
    drain(app)
    saver = HoldfastSaver.for_run(app.store, None, HeldClaim("gone", str(run.id), 1))
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    with pytest.raises(LeaseLost):
        saver.put_writes(config, [("a", 1)], "task")
    assert app.store.threads.whole(None, "t").checkpoints == {}


def test_a_graph_that_never_ends_is_stopped(app):
    builder = StateGraph(Turns)
    builder.add_node("node", lambda state: {"turns": ["x"]})
    builder.add_edge(START, "node")
    builder.add_edge("node", "node")
    graph = builder.compile()

    @app.task(name="endless", retry=Retry(max_attempts=1))
    async def endless(ctx: Context) -> None:
        await run_graph(ctx, graph, {"turns": []}, config={"recursion_limit": 5})

    run = endless.enqueue()
    drain(app)
    with pytest.raises(RunFailed, match="5 supersteps"):
        run.result(timeout=0)


def test_wrong_arguments_are_refused(app):
    ctx = context()
    with pytest.raises(TaskError, match="compile"):
        run_graph(ctx, StateGraph(Turns), {})  # type: ignore[call-overload]
    with pytest.raises(TaskError, match="context of a durable function"):
        run_graph(None, one_node(lambda state: state), {})  # type: ignore[call-overload]


def test_a_context_of_tests_runs_a_graph_in_memory():
    ctx = context(gates={"ask": "fine"})
    state = asyncio.run(run_graph(ctx, asking_graph(), {"names": ["a"], "answers": []}))
    assert state["answers"] == ["a: fine"]
    assert ctx.steps == ["langgraph input", "langgraph ask", "langgraph ask"]


def test_interrupts_in_sub_graphs_are_gates_one_after_the_other(app):
    def twice(state: Any) -> dict[str, Any]:
        first = interrupt("first")
        return {"turns": [f"{first}, {interrupt({'after': first})}"]}

    inner = one_node(twice)

    @app.task(name="nested")
    async def nested(ctx: Context) -> list[str]:
        return list((await run_graph(ctx, one_node(inner), {"turns": []}))["turns"])

    run = nested.enqueue()
    for answer in ("one", "two"):
        drain(app)
        [gate] = run.gates()
        assert gate.name == "node"
        gate.complete(answer)
    drain(app)
    assert run.result(timeout=0) == ["one, two"]


def test_tokens_reach_the_stream_of_the_run(app):
    async def node(state: MessagesState) -> dict[str, Any]:
        model = GenericFakeChatModel(messages=iter([AIMessage("hello dear world")]))
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("talk", node)
    builder.add_edge(START, "talk")
    graph = builder.compile()

    @app.task(name="talks")
    async def talks(ctx: Context) -> str:
        state = await run_graph(ctx, graph, {"messages": [("user", "hi")]}, stream_mode="messages")
        return str(state["messages"][-1].content)

    run = talks.enqueue()
    drain(app)
    assert run.result(timeout=0) == "hello dear world"
    chunks = final_chunks(run)
    assert [chunk["data"][0]["content"] for chunk in chunks] == ["hello", " ", "dear", " ", "world"]
    assert {chunk["data"][1]["langgraph_node"] for chunk in chunks} == {"talk"}
