"""Check a graph and compile each node into what is stored: its dependencies, rule and output insertions.

Nothing is executed here. `policy/graph_rules.py` evaluates the rules when dependencies finish.
"""

from __future__ import annotations

import graphlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import GraphError
from holdfast.model.codec import (
    DIGEST_VERSION,
    MASKED_DIGEST_VERSION,
    MaskedDigest,
    canonical,
    canonical_text,
    decode,
    has_secrets,
)
from holdfast.model.secret import mask_secrets
from holdfast.policy.graph_rules import Rule, rule_nodes
from holdfast.task.conditions import Node
from holdfast.task.graph import NO_ARGUMENTS, Fill, Graph, NodeSpec, done_rule, has_default


class CompiledNode(msgspec.Struct):
    """A compiled node. `rule` is None if it runs when all of its dependencies have succeeded."""

    spec: NodeSpec
    needs: tuple[str, ...]
    rule: Rule | None
    graph: CompiledGraph | None = None

    @property
    def args(self) -> str:
        """The arguments of a task, or the payload of a gate, as JSON."""
        spec = self.spec
        return spec.request.args if spec.request is not None else NO_ARGUMENTS if spec.gate is None else spec.gate.args

    def stored(self) -> dict[str, Any] | None:
        """Return what is stored to decide and start the node, or None if counting dependencies suffices."""
        stored: dict[str, Any] = {}
        if self.rule is not None:
            stored["rule"] = self.rule
        if self.spec.fills:
            stored["args"] = decode(self.args)
            stored["fills"] = [_fill(fill) for fill in self.spec.fills]
        options = None if self.spec.request is None else self.spec.request.options
        for option in ("delay", "run_at"):
            if (value := getattr(options, option, None)) is not None:
                stored[option] = value
        if self.spec.gate is not None:
            stored["on_timeout"] = self.spec.gate.on_timeout
            stored["schema"] = self.spec.gate.schema
        return stored or None


class CompiledGraph(msgspec.Struct):
    """A checked graph, with its nodes in the order in which they were added."""

    graph: Graph
    nodes: list[CompiledNode]
    outside: frozenset[str]
    """Nodes of the existing run that the nodes of an appended graph depend on."""


def compile_graph(graph: Graph, *, appended: bool = False) -> CompiledGraph:
    """Check and compile a graph for submit, or to be appended to a run."""
    return _GraphCompiler(appended=appended).compile(graph, ())


def result_name(plan: CompiledGraph, result: Any) -> str | None:
    """Return the name of the node whose output is the graph's result."""
    if result is None:
        return None
    if not isinstance(result, Node):
        raise GraphError(f"result= takes a node of graph {plan.graph.name}, not {result!r}")
    if result.graph is not plan.graph or result.name not in plan.graph.added:
        raise GraphError(f"result= takes a node of graph {plan.graph.name}, and {result.name} is not one")
    return result.name


class _GraphCompiler:
    def __init__(self, *, appended: bool) -> None:
        self._appended = appended

    def compile(self, graph: Graph, above: tuple[Graph, ...]) -> CompiledGraph:
        if not isinstance(graph, Graph):
            raise GraphError(f"submit takes a Graph, not {type(graph).__name__}")
        if graph in above:
            names = " -> ".join(each.name for each in (*above[above.index(graph) :], graph))
            raise GraphError(f"graphs contain each other in a cycle: {names}")
        if not graph.added:
            raise GraphError(f"graph {graph.name} is empty: add nodes")
        outside = self._outside(graph, nested=bool(above))
        nodes = {name: _compile_node(graph, spec) for name, spec in graph.added.items()}
        _refuse_missing_outputs(graph, [nodes[name] for name in _ordered(graph, nodes, outside)])
        for node in nodes.values():
            if node.spec.graph is not None:
                _refuse_own(node.spec)
                node.graph = self.compile(node.spec.graph, (*above, graph))
        return CompiledGraph(graph, list(nodes.values()), outside)

    def _outside(self, graph: Graph, *, nested: bool) -> frozenset[str]:
        """Return the referenced nodes of an existing run. Only an appended graph may have them."""
        outside = set()
        for spec in graph.added.values():
            for node in spec.nodes():
                own = node.graph is graph
                if own and node.name in graph.added:
                    continue
                if not self._appended or nested:
                    whose = "" if own else f" but of graph {node.graph.name}"
                    raise GraphError(
                        f"node {spec.name} depends on {node.name}, which is not a node of graph {graph.name}{whose}"
                    )
                if node.name in graph.added:
                    raise GraphError(f"node {node.name} exists in the run and is also appended to it: rename one")
                outside.add(node.name)
        return frozenset(outside)


