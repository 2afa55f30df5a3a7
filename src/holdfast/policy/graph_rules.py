"""Which nodes of a graph run, and with what: conditions kept as data, judged when all that they speak of is final.

A rule is a list with its kind first:

| rule | true when |
| --- | --- |
| `["done", node]`, `["failed", node]`, `["finished", node]` | it ended well; failed or was cancelled; ended at all |
| `["all", [rule, …]]`, `["any", […]]`, `["none", […]]` | all, at least one, none of the rules are |
| `["==", ref, value]`, `!=`, `<`, `<=`, `>`, `>=`, `contains` | the output compares so with a value or an output |
| `["exists", ref]` | there is something at that place of the output |

A reference is `{"node": name, "path": [key, …]}`, with `"default"` for when there is nothing at that place; a value is
`{"value": …}`. Comparing with nothing is false, but for `!=`.
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
"""What is found where there is nothing: not the same as a null."""

_MODES = {
    "done": ("done",),
    "failed": ("failed", "cancelled"),
    "finished": ("done", "failed", "cancelled", "skipped"),
}
_ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class NodeOutcome(msgspec.Struct):
    """How a node ended. `output` is JSON text where it was asked for; `cause` says why it was skipped, as JSON text."""

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


Ends: TypeAlias = Mapping[str, NodeOutcome]


class RunNode(msgspec.Struct, frozen=True):
    """The node runs; with these arguments where it has any to be filled in."""

    args: Any = None


class SkipNode(msgspec.Struct, frozen=True):
    """The node can't run any more: a node before it failed, or a condition is false. `node` is the one to blame."""

    failure: bool
    node: str | None = None
    cause: str | None = None
    """The cause of the skipped node that it follows, where there is one."""


class FailNode(msgspec.Struct, frozen=True):
    """The node can't be given what it was to be given."""

    message: str


Decision: TypeAlias = RunNode | SkipNode | FailNode


class NotComparable(Exception):
    """A condition compares what can't be compared."""


def decide_node(plan: Mapping[str, Any], ends: Ends) -> Decision:
    """What becomes of a node when all that it depends on is final. `plan` has its `rule`, and what is to be filled into
    its `args`: `fills`, each with the place `at` and a reference."""
    try:
        rule = plan.get("rule")
        if rule is not None and not is_satisfied(rule, ends):
            return _blame(rule, ends)
        return _filled(plan, ends)
    except (NotComparable, PayloadError) as error:
        return FailNode(str(error))
    except RecursionError:
        return FailNode("its condition or its arguments are nested too deep")


def is_satisfied(rule: Rule, ends: Ends) -> bool:
    """Whether a rule is true."""
    kind = rule[0]
    if kind in _MODES:
        return ends[rule[1]].state in _MODES[kind]
    if kind == "all":
        return all(is_satisfied(each, ends) for each in rule[1])
    if kind == "any":
        return any(is_satisfied(each, ends) for each in rule[1])
    if kind == "none":
        return not any(is_satisfied(each, ends) for each in rule[1])
    if kind == "exists":
        return resolve_reference(rule[1], ends) is not MISSING
    return _compares(kind, resolve_reference(rule[1], ends), _operand(rule[2], ends))


def rule_references(rule: Rule | None) -> Iterator[Reference]:
    """All outputs that a rule speaks of."""
    if rule is None or rule[0] in _MODES:
        return
    if rule[0] in ("all", "any", "none"):
        for each in rule[1]:
            yield from rule_references(each)
        return
    yield from (part for part in rule[1:] if "node" in part)


def rule_nodes(rule: Rule | None) -> Iterator[str]:
    """All nodes that a rule speaks of."""
    if rule is None:
        return
    if rule[0] in _MODES:
        yield rule[1]
    elif rule[0] in ("all", "any", "none"):
        for each in rule[1]:
            yield from rule_nodes(each)
    else:
        yield from (reference["node"] for reference in rule_references(rule))


def resolve_reference(reference: Reference, ends: Ends) -> Any:
    """The value that a reference means, NOTHING where there is none; PayloadError where it can't be read here."""
    node = reference["node"]
    try:
        value = ends[node].value()
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


def _operand(part: dict[str, Any], ends: Ends) -> Any:
    return part["value"] if "value" in part else resolve_reference(part, ends)


