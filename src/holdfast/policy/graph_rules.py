"""Rules that decide whether a node of a graph runs, and with which arguments.

Rules are stored as data and evaluated once all nodes that they refer to are final.

A rule is a list with its kind first:

| rule | true if |
| --- | --- |
| `["done", node]`, `["failed", node]`, `["finished", node]` | it is done; it failed or was cancelled; it is final |
| `["all", [rule, …]]`, `["any", […]]`, `["none", […]]` | all, at least one, or none of the rules are true |
| `["==", ref, value]`, `!=`, `<`, `<=`, `>`, `>=`, `contains` | the comparison with a value or an output holds |
| `["exists", ref]` | the output has a value at that path |

A reference is `{"node": name, "path": [key, …]}`, with an optional `"default"` for a missing value; a value is
`{"value": …}`. A comparison with a missing value is false, except `!=`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import PayloadError
from holdfast.model.codec import decode

Rule: TypeAlias = list[Any]
Reference: TypeAlias = dict[str, Any]

MISSING = msgspec.UNSET
"""A value that doesn't exist, as opposed to null."""

_STATES = {
    "done": ("done",),
    "failed": ("failed", "cancelled"),
    "finished": ("done", "failed", "cancelled", "skipped"),
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class NodeOutcome(msgspec.Struct):
    """The outcome of a node. `output` is JSON text if it was requested; `cause` is why it was skipped, as JSON."""

    state: str
    output: str | None = None
    cause: str | None = None
    _value: Any = MISSING

    def value(self) -> Any:
        if self.state != "done":
            return MISSING
        if self._value is MISSING:
            self._value = decode(self.output or "null")
        return self._value


Outcomes: TypeAlias = Mapping[str, NodeOutcome]


class RunNode(msgspec.Struct, frozen=True):
    """The node runs, with `args` if it has references in its arguments."""

    args: Any = None


class SkipNode(msgspec.Struct, frozen=True):
    """The node can never run: a dependency failed, or a condition is false. `node` is the one that caused it."""

    failure: bool
    node: str | None = None
    cause: str | None = None
    """The cause of the skipped dependency, if that is why."""


class FailNode(msgspec.Struct, frozen=True):
    """The node can't run because its rule or its arguments can't be evaluated."""

    message: str


Decision: TypeAlias = RunNode | SkipNode | FailNode


class NotComparable(Exception):
    """A condition compares values that have no order."""


def decide_node(plan: Mapping[str, Any], outcomes: Outcomes) -> Decision:
    """Decide a node whose dependencies are all final.

    `plan` has its `rule`, its `args`, and `fills`: references, each with the path `at` in the arguments to put it.
    """
    try:
        rule = plan.get("rule")
        if rule is not None and not is_satisfied(rule, outcomes):
            return _skip_cause(rule, outcomes)
        return _fill_arguments(plan, outcomes)
    except (NotComparable, PayloadError) as error:
        return FailNode(str(error))
    except RecursionError:
        return FailNode("its condition or arguments are nested too deeply")


def is_satisfied(rule: Rule, outcomes: Outcomes) -> bool:
    """Return whether a rule is true."""
    kind = rule[0]
    if kind in _STATES:
        return outcomes[rule[1]].state in _STATES[kind]
    if kind == "all":
        return all(is_satisfied(each, outcomes) for each in rule[1])
    if kind == "any":
        return any(is_satisfied(each, outcomes) for each in rule[1])
    if kind == "none":
        return not any(is_satisfied(each, outcomes) for each in rule[1])
    if kind == "exists":
        return resolve_reference(rule[1], outcomes) is not MISSING
    return _compare(kind, resolve_reference(rule[1], outcomes), _operand(rule[2], outcomes))


def rule_references(rule: Rule | None) -> Iterator[Reference]:
    """Yield all references to outputs in a rule."""
    if rule is None or rule[0] in _STATES:
        return
    if rule[0] in ("all", "any", "none"):
        for each in rule[1]:
            yield from rule_references(each)
        return
    yield from (part for part in rule[1:] if "node" in part)


def rule_nodes(rule: Rule | None) -> Iterator[str]:
    """Yield the names of all nodes in a rule."""
    if rule is None:
        return
    if rule[0] in _STATES:
        yield rule[1]
    elif rule[0] in ("all", "any", "none"):
        for each in rule[1]:
            yield from rule_nodes(each)
    else:
        yield from (reference["node"] for reference in rule_references(rule))


def resolve_reference(reference: Reference, outcomes: Outcomes) -> Any:
    """Return the value of a reference, or MISSING. Raise PayloadError if this process can't decode the output."""
    node = reference["node"]
    try:
        value = outcomes[node].value()
    except PayloadError as error:
        raise PayloadError(f"the output of node {node}: {error}") from error
    for key in reference["path"]:
        value = _item(value, key)
        if value is MISSING:
            break
    return reference.get("default", MISSING) if value is MISSING else value


def _item(value: Any, key: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(str(key), MISSING)
    if isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
        return value[key]
    return MISSING


def _operand(part: dict[str, Any], outcomes: Outcomes) -> Any:
    return part["value"] if "value" in part else resolve_reference(part, outcomes)


def _compare(kind: str, left: Any, right: Any) -> bool:
    if left is MISSING or right is MISSING:
        return kind == "!="
    if kind in ("==", "!="):
        return _equal(left, right) == (kind == "==")
    if kind == "contains":
        return _contains(left, right)
    numbers = _is_number(left) and _is_number(right)
    if not numbers and not (isinstance(left, str) and isinstance(right, str)):
        raise NotComparable(
            f"the condition {_shown(left)} {kind} {_shown(right)} is invalid: compare two numbers or two strings"
        )
    return _COMPARISONS[kind](left, right)


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, dict):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list):
        return any(_equal(item, part) for item in whole)
    raise NotComparable(
        f"the condition {_shown(whole)} contains {_shown(part)} is invalid: use a list, string or object"
    )