def _refuse_own(spec: NodeSpec) -> None:
    nested = spec.graph
    assert nested is not None
    for what, value in (("key", nested.key), ("tenant", nested.tenant), ("unique name", nested.options.unique)):
        if value is not None:
            raise GraphError(f"node {spec.name}: graph {nested.name} has a {what}: remove it, the outer graph decides")


def _compile_node(graph: Graph, spec: NodeSpec) -> CompiledNode:
    given = [condition.rule for condition in spec.after]
    named = {node for rule in given for node in rule_nodes(rule)}
    ensured = set(_ensured(given))
    rules = list(given)
    for fill in spec.fills:
        name = fill.reference["node"]
        if has_default(fill) or name in ensured:
            continue
        if name in named:
            raise GraphError(
                f"node {spec.name} of graph {graph.name} takes the output of {name} but may run without it: "
                f"use {name}.output.default(…)"
            )
        ensured.add(name)
        rules.append(done_rule(name))
    if spec.when is not None:
        rules += [done_rule(name) for name in _compared(spec.when.rule) if name not in named | ensured]
        rules.append(spec.when.rule)
    needs = dict.fromkeys(node for rule in rules for node in rule_nodes(rule))
    needs |= dict.fromkeys(fill.reference["node"] for fill in spec.fills)
    if spec.name in needs:
        raise GraphError(f"node {spec.name} of graph {graph.name} depends on itself")
    plain = set(needs) == set(_ensured(rules)) and all(map(_is_plain, rules))
    return CompiledNode(spec, tuple(needs), None if plain else ["all", rules])


def _is_plain(rule: Rule) -> bool:
    return rule[0] == "done" or (rule[0] == "all" and all(map(_is_plain, rule[1])))


def _ensured(rules: Iterable[Rule]) -> Iterator[str]:
    """Yield the nodes that have succeeded when all these rules are true."""
    for rule in rules:
        if rule[0] == "done":
            yield rule[1]
        elif rule[0] == "all":
            yield from _ensured(rule[1])


def _compared(rule: Rule) -> Iterator[str]:
    """Yield the nodes without whose output a condition can't be true."""
    if rule[0] == "all":
        for each in rule[1]:
            yield from _compared(each)
    elif rule[0] not in ("any", "none", "done", "failed", "finished"):
        yield from (part["node"] for part in rule[1:] if "node" in part and "default" not in part)


def _ordered(graph: Graph, nodes: Mapping[str, CompiledNode], outside: frozenset[str]) -> list[str]:
    sorter = graphlib.TopologicalSorter({name: set(node.needs) - outside for name, node in nodes.items()})
    try:
        return list(sorter.static_order())
    except graphlib.CycleError as error:
        raise GraphError(
            f"nodes of graph {graph.name} depend on each other in a cycle: {' -> '.join(error.args[1])}"
        ) from None


def _refuse_missing_outputs(graph: Graph, ordered: list[CompiledNode]) -> None:
    """Reject nodes that take the output of a node that may be skipped, without a default."""
    skippable: set[str] = set()
    for plan in ordered:
        spec = plan.spec
        explicit = set(_ensured(condition.rule for condition in spec.after))
        for fill in spec.fills:
            name = fill.reference["node"]
            if name in skippable and name not in explicit and not has_default(fill):
                raise GraphError(
                    f"node {spec.name} of graph {graph.name} takes the output of {name}, which may be skipped: use "
                    f"{name}.output.default(…), or after=[{name}] to skip {spec.name} with it"
                )
        if _may_be_skipped(plan, skippable):
            skippable.add(spec.name)


