"""References to the outputs of graph nodes that haven't run yet, and conditions on how nodes finish.

Both are data: they are stored with the graph and evaluated when a node's dependencies have finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from holdfast.errors import GraphError
from holdfast.model.codec import decode, encode
from holdfast.model.type_variables import R_co
from holdfast.policy.graph_rules import MISSING, Reference, Rule, path_text

if TYPE_CHECKING:
    from holdfast.task.graph import Graph

MAX_NESTING = 50

_KNOWN_LATER = "is known only when the graph runs"


class Condition:
    """A condition on how nodes finish or on their outputs, evaluated when the graph runs.

    Pass it to `after=` or `when=` of `Graph.add`. Combine conditions with `all_of`, `any_of` and `none_of`.
    """

    __slots__ = ("nodes", "rule")

    def __init__(self, rule: Rule, nodes: tuple[Node[Any], ...]) -> None:
        self.rule = rule
        self.nodes = nodes

    def __bool__(self) -> NoReturn:
        raise GraphError(
            f"a condition {_KNOWN_LATER}: pass it to after= or when=, and combine conditions with all_of, any_of and "
            "none_of instead of `and`, `or` and `not`"
        )

    def __repr__(self) -> str:
        return f"<condition {self.rule!r}>"


class Output(Generic[R_co]):
    """The future output of a node, or a part of it: `node.output["rows"][0]`.

    Pass it as an argument of another node, or compare it to get a `Condition`: `node.output["rows"] > 3`.
    """

    __slots__ = ("_default", "_node", "_path")

    def __init__(self, node: Node[Any], path: tuple[str | int, ...] = (), default: Any = MISSING) -> None:
        self._node = node
        self._path = path
        self._default = default

    def __getitem__(self, key: str | int) -> Output[Any]:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise GraphError(f"{self!r}: index an output with a str or an int, not with {key!r}")
        if self._default is not MISSING:
            raise GraphError(f"{self!r}: call default last: output[{key!r}].default(…)")
        return Output(self._node, (*self._path, key))

    def default(self, value: Any) -> Output[Any]:
        """Use `value` instead if the node failed or was skipped, or if this part of its output is missing."""
        return Output(self._node, self._path, decode(encode(value, f"the default of {self!r}")))

    def contains(self, value: object) -> Condition:
        """Check whether the output contains an item (list), substring (text) or key (object)."""
        return self._compared("contains", value)

    def exists(self) -> Condition:
        """Check whether the node succeeded and this part of its output exists, even if it is null."""
        return Condition(["exists", reference(self)], (self._node,))

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._compared("==", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._compared("!=", other)

    def __lt__(self, other: object) -> Condition:
        return self._compared("<", other)

    def __le__(self, other: object) -> Condition:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> Condition:
        return self._compared(">", other)

    def __ge__(self, other: object) -> Condition:
        return self._compared(">=", other)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise GraphError(f"{self!r} {_KNOWN_LATER}: to get a condition, write output == True or output.exists()")

    def __iter__(self) -> Iterator[NoReturn]:
        raise GraphError(f"{self!r} {_KNOWN_LATER}, so it can't be iterated: let a task iterate over it")

    def __contains__(self, value: object) -> NoReturn:
        raise GraphError(f"{self!r} {_KNOWN_LATER}: write output.contains({value!r})")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"{self!r} has no attribute {name!r}: write output[{name!r}] for a part of an output")

    def __str__(self) -> NoReturn:
        raise GraphError(f"{self!r} {_KNOWN_LATER}, so it can't be formatted: let the task that receives it do that")

    def __format__(self, _spec: str) -> NoReturn:
        self.__str__()

    def __repr__(self) -> str:
        return f"{self._node.name}.output{path_text(self._path) if self._path else ''}"

    def _compared(self, kind: str, other: object) -> Condition:
        if isinstance(other, Output):
            return Condition([kind, reference(self), reference(other)], (self._node, other._node))
        if isinstance(other, Node | Condition):
            raise GraphError(f"{self!r} can't be compared with {other!r}: compare it with a value or another output")
        value = decode(encode(other, f"the value compared with {self!r}"))
        return Condition([kind, reference(self), {"value": value}], (self._node,))


def reference(output: Output[Any]) -> Reference:
    """Return an output as it is stored."""
    stored: Reference = {"node": output._node.name, "path": list(output._path)}
    return stored if output._default is MISSING else {**stored, "default": output._default}


def node_of(output: Output[Any]) -> Node[Any]:
    return output._node


class Node(Generic[R_co]):
    """A node of a graph, returned by `Graph.add`, `Graph.gate` and `Graph.node`.

    `after=[node]` waits for its success, `after=[node.failed]` for its failure, `after=[node.finished]` for its end,
    whatever that is, and `after=[node.skipped]` for the decision that it doesn't run.

    Attributes:
        name: The node's name.
    """

    __slots__ = ("graph", "name")

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.name = name

    @property
    def output(self) -> Output[R_co]:
        """The node's future output."""
        return Output(self)

    @property
    def finished(self) -> Condition:
        """True when the node has finished, whatever its final state."""
        return Condition(["finished", self.name], (self,))

    @property
    def failed(self) -> Condition:
        """True when the node itself failed or was cancelled. False when it was skipped."""
        return Condition(["failed", self.name], (self,))

    @property
    def skipped(self) -> Condition:
        """True when the node was skipped: a dependency failed, or its condition was false."""
        neither = ["none", [["done", self.name], ["failed", self.name]]]
        return Condition(["all", [["finished", self.name], neither]], (self,))

    def __bool__(self) -> NoReturn:
        raise GraphError(f"node {self.name}: its outcome {_KNOWN_LATER}; pass it to after=")

    def __repr__(self) -> str:
        return f"<node {self.name}>"


def any_of(*conditions: Node[Any] | Condition) -> Condition:
    """True when at least one condition is true. A node stands for its success."""
    return _joined("any", conditions)


def all_of(*conditions: Node[Any] | Condition) -> Condition:
    """True when all conditions are true. A node stands for its success."""
    return _joined("all", conditions)


def none_of(*conditions: Node[Any] | Condition) -> Condition:
    """True when no condition is true. A node stands for its success."""
    return _joined("none", conditions)


def _joined(kind: str, conditions: tuple[Node[Any] | Condition, ...]) -> Condition:
    if not conditions:
        raise GraphError(f"{kind}_of needs at least one node or condition")
    given = [as_condition(each, f"{kind}_of") for each in conditions]
    rules: list[Rule] = []
    for each in given:  # Flatten nested conditions of the same kind: they may be combined in a loop.
        rules += each.rule[1] if each.rule[0] == kind != "none" else [each.rule]
    rule = [kind, rules]
    if _depth(rule) > MAX_NESTING:
        raise GraphError(f"{kind}_of: conditions are nested more than {MAX_NESTING} levels deep")
    return Condition(rule, tuple(dict.fromkeys(node for each in given for node in each.nodes)))


def _depth(rule: Rule) -> int:
    return 1 + max(map(_depth, rule[1])) if rule[0] in ("any", "all", "none") else 0


def as_condition(given: Any, what: str) -> Condition:
    """Return a condition as it is, and a node as the condition that it succeeded."""
    if isinstance(given, Condition):
        return given
    if isinstance(given, Node):
        return Condition(["done", given.name], (given,))
    hint = ""
    if isinstance(given, Output):
        hint = ": compare the output with a value, or write output.exists()"
    elif isinstance(given, Iterable) and not isinstance(given, str):
        hint = ": unpack it with *"
    raise GraphError(f"{what} takes nodes and conditions, not {given!r}{hint}")
