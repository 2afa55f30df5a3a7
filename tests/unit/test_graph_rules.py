"""Rules that decide whether a graph node runs, is skipped or fails."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.policy.graph_rules import (
    MISSING,
    FailNode,
    NodeOutcome,
    NotComparable,
    RunNode,
    SkipNode,
    decide_node,
    is_satisfied,
    path_text,
    resolve_reference,
    rule_nodes,
    rule_references,
)

FAILURE = '{"code":"failure","type":"Skipped","message":"node w failed"}'
CONDITION = '{"code":"condition","type":"Skipped","message":"no"}'


def done(value=None):
    return NodeOutcome("done", json.dumps(value))


ENDS = {
    "done": done(1),
    "failed": NodeOutcome("failed"),
    "cancelled": NodeOutcome("cancelled"),
    "spoilt": NodeOutcome("skipped", cause=FAILURE),
    "skipped": NodeOutcome("skipped", cause=CONDITION),
}
STATES = st.sampled_from(list(ENDS))
RULES = st.recursive(
    st.tuples(st.sampled_from(["done", "failed", "finished"]), STATES).map(list),
    lambda rules: st.tuples(st.sampled_from(["all", "any", "none"]), st.lists(rules, max_size=3)).map(list),
)


def ref(name, *path, **more):
    return {"node": name, "path": list(path), **more}


@pytest.mark.parametrize(
    ("rule", "true_for"),
    [
        ("done", {"done"}),
        ("failed", {"failed", "cancelled"}),
        ("finished", set(ENDS)),
    ],
)
def test_rules_on_the_state_of_a_node(rule, true_for):
    assert {name for name in ENDS if is_satisfied([rule, name], ENDS)} == true_for


@settings(deadline=None)
@given(RULES)
def test_all_any_and_none_combine_rules(rule):
    parts = rule[1] if rule[0] in ("all", "any", "none") else [rule]
    true = [is_satisfied(part, ENDS) for part in parts]
    assert is_satisfied(["all", parts], ENDS) == all(true)
    assert is_satisfied(["any", parts], ENDS) == any(true)
    assert is_satisfied(["none", parts], ENDS) == (not any(true))


@settings(deadline=None)
@given(RULES)
def test_a_false_rule_skips_the_node_and_names_a_failure_only_if_there_is_one(rule):
    decided = decide_node({"rule": rule}, ENDS)
    if is_satisfied(rule, ENDS):
        assert decided == RunNode()
        return
    assert isinstance(decided, SkipNode)
    if decided.failure:
        assert decided.node in rule_nodes(rule)
        assert decided.node in ("failed", "cancelled", "spoilt")
        assert decided.cause == ENDS[decided.node].cause


def test_a_plan_without_a_rule_runs():
    assert decide_node({}, {}) == RunNode()


@settings(deadline=None)
@given(RULES)
def test_rule_nodes_are_exactly_those_needed_to_evaluate_it(rule):
    named = set(rule_nodes(rule))
    assert isinstance(is_satisfied(rule, {name: ENDS[name] for name in named}), bool)
    assert list(rule_references(rule)) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(JSON, JSON)
def test_values_are_equal_if_their_json_is(left, right):
    ends = {"l": done(left), "r": done(right)}
    equal = is_satisfied(["==", ref("l"), ref("r")], ends)
    assert equal != is_satisfied(["!=", ref("l"), ref("r")], ends)
    assert is_satisfied(["==", ref("l"), {"value": left}], ends)
    if json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True):
        assert equal


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [(1, 1.0, True), (1, True, False), (0, False, False), ([1], [True], False), ({"a": 1}, {"a": True}, False),
     (None, False, False), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True), ([1, 2], [2, 1], False), ("1", 1, False)],
)  # fmt: skip
def test_true_is_not_one_and_order_matters_only_in_lists(left, right, equal):
    assert is_satisfied(["==", ref("l"), {"value": right}], {"l": done(left)}) is equal


@pytest.mark.parametrize("name", ["failed", "cancelled", "spoilt", "skipped"])
def test_comparison_with_a_missing_value_is_false_except_unequal(name):
    for kind in ("==", "<", "<=", ">", ">=", "contains"):
        assert is_satisfied([kind, ref(name), {"value": 1}], ENDS) is False
        assert is_satisfied([kind, ref("done"), ref(name)], ENDS) is False
    assert is_satisfied(["!=", ref(name), {"value": 1}], ENDS) is True
    assert is_satisfied(["exists", ref(name)], ENDS) is False
    assert is_satisfied(["exists", ref(name, default=None)], ENDS) is True


@pytest.mark.parametrize(("left", "right"), [(1, "1"), (True, 1), (None, 1), ([1], [2]), ({}, {})])
def test_only_numbers_and_strings_are_ordered(left, right):
    for kind in ("<", "<=", ">", ">="):
        with pytest.raises(NotComparable):
            is_satisfied([kind, ref("l"), {"value": right}], {"l": done(left)})
        decided = decide_node({"rule": [kind, ref("l"), {"value": right}]}, {"l": done(left)})
        assert isinstance(decided, FailNode)


def test_long_values_are_truncated_in_messages():
    decided = decide_node({"rule": ["<", ref("l"), {"value": 1}]}, {"l": done("x" * 10_000)})
    assert isinstance(decided, FailNode)
    assert len(decided.message) < 200


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), {"a": [1, {"b": None}], "1": "one"}),
        (("a",), [1, {"b": None}]),
        (("a", 0), 1),
        (("a", -1), {"b": None}),
        (("a", 1, "b"), None),
        ((1,), "one"),
        (("1",), "one"),
        (("a", 2), MISSING),
        (("a", -3), MISSING),
        (("a", "0"), MISSING),
        (("c",), MISSING),
        (("a", 1, "b", "c"), MISSING),
        (("1", 0), MISSING),
    ],
)
def test_references_resolve_paths(path, value):
    ends = {"x": done({"a": [1, {"b": None}], "1": "one"})}
    assert resolve_reference(ref("x", *path), ends) == value
    assert resolve_reference(ref("x", *path, default="else"), ends) == ("else" if value is MISSING else value)


def test_references_are_filled_into_arguments():
    plan = {
        "args": {"a": None, "b": [1, None, {"c": None}], "d": None},
        "fills": [
            {"at": ["a"], **ref("x")},
            {"at": ["b", 1], **ref("x", "n")},
            {"at": ["b", 2, "c"], **ref("y", default=[])},
            {"at": ["d"], **ref("x", "null")},
        ],
    }
    ends = {"x": done({"n": 5, "null": None}), "y": NodeOutcome("failed")}
    assert decide_node(plan, ends) == RunNode({"a": {"n": 5, "null": None}, "b": [1, 5, {"c": []}], "d": None})


def test_an_unresolvable_reference_fails_or_skips_the_node():
    plan = {"args": {"a": None}, "fills": [{"at": ["a"], **ref("x", "rows", 3)}]}
    assert decide_node(plan, {"x": done({"rows": []})}) == FailNode("the output of node x has no value at ['rows'][3]")
    assert decide_node(plan, {"x": NodeOutcome("failed")}) == SkipNode(failure=True, node="x")
    assert decide_node(plan, {"x": NodeOutcome("skipped", cause=CONDITION)}) == SkipNode(False, "x", CONDITION)


def test_paths_are_displayed_as_code():
    assert (path_text(["a", 0, "b"]), path_text([])) == ("['a'][0]['b']", "its top")
