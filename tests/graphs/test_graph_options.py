"""Options of whole graphs: unique, priority, retry, deadline, tags and metadata; and the condition `skipped`."""

from __future__ import annotations

import threading

import pytest

from holdfast import Graph, Retry, any_of
from holdfast.control import Control
from holdfast.errors import ConfigError, GraphError
from tests.support.durable import drain, kinds, state
from tests.support.graphs import node, states

PATIENT = Retry(max_attempts=2, delay=0)


def test_a_graph_is_found_by_tags_and_metadata(app, tasks):
    inner = Graph("inner", metadata={"order": 43}, tags=["inside"])
    inner.add(tasks.give, name="within")
    g = Graph("g", tags=["nightly"], metadata={"order": 42})
    g.add(inner, name="inner", after=[g.add(tasks.give.options(metadata={"order": 44}, tags=["node"]), name="a")])
    run = app.submit(g)
    drain(app)
    ids = {name: info.id for name, info in run.nodes().items()}
    assert [info.id for info in app.runs(metadata={"order": 42})] == [run.id]
    assert [info.id for info in app.runs(metadata={"order": 43})] == [ids["inner"]]
    assert [info.id for info in app.runs(metadata={"order": 44}, tag="node")] == [ids["a"]]
    assert (run.info().tags, run.info().metadata) == (("nightly",), {"order": 42})


def test_nodes_have_the_priority_and_retry_of_their_graph_unless_they_set_their_own(app, tasks):
    @app.task(name="broken", retry=Retry(max_attempts=1))
    def broken() -> None:
        raise ValueError

    inner = Graph("inner", priority=3)
    inner.add(broken, name="inside")
    g = Graph("g", priority=7, retry=PATIENT)
    g.add(broken, name="default")
    g.add(broken.options(priority=1, retry=Retry(max_attempts=1)), name="own")
    g.add(inner, name="inner")
    run = app.submit(g)
    inside = node(app, run, "inner")
    assert {name: info.priority for name, info in run.nodes().items()} == {"default": 7, "own": 1, "inner": 3}
    assert inside.nodes()["inside"].priority == 3
    for _ in range(3):
        drain(app)
        app.store.timers.promote_due()
    assert kinds(node(app, run, "default")).count("retrying") == 1
    assert kinds(node(app, run, "own")).count("retrying") == 0
    assert kinds(node(app, inside, "inside")).count("retrying") == 1


def test_a_graph_fails_at_its_deadline_with_all_its_nodes(timed_app, timed_tasks, clock):
    g = Graph("g", deadline=60)
    g.add(timed_tasks.give, name="a", after=[g.gate("gate")])
    run = timed_app.submit(g)
    clock.forward(61)
    timed_app.store.timers.fail_overdue("{}")
    assert (state(run), states(run)) == ("failed", {"a": "cancelled", "gate": "cancelled"})


def test_one_unfinished_graph_has_a_unique_name(app, tasks):
    def build(key=None):
        g = Graph("sync", unique="crm", key=key)
        g.add(tasks.give, name="a")
        return g

    first = app.submit(build())
    again = app.submit(build(key="k"))
    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert app.submit(build(key="k")).id == first.id
    assert Control(app.store).runs.details(first.id).unique == "crm"
    assert tasks.give.options(unique="crm").enqueue().created
    drain(app)
    assert state(first) == "done"
    assert app.submit(build()).created


def test_graphs_with_a_unique_name_that_are_submitted_at_once_are_one(app, tasks):
    g = Graph("sync", unique="crm")
    g.add(tasks.give, name="a")
    runs = []
    threads = [threading.Thread(target=lambda: runs.append(app.submit(g))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.id for run in runs}) == sum(run.created for run in runs) == 1
    assert len(app.runs(limit=100)) == 2


@pytest.mark.parametrize(("end", "expected"), [("done", "skipped"), ("failed", "skipped"), ("skipped", "done")])
def test_a_node_runs_if_another_was_skipped(app, tasks, end, expected):
    g = Graph("g")
    decide = g.add(tasks.give, end == "done", name="decide")
    gate = (
        g.gate("x", after=[decide])
        if end == "failed"
        else g.add(
            tasks.give,
            name="x",
            after=[decide],
            when=decide.output == True,  # noqa: E712
        )
    )
    g.add(tasks.give, name="instead", after=[gate.skipped])
    g.add(tasks.give, name="either", after=[any_of(gate, gate.skipped)])
    run = app.submit(g)
    drain(app)
    if end == "failed":
        run.gate("x").fail("no")
        drain(app)
    assert states(run)["x"] == end
    assert states(run)["instead"] == expected
    assert states(run)["either"] == ("skipped" if end == "failed" else "done")


def test_options_that_do_not_fit_are_refused(app, tasks):
    with pytest.raises(ConfigError, match=r"graph g: option priority must be an int, not str"):
        Graph("g", priority="high")
    with pytest.raises(ConfigError, match="retry_if is code"):
        Graph("g", retry=Retry(retry_if=bool))
    inner = Graph("inner", unique="u")
    inner.add(tasks.give)
    outer = Graph("outer")
    outer.add(inner)
    with pytest.raises(GraphError, match="has a unique name: remove it"):
        app.submit(outer)
