"""The outcome of a node, by the kind of dependency and the outcome of the node that it depends on."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Graph, all_of, any_of, none_of
from holdfast.task.conditions import Node
from tests.support.durable import drain, state
from tests.support.graphs import codes, node, states, time_out

OUTPUT = {"n": 5, "items": [1, 2], "text": "abc", "none": None}
ENDS = ("done", "failed", "cancelled", "skipped by a condition", "skipped by a failure")
RUN, CONDITION, FAILURE = "done", "condition", "failure"

SUCCESS = (RUN, FAILURE, FAILURE, CONDITION, FAILURE)
NEVER = (CONDITION, FAILURE, FAILURE, CONDITION, FAILURE)
FAILED = (CONDITION, RUN, RUN, CONDITION, FAILURE)
ALWAYS = (RUN,) * 5
NOT_DONE = (CONDITION, RUN, RUN, RUN, RUN)

# The kinds of dependencies on x; `five` is a node that is done, with the output 5.
AFTER: dict[str, Any] = {
    "x": (lambda x, five: [x], SUCCESS),
    "x, five": (lambda x, five: [x, five], SUCCESS),
    "the name x": (lambda x, five: ["x"], SUCCESS),
    "x.finished": (lambda x, five: [x.finished], ALWAYS),
    "x.failed": (lambda x, five: [x.failed], FAILED),
    "x.failed, five": (lambda x, five: [x.failed, five], FAILED),
    "any_of(x, five)": (lambda x, five: [any_of(x, five)], ALWAYS),
    "any_of(x, x.failed)": (lambda x, five: [any_of(x, x.failed)], (RUN, RUN, RUN, CONDITION, FAILURE)),
    "any_of(x, five.failed)": (lambda x, five: [any_of(x, five.failed)], SUCCESS),
    "any_of(x.failed, five.failed)": (lambda x, five: [any_of(x.failed, five.failed)], FAILED),
    "all_of(x, five)": (lambda x, five: [all_of(x, five)], SUCCESS),
    "all_of(x.finished, five)": (lambda x, five: [all_of(x.finished, five)], ALWAYS),
    "all_of(x.failed, five)": (lambda x, five: [all_of(x.failed, five)], FAILED),
    "none_of(x)": (lambda x, five: [none_of(x)], NOT_DONE),
    "none_of(x.failed)": (lambda x, five: [none_of(x.failed)], (RUN, CONDITION, CONDITION, RUN, RUN)),
    "none_of(x.finished)": (lambda x, five: [none_of(x.finished)], (CONDITION,) * 5),
    "none_of(x, five)": (lambda x, five: [none_of(x, five)], (CONDITION,) * 5),
    "none_of(x, five.failed)": (lambda x, five: [none_of(x, five.failed)], NOT_DONE),
    "none_of(all_of(x, five))": (lambda x, five: [none_of(all_of(x, five))], NOT_DONE),
    "any_of(none_of(x), x.failed)": (lambda x, five: [any_of(none_of(x), x.failed)], NOT_DONE),
}
WHEN: dict[str, Any] = {
    "n == 5": (lambda x, five: x["n"] == 5, SUCCESS),
    "n == 6": (lambda x, five: x["n"] == 6, NEVER),
    "n == five": (lambda x, five: x["n"] == five.output, SUCCESS),
    "n != 6": (lambda x, five: x["n"] != 6, SUCCESS),
    "n != 5": (lambda x, five: x["n"] != 5, NEVER),
    "n < 6": (lambda x, five: x["n"] < 6, SUCCESS),
    "n < 5": (lambda x, five: x["n"] < 5, NEVER),
    "n <= 5": (lambda x, five: x["n"] <= 5, SUCCESS),
    "n <= 4": (lambda x, five: x["n"] <= 4, NEVER),
    "n > 4": (lambda x, five: x["n"] > 4, SUCCESS),
    "n > 5": (lambda x, five: x["n"] > 5, NEVER),
    "n >= 5": (lambda x, five: x["n"] >= 5, SUCCESS),
    "n >= 6": (lambda x, five: x["n"] >= 6, NEVER),
    "text < 'b'": (lambda x, five: x["text"] < "b", SUCCESS),
    "items contains 2": (lambda x, five: x["items"].contains(2), SUCCESS),
    "items contains 3": (lambda x, five: x["items"].contains(3), NEVER),
    "text contains 'bc'": (lambda x, five: x["text"].contains("bc"), SUCCESS),
    "text contains 'x'": (lambda x, five: x["text"].contains("x"), NEVER),
    "x contains 'n'": (lambda x, five: x.contains("n"), SUCCESS),
    "x contains 'm'": (lambda x, five: x.contains("m"), NEVER),
    "x exists": (lambda x, five: x.exists(), SUCCESS),
    "items[1] exists": (lambda x, five: x["items"][1].exists(), SUCCESS),
    "items[2] exists": (lambda x, five: x["items"][2].exists(), NEVER),
    "none exists": (lambda x, five: x["none"].exists(), SUCCESS),
    "m == null": (lambda x, five: x["m"] == None, NEVER),  # noqa: E711
    "m != 1": (lambda x, five: x["m"] != 1, SUCCESS),
    "m < 1": (lambda x, five: x["m"] < 1, NEVER),
    "m.default(1) == 1": (lambda x, five: x["m"].default(1) == 1, ALWAYS),
    "n.default(1) == 1": (lambda x, five: x["n"].default(1) == 1, NOT_DONE),
    "any_of(n == 5, five)": (lambda x, five: any_of(x["n"] == 5, five), ALWAYS),
    "all_of(n == 5, five)": (lambda x, five: all_of(x["n"] == 5, five), SUCCESS),
    "none_of(n == 5)": (lambda x, five: none_of(x["n"] == 5), NOT_DONE),
}
WHEN_FINISHED: dict[str, Any] = {  # when= together with after=[x.finished]
    "n == 5": (lambda x, five: x["n"] == 5, SUCCESS),
    "n != 6": (lambda x, five: x["n"] != 6, ALWAYS),
    "x exists": (lambda x, five: x.exists(), SUCCESS),
    "n.default(1) == 1": (lambda x, five: x["n"].default(1) == 1, NOT_DONE),
}


def dependents(g: Graph, tasks: Any, x: Node[Any], five: Node[Any]) -> None:
    """Add one node for each kind of dependency on x."""
    for name, (after, _) in AFTER.items():
        g.add(tasks.give, 1, name=f"after {name}", after=after(x, five))
    for name, (when, _) in WHEN.items():
        g.add(tasks.give, 1, name=f"when {name}", when=when(x.output, five))
    for name, (when, _) in WHEN_FINISHED.items():
        g.add(tasks.give, 1, name=f"finished, when {name}", after=[x.finished], when=when(x.output, five))
    g.add(tasks.give, x.output, name="takes x", after=[x])
    g.add(tasks.give, x.output.default(1), name="takes x or 1")
    for number in range(1, 4):
        g.add(tasks.give, 1, name=f"chain {number}", after=[g.node(f"chain {number - 1}") if number > 1 else x])
    g.add(tasks.give, 1, name="behind the chain", after=["chain 1", g.node("chain 3").finished])


# By outcome of x: how x is added, and what the test does once it is ready or open.


def inner(tasks: Any, *, bad: bool = False) -> Graph:
    graph = Graph("inner")
    for name, value in OUTPUT.items():
        graph.add(tasks.give, value, name=name)
    if bad:
        graph.add(tasks.fail, name="bad")
    return graph


def a_task(g, tasks):
    return g.add(tasks.give, OUTPUT, name="x")


def a_gate(g, tasks):
    return g.gate("x", timeout=60)


def cancel(app, run, clock):
    node(app, run, "x").cancel("not needed")


def complete(app, run, clock):
    run.gate("x").complete(OUTPUT)


def let_fail(app, run, clock):
    run.gate("x").fail("no")


def let_time_pass(app, run, clock):
    clock.forward(61)
    time_out(app)


def nothing(app, run, clock):
    pass


WAYS = {
    "a task that is done": ("done", a_task, nothing),
    "a gate that is complete": ("done", a_gate, complete),
    "a graph that is done": ("done", lambda g, tasks: g.add(inner(tasks), name="x"), nothing),
    "a task that failed": ("failed", lambda g, tasks: g.add(tasks.fail, name="x"), nothing),
    "a gate that failed": ("failed", a_gate, let_fail),
    "a gate that timed out": ("failed", a_gate, let_time_pass),
    "a graph that failed": ("failed", lambda g, tasks: g.add(inner(tasks, bad=True), name="x"), nothing),
    "a task past its deadline": (
        "failed",
        lambda g, tasks: g.add(tasks.give.options(delay=100, deadline=60), name="x"),
        let_time_pass,
    ),
    "a task that was cancelled": ("cancelled", a_task, cancel),
    "a gate that was cancelled": ("cancelled", a_gate, cancel),
    "a graph that was cancelled": ("cancelled", lambda g, tasks: g.add(inner(tasks), name="x"), cancel),
    "a task whose condition is false": (
        "skipped by a condition",
        lambda g, tasks: g.add(tasks.give, name="x", when=g.node("five").output == 4),
        nothing,
    ),
    "a gate that timed out with skip": (
        "skipped by a condition",
        lambda g, tasks: g.gate("x", timeout=60, on_timeout="skip"),
        let_time_pass,
    ),
    "a graph after a skipped node": (
        "skipped by a condition",
        lambda g, tasks: g.add(inner(tasks), name="x", after=[g.add(tasks.give, name="s", when=g.node("five").failed)]),
        nothing,
    ),
    "a task after a failed node": (
        "skipped by a failure",
        lambda g, tasks: g.add(tasks.give, OUTPUT, name="x", after=[g.add(tasks.fail, name="bad")]),
        nothing,
    ),
    "a gate after a failed node": (
        "skipped by a failure",
        lambda g, tasks: g.gate("x", after=[g.add(tasks.fail, name="bad")]),
        nothing,
    ),
    "a task after a failed one of two": (
        "skipped by a failure",
        lambda g, tasks: g.add(tasks.give, OUTPUT, name="x", after=[g.add(tasks.fail, name="bad"), "five"]),
        nothing,
    ),
}


def outcomes(run) -> dict[str, str]:
    """Return for each dependent node: done, or the code of why it was skipped."""
    why = codes(run)
    return {name: why[name] if end == "skipped" else end for name, end in states(run).items()}


@pytest.mark.parametrize("end", ENDS)
def test_every_kind_of_dependency_by_the_outcome_of_the_node(timed_app, timed_tasks, clock, end):
    runs = {}
    for way, (its_end, make, act) in WAYS.items():
        if its_end == end:
            runs[way] = timed_app.submit(modes(timed_tasks, make))
            act(timed_app, runs[way], clock)
    drain(timed_app)
    at = ENDS.index(end)
    for way, run in runs.items():
        found = outcomes(run)
        for kind, table in (("after", AFTER), ("when", WHEN), ("finished, when", WHEN_FINISHED)):
            expected = {f"{kind} {name}": row[at] for name, (_, row) in table.items()}
            assert {name: found[name] for name in expected} == expected, way
        assert (found["takes x"], found["takes x or 1"]) == (SUCCESS[at], RUN), way
        chain = dict.fromkeys(["chain 1", "chain 2", "chain 3", "behind the chain"], SUCCESS[at])
        assert {name: found[name] for name in chain} == chain, way
        assert found["x"] == (SUCCESS[at] if "skipped" in end else end), way
        assert state(run) == ("done" if end in ("done", "skipped by a condition") else "failed"), way


def modes(tasks: Any, make: Any) -> Graph:
    g = Graph("modes")
    x = make(g, tasks)
    dependents(g, tasks, x, g.add(tasks.give, 5, name="five"))
    return g


def test_a_skip_propagates_with_its_first_cause(app, tasks):
    g = Graph("chain")
    last = g.add(tasks.fail, "no paper", name="print")
    for name in ("fold", "post", "archive"):
        last = g.add(tasks.give, name=name, after=[last])
    g.add(tasks.give, name="never", after=[last.failed])
    run = app.submit(g)
    drain(app)
    nodes = run.nodes()
    assert [nodes[name].error.message for name in ("fold", "post", "archive", "never")] == ["node print failed"] * 4
    assert [entry.kind for entry in node(app, run, "archive").history()] == ["enqueued", "skipped"]
    error = run.info().error
    assert (error.code, error.message) == ("node", "node print failed: ValueError: no paper")


@pytest.mark.parametrize("order", [["bad", "go"], ["go", "bad"], ["go"]])
def test_a_failure_takes_precedence_over_a_condition_as_cause(app, tasks, order):
    """One gate makes a node fail and another one skip in the same transaction."""
    g = Graph("both")
    go = g.gate("go")
    off = g.add(tasks.give, name="off", when=go.output == 2)
    bad = g.gate("bad") if "bad" in order else g.add(tasks.give, go.output["nothing there"], name="bad")
    g.add(tasks.give, name="plain", after=[off, bad])
    g.add(tasks.give, name="ruled", after=[off, bad, go.finished])
    run = app.submit(g)
    for name in order:
        assert run.gate("bad").fail("no") if name == "bad" else run.gate("go").complete(1)
    assert (codes(run)["off"], codes(run)["plain"], codes(run)["ruled"]) == ("condition", "failure", "failure")


def test_a_gate_completed_by_its_timeout_has_the_output_none(timed_app, timed_tasks, clock):
    g = Graph("asleep")
    x = g.gate("x", timeout=60, on_timeout="complete")
    g.add(timed_tasks.give, x.output, name="takes")
    g.add(timed_tasks.give, name="exists", when=x.output.exists())
    g.add(timed_tasks.give, name="is none", when=x.output == None)  # noqa: E711
    run = timed_app.submit(g)
    let_time_pass(timed_app, run, clock)
    drain(timed_app)
    assert states(run) == dict.fromkeys(["x", "takes", "exists", "is none"], "done")
    assert run.result(timeout=5)["takes"] is None


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (lambda x: x["n"] < "6", '5 < "6" is invalid: compare two numbers'),
        (lambda x: x["none"] > 1, "null > 1 is invalid"),
        (lambda x: x["n"].contains(5), "5 contains 5 is invalid: use a list"),
    ],
)
def test_a_condition_that_compares_unordered_values_fails_the_node(app, tasks, condition, message):
    g = Graph("apples and pears")
    x = g.add(tasks.give, OUTPUT, name="x")
    y = g.add(tasks.give, name="y", when=condition(x.output))
    g.add(tasks.give, name="z", after=[y])
    run = app.submit(g)
    drain(app)
    assert states(run) == {"x": "done", "y": "failed", "z": "skipped"}
    error = run.nodes()["y"].error
    assert error.code == "bad_output"
    assert message in error.message
    assert state(run) == "failed"
