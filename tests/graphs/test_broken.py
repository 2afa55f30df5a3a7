"""Regression tests: graphs that were once lost, stuck or failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Graph, Retry, all_of, any_of, none_of
from holdfast.control import Control
from holdfast.errors import GraphError, NotSerializable
from tests.support.durable import drain, state


@pytest.fixture
def give(app):
    @app.task(name="give")
    def give(value: int) -> int:
        return value

    return give


def states(run):
    return {name: info.state for name, info in run.nodes().items()}


def test_a_blocked_nested_graph_rejects_appends(app, give):
    part = Graph("part")
    part.add(give, 1, name="own")
    graph = Graph("whole")
    graph.add(part, after=[graph.gate("first")], name="part")
    run = app.submit(graph)
    inner = app.get_run(run.nodes()["part"].id)
    more = Graph("more")
    more.add(give, 2, name="more")
    with pytest.raises(GraphError, match="hasn't started yet"):
        inner.append(more, key="k")
    with pytest.raises(GraphError, match="hasn't started yet"):
        inner.gate("any").complete()
    run.gate("first").complete()
    inner.append(more, key="k")
    drain(app)
    assert (state(run), states(inner)) == ("done", {"own": "done", "more": "done"})


def test_conditions_joined_in_a_loop_stay_flat_and_deep_ones_are_rejected(app, give):
    graph = Graph("deep")
    first = graph.add(give, 1, name="first")
    loop = any_of(first.failed)
    for number in range(600):
        loop = any_of(loop, first.output == number)
    graph.add(give, 2, name="second", when=loop)
    deep = none_of(first)
    with pytest.raises(GraphError, match="levels deep"):
        for _ in range(100):
            deep = all_of(any_of(deep, first), first)
    run = app.submit(graph)
    drain(app)
    assert (state(run), states(run)) == ("done", {"first": "done", "second": "done"})


def test_the_cost_of_nested_graphs_is_linear(app, give):
    graph = Graph("0")
    graph.add(give, 0, name="work")
    for level in range(1, 25):
        outer = Graph(str(level))
        before = outer.add(give, level, name="work")
        outer.add(graph, after=[before], name="within")
        graph = outer
    run = app.submit(graph)
    kept = app.store.queries.nodes(str(run.id))
    assert {row.state for row in kept} == {"ready", "blocked"}
    drain(app)
    assert state(run) == "done"


def test_arguments_nested_too_deeply_are_rejected(app, give):
    @app.task(name="any")
    def anything(value: object) -> None: ...

    deep: object = 1
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(NotSerializable, match="nested too deep"):
        Graph("g").add(anything, deep)


def test_formatting_an_output_as_text_is_rejected(give):
    graph = Graph("g")
    first = graph.add(give, 1, name="first")
    for make in (lambda: f"{first.output} rows", lambda: "rows: " + str(first.output), lambda: f"{first.output}"):
        with pytest.raises(GraphError, match="can't be formatted"):
            make()


def test_node_times_survive_a_retry(timed_app, clock):
    later = datetime.fromtimestamp(clock() / 1_000_000, UTC) + timedelta(hours=1)
    broken = [True]

    @timed_app.task(name="shaky", retry=Retry(max_attempts=1))
    def shaky() -> None:
        if broken[0]:
            raise ValueError

    @timed_app.task(name="work")
    def work() -> None: ...

    graph = Graph("g")
    first = graph.add(shaky, name="first")
    graph.add(work.options(run_at=later), after=[first], name="at")
    graph.add(work.options(delay=3600), after=[first], name="in")
    graph.add(work.options(delay=3600), name="alone")
    run = timed_app.submit(graph)
    drain(timed_app)
    run.cancel()
    broken[0] = False
    run.retry()
    drain(timed_app)
    assert states(run) == {"first": "done", "at": "scheduled", "in": "scheduled", "alone": "scheduled"}


@dataclass
class Approval:
    by: str
    limit: int = 100
    tags: list[str] | None = None


def test_the_defaults_of_a_gates_type_are_filled_in(app, give):
    graph = Graph("g")
    gate = graph.gate("approve", type=Approval)
    graph.add(give, gate.output["limit"], name="budget")
    run = app.submit(graph)
    assert run.gate("approve").complete({"by": "ada"})
    assert not run.gate("approve").complete(Approval("ada"))
    drain(app)
    assert run.result(timeout=5) == {"approve": {"by": "ada", "limit": 100, "tags": None}, "budget": 100}


def test_a_prefix_of_a_graphs_id_is_accepted(app, give):
    graph = Graph("g")
    for number in range(20):
        graph.add(give, number)
    run = app.submit(graph)
    assert Control(app.store).runs.find(str(run.id)[:13]) == run.id


def test_why_of_a_graph_lists_the_reasons_of_its_nodes(app, give):
    graph = Graph("g")
    graph.add(give, 1, name="first")
    inner = Graph("inner")
    inner.gate("that was all")
    graph.add(inner, name="inner")
    run = app.submit(graph)
    texts = [str(reason) for reason in Control(app.store).whys.why(run.id).reasons]
    assert any(
        text.startswith("node first (") and text.endswith("): no worker is running; start one with `holdfast worker`")
        for text in texts
    )
    assert any(
        "approval of gate that was all: holdfast gate" in text and "'that was all' complete" in text for text in texts
    )