def _equal(left: Any, right: Any) -> bool:
    """Compare JSON values, for which true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"


def _fill_arguments(plan: Mapping[str, Any], outcomes: Outcomes) -> Decision:
    fills = plan.get("fills")
    if fills is None:
        return RunNode()
    args = plan["args"]
    for fill in fills:
        value = resolve_reference(fill, outcomes)
        if value is MISSING and outcomes[fill["node"]].state != "done":
            return _skip_cause(["done", fill["node"]], outcomes)
        if value is MISSING:
            return FailNode(f"the output of node {fill['node']} has no value at {path_text(fill['path'])}")
        args = _put(args, fill["at"], value)
    return RunNode(args)


def path_text(path: Sequence[str | int]) -> str:
    """Return a path as written in code."""
    return "".join(f"[{key!r}]" for key in path) or "its top"


def _put(args: Any, at: Sequence[str | int], value: Any) -> Any:
    if not at:
        return value
    target = args
    for key in at[:-1]:
        target = target[key]
    target[at[-1]] = value
    return args


def _skip_cause(rule: Rule, outcomes: Outcomes) -> SkipNode:
    """Return why a rule is false: a failure if there is one, else a condition."""
    kind = rule[0]
    if kind == "all":
        false = [each for each in rule[1] if not is_satisfied(each, outcomes)]
        return _prefer_failure([_skip_cause(each, outcomes) for each in false])
    if kind == "any":
        return _prefer_failure([_skip_cause(each, outcomes) for each in rule[1]])
    if kind == "none":
        return SkipNode(failure=False)
    named = list(rule_nodes(rule))
    return _prefer_failure([_node_cause(kind, name, outcomes[name]) for name in named])


def _node_cause(kind: str, name: str, end: NodeOutcome) -> SkipNode:
    if end.state == "skipped":
        return SkipNode(is_failure(end.cause), name, end.cause)
    if end.state in ("failed", "cancelled") and kind != "failed":
        return SkipNode(True, name)
    return SkipNode(False)


def is_failure(cause: str | None) -> bool:
    """Return whether the cause of a skip is a failed node."""
    return cause is not None and msgspec.json.decode(cause).get("code") == "failure"


def _prefer_failure(causes: Sequence[SkipNode]) -> SkipNode:
    return next((cause for cause in causes if cause.failure), causes[0] if causes else SkipNode(failure=False))


# Rules for display

_STATE_TEXT = {"done": "{}", "failed": "{}.failed", "finished": "{}.finished"}


def rule_text(rule: Rule) -> str:
    """Return a rule as written in code: `load.failed`, `any_of(a, b)`, `load.output['rows'] > 10`."""
    kind = rule[0]
    if kind in _STATE_TEXT:
        return _STATE_TEXT[kind].format(rule[1])
    if kind in ("all", "any", "none"):
        return f"{kind}_of({', '.join(map(rule_text, rule[1]))})"
    if kind == "exists":
        return f"{_reference(rule[1])}.exists()"
    if kind == "contains":
        return f"{_reference(rule[1])}.contains({_operand_text(rule[2])})"
    return f"{_reference(rule[1])} {kind} {_operand_text(rule[2])}"


def condition_text(rule: Rule | None) -> str | None:
    """Return the conditions of a rule beyond dependencies that must be done or finished; None if there are none."""
    return ", ".join(rule_text(part) for part in _parts(rule) if part[0] not in ("done", "finished")) or None


def dependency_modes(rule: Rule | None) -> dict[str, str]:
    """Return for each node whether the rule requires `done`, `failed` or `finished`, or has a `condition` on it."""
    found: dict[str, str] = {}
    for part in _parts(rule):
        for name in rule_nodes(part):
            if part[0] not in _STATE_TEXT or found.get(name, part[0]) != part[0]:
                found[name] = "condition"
            else:
                found[name] = part[0]
    return found


def _parts(rule: Rule | None) -> list[Rule]:
    """Return the rules that must all be true."""

    if rule is None:
        return []
    return list(rule[1]) if rule[0] == "all" else [rule]


def _reference(reference: Reference) -> str:
    path = path_text(reference["path"]) if reference["path"] else ""
    default = f".default({_value(reference['default'])})" if "default" in reference else ""
    return f"{reference['node']}.output{path}{default}"


def _operand_text(part: dict[str, Any]) -> str:
    return _value(part["value"]) if "value" in part else _reference(part)


def _value(value: Any) -> str:
    return msgspec.json.encode(value).decode()
