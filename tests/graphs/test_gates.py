"""Gates: nodes that an outside call completes once, with a typed output, or that time out."""

from __future__ import annotations

import getpass
import re
import socket
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal
from uuid import uuid4

import pytest
from pydantic import BaseModel

from holdfast import Graph, KeyConflict
from holdfast.control import Control
from holdfast.errors import BadArguments, ConfigError, GraphError, NotSerializable, RunFinished, RunNotFound
from tests.support.durable import drain, state
from tests.support.graphs import codes, node, states, submitted, time_out


@dataclass
class Approval:
    who: str
    amount: int = 0


class Model(BaseModel):
    who: str
    amount: int


def gated(tasks, **settings):
    """A gate, a node that takes its output, and a node that runs if it fails."""
    g = Graph("gated")
    gate = g.gate("ok", **settings)
    g.add(tasks.give, gate.output, name="then", after=[gate])
    g.add(tasks.give, name="else", after=[gate.failed])
    return g


@pytest.fixture
def run(app, tasks):
    return submitted(app, gated(tasks))


def history(app, run, name="ok"):
    return [(entry.kind, dict(entry.data)) for entry in node(app, run, name).history()][1:]


def test_a_graph_waits_for_its_open_gates_and_continues_when_they_are_completed(app, run):
    assert (state(run), states(run)) == ("waiting", {"ok": "waiting", "then": "blocked", "else": "blocked"})
    assert run.gate("ok").complete({"n": 1}) is True
    assert (state(run), states(run)["then"]) == ("running", "ready")
    drain(app)
    assert run.result(timeout=5) == {"ok": {"n": 1}, "then": {"n": 1}}
    assert states(run)["else"] == "skipped"


def test_a_failed_gate_has_the_given_reason(app, run):
    assert run.gate("ok").fail("too dear") is True
    drain(app)
    assert states(run) == {"ok": "failed", "then": "skipped", "else": "done"}
    error = run.nodes()["ok"].error
    assert (error.code, error.message) == ("gate", "too dear")
    assert (state(run), run.info().error.message) == ("failed", "node ok failed: GateFailed: too dear")


def test_repeating_an_outcome_changes_nothing(app, run):
    gate = run.gate("ok")
    assert gate.complete({"a": 1, "b": [2.5]}) is True
    assert gate.complete({"b": [2.5], "a": 1}) is False
    drain(app)
    assert gate.complete({"a": 1, "b": [2.5]}) is False, "also after the graph has finished"
    assert [kind for kind, _ in history(app, run)] == ["completed"]


def test_a_different_outcome_is_a_conflict_that_names_the_gate(app, run):
    gate = run.gate("ok")
    gate.complete(1)
    for other in (
        lambda: gate.complete(2),
        lambda: gate.complete(True),
        lambda: gate.complete(),
        lambda: gate.fail(""),
    ):
        with pytest.raises(KeyConflict, match=f"gate ok of run {run.id} was completed") as error:
            other()
        assert error.value.run_id == run.nodes()["ok"].id
    assert run.nodes()["ok"].result == 1


def test_repeating_a_failure_changes_nothing_and_a_different_one_is_a_conflict(app, run):
    gate = run.gate("ok")
    assert (gate.fail("no"), gate.fail("no")) == (True, False)
    for other in (lambda: gate.fail("never"), lambda: gate.complete(1)):
        with pytest.raises(KeyConflict, match="was failed: no"):
            other()


def test_the_actor_is_recorded(app, tasks):
    g = Graph("gates")
    for name in "abc":
        g.gate(name)
    run = app.submit(g)
    run.gate("a").complete(1, by="ada")
    run.gate("b").fail("no", by="bob")
    run.gate("c").complete(2)
    assert history(app, run, "a") == [("completed", {"by": "ada"})]
    [(kind, data)] = history(app, run, "b")
    assert (kind, data["by"], data["error"]["message"]) == ("failed", "bob", "no")
    assert history(app, run, "c") == [("completed", {"by": f"{getpass.getuser()}@{socket.gethostname()}"})]
    with pytest.raises(ConfigError, match="by"):
        run.gate("a").complete(1, by="")


