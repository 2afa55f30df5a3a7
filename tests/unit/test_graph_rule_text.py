"""Graph rules displayed as code."""

from __future__ import annotations

import pytest

from holdfast import Graph, Holdfast, all_of, any_of, none_of
from holdfast.policy.graph_rules import condition_text, dependency_modes, rule_text

g = Graph("g")
app = Holdfast("sqlite:///:memory:")
a = g.add(app.remote("a"), name="a")
b = g.add(app.remote("b"), name="b")


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (all_of(a, b), "all_of(a, b)"),
        (a.failed, "a.failed"),
        (a.finished, "a.finished"),
        (any_of(a, b.failed), "any_of(a, b.failed)"),
        (none_of(a, all_of(b)), "none_of(a, all_of(b))"),
        (a.output["rows"][0] > 3, "a.output['rows'][0] > 3"),
        (a.output == b.output["x"], "a.output == b.output['x']"),
        (a.output.default({"n": 0}) != {"n": 1}, 'a.output.default({"n":0}) != {"n":1}'),
        (a.output.contains("x"), 'a.output.contains("x")'),
        (a.output["k"].exists(), "a.output['k'].exists()"),
    ],
)
def test_a_rule_is_displayed_as_code(condition, words):
    assert rule_text(condition.rule) == words


@pytest.mark.parametrize(
    ("rule", "told", "needed"),
    [
        (None, None, {}),
        (["all", []], None, {}),
        (["all", [["done", "a"], ["finished", "b"]]], None, {"a": "done", "b": "finished"}),
        (["all", [["failed", "a"]]], "a.failed", {"a": "failed"}),
        (["any", [["done", "a"], ["done", "b"]]], "any_of(a, b)", {"a": "condition", "b": "condition"}),
        (
            ["all", [["done", "a"], ["exists", {"node": "a", "path": []}], ["done", "b"]]],
            "a.output.exists()",
            {"a": "condition", "b": "done"},
        ),
        (["all", [["failed", "a"], ["finished", "a"]]], "a.failed", {"a": "condition"}),
    ],
)
def test_conditions_and_dependency_modes_of_a_rule(rule, told, needed):
    assert condition_text(rule) == told
    assert dependency_modes(rule) == needed