def _may_be_skipped(plan: CompiledNode, skippable: set[str]) -> bool:
    """Return whether a condition, its own or that of a dependency, may skip the node."""
    if plan.spec.gate is not None and plan.spec.gate.on_timeout == "skip":
        return True
    if plan.rule is None:
        return not skippable.isdisjoint(plan.needs)
    return not _never_false(plan.rule) or not skippable.isdisjoint(_ensured([plan.rule]))


def _never_false(rule: Rule) -> bool:
    """Return whether only a failure can make a rule false."""
    return rule[0] in ("done", "finished") or (rule[0] == "all" and all(map(_never_false, rule[1])))


def _fill(fill: Fill) -> dict[str, Any]:
    return {"at": fill.at, **fill.reference}


# Identity


def graph_digest(plan: CompiledGraph, result: str | None, *, with_options: bool = True) -> str:
    """Return a digest that is equal for equal graphs, in whatever order their nodes and conditions were added.

    It is computed node by node because a graph may be larger than a payload.
    """
    found = DIGEST_VERSION + _hashed(plan, result, with_options)
    if not _has_secrets(plan):
        return found
    return MaskedDigest.of(MASKED_DIGEST_VERSION + _hashed(plan, result, with_options, masked=True), found)


def graph_digests(plan: CompiledGraph, result: str | None) -> tuple[str, str | None]:
    """Return the digest that a graph's key is compared by, and the one that 0.1 stored if that differs.

    As for a task's key, the options of nodes don't count, except the tenant.
    """
    plain = graph_digest(plan, result, with_options=False)
    has_options = _has_options(plan)
    old = graph_digest(plan, result) if has_options else plain
    if isinstance(old, MaskedDigest):
        return str(plain), old.unmasked
    return plain, old if has_options else None


def _has_secrets(plan: CompiledGraph) -> bool:
    return any(has_secrets(node.args) or (node.graph is not None and _has_secrets(node.graph)) for node in plan.nodes)


def _has_options(plan: CompiledGraph) -> bool:
    return any(
        (node.spec.request is not None and node.spec.request.options.canonical())
        or (node.graph is not None and _has_options(node.graph))
        for node in plan.nodes
    )


def _hashed(plan: CompiledGraph, result: str | None, with_options: bool, *, masked: bool = False) -> str:
    whole = hashlib.sha256(canonical([plan.graph.name, result]).encode())
    for node in sorted(plan.nodes, key=lambda each: each.spec.name):
        whole.update(b"\n")
        whole.update(canonical(_describe(node, with_options, masked=masked), f"node {node.spec.name}").encode())
    return whole.hexdigest()


def _describe(node: CompiledNode, with_options: bool, *, masked: bool) -> dict[str, Any]:
    spec = node.spec
    description: dict[str, Any] = {"name": spec.name, "needs": sorted(node.needs), "rule": _in_order(node.rule)}
    if spec.request is not None:
        args = spec.request.signature.with_defaults(spec.request.args)
        values = decode(canonical_text(args))
        description |= {"task": spec.request.task, "args": mask_secrets(values) if masked else values}
        options = spec.request.options
        description["options"] = (options.canonical() if with_options else {}) | {"tenant": options.tenant}
        description["fills"] = _sorted_fills(spec)
    if spec.gate is not None:
        description |= {"timeout": spec.gate.timeout, "on_timeout": spec.gate.on_timeout, "schema": spec.gate.schema}
        if spec.gate.args != NO_ARGUMENTS:
            values = decode(canonical_text(spec.gate.args))
            description["args"] = mask_secrets(values) if masked else values
            description["fills"] = _sorted_fills(spec)
    if node.graph is not None:
        description["graph"] = _hashed(node.graph, None, with_options, masked=masked)
    return description


def _sorted_fills(spec: NodeSpec) -> list[dict[str, Any]]:
    return sorted((_fill(fill) for fill in spec.fills), key=lambda fill: canonical(fill["at"]))


def _in_order(rule: Rule | None) -> Any:
    if rule is None or rule[0] not in ("all", "any", "none"):
        return rule
    parts = {canonical(part): part for part in map(_in_order, rule[1])}  # Duplicates count once.
    return [rule[0], [parts[text] for text in sorted(parts)]]
