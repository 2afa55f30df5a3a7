"""Rules of graphs for people: written as their authors wrote them, and what they say about each node."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.policy.frontier import Reference, Rule, nodes_of, place

_WRITTEN = {"done": "{}", "failed": "{}.failed", "finished": "{}.finished"}


def worded(rule: Rule) -> str:
    """A rule as it is written in code: `load.failed`, `any_of(a, b)`, `load.output['rows'] > 10`."""
    kind = rule[0]
    if kind in _WRITTEN:
        return _WRITTEN[kind].format(rule[1])
    if kind in ("all", "any", "none"):
        return f"{kind}_of({', '.join(map(worded, rule[1]))})"
    if kind == "exists":
        return f"{_reference(rule[1])}.exists()"
    if kind == "contains":
        return f"{_reference(rule[1])}.contains({_operand(rule[2])})"
    return f"{_reference(rule[1])} {kind} {_operand(rule[2])}"


def conditions(rule: Rule | None) -> str | None:
    """What a node's rule says beyond that some nodes must have ended, or ended well; None where that is all."""
    told = [worded(part) for part in _parts(rule) if part[0] not in ("done", "finished")]
    return ", ".join(told) or None


def modes(rule: Rule | None) -> dict[str, str]:
    """How a rule speaks of each node: it must be `done`, `failed` or `finished`, or a `condition` looks at it."""
    found: dict[str, str] = {}
    for part in _parts(rule):
        for name in nodes_of(part):
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
    path = place(reference["path"]) if reference["path"] else ""
    default = f".default({_value(reference['default'])})" if "default" in reference else ""
    return f"{reference['node']}.output{path}{default}"


def _operand(part: dict[str, Any]) -> str:
    return _value(part["value"]) if "value" in part else _reference(part)


def _value(value: Any) -> str:
    return msgspec.json.encode(value).decode()
