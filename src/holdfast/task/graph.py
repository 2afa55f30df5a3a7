"""`Graph`: collects tasks that depend on each other. `graph_compiler.py` checks and compiles it at submit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, cast, get_args, overload

import msgspec

from holdfast.errors import ConfigError, GraphError, HoldfastError, NotSerializable, TaskError
from holdfast.model.clock import Duration
from holdfast.model.codec import decode, encode
from holdfast.model.names import MAX_KEY_CHARS, check_name, counted
from holdfast.model.retry import Retry
from holdfast.policy.graph_rules import MISSING, Reference, Rule
from holdfast.policy.json_schema import find_mismatch
from holdfast.task.annotations import Unresolved, check, schema_of_model
from holdfast.task.conditions import Condition, Node, Output, as_condition, node_of, reference
from holdfast.task.hooks import HookTasks, declared_hooks
from holdfast.task.options import Options, positive_micros
from holdfast.task.task import Request, Takes0, Takes1, Takes2, Takes3, Takes4, Task

if TYPE_CHECKING:
    from typing_extensions import TypeForm

R = TypeVar("R")
T = TypeVar("T")
T1 = TypeVar("T1", bound="NotOutput")
T2 = TypeVar("T2", bound="NotOutput")
T3 = TypeVar("T3", bound="NotOutput")
T4 = TypeVar("T4", bound="NotOutput")
E1 = TypeVar("E1", bound="NotOutput")
E2 = TypeVar("E2", bound="NotOutput")

OnTimeout: TypeAlias = Literal["fail", "skip", "complete"]
"""What happens to a gate that isn't completed in time."""
After: TypeAlias = Iterable[Node[Any] | Condition | str]

Argument: TypeAlias = T | Output[T] | Mapping[str, Output[Any]]
"""What a node takes for a parameter of type T. A mapping of outputs may become a dataclass."""
Items: TypeAlias = Sequence[T | Output[T]]
"""What a node takes for a parameter of type list[T]."""
Entries: TypeAlias = Mapping[str, T | Output[T]]
"""What a node takes for a parameter of type dict[str, T]."""
Outputs: TypeAlias = Sequence[Output[Any]]

MAX_NODES = 100_000
NO_ARGUMENTS = "{}"


class NotOutput(Protocol):  # noqa: PLW1641
    """Any value but an output, whose comparisons are conditions.

    As the bound of a type variable T, it lets mypy conclude from an `Output[X]` that is passed as `T | Output[T]`
    that T is X, even if X is Any.
    """

    def __eq__(self, other: object, /) -> bool: ...


class Fill(msgspec.Struct):
    """An output to insert into a node's arguments. `at` is the path of the insertion."""

    at: list[str | int]
    reference: Reference


class GateSpec(msgspec.Struct):
    """The settings of a gate. `schema` is the JSON Schema of its output; `timeout` is in microseconds."""

    timeout: int | None
    on_timeout: OnTimeout
    schema: dict[str, Any] | None
    args: str = NO_ARGUMENTS
    """JSON: an object with the payload, if the gate has one."""


class NodeSpec(msgspec.Struct):
    """A node as it was added: a request, a gate or a graph, with its dependencies and condition."""

    name: str
    request: Request[Any] | None = None
    gate: GateSpec | None = None
    graph: Graph | None = None
    fills: list[Fill] = msgspec.field(default_factory=list)
    after: list[Condition] = msgspec.field(default_factory=list)
    when: Condition | None = None
    inputs: tuple[Node[Any], ...] = ()
    """The nodes whose outputs are arguments."""

    def nodes(self) -> Iterable[Node[Any]]:
        """Yield every node that this one refers to."""
        yield from self.inputs
        for condition in (*self.after, *(() if self.when is None else (self.when,))):
            yield from condition.nodes