def _compares(kind: str, left: Any, right: Any) -> bool:
    if left is MISSING or right is MISSING:
        return kind == "!="
    if kind in ("==", "!="):
        return _same(left, right) == (kind == "==")
    if kind == "contains":
        return _contains(left, right)
    numbers = _is_number(left) and _is_number(right)
    if not numbers and not (isinstance(left, str) and isinstance(right, str)):
        raise NotComparable(
            f"the condition compares {_shown(left)} {kind} {_shown(right)}: only numbers, or texts, have an order"
        )
    return _ORDERED[kind](left, right)


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, dict):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list):
        return any(_same(item, part) for item in whole)
    raise NotComparable(
        f"the condition asks whether {_shown(whole)} contains {_shown(part)}: only lists, texts and objects do"
    )


def _same(left: Any, right: Any) -> bool:
    """Equality of JSON values: true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"


def _filled(plan: Mapping[str, Any], ends: Ends) -> Decision:
    fills = plan.get("fills")
    if fills is None:
        return RunNode()
    args = plan["args"]
    for fill in fills:
        value = resolve_reference(fill, ends)
        if value is MISSING and ends[fill["node"]].state != "done":
            return _blame(["done", fill["node"]], ends)
        if value is MISSING:
            return FailNode(f"the output of node {fill['node']} has nothing at {path_text(fill['path'])}")
        args = _put(args, fill["at"], value)
    return RunNode(args)


def path_text(path: Sequence[str | int]) -> str:
    """A path as it is written in code."""
    return "".join(f"[{key!r}]" for key in path) or "its top"


def _put(args: Any, at: Sequence[str | int], value: Any) -> Any:
    if not at:
        return value
    holder = args
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = value
    return args


def _blame(rule: Rule, ends: Ends) -> SkipNode:
    """Why a rule is false: a failure where there is one to blame, else a condition."""
    kind = rule[0]
    if kind == "all":
        false = [each for each in rule[1] if not is_satisfied(each, ends)]
        return _first_failure([_blame(each, ends) for each in false])
    if kind == "any":
        return _first_failure([_blame(each, ends) for each in rule[1]])
    if kind == "none":
        return SkipNode(failure=False)
    named = list(rule_nodes(rule))
    return _first_failure([_blamed(kind, name, ends[name]) for name in named])


def _blamed(kind: str, name: str, end: NodeOutcome) -> SkipNode:
    if end.state == "skipped":
        return SkipNode(is_failure(end.cause), name, end.cause)
    if end.state in ("failed", "cancelled") and kind != "failed":
        return SkipNode(True, name)
    return SkipNode(False)


def is_failure(cause: str | None) -> bool:
    """Whether the cause of a skip is that a node failed."""
    return cause is not None and msgspec.json.decode(cause).get("code") == "failure"


def _first_failure(causes: Sequence[SkipNode]) -> SkipNode:
    return next((cause for cause in causes if cause.failure), causes[0] if causes else SkipNode(failure=False))


_WRITTEN = {"done": "{}", "failed": "{}.failed", "finished": "{}.finished"}


def rule_text(rule: Rule) -> str:
    """A rule as it is written in code: `load.failed`, `any_of(a, b)`, `load.output['rows'] > 10`."""
    kind = rule[0]
    if kind in _WRITTEN:
        return _WRITTEN[kind].format(rule[1])
    if kind in ("all", "any", "none"):
        return f"{kind}_of({', '.join(map(rule_text, rule[1]))})"
    if kind == "exists":
        return f"{_reference(rule[1])}.exists()"
    if kind == "contains":
        return f"{_reference(rule[1])}.contains({_operand_text(rule[2])})"
    return f"{_reference(rule[1])} {kind} {_operand_text(rule[2])}"


def condition_text(rule: Rule | None) -> str | None:
    """What a node's rule says beyond that some nodes must have ended, or ended well; None where that is all."""
    told = [rule_text(part) for part in _parts(rule) if part[0] not in ("done", "finished")]
    return ", ".join(told) or None


def dependency_modes(rule: Rule | None) -> dict[str, str]:
    """How a rule speaks of each node: it must be `done`, `failed` or `finished`, or a `condition` looks at it."""
    found: dict[str, str] = {}
    for part in _parts(rule):
        for name in rule_nodes(part):
            if part[0] not in _WRITTEN or found.get(name, part[0]) != part[0]:
                found[name] = "condition"
            else:
                found[name] = part[0]
    return found


def _parts(rule: Rule | None) -> list[Rule]:
    """The rules that must all be true."""
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
