"""Outputs as arguments: whole, in part, and inside lists and objects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest

from holdfast import Graph, Run
from holdfast.errors import NotSerializable
from tests.support.durable import state
from tests.support.graphs import codes, node, states, submitted

TIME = datetime(2026, 11, 16, 12, 30, tzinfo=UTC)


@dataclass
class Order:
    number: int
    at: datetime
    lines: list[str]


@pytest.fixture
def show(app):
    @app.task(name="show")
    def show(*args: Any, **kwargs: Any) -> Any:
        return [args, kwargs]

    return show


def test_outputs_are_passed_whole_and_by_path(app, tasks, show):
    g = Graph("g")
    a = g.add(tasks.give, {"rows": [{"n": 7}, {"n": 8}], "7": "seven"}, name="a")
    out = g.add(show, a.output, a.output["rows"][-1]["n"], a.output["rows"][0], a.output["7"], a.output[7], name="out")
    run = submitted(app, g, result=out)
    whole = {"rows": [{"n": 7}, {"n": 8}], "7": "seven"}
    assert run.result(timeout=5) == [[whole, 8, {"n": 7}, "seven", "seven"], {}]


def test_outputs_are_passed_inside_lists_tuples_and_objects(app, tasks, show):
    g = Graph("g")
    a, b = g.add(tasks.give, 1, name="a"), g.add(tasks.give, [2], name="b")
    out = g.add(
        show, [a.output, 0, [b.output]], (b.output[0], "x"), deep={"a": {"b": [{"c": a.output}]}, "k": None}, name="out"
    )
    run = submitted(app, g, result=out)
    assert run.result(timeout=5) == [[[1, 0, [[2]]], [2, "x"]], {"deep": {"a": {"b": [{"c": 1}]}, "k": None}}]


def test_outputs_are_passed_inside_objects_with_other_keys_than_strings(app, tasks, show):
    """JSON keys are strings, so the receiving node gets strings."""
    g = Graph("g")
    a = g.add(tasks.give, 1, name="a")
    keys = [1, 2.5, date(2026, 1, 2), UUID(int=1)]
    plain = g.add(show, *({key: {"x": 1}} for key in keys), name="plain")
    filled = g.add(show, *({key: {"x": a.output}} for key in keys), name="filled")
    result = submitted(app, g).result(timeout=5)
    assert result[filled.name] == result[plain.name]
    for key in (None, (1, 2)):
        with pytest.raises(NotSerializable, match="key"):
            g.add(show, {key: {"x": a.output}}, name="wrong")


def test_an_output_can_be_passed_twice(app, tasks, show):
    g = Graph("g")
    a = g.add(tasks.give, {"n": 1}, name="a")
    out = g.add(show, a.output, a.output, [a.output["n"]] * 2, name="out")
    assert submitted(app, g, result=out).result(timeout=5) == [[{"n": 1}, {"n": 1}, [1, 1]], {}]


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, 2**70, 0.1, "\0 ü 😀", {"": {"": 1}}])
def test_all_json_values_can_be_outputs(app, tasks, value):
    g = Graph("g")
    a = g.add(tasks.give, {"v": value}, name="a")
    b = g.add(tasks.give, a.output["v"], name="b")
    c = g.add(tasks.give, [b.output.default("wrong")], name="c", when=b.output == value)
    got = submitted(app, g, result=c).result(timeout=5)
    assert got == [value]
    assert type(got[0]) is type(value)


def test_a_default_replaces_a_missing_output(app, tasks, show):
    g = Graph("g")
    bad = g.add(tasks.fail, name="bad")
    off = g.add(tasks.give, 5, name="off", when=g.add(tasks.give, 1, name="one").output == 2)
    here = g.add(tasks.give, {"n": None}, name="here")
    out = g.add(
        show,
        bad.output.default([0]),
        off.output["x"].default(None),
        here.output["n"].default(3),
        here.output["m"]["k"].default(4),
        here.output["n"][0].default(5),
        name="out",
        after=[bad.finished],
    )
    run = submitted(app, g)
    assert state(run) == "failed", "the node whose output has a default has failed"
    assert run.nodes()[out.name].result == [[[0], None, None, 4, 5], {}]


def test_a_node_waits_for_an_output_that_has_a_default(app, tasks, show):
    g = Graph("g")
    gate = g.gate("gate")
    g.add(show, gate.output.default(7), name="out")
    run = submitted(app, g)
    assert states(run) == {"gate": "waiting", "out": "blocked"}
    run.gate("gate").complete(8)
    app.worker().drain(timeout=60)
    assert run.result(timeout=5)["out"] == [[8], {}]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (lambda output: output["m"], "['m']"),
        (lambda output: output["n"]["k"], "['n']['k']"),
        (lambda output: output["items"][2], "['items'][2]"),
        (lambda output: output["items"]["0"], "['items']['0']"),
    ],
)
def test_a_missing_part_of_an_output_fails_the_node(app, tasks, show, path, shown):
    g = Graph("g")
    a = g.add(tasks.give, {"n": 1, "items": [1, 2]}, name="a")
    b = g.add(show, path(a.output), name="b")
    g.add(show, b.output, name="c")
    run = submitted(app, g)
    assert states(run) == {"a": "done", "b": "failed", "c": "skipped"}
    error = run.nodes()["b"].error
    assert (error.code, error.message) == ("bad_output", f"node b: the output of node a has no value at {shown}")
    assert [entry.kind for entry in node(app, run, "b").history()] == ["enqueued", "failed"]
    assert state(run) == "failed"


@pytest.mark.parametrize(("letter", "size"), [("a", 1), ("ü", 2)])
def test_arguments_that_become_too_large_fail_the_node(app, tasks, letter, size):
    """The size counts bytes; a character may have several."""

    @app.task(name="measure")
    def measure(texts: list[str]) -> int:
        return sum(map(len, texts))

    g = Graph("g")
    parts = [g.add(tasks.give, letter * (900_000 // size), name=f"{number}") for number in range(3)]
    g.add(measure, [part.output for part in parts[:2]], name="fits")
    g.add(measure, [part.output for part in parts], name="too large")
    run = submitted(app, g)
    assert states(run) == {"0": "done", "1": "done", "2": "done", "fits": "done", "too large": "failed"}
    error = run.nodes()["too large"].error
    assert error.code == "too_large"
    assert error.message.startswith("node too large: its arguments: 2,700,0")


def test_arguments_and_results_have_their_annotated_types(app, ledger):
    @app.task(name="order")
    def order(number: int) -> Order:
        return Order(number, TIME, ["rope"])

    @app.task(name="ship")
    def ship(order: Order, when: datetime, *rest: Order, by: dict[str, datetime]) -> Order:
        assert (order.at, when, by, rest) == (TIME, TIME, {"x": TIME}, (order,))
        return order

    g = Graph("g")
    a = g.add(order, 3, name="a")
    b = g.add(ship, a.output, a.output["at"], a.output, by={"x": a.output["at"]}, name="b")
    run: Run[Order] = submitted(app, g, result=b)
    assert run.result(timeout=5) == Order(3, TIME, ["rope"])
    assert run.info().result == Order(3, TIME, ["rope"])
    assert run.nodes()["a"].result == Order(3, TIME, ["rope"])


def test_the_result_of_all_nodes_is_plain_json_by_name(app, tasks):
    @app.task(name="order")
    def order(number: int) -> Order:
        return Order(number, TIME, [])

    g = Graph("g")
    g.add(order, 1, name="z")
    g.add(tasks.give, 2, name="a")
    g.add(tasks.give, 3, name="off", after=[g.node("a").failed])
    run = submitted(app, g)
    assert run.result(timeout=5) == {"z": {"number": 1, "at": "2026-11-16T12:30:00Z", "lines": []}, "a": 2}
    assert list(run.result(timeout=5)) == ["z", "a"]


def test_an_output_of_the_wrong_type_fails_the_node_that_receives_it(app, tasks):
    @app.task(name="strict")
    def strict(number: int) -> int:
        return number

    g = Graph("g")
    a = g.add(tasks.give, "text", name="a")
    g.add(strict, a.output, name="b")
    run = submitted(app, g)
    assert codes(run) == {"b": "bad_arguments"}
    assert "the stored arguments don't match" in run.nodes()["b"].error.message


def test_gates_and_nested_graphs_have_outputs(app, tasks, show):
    inner = Graph("inner")
    x = inner.add(tasks.give, {"n": 1}, name="x")
    inner.add(tasks.give, [x.output["n"]], name="y")
    inner.add(tasks.give, 3, name="off", after=[x.failed])
    g = Graph("g")
    gate = g.gate("gate", type=dict[str, int])
    nested = g.add(inner, name="nested", after=[gate])
    out = g.add(show, gate.output["n"], nested.output, nested.output["y"][0], nested.output["off"].default(9))
    run = app.submit(g, result=out)
    run.gate("gate").complete({"n": 5})
    app.worker().drain(timeout=60)
    assert run.result(timeout=5) == [[5, {"x": {"n": 1}, "y": [1]}, 1, 9], {}]


def test_the_result_of_a_graph_may_be_that_of_a_gate_or_nested_graph(app, tasks):
    inner = Graph("inner")
    inner.add(tasks.give, 1, name="x")
    g = Graph("g")
    nested = g.add(inner, name="nested")
    gate = g.gate("gate")
    by_graph, by_gate = app.submit(g, result=nested), app.submit(g, result=gate)
    for run in (by_graph, by_gate):
        run.gate("gate").complete("yes")
    app.worker().drain(timeout=60)
    assert (by_graph.result(timeout=5), by_gate.result(timeout=5)) == ({"x": 1}, "yes")


def test_the_result_is_null_when_its_node_was_skipped(app, tasks):
    g = Graph("g")
    a = g.add(tasks.give, 1, name="a")
    off = g.add(tasks.give, 2, name="off", after=[a.failed])
    assert submitted(app, g, result=off).result(timeout=5) is None


def test_remote_tasks_receive_outputs_by_position_and_name(app, make_app, tasks, ledger):
    g = Graph("g")
    a = g.add(tasks.give, 1, name="a")
    g.add(app.remote("far"), a.output, 2, c=[a.output], name="far")
    run = submitted(app, g)
    assert states(run)["far"] == "ready"
    other = make_app()

    @other.task(name="far")
    def far(a: int, b: int, c: list[int]) -> list[Any]:
        return [a, b, c]

    other.worker().drain(timeout=60)
    assert run.nodes()["far"].result == [1, 2, [1]]


def test_a_request_may_be_a_node(app, tasks):
    g = Graph("g")
    a = g.add(tasks.give.request(4), name="a")
    g.add(tasks.give, a.output, name="b")
    assert submitted(app, g).result(timeout=5) == {"a": 4, "b": 4}
