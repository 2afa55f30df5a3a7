"""Invalid graphs are rejected with the name of the node: while nodes are added if possible, otherwise by submit.

Nothing is written to the database.
"""

from __future__ import annotations

import re

import pytest

from holdfast import Graph, Holdfast, all_of, any_of, none_of
from holdfast.errors import BadArguments, ConfigError, GraphError, NotSerializable, TaskError
from holdfast.task import graph as graph_module
from holdfast.task.graph_compiler import compile_graph


@pytest.fixture
def app(tmp_path):
    with Holdfast(f"sqlite:///{tmp_path / 'never.db'}") as app:
        yield app
    assert not (tmp_path / "never.db").exists(), "a rejected graph must not reach the database"


@pytest.fixture
def give(app):
    @app.task(name="shop.give")
    def give(value: int = 0) -> int:
        return value

    return give


@pytest.fixture
def g():
    return Graph("etl")


def refused(message):
    return pytest.raises(GraphError, match=re.escape(message))


# Names


@pytest.mark.parametrize("name", ["", "a\nb", 7, None, "x" * 2000])
def test_a_graph_needs_a_valid_name(name):
    with pytest.raises(ConfigError, match="the name of a graph"):
        Graph(name)


@pytest.mark.parametrize("name", ["", "a\nb", 7, "x" * 2000])
def test_a_node_needs_a_valid_name(g, give, name):
    with refused("graph etl: the name of a node"):
        g.add(give, name=name)
    with pytest.raises(ConfigError, match="the name of a gate"):
        g.gate(name)
    with pytest.raises(ConfigError, match="the name of a node"):
        g.node(name)


def test_unnamed_nodes_are_named_after_their_task_and_numbered(g, give):
    inner = Graph("inner")
    inner.add(give)
    names = [g.add(what).name for what in (give, give, give.request(1), inner, inner)]
    assert names == ["give", "give-2", "give-3", "inner", "inner-2"]
    assert len(g) == 5
    assert repr(g) == "<graph etl, 5 nodes>"


def test_two_nodes_cannot_have_the_same_name(g, give):
    g.add(give, name="a")
    with refused("graph etl has two nodes named 'a'"):
        g.add(give, name="a")
    with refused("graph etl has two nodes named 'a'"):
        g.gate("a")


def test_an_empty_graph_is_rejected_also_inside_another(app, g, give):
    with refused("graph etl is empty"):
        app.submit(g)
    g.add(Graph("hollow"))
    with refused("graph hollow is empty"):
        app.submit(g)


def test_a_dependency_outside_the_graph_is_rejected(app, g, give):
    g.add(give, name="a", after=["b"])
    with refused("node a depends on b, which is not a node of graph etl"):
        app.submit(g)


def test_a_node_of_another_graph_is_rejected(app, g, give):
    other = Graph("other")
    g.add(give, other.add(give, name="b").output, name="a")
    with refused("node a depends on b, which is not a node of graph etl but of graph other"):
        app.submit(g)


def test_dependencies_cannot_cross_the_border_of_a_nested_graph(app, g, give):
    inner = Graph("inner")
    within = inner.add(give, name="within")
    g.add(inner)
    g.add(give, name="a", after=[within])
    with refused("node a depends on within, which is not a node of graph etl but of graph inner"):
        app.submit(g)
    g = Graph("etl")
    outside = g.add(give, name="outside")
    inner = Graph("inner")
    inner.add(give, name="within", after=[outside])
    g.add(inner)
    with refused("node within depends on outside, which is not a node of graph inner but of graph etl"):
        app.submit(g)


# Cycles


def test_a_node_that_depends_on_itself_is_rejected(app, g, give):
    g.add(give, g.node("a").output, name="a")
    with refused("node a of graph etl depends on itself"):
        app.submit(g)


def test_a_cycle_is_reported_with_its_nodes(app, g, give):
    g.add(give, name="start")
    g.add(give, g.node("c").output, name="a", after=["start"])
    g.add(give, name="b", after=[g.node("a").finished])
    g.gate("c", after=[any_of(g.node("b").failed, g.node("start"))])
    with pytest.raises(GraphError, match="nodes of graph etl depend on each other in a cycle: ") as error:
        app.submit(g)
    circle = str(error.value).partition(": ")[2].split(" -> ")
    assert circle[0] == circle[-1]
    assert sorted(circle[1:]) == ["a", "b", "c"]


def test_a_cycle_through_a_condition_is_found(app, g, give):
    g.add(give, name="a", when=g.node("b").output > 1)
    g.add(give, name="b", after=["a"])
    with refused("depend on each other in a cycle"):
        app.submit(g)


def test_graphs_that_contain_each_other_are_rejected(app, g):
    inner = Graph("inner")
    g.add(inner)
    inner.add(g)
    with refused("graphs contain each other in a cycle: etl -> inner -> etl"):
        app.submit(g)