# Concluded before it opens


@pytest.mark.parametrize("good", [True, False])
def test_a_gate_may_be_concluded_before_it_opens(app, tasks, good):
    g = Graph("early")
    before = g.add(tasks.give, 1, name="before")
    gate = g.gate("ok", after=[before], type=int)
    g.add(tasks.give, gate.output, name="then")
    run = app.submit(g)
    conclude = (lambda: run.gate("ok").complete(5, by="ada")) if good else (lambda: run.gate("ok").fail("no", by="ada"))
    assert (conclude(), conclude()) == (True, False)
    with pytest.raises(KeyConflict):
        run.gate("ok").complete(6)
    with pytest.raises(BadArguments):
        run.gate("ok").complete("six")
    assert states(run) == {"before": "ready", "ok": "blocked", "then": "blocked"}
    drain(app)
    assert states(run) == {"before": "done", "ok": "done" if good else "failed", "then": "done" if good else "skipped"}
    assert history(app, run)[0] == ("concluded_early", {"by": "ada", "outcome": "done" if good else "failed"})
    assert [(kind, data["by"]) for kind, data in history(app, run)[1:]] == [("completed" if good else "failed", "ada")]
    assert conclude() is False
    assert codes(run) == ({} if good else {"ok": "gate", "then": "failure"})


def test_a_gate_concluded_early_is_skipped_when_its_dependency_fails(app, tasks):
    g = Graph("early")
    g.gate("ok", after=[g.add(tasks.fail, name="bad")])
    run = app.submit(g)
    run.gate("ok").complete(5)
    drain(app)
    assert states(run) == {"bad": "failed", "ok": "skipped"}


# Timeouts


@pytest.mark.parametrize(
    ("on_timeout", "end", "code", "then", "graph"),
    [
        ("fail", "failed", "timeout", "skipped", "failed"),
        ("skip", "skipped", "condition", "skipped", "done"),
        ("complete", "done", None, "done", "done"),
    ],
)
def test_on_timeout_decides_the_outcome(timed_app, timed_tasks, clock, on_timeout, end, code, then, graph):
    run = timed_app.submit(gated(timed_tasks, timeout=timedelta(minutes=1), on_timeout=on_timeout))
    clock.forward(59)
    time_out(timed_app)
    assert states(run)["ok"] == "waiting"
    clock.forward(1)
    time_out(timed_app)
    drain(timed_app)
    found = run.nodes()
    assert (found["ok"].state, found["then"].state, state(run)) == (end, then, graph)
    assert found["ok"].result is None
    if code is not None:
        error = found["ok"].error
        assert (error.code, error.message) == (code, "gate ok was not completed within 60 s")
    assert [kind for kind, _ in history(timed_app, run)] == ["timed_out"]


def test_completing_a_gate_after_its_timeout_is_rejected(timed_app, timed_tasks, clock):
    late = {}
    for how in ("fail", "skip", "complete"):
        late[how] = timed_app.submit(gated(timed_tasks, timeout=60, on_timeout=how))
    clock.forward(60)
    time_out(timed_app)
    with pytest.raises(KeyConflict, match="was failed: gate ok was not completed within 60 s"):
        late["fail"].gate("ok").complete(1)
    with pytest.raises(RunFinished, match="is skipped: it can no longer be completed"):
        late["skip"].gate("ok").complete(1)
    with pytest.raises(KeyConflict, match="was completed with another output"):
        late["complete"].gate("ok").complete(1)
    assert late["complete"].gate("ok").complete(None) is False


def test_the_timeout_counts_from_when_the_gate_opens(timed_app, timed_tasks, clock):
    g = Graph("later")
    g.gate("second", after=[g.gate("first")], timeout=60)
    run = timed_app.submit(g)
    clock.forward(1000)
    time_out(timed_app)
    run.gate("first").complete()
    clock.forward(59)
    time_out(timed_app)
    assert states(run) == {"first": "done", "second": "waiting"}
    clock.forward(1)
    time_out(timed_app)
    assert states(run) == {"first": "done", "second": "failed"}
    assert state(run) == "failed", "a graph that ends by a timeout needs no worker"