class Graph:
    """A graph of tasks and gates. `app.submit(graph)` creates a run of it; each node is a run of its own.

    Example:
        ```python
        g = Graph("nightly", key="2026-11-18")
        orders = g.add(extract, "orders")
        report = g.add(build_report, orders.output)
        approve = g.gate("approve", after=[report])
        g.add(publish, report.output, after=[approve])
        app.submit(g)
        ```

    Args:
        name: The graph's name.
        key: Idempotency key. Submitting the same graph again returns the existing run.
        tenant: The tenant that the graph and its nodes belong to.
        unique: At most one unfinished run of the graph has this name; a second submit returns that run.
        priority: The priority of nodes that don't set their own with `task.options`. Nested graphs inherit it.
        retry: When to retry nodes that don't set their own with `task.options`. Nested graphs inherit it.
        deadline: The limit for the whole graph, as a duration or a point in time.
        tags: Labels to find the graph's run by. Nodes have those of their own `task.options`.
        metadata: Names and JSON values to find the graph's run by, as in `task.options`.
        on_success: Tasks to enqueue when the graph has succeeded, with a `RunEnd`, as in `@app.task`.
        on_failure: Tasks to enqueue when the graph has failed.
        on_end: Tasks to enqueue when the graph has ended, however it did.
    """

    def __init__(
        self,
        name: str,
        *,
        key: str | None = None,
        tenant: str | None = None,
        unique: str | None = None,
        priority: int | None = None,
        retry: Retry | None = None,
        deadline: Duration | datetime | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_success: HookTasks | None = None,
        on_failure: HookTasks | None = None,
        on_end: HookTasks | None = None,
    ) -> None:
        self.name = check_name(name, "the name of a graph")
        self.hooks = declared_hooks(f"graph {name}", on_success=on_success, on_failure=on_failure, on_end=on_end)
        try:
            self.options = Options().merge(
                unique=unique, priority=priority, retry=retry, deadline=deadline, tags=tags, metadata=metadata
            )
        except HoldfastError as error:
            raise type(error)(f"graph {name}: {error}") from error
        self.key = None if key is None else check_name(key, "the key of a graph", MAX_KEY_CHARS)
        self.tenant = None if tenant is None else check_name(tenant, "the tenant of a graph")
        self.added: dict[str, NodeSpec] = {}
        self._numbers: dict[str, int] = {}  # The last suffix used per task name.

    # Outputs may be inside lists and dicts. Their elements are checked for up to two arguments; with more there would
    # be too many combinations. mypy can't infer E1 from a list that mixes outputs and values: hence the overloads for
    # lists of str, int and float.

    @overload
    def add(
        self, task: Takes0[R], /, *, name: str | None = None, after: After = (), when: Condition | None = None
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes1[T1, R],
        a: Argument[T1],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes1[list[E1], R],
        a: Items[E1],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes1[dict[str, E1], R],
        a: Entries[E1],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes1[list[str], R],
        a: Items[str],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes1[list[int], R],
        a: Items[int],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes1[list[float], R],
        a: Items[float],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes2[T1, T2, R],
        a: Argument[T1],
        b: Argument[T2],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes2[list[E1], T2, R],
        a: Items[E1],
        b: Argument[T2],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes2[T1, list[E2], R],
        a: Argument[T1],
        b: Items[E2],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes2[list[E1], list[E2], R],
        a: Items[E1],
        b: Items[E2],
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes3[T1, T2, T3, R],
        a: Argument[T1] | Outputs,
        b: Argument[T2] | Outputs,
        c: Argument[T3] | Outputs,
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: Takes4[T1, T2, T3, T4, R],
        a: Argument[T1] | Outputs,
        b: Argument[T2] | Outputs,
        c: Argument[T3] | Outputs,
        d: Argument[T4] | Outputs,
        /,
        *,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self, request: Request[R], /, *, name: str | None = None, after: After = (), when: Condition | None = None
    ) -> Node[R]: ...
    @overload
    def add(
        self, graph: Graph, /, *, name: str | None = None, after: After = (), when: Condition | None = None
    ) -> Node[dict[str, Any]]: ...
    def add(
        self,
        task: Any,
        /,
        *args: Any,
        name: str | None = None,
        after: After = (),
        when: Condition | None = None,
        **kwargs: Any,
    ) -> Node[Any]:
        """Add a task call, a request or another graph as a node.

        Args:
            task: The task, request or graph.
            *args: The task's arguments. Outputs of other nodes are inserted when those nodes have finished.
            name: The node's name. Defaults to the task's, with a number if that is taken.
            after: Nodes, node names and conditions that must hold before the node runs; otherwise it is skipped.
            when: A condition on outputs. If it is false, the node is skipped.
        """
        added = self._call(task, args, kwargs, name)
        added.after = self._conditions(added.name, after)
        if when is not None and not isinstance(when, Condition):
            raise GraphError(f"node {added.name}: when= takes a condition like x.output > 3, not {when!r}")
        added.when = when
        return self._keep(added)

    @overload
    def gate(
        self,
        name: str,
        *,
        after: After = (),
        timeout: Duration | None = None,
        on_timeout: OnTimeout = "fail",
        payload: Any = None,
        type: TypeForm[T],
    ) -> Node[T]: ...
    @overload
    def gate(
        self,
        name: str,
        *,
        after: After = (),
        timeout: Duration | None = None,
        on_timeout: OnTimeout = "fail",
        payload: Any = None,
        type: None = None,
    ) -> Node[Any]: ...
    def gate(
        self,
        name: str,
        *,
        after: After = (),
        timeout: Duration | None = None,
        on_timeout: OnTimeout = "fail",
        payload: Any = None,
        type: Any = None,
    ) -> Node[Any]:
        """Add a gate: a node that an outside call completes with `run.gate(name).complete(output)`.

        Args:
            name: The gate's name.
            after: What must hold before the gate opens.
            timeout: How long the gate stays open. None means no limit.
            on_timeout: Whether the gate then fails, is skipped, or completes with None.
            payload: What the decision is about, as JSON: shown where a person decides. It may contain outputs of other
                nodes; the gate then opens when those have succeeded.
            type: The type of its output. None accepts any JSON.
        """
        where = f"gate {check_name(name, 'the name of a gate')}"
        if on_timeout not in get_args(OnTimeout):
            raise GraphError(f'{where}: on_timeout must be "fail", "skip" or "complete", not {on_timeout!r}')
        if on_timeout != "fail" and timeout is None:
            raise GraphError(f"{where}: on_timeout={on_timeout!r} needs a timeout")
        micros = None if timeout is None else positive_micros(timeout, f"{where}: timeout")
        schema = schema_of(type, where, nullable=on_timeout == "complete")
        added = NodeSpec(self._new_name(name), gate=GateSpec(micros, on_timeout, schema))
        if payload is not None:
            _bind_payload(added, payload)
        added.after = self._conditions(name, after)
        return self._keep(added)

    def node(self, name: str) -> Node[Any]:
        """Refer to a node by name: one that is added later, or one of the run that this graph is appended to."""
        return Node(self, check_name(name, "the name of a node"))

    def __len__(self) -> int:
        return len(self.added)

    def __repr__(self) -> str:
        return f"<graph {self.name}, {counted(len(self.added), 'node')}>"

    def _keep(self, added: NodeSpec) -> Node[Any]:
        if len(self.added) >= MAX_NODES:
            raise GraphError(f"graph {self.name} has more than {MAX_NODES:,} nodes: split it into several graphs")
        self.added[added.name] = added
        return Node(self, added.name)

    def _call(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> NodeSpec:
        if isinstance(task, Graph | Request):
            if args or kwargs:
                raise GraphError(f"graph {self.name}: a {type(task).__name__} has its arguments already")
            if isinstance(task, Graph):
                return NodeSpec(self._new_name(name, task.name), graph=task)
            added = NodeSpec(self._new_name(name, task.task.rpartition(".")[2]), request=task)
            _refuse_options(added.name, task)
            return added
        if not isinstance(task, Task):
            hint = "; decorate it with @app.task" if callable(task) else ""
            raise GraphError(f"graph {self.name}: add takes a task, a request or a graph, not {task!r}{hint}")
        added = NodeSpec(self._new_name(name, task.name.rpartition(".")[2]))
        bind_call(added, task, args, kwargs)
        return added

    def _new_name(self, name: str | None, default: str = "") -> str:
        if name is not None:
            try:
                check_name(name, "the name of a node")
            except ConfigError as error:
                raise GraphError(f"graph {self.name}: {error}") from error
            if name in self.added:
                raise GraphError(f"graph {self.name} has two nodes named {name!r}: set name= for one of them")
            return name
        number = self._numbers.get(default, 1)
        while (unused := default if number == 1 else f"{default}-{number}") in self.added:
            number += 1
        self._numbers[default] = number
        return unused

    def _conditions(self, name: str, after: Any) -> list[Condition]:
        if isinstance(after, str | bytes | Mapping) or not isinstance(after, Iterable):
            raise GraphError(f"node {name}: after= takes a list of nodes and conditions, not {after!r}")
        what = f"node {name}: after="
        return [as_condition(self.node(each) if isinstance(each, str) else each, what) for each in after]


def bind_call(added: NodeSpec, task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check the arguments of a node and extract the outputs. Null takes their place until they are known."""
    bound = task.signature.bound(args, kwargs)
    inputs: list[Node[Any]] = []
    pending = set()
    for parameter, value in bound.items():
        before = len(added.fills)
        try:
            bound[parameter] = _take_outputs(value, [parameter], added.fills, inputs)
        except RecursionError:
            raise NotSerializable(f"node {added.name}: argument {parameter} is nested too deep") from None
        if len(added.fills) > before:
            pending.add(parameter)
    added.inputs = tuple(inputs)
    text = task.signature.encode_bound(bound, pending)
    added.request = Request(task.declaration, task.signature, text, task.request_options)
    _refuse_options(added.name, added.request)


def _bind_payload(added: NodeSpec, payload: Any) -> None:
    """Store the payload of a gate, and extract the outputs in it."""
    assert added.gate is not None
    inputs: list[Node[Any]] = []
    try:
        value = _take_outputs(payload, ["payload"], added.fills, inputs)
    except RecursionError:
        raise NotSerializable(f"gate {added.name}: its payload is nested too deep") from None
    added.inputs = tuple(inputs)
    added.gate.args = encode({"payload": value}, f"the payload of gate {added.name}")


def _take_outputs(value: Any, at: list[str | int], fills: list[Fill], inputs: list[Node[Any]]) -> Any:
    if isinstance(value, Output):
        fills.append(Fill(at, reference(value)))
        inputs.append(node_of(value))
        return None
    if isinstance(value, Node | Condition):
        raise GraphError(f"{value!r} can't be an argument: pass node.output, and conditions to after= or when=")
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [_take_outputs(item, [*at, index], fills, inputs) for index, item in enumerate(value)]
    if isinstance(value, dict):
        named = {_written(key): item for key, item in value.items()}
        return {key: _take_outputs(item, [*at, key], fills, inputs) for key, item in named.items()}
    return value


def _written(key: Any) -> str:
    """Return a dict key as JSON has it, so that insertions find it."""
    return key if isinstance(key, str) else cast(str, next(iter(decode(encode({key: None}, "a key of an argument")))))


def _refuse_options(name: str, request: Request[Any]) -> None:
    instead = {
        "key": "set the key of the Graph instead",
        "unique": "a node is created once, with its graph",
        "debounce": "a node is created once, with its graph",
        "start_by": "a node starts when its dependencies have ended",
        "start_by_at": "a node starts when its dependencies have ended",
        "connection": "pass it to submit",
    }
    for option, hint in instead.items():
        if getattr(request.options, option) is not None:
            raise GraphError(f"node {name}: option {option} is not available for nodes: {hint}")


def has_default(fill: Fill) -> bool:
    return fill.reference.get("default", MISSING) is not MISSING


def done_rule(name: str) -> Rule:
    return ["done", name]


def schema_of(kind: Any, where: str, *, nullable: bool) -> dict[str, Any] | None:
    """Return the JSON Schema of a gate's type, or None for any JSON. `nullable` requires that None is valid."""
    if kind is None or kind is Any:
        return None
    if isinstance(kind, str):
        raise GraphError(f"{where}: type= must be a type, not a str: remove the quotes")
    try:
        check(f"{where}: type= is", kind, kind)
        schema = msgspec.json.schema(kind, schema_hook=schema_of_model)
    except (TaskError, Unresolved, TypeError, NotImplementedError) as error:
        raise GraphError(f"{where}: outputs of type {kind!r} can't be checked: {error}") from error
    if nullable and find_mismatch(None, schema) is not None:
        raise GraphError(
            f'{where}: on_timeout="complete" completes it with None, which is not a {kind!r}: make the type optional'
        )
    return schema