def test_the_same_graph_may_be_nested_twice(g, give):
    inner = Graph("inner")
    inner.add(give)
    g.add(inner, name="one")
    g.add(inner, name="two")
    assert [plan.graph.graph.name for plan in graph_plan(g)] == ["inner", "inner"]


def graph_plan(g):
    return compile_graph(g).nodes


@pytest.mark.parametrize("what", ["key", "tenant"])
def test_a_graph_inside_another_has_no_key_and_no_tenant(app, g, give, what):
    inner = Graph("inner", **{what: "mine"})
    inner.add(give)
    g.add(inner, name="n")
    with refused(f"node n: graph inner has a {what}: remove it, the outer graph decides"):
        app.submit(g)


# Outputs that may be missing


def test_the_output_of_a_node_that_a_condition_may_skip_needs_a_default(app, g, give):
    a = g.add(give, name="a")
    b = g.add(give, name="b", when=a.output > 1)
    g.add(give, b.output, name="c")
    with refused("node c of graph etl takes the output of b, which may be skipped: use b.output.default(…), or"):
        app.submit(g)


@pytest.mark.parametrize(
    "skippable",
    [
        lambda g, give: g.add(give, name="b", after=[g.node("a").failed]),
        lambda g, give: g.add(give, name="b", after=[any_of(g.node("a"), g.node("a").failed)]),
        lambda g, give: g.add(give, name="b", after=[none_of(g.node("a").failed)]),
        lambda g, give: g.gate("b", timeout=5, on_timeout="skip"),
        lambda g, give: g.add(give, name="b", after=[g.gate("gate", timeout=5, on_timeout="skip")]),
        lambda g, give: g.add(give, name="b", after=[g.add(give, name="s", when=g.node("a").output > 1)]),
        lambda g, give: g.add(give, name="b", when=all_of(g.node("a").finished, g.node("a").output > 1)),
    ],
)
def test_every_condition_that_may_skip_a_node_is_found(app, g, give, skippable):
    g.add(give, name="a")
    b = skippable(g, give)
    g.add(give, b.output, name="c")
    with refused("takes the output of b, which may be skipped"):
        app.submit(g)


def test_a_skippable_output_is_accepted_with_default_or_after(g, give):
    a = g.add(give, name="a")
    b = g.add(give, name="b", when=a.output > 1)
    g.add(give, b.output.default(0), name="c")
    g.add(give, b.output, name="d", after=[b])
    g.add(give, b.output, name="e", after=[all_of(b, a)])
    g.add(give, a.output, name="f")
    needs = {plan.spec.name: set(plan.needs) for plan in graph_plan(g)}
    assert needs == {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"b"}, "e": {"a", "b"}, "f": {"a"}}


@pytest.mark.parametrize("mode", [lambda a: a.finished, lambda a: a.failed, lambda a: any_of(a, a.failed)])
def test_the_output_of_a_node_that_may_fail_needs_a_default(app, g, give, mode):
    a = g.add(give, name="a")
    g.add(give, a.output, name="b", after=[mode(a)])
    with refused("node b of graph etl takes the output of a but may run without it: use a.output.default"):
        app.submit(g)


# Outputs and conditions aren't values


def test_outputs_conditions_and_nodes_have_no_truth_value(g, give):
    a = g.add(give, name="a")
    with refused("a.output['n'] is known only when the graph runs: to get a condition, write output == True"):
        bool(a.output["n"])
    with refused("a condition is known only when the graph runs: pass it to after= or when=, and combine"):
        bool(a.output > 1)
    with refused("node a: its outcome is known only when the graph runs"):
        bool(a)
    with refused("a condition is known only"):
        _ = 1 < a.output < 3
    with refused("a condition is known only"):
        _ = a.output == 1 or a.output == 2


def test_outputs_cannot_be_iterated_searched_or_accessed_by_attribute(g, give):
    output = g.add(give, name="a").output
    with refused("a.output is known only when the graph runs, so it can't be iterated"):
        list(output)
    with refused("a.output is known only when the graph runs: write output.contains(3)"):
        _ = 3 in output
    with pytest.raises(AttributeError, match=re.escape("a.output has no attribute 'rows': write output['rows']")):
        _ = output.rows
    with refused("a.output: index an output with a str or an int, not with 1.5"):
        output[1.5]
    with refused("not with True"):
        output[True]
    with refused("a.output: call default last: output['n'].default(…)"):
        output.default({})["n"]
    with pytest.raises(TypeError, match="unhashable"):
        hash(output)


def test_outputs_are_compared_with_values_and_outputs_only(g, give):
    a = g.add(give, name="a")
    with refused("a.output can't be compared with <node a>"):
        _ = a.output == a
    with refused("a.output can't be compared with <condition"):
        _ = a.output > (a.output > 1)
    with pytest.raises(NotSerializable, match=re.escape("the value compared with a.output")):
        _ = a.output == object()
    with pytest.raises(NotSerializable, match=re.escape("the default of a.output")):
        a.output.default(float("nan"))