# Finished gates


def test_a_skipped_or_cancelled_gate_cannot_be_completed(app, tasks):
    g = Graph("no")
    a = g.add(tasks.give, name="a")
    g.gate("skipped", after=[a.failed])
    g.gate("cancelled")
    g.gate("open")
    run = submitted(app, g)
    node(app, run, "cancelled").cancel()
    for name in ("skipped", "cancelled"):
        with pytest.raises(RunFinished, match=f"gate {name} of run {run.id} is {name}: it can no longer be completed"):
            run.gate(name).complete(1)
        with pytest.raises(RunFinished):
            run.gate(name).fail("no")
    run.cancel()
    with pytest.raises(RunFinished, match="gate open"):
        run.gate("open").complete(1)


def test_completing_a_node_that_is_not_a_gate_is_rejected(app, tasks):
    g = Graph("g")
    g.add(tasks.give, name="a")
    inner = Graph("inner")
    inner.gate("within")
    g.add(inner, name="inner")
    run = app.submit(g)
    other = tasks.give.enqueue(1)
    own = f"node 'a' of run {run.id} is not a gate"
    for name, message in (("a", own), ("inner", "is not a gate"), ("x", "no gate 'x'")):
        with pytest.raises(GraphError, match=message):
            run.gate(name).complete(1)
    with pytest.raises(GraphError, match=r"gate 'within' belongs to graph run .*: name that run"):
        run.gate("within").complete(1)
    with pytest.raises(GraphError, match=f"run {other.id} is not a graph"):
        other.gate("a").complete(1)
    other.cancel()
    gone = app.get_run(other.id)
    gone._id = uuid4()
    with pytest.raises(RunNotFound):
        gone.gate("a").fail("no")
    with pytest.raises(ConfigError, match="the name of a gate"):
        run.gate("")


def test_a_gate_of_a_nested_graph_is_reached_through_the_nested_run(app, tasks):
    g = Graph("g")
    inner = Graph("inner")
    inner.gate("within")
    g.add(inner, name="inner")
    run = app.submit(g)
    nested = node(app, run, "inner")
    assert states(nested) == {"within": "waiting"}
    assert nested.gate("within").complete(3) is True
    assert run.result(timeout=5) == {"inner": {"within": 3}}


# Types

TYPES: list[tuple[Any, list[Any], list[tuple[Any, str]]]] = [
    (
        int,
        [1, -5],
        [("1", "the output must be an integer, not a string"), (True, "not true or false"), (1.5, "number")],
    ),
    (
        list[int],
        [[], [1, 2]],
        [([1, "2"], "the output[1] must be an integer"), ({}, "must be an array, not an object")],
    ),
    (Literal["yes", "no"], ["yes"], [("maybe", 'must be one of "no", "yes", not "maybe"'), (None, "null")]),
    (
        Approval,
        [Approval("ada", 5), {"who": "ada"}],
        [({"amount": 1}, "is missing 'who'"), ({"who": 1}, "the output['who'] must be a string"), (7, "an object")],
    ),
    (
        Model,
        [Model(who="ada", amount=5), {"who": "ada", "amount": 5}],
        [({"who": "ada"}, "is missing 'amount'"), ({"who": "ada", "amount": "x"}, "['amount'] must be an integer")],
    ),
    (date, [date(2026, 11, 16), "2026-11-17"], [("today", "the output is not a valid date")]),
    (int | None, [None, 5], [("x", "must be")]),
    (dict[str, list[Approval]], [{"a": [{"who": "x"}]}], [({"a": [{}]}, "the output['a'][0] is missing 'who'")]),
]


