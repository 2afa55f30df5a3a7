"""The key of a graph: submitting the same graph again returns the existing run."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from holdfast import Graph, KeyConflict, Retry, all_of, any_of, none_of
from holdfast.errors import RunNotFound
from tests.support.graphs import submitted

DAY = 86_400


class Parts:
    """A graph of four nodes; each part can be changed, and the nodes can be added in another order."""

    def __init__(self, tasks):
        self.tasks = tasks
        self.give = tasks.give
        self.value = {"x": 1, "y": [2]}
        self.after = ["a", "b"]
        self.any = ["a", "b"]
        self.when = lambda a: a.output["x"] > 0
        self.gate = {"timeout": 60}
        self.fill = lambda a: [a.output["x"]]
        self.more = False
        self.inner = 1
        self.name = "etl"
        self.names = ["a", "b", "gate", "c", "d", "inner"]

    def graph(self, flip=False):
        g = Graph(self.name, key="k")
        for name in reversed(self.names) if flip else self.names:
            getattr(self, f"_{name}")(g)
        if self.more:
            g.add(self.give, name="more")
        return g

    def _a(self, g):
        g.add(self.give, self.value, name="a")

    def _b(self, g):
        g.add(self.tasks.give, name="b")

    def _gate(self, g):
        g.gate("gate", **self.gate)

    def _c(self, g):
        g.add(self.give, self.fill(g.node("a")), name="c", after=self.after, when=self.when(g.node("a")))

    def _d(self, g):
        conditions = [g.node(name) for name in self.any]
        g.add(self.give, name="d", after=[any_of(*conditions), none_of(*(each.failed for each in conditions))])

    def _inner(self, g):
        inner = Graph("inner")
        inner.add(self.give, self.inner, name="within")
        g.add(inner, name="inner", after=["gate"])


@pytest.fixture
def parts(tasks):
    return Parts(tasks)


def test_the_order_in_which_nodes_are_added_does_not_matter(app, parts):
    run = app.submit(parts.graph())
    assert app.submit(parts.graph()) == run
    assert app.submit(parts.graph(flip=True)) == run
    parts.after = ["b", "a", "b"]
    parts.any = ["b", "a"]
    parts.value = {"y": [2], "x": 1}
    assert app.submit(parts.graph()) == run
    assert len([info for info in app.runs() if info.parent is None]) == 1


def test_equivalent_graphs_have_the_same_digest(app, tasks):
    def graph(**node):
        g = Graph("g", key="k")
        a = g.add(tasks.give, name="a")
        g.add(tasks.give, node.get("value"), name="b", after=node.get("after", lambda a: [a])(a))
        return g

    run = app.submit(graph())
    assert app.submit(graph(value=None)) == run, "an explicit default"
    assert app.submit(graph(after=lambda a: ["a"])) == run
    assert app.submit(graph(after=lambda a: (all_of(a),))) == run


def test_times_are_compared_by_value(app, tasks):
    def graph(at):
        g = Graph("g", key="k")
        g.add(tasks.give, at, name="a")
        return g

    run = app.submit(graph(datetime(2026, 1, 1, 12, tzinfo=UTC)))
    assert app.submit(graph("2026-01-01T13:00:00+01:00")) == run


CHANGES = {
    "an argument": {"value": {"x": 2, "y": [2]}},
    "what it comes after": {"after": ["a"]},
    "a node of a join": {"any": ["a"]},
    "the condition": {"when": lambda a: a.output["x"] >= 0},
    "what the condition compares with": {"when": lambda a: a.output["x"] > 1},
    "the timeout of a gate": {"gate": {"timeout": 61}},
    "what a timeout does": {"gate": {"timeout": 60, "on_timeout": "skip"}},
    "the type of a gate": {"gate": {"timeout": 60, "type": int}},
    "the part of an output": {"fill": lambda a: [a.output["y"]]},
    "a default": {"fill": lambda a: [a.output["x"].default(1)]},
    "the place of an output": {"fill": lambda a: [[a.output["x"]]]},
    "one node more": {"more": True},
    "an argument in a graph within": {"inner": 2},
}


def test_any_difference_is_a_conflict_that_names_the_run(app, tasks):
    run = app.submit(Parts(tasks).graph())
    for what, change in CHANGES.items():
        other = Parts(tasks)
        vars(other).update(change)
        with pytest.raises(KeyConflict, match=re.escape(str(run.id))) as error:
            app.submit(other.graph())
        assert error.value.run_id == run.id, what
    assert app.submit(Parts(tasks).graph()) == run


def test_the_options_of_a_node_are_not_compared_but_its_tenant_and_the_result_are(app, tasks):
    def graph(**options):
        g = Graph("g", key="k")
        g.add(tasks.give.options(**options) if options else tasks.give, name="a")
        return g

    run = app.submit(graph())
    assert app.submit(graph()) == run
    for options in (
        {"priority": 1},
        {"queue": "other"},
        {"delay": 5},
        {"deadline": 5},
        {"timeout": 5},
        {"retry": Retry(max_attempts=2)},
        {"tags": ["t"]},
    ):
        assert app.submit(graph(**options)) == run
    with pytest.raises(KeyConflict):
        app.submit(graph(tenant="acme"))
    g = graph()
    with pytest.raises(KeyConflict):
        app.submit(g, result=g.node("a"))


def test_a_key_belongs_to_a_graph_and_a_tenant(app, tasks):
    def graph(name, tenant, value):
        g = Graph(name, key="k", tenant=tenant)
        g.add(tasks.give, value, name="a")
        return app.submit(g)

    runs = [graph("one", None, 1), graph("two", None, 2), graph("one", "acme", 3), graph("one", "other", 4)]
    assert len(set(runs)) == 4
    assert graph("one", "acme", 3) == runs[2]
    with pytest.raises(KeyConflict):
        graph("one", "other", 3)


def test_a_graph_and_a_task_with_the_same_name_have_separate_keys(app, tasks):
    """Also if the task has the same queue."""
    g = Graph("give", key="k")
    g.add(tasks.give, 1, name="a")
    run = app.submit(g)
    job = tasks.give.options(key="k").enqueue(2)
    assert run != job
    assert app.submit(g) == run
    assert tasks.give.options(key="k").enqueue(2) == job


def test_each_submit_without_a_key_creates_a_run(app, tasks):
    g = Graph("g")
    g.add(tasks.give, 1)
    assert app.submit(g) != app.submit(g)


def test_a_key_outlives_its_graph(timed_app, timed_tasks, clock):
    g = Graph("g", key="k")
    g.add(timed_tasks.give, 1, name="a")
    run = submitted(timed_app, g)
    assert timed_app.submit(g) == run
    clock.forward(31 * DAY)
    while timed_app.store.retention.prune()[1]:
        pass
    assert timed_app.runs() == []
    again = timed_app.submit(g)
    assert again == run
    with pytest.raises(RunNotFound):
        again.info()
    g.add(timed_tasks.give, 1, name="b")
    with pytest.raises(KeyConflict):
        timed_app.submit(g)


@pytest.mark.parametrize("key", ["", "x" * 3000, 7])
def test_a_key_is_a_string_of_limited_length(key):
    with pytest.raises(Exception, match="the key of a graph"):
        Graph("g", key=key)
