"""`HoldfastSaver`: LangGraph's conformance tests, and what they don't check, on both databases."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph

from holdfast import Holdfast, Keep
from holdfast.database.statements import StatementSource, render
from holdfast.errors import ConfigError, PayloadError
from holdfast.integrations.encryption import Encryption, Key
from holdfast.integrations.langgraph import HoldfastSaver


@pytest.fixture
def app(database_url: str) -> Iterator[Holdfast]:
    app = Holdfast(database_url)
    yield app
    app.close()


def config(thread: str = "t", **more: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


def checkpoint(**values: Any) -> Checkpoint:
    new = empty_checkpoint()
    new["channel_values"] = values
    return new


def sql(app: Holdfast, text: str) -> list[Any]:
    """Execute SQL that may contain fragments of the dialect."""
    statement = render(StatementSource("test", None, "", text), app.store.database.dialect)
    return app.store.database.connection("client").run(lambda connection: connection.execute(statement, {"now": None}))


def count(app: Holdfast, table: str) -> int:
    return int(sql(app, f"select count(*) from {{schema}}langgraph_{table}")[0][0])


def test_it_passes_the_conformance_tests_of_langgraph(app):
    @checkpointer_test(name="HoldfastSaver")
    async def saver() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        yield HoldfastSaver(app)

    report = asyncio.run(validate(saver))
    assert report.results.keys() == {each.value for each in Capability}
    for name, result in report.results.items():
        assert (result.passed, result.failures) == (True, []), name


class State(TypedDict):
    items: Annotated[list[str], lambda old, new: old + new]
    untouched: str


def counting_graph(saver: HoldfastSaver, steps: int = 3) -> Any:
    builder = StateGraph(State)
    for number in range(steps):
        builder.add_node(f"n{number}", lambda _state, number=number: {"items": [f"item {number}"]})
        builder.add_edge(START if number == 0 else f"n{number - 1}", f"n{number}")
    builder.add_edge(f"n{steps - 1}", END)
    return builder.compile(checkpointer=saver)


def test_a_graph_runs_on_it_without_an_event_loop_and_with_one(app):
    graph = counting_graph(HoldfastSaver(app))
    start = {"items": [], "untouched": "x" * 1000}
    expected = [f"item {number}" for number in range(3)]
    assert graph.invoke(start, config("sync"))["items"] == expected
    assert asyncio.run(graph.ainvoke(start, config("async")))["items"] == expected
    histories = [[each.next for each in graph.get_state_history(config(thread))] for thread in ("sync", "async")]
    assert histories[0] == histories[1] == [(), ("n2",), ("n1",), ("n0",), ("__start__",)]
    assert graph.get_state(config("nobody")).values == {}


def test_a_value_that_does_not_change_is_stored_once(app):
    saver = HoldfastSaver(app)
    counting_graph(saver, 5).invoke({"items": [], "untouched": "x"}, config())
    stored = [each for each in saver._threads.whole(None, "t").versions[""] if each[0] == "untouched"]
    assert len(stored) == 1
    assert count(app, "checkpoints") == 7


def test_two_branches_of_a_thread_keep_their_own_values(app):
    graph = counting_graph(HoldfastSaver(app))
    graph.invoke({"items": [], "untouched": ""}, config())
    before_last = next(each for each in graph.get_state_history(config()) if each.next == ("n2",))
    fork = graph.update_state(before_last.config, {"items": ["other"]}, as_node="n1")
    assert graph.invoke(None, fork)["items"] == ["item 0", "item 1", "other", "item 2"]
    first = [each.values["items"] for each in graph.get_state_history(config()) if not each.next]
    assert first == [["item 0", "item 1", "other", "item 2"], ["item 0", "item 1", "item 2"]]


def test_a_tenant_sees_only_its_threads(app):
    ada, bob = HoldfastSaver(app, tenant="ada"), HoldfastSaver(app, tenant="bob")
    ada.put(config(), checkpoint(), {"run_id": "r"}, {})
    assert bob.get_tuple(config()) is None
    assert list(bob.list(None)) == list(HoldfastSaver(app).list(None)) == []
    bob.delete_thread("t")
    bob.delete_for_runs(["r"])
    bob.prune(["t"], strategy="delete")
    bob.copy_thread("t", "copy")
    assert [each.config["configurable"]["thread_id"] for each in ada.list(None)] == ["t"]
    with pytest.raises(ConfigError, match="tenant of a HoldfastSaver"):
        HoldfastSaver(app, tenant="")


def test_everything_is_encrypted_and_bound_to_its_place(database_url):
    app = Holdfast(database_url, codec=Encryption([Key("k", Key.new_secret())]))
    saver = HoldfastSaver(app)
    stored = saver.put(config(), checkpoint(name="very secret"), {"source": "input"}, {"name": 1})
    saver.put_writes(stored, [("name", "more secret")], "task")
    saver.copy_thread("t", "copy")
    for thread in ("t", "copy"):
        found = saver.get_tuple(config(thread))
        assert found is not None
        assert found.pending_writes == [("task", "name", "more secret")]
        assert found.checkpoint["channel_values"] == {}, "its version is not in the checkpoint"
    tables = ("checkpoints", "values", "writes")
    texts = [row[0] for table in tables for row in sql(app, f"select data from {{schema}}langgraph_{table}")]
    assert texts
    assert all(text.startswith("~") for text in texts)
    sql(app, "update {schema}langgraph_writes set data = (select min(data) from {schema}langgraph_writes)")
    with pytest.raises(PayloadError):
        [saver.get_tuple(config(thread)) for thread in ("t", "copy")]
    app.close()


def test_nothing_is_pickled(app):
    with pytest.raises(ConfigError, match="pickle"):
        HoldfastSaver(app, serde=JsonPlusSerializer(pickle_fallback=True))
    saver = HoldfastSaver(app)
    with pytest.raises(TypeError):
        saver.put(config(), checkpoint(value=lambda: None), {}, {"value": 1})
    assert count(app, "values") == 0
    with pytest.raises(PayloadError, match="pickled"):
        saver._load('["pickle", "gAQu"]')


def test_a_config_without_a_thread_says_what_is_missing(app):
    with pytest.raises(ConfigError, match="thread_id"):
        HoldfastSaver(app).get_tuple({"configurable": {}})
    with pytest.raises(ConfigError, match="keep_latest"):
        HoldfastSaver(app).prune(["t"], strategy="oldest")


def test_pruning_deletes_unused_values(app):
    saver = HoldfastSaver(app)
    graph = counting_graph(saver, 5)
    graph.invoke({"items": [], "untouched": "x"}, config())
    state = graph.get_state(config()).values
    saver.prune(["t"])
    assert graph.get_state(config()).values == state
    assert (count(app, "checkpoints"), count(app, "values")) == (1, 2)
    saver.delete_for_runs(["nobody"])
    saver.delete_thread("t")
    assert [count(app, table) for table in ("checkpoints", "values", "writes")] == [0, 0, 0]


class Deltas(TypedDict):
    items: Annotated[list[str], DeltaChannel(lambda old, new: old + [each for part in new for each in part])]
    turn: int


def test_pruning_keeps_what_a_delta_channel_is_rebuilt_from(app):
    saver = HoldfastSaver(app)
    builder = StateGraph(Deltas)
    builder.add_node("add", lambda state: {"items": [f"item {state['turn']}"], "turn": state["turn"] + 1})
    builder.add_edge(START, "add")
    builder.add_conditional_edges("add", lambda state: "add" if state["turn"] < 6 else END, ["add", END])
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"items": ["first"], "turn": 0}, config())
    expected = ["first", *(f"item {number}" for number in range(6))]
    assert graph.get_state(config()).values["items"] == expected
    saver.prune(["t"])
    assert graph.get_state(config()).values["items"] == expected


def test_a_list_of_many_checkpoints_is_read_page_by_page(app):
    saver = HoldfastSaver(app)
    for number in range(70):
        saver.put(config(f"t{number % 3}"), checkpoint(), {"source": "loop", "step": number}, {})
    assert [each.metadata["step"] for each in saver.list(None)] == list(reversed(range(70)))
    assert len(list(saver.list(None, filter={"step": 3}))) == 1
    assert [each.metadata["step"] for each in saver.list(config("t1"), limit=2)] == [67, 64]


def test_a_thread_named_like_a_run_is_pruned_with_it(app):
    @app.task(name="job", keep=Keep(done=0))
    def job() -> None: ...

    saver = HoldfastSaver(app)
    run = job.enqueue()
    for thread in (str(run.id), "other"):
        stored = saver.put(config(thread), checkpoint(a=1), {}, {"a": 1})
        saver.put_writes(stored, [("a", 1)], "task")
    with app.worker():
        run.result(timeout=30)
    app.store.retention.prune_older(0)
    assert [each.config["configurable"]["thread_id"] for each in saver.list(None)] == ["other"]
    assert [count(app, table) for table in ("checkpoints", "values", "writes")] == [1, 1, 1]


def test_importing_holdfast_loads_no_langgraph():
    code = "import holdfast, sys; assert not any(name.startswith(('langgraph', 'langchain')) for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_langgraph_the_import_says_what_to_install():
    code = """
import sys
sys.modules["langgraph.checkpoint.base"] = None
try:
    import holdfast.integrations.langgraph
except ImportError as error:
    assert 'pip install "holdfast[langgraph]"' in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)