def test_the_output_of_a_gate_is_validated_by_its_type(app):
    for kind, good, bad in TYPES:
        g = Graph("typed")
        for number in range(len(good)):
            g.gate(f"{number}", type=kind)
        run = app.submit(g)
        for wrong, message in bad:
            with pytest.raises(BadArguments, match=f"gate 0 of run {run.id}: .*{re.escape(message)}"):
                run.gate("0").complete(wrong)
        assert states(run)["0"] == "waiting"
        for number, value in enumerate(good):
            assert run.gate(f"{number}").complete(value) is True, (kind, value)
        assert state(run) == "done"


def test_a_gate_without_a_type_accepts_any_json(app, run):
    with pytest.raises(NotSerializable, match="the output of gate ok"):
        run.gate("ok").complete(object())
    with pytest.raises(BadArguments, match="gate ok: fail takes a message, not a ValueError"):
        run.gate("ok").fail(ValueError("no"))
    assert run.gate("ok").complete([1, "a", None]) is True


class Opaque:
    pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "int"}, "gate ok: type= must be a type, not a str: remove the quotes"),
        ({"type": Opaque}, "gate ok: outputs of type <class .*Opaque'> can't be checked"),
        ({"on_timeout": "explode"}, 'gate ok: on_timeout must be "fail", "skip" or "complete", not \'explode\''),
        ({"on_timeout": "skip"}, "gate ok: on_timeout='skip' needs a timeout"),
        ({"type": int, "timeout": 5, "on_timeout": "complete"}, "completes it with None, which is not a <class 'int'>"),
    ],
)
def test_invalid_settings_are_rejected_when_the_gate_is_added(settings, message):
    with pytest.raises(GraphError, match=message):
        Graph("g").gate("ok", **settings)


@pytest.mark.parametrize("timeout", [0, -1, "soon", float("inf")])
def test_an_invalid_timeout_is_rejected(timeout):
    with pytest.raises(ConfigError, match="gate ok: timeout"):
        Graph("g").gate("ok", timeout=timeout)


async def test_the_async_methods_of_a_gate(app, tasks):
    g = Graph("gates")
    g.gate("a")
    g.gate("b")
    run = await app.asubmit(g)
    assert await run.gate("a").acomplete({"n": 1}, by="ada") is True
    assert await run.gate("a").acomplete({"n": 1}) is False
    assert await run.gate("b").afail("no") is True
    assert {name: info.state for name, info in (await run.anodes()).items()} == {"a": "done", "b": "failed"}
    assert (await run.ainfo()).state == "failed"


def test_a_gate_has_a_payload_with_outputs_of_other_nodes(app, tasks):
    g = Graph("refund")
    amount = g.add(tasks.give, {"usd": 50}, name="amount")
    g.gate("plain", payload={"order": 7})
    g.gate("approve", payload={"order": 7, "amount": amount.output["usd"]})
    g.gate("none")
    run = app.submit(g)
    gates = Control(app.store).gates
    ids = {name: info.id for name, info in run.nodes().items()}
    assert states(run)["approve"] == "blocked"  # it depends on the node whose output it shows
    assert gates.read(ids["plain"]).payload == {"order": 7}
    drain(app)
    assert gates.read(ids["approve"]).payload == {"order": 7, "amount": 50}
    assert gates.read(ids["none"]).payload is None
    assert states(run) == {"amount": "done", "plain": "waiting", "approve": "waiting", "none": "waiting"}
    for name in ("plain", "approve", "none"):
        run.gate(name).complete()
    fork = run.fork()
    drain(app)
    assert gates.read(fork.nodes()["approve"].id).payload == {"order": 7, "amount": 50}


def test_a_payload_is_part_of_what_a_key_stands_for(app):
    def build(payload):
        g = Graph("g", key="k")
        g.gate("gate", payload=payload)
        return g

    first = app.submit(build({"a": 1}))
    assert app.submit(build({"a": 1})).id == first.id
    with pytest.raises(KeyConflict):
        app.submit(build({"a": 2}))
    with pytest.raises(NotSerializable, match="the payload of gate gate"):
        build(object())