@pytest.mark.parametrize("when", [True, False, 1, "x > 1"])
def test_when_takes_a_condition(g, give, when):
    with refused(f"node a: when= takes a condition like x.output > 3, not {when!r}"):
        g.add(give, name="a", when=when)


def test_when_rejects_nodes_and_outputs(g, give):
    a = g.add(give, name="a")
    for wrong in (a, a.output):
        with refused("node b: when= takes a condition"):
            g.add(give, name="b", when=wrong)


@pytest.mark.parametrize("after", ["a", b"a", {"a": 1}, 7, None])
def test_after_takes_a_list(g, give, after):
    with refused(f"node b: after= takes a list of nodes and conditions, not {after!r}"):
        g.add(give, name="b", after=after)


def test_after_takes_nodes_and_conditions(g, give):
    a = g.add(give, name="a")
    with refused("node b: after= takes nodes and conditions, not a.output: compare the output with a value"):
        g.add(give, name="b", after=[a.output])
    with refused("node b: after= takes nodes and conditions, not [<node a>]: unpack it with *"):
        g.add(give, name="b", after=[[a]])
    with refused("node b: after= takes nodes and conditions, not 7"):
        g.add(give, name="b", after=[7])
    with refused("node b: after= takes a list of nodes and conditions, not <node a>"):
        g.add(give, name="b", after=a)


@pytest.mark.parametrize("join", [any_of, all_of, none_of])
def test_joins_take_nodes_and_conditions_and_at_least_one(g, give, join):
    a = g.add(give, name="a")
    with refused(f"{join.__name__} needs at least one node or condition"):
        join()
    with refused(f"{join.__name__} takes nodes and conditions, not [<node a>]: unpack it with *"):
        join([a])
    with refused(f"{join.__name__} takes nodes and conditions, not 'a'"):
        join("a")


# Accepted nodes


def test_only_tasks_requests_and_graphs_can_be_added(g, give):
    def plain() -> None: ...

    with refused("add takes a task, a request or a graph, not <function") as error:
        g.add(plain)
    assert str(error.value).endswith("; decorate it with @app.task")
    with refused("graph etl: add takes a task, a request or a graph, not 'shop.give'"):
        g.add("shop.give")
    with refused("has its arguments already"):
        g.add(give.request(1), 2)
    with refused("graph etl: a Graph has its arguments already"):
        g.add(Graph("inner"), 2)


@pytest.mark.parametrize("options", [{"key": "k"}, {"unique": "u"}, {"connection": object()}])
def test_a_node_has_no_key_no_unique_name_and_no_connection(g, give, options):
    (option,) = options
    for add in (lambda: g.add(give.options(**options), 1, name="a"), lambda: g.add(give.options(**options).request(1))):
        with pytest.raises(TaskError, match=f"option {option} is not available for nodes"):
            add()
    assert len(g) == 0


def test_invalid_arguments_are_rejected_when_the_node_is_added(g, give, app):
    @app.task(name="two")
    def two(a: int, b: str) -> None: ...

    x = g.add(give, name="x")
    for wrong in ((give, "text"), (give, 1, 2), (two, x.output), (two, x.output, 7), (two, 7, x.output, 8)):
        with pytest.raises(BadArguments):
            g.add(*wrong, name="wrong")
    with pytest.raises(BadArguments, match="unexpected keyword argument 'colour'"):
        g.add(give, colour="red")
    assert len(g) == 1


def test_nodes_and_conditions_cannot_be_arguments(g, app):
    @app.task(name="any")
    def anything(value: object) -> None: ...

    a = g.add(anything, 1, name="a")
    for wrong, shown in ((a, "<node a>"), ([a], "<node a>"), ({"k": a.output > 1}, "<condition")):
        with pytest.raises(GraphError, match=f"{shown}.* can't be an argument: pass node.output"):
            g.add(anything, wrong, name="b")


def test_a_graph_has_a_maximum_size(g, give, monkeypatch):
    monkeypatch.setattr(graph_module, "MAX_NODES", 3)
    for _ in range(3):
        g.add(give)
    with refused("graph etl has more than 3 nodes"):
        g.add(give)


# Submit


def test_the_result_must_be_a_node_of_the_graph(app, g, give):
    g.add(give, name="a")
    other = Graph("other").add(give, name="a")
    for wrong, why in (("a", "not 'a'"), (other, "and a is not one"), (g.node("b"), "and b is not one")):
        with refused(f"result= takes a node of graph etl, {why}"):
            app.submit(g, result=wrong)


def test_only_graphs_can_be_submitted(app, give):
    with refused("submit takes a Graph, not _SyncTask"):
        app.submit(give)
