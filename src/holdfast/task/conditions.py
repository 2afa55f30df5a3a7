"""What authors say about nodes that haven't run yet: their outputs, and conditions on how they end.

Both are data, not values: they become rules and references (`policy/graph_rules.py`), which the database keeps and the
release of a node judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from holdfast.errors import GraphError
from holdfast.model.codec import decode, encode
from holdfast.policy.graph_rules import MISSING, Reference, Rule, path_text

if TYPE_CHECKING:
    from holdfast.task.graph import Graph

R_co = TypeVar("R_co", covariant=True)

DEEPEST = 50

_KNOWN_LATER = "is known only when the graph runs"


class Condition:
    """Something that will be true or false when nodes have ended. `when=`, `after=` and `any_of` and so on take it."""

    __slots__ = ("nodes", "rule")

    def __init__(self, rule: Rule, nodes: tuple[Node[Any], ...]) -> None:
        self.rule = rule
        self.nodes = nodes

    def __bool__(self) -> NoReturn:
        raise GraphError(
            f"a condition {_KNOWN_LATER}: give it to after= or when=, and join several with all_of, any_of and "
            "none_of, not with `and`, `or` and `not`"
        )

    def __repr__(self) -> str:
        return f"<condition {self.rule!r}>"


class Output(Generic[R_co]):
    """What a node will have returned, or a part of it: `node.output["rows"]`. An argument of another node, or the left
    side of a condition."""

    __slots__ = ("_default", "_node", "_path")

    def __init__(self, node: Node[Any], path: tuple[str | int, ...] = (), default: Any = MISSING) -> None:
        self._node = node
        self._path = path
        self._default = default

    def __getitem__(self, key: str | int) -> Output[Any]:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise GraphError(f"{self!r}: a part of an output is named by a str or an int, not by {key!r}")
        if self._default is not MISSING:
            raise GraphError(f"{self!r}: give the default last, to the part: output[{key!r}].default(…)")
        return Output(self._node, (*self._path, key))

    def default(self, value: Any) -> Output[Any]:
        """This output; or `value` where the node has none, because it failed or was skipped, or where this part of it
        isn't there."""
        return Output(self._node, self._path, decode(encode(value, f"the default of {self!r}")))

    def contains(self, value: object) -> Condition:
        """Whether the output, a list, text or object, has this item, part or key."""
        return self._compared("contains", value)

    def exists(self) -> Condition:
        """Whether the node ended well and this part of its output is there, be it null."""
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
        raise GraphError(f"{self!r} {_KNOWN_LATER}: for a condition write output == True, output.exists() or the like")

    def __iter__(self) -> Iterator[NoReturn]:
        raise GraphError(f"{self!r} {_KNOWN_LATER}, and so is how many items it has")

    def __contains__(self, value: object) -> NoReturn:
        raise GraphError(f"{self!r} {_KNOWN_LATER}: write output.contains({value!r})")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"{self!r} has no attribute {name!r}: a part of an output is written output[{name!r}]")

    def __str__(self) -> NoReturn:
        raise GraphError(f"{self!r} {_KNOWN_LATER}, so it can't be put into a text: let the task that gets it do that")

    def __format__(self, _spec: str) -> NoReturn:
        self.__str__()

    def __repr__(self) -> str:
        return f"{self._node.name}.output{path_text(self._path) if self._path else ''}"

    def _compared(self, kind: str, other: object) -> Condition:
        if isinstance(other, Output):
            return Condition([kind, reference(self), reference(other)], (self._node, other._node))
        if isinstance(other, Node | Condition):
            raise GraphError(f"{self!r} can't be compared with {other!r}: compare it with a value or another output")
        value = decode(encode(other, f"the value that {self!r} is compared with"))
        return Condition([kind, reference(self), {"value": value}], (self._node,))


def reference(output: Output[Any]) -> Reference:
    """An output as the database keeps it."""
    kept: Reference = {"node": output._node.name, "path": list(output._path)}
    return kept if output._default is MISSING else {**kept, "default": output._default}


def node_of(output: Output[Any]) -> Node[Any]:
    return output._node


class Node(Generic[R_co]):
    """A node of a graph, named. `after=[node]` means after its success."""

    __slots__ = ("graph", "name")

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.name = name

    @property
    def output(self) -> Output[R_co]:
        """What it will have returned."""
        return Output(self)

    @property
    def finished(self) -> Condition:
        """It has ended, in whatever way."""
        return Condition(["finished", self.name], (self,))

    @property
    def failed(self) -> Condition:
        """It failed or was cancelled itself; not when it was skipped."""
        return Condition(["failed", self.name], (self,))

    def __bool__(self) -> NoReturn:
        raise GraphError(f"node {self.name}: how it ends {_KNOWN_LATER}; give it to after=")

    def __repr__(self) -> str:
        return f"<node {self.name}>"


def any_of(*conditions: Node[Any] | Condition) -> Condition:
    """At least one of these: nodes that ended well, and conditions."""
    return _joined("any", conditions)


def all_of(*conditions: Node[Any] | Condition) -> Condition:
    """All of these."""
    return _joined("all", conditions)


def none_of(*conditions: Node[Any] | Condition) -> Condition:
    """None of these."""
    return _joined("none", conditions)


def _joined(kind: str, conditions: tuple[Node[Any] | Condition, ...]) -> Condition:
    if not conditions:
        raise GraphError(f"{kind}_of needs at least one node or condition")
    given = [as_condition(each, f"{kind}_of") for each in conditions]
    rules: list[Rule] = []
    for each in given:  # one of the same kind says no more than its members: conditions may be joined in a loop
        rules += each.rule[1] if each.rule[0] == kind != "none" else [each.rule]
    rule = [kind, rules]
    if _depth(rule) > DEEPEST:
        raise GraphError(f"{kind}_of: conditions may stand in each other {DEEPEST} levels deep, but these are deeper")
    return Condition(rule, tuple(dict.fromkeys(node for each in given for node in each.nodes)))


def _depth(rule: Rule) -> int:
    """How deep conditions stand in each other; those that it is made of aren't too deep themselves."""
    return 1 + max(map(_depth, rule[1])) if rule[0] in ("any", "all", "none") else 0


def as_condition(given: Any, what: str) -> Condition:
    """A condition, or a node for that it ended well."""
    if isinstance(given, Condition):
        return given
    if isinstance(given, Node):
        return Condition(["done", given.name], (given,))
    hint = ""
    if isinstance(given, Output):
        hint = ": compare the output with something, or write output.exists()"
    elif isinstance(given, Iterable) and not isinstance(given, str):
        hint = ": give its items one by one, with a * before it"
    raise GraphError(f"{what} takes nodes and conditions, not {given!r}{hint}")
