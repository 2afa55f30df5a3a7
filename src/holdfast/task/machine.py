"""State machines: states are typed classes whose `run` returns the next state.

Only the current state is stored, as the arguments of the run, so a machine can run for years.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    overload,
)

import msgspec

from holdfast.errors import BadArguments, BadState, ConfigError, PayloadError, TaskError
from holdfast.model.clock import Duration, to_micros
from holdfast.model.codec import decode, decode_value, decoder, encode, restore_secrets
from holdfast.model.retry import Retry
from holdfast.task.annotations import Unresolved, has_secrets, named, resolve
from holdfast.task.context import Context
from holdfast.task.options import Declaration, RunIn, check_retry, positive_micros
from holdfast.task.sync_context import SyncContext
from holdfast.task.task import EnqueuerProtocol, ExecutionSpec, Task

R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S", bound="State")

_SETTINGS = ("retry", "timeout", "run")


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class _StateMeta(type):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _StateMeta:
        state_class: Any = super().__new__(cls, name, bases, body)
        if not bases:
            return cast(_StateMeta, state_class)
        for setting in _SETTINGS:
            if setting in body.get("__annotations__", {}) and "ClassVar" not in str(body["__annotations__"][setting]):
                raise TaskError(
                    f"state {name}: {setting} is a setting of states and can't be a field: remove its annotation, or "
                    "rename the field"
                )
        dataclasses.dataclass(kw_only=True)(state_class)  # Modifies the class in place.
        return cast(_StateMeta, state_class)


class State(metaclass=_StateMeta):
    """The base class of a machine's states.

    Annotated names are the state's fields, passed by keyword and stored as JSON. `run` takes a `Context` (async def) or
    a `SyncContext` (def) and returns the next state, `After(delay, state)`, or `Done(value)`. None means `Done(None)`.

    Example:
        ```python
        class Paying(State):
            customer: str
            month: int = 1
            retry = Retry(max_attempts=10)

            async def run(self, ctx: Context) -> "Paying | Done[str]":
                if not await ctx.step(charge, self.customer, self.month):
                    return Done("not paid")
                await ctx.sleep(timedelta(days=30))
                return Paying(customer=self.customer, month=self.month + 1)
        ```

    Attributes:
        retry: When to retry a failed attempt in this state. Defaults to the machine's. Each state starts with a full
            retry budget.
        timeout: The limit for one attempt in this state. Defaults to the machine's.
    """

    retry: ClassVar[Retry | None] = None
    timeout: ClassVar[Duration | None] = None


class Done(Generic[R_co]):
    """Finish the machine. Return it from `run`.

    Args:
        value: The run's result.
    """

    __slots__ = ("value",)

    @overload
    def __init__(self: Done[None]) -> None: ...
    @overload
    def __init__(self, value: R_co) -> None: ...
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Done({self.value!r})"


class After(Generic[R_co]):
    """Move to another state after a delay. Return it from `run`. Until then the run is `scheduled`.

    Args:
        delay: Seconds or a `timedelta`.
        state: The next state.
    """

    __slots__ = ("delay", "state")

    def __init__(self, delay: Duration, state: R_co) -> None:
        self.delay = to_micros(delay, "the delay of After")
        self.state = state

    def __repr__(self) -> str:
        return f"After({self.delay / 1_000_000:g}, {self.state!r})"


class Transition(NamedTuple):
    """A move to the state `to`. `args` is its stored form; `delay` is in microseconds."""

    args: str
    delay: int | None
    to: str


class StateDefinition:
    """A state class with its checked settings."""

    def __init__(self, machine: str, kind: type[State]) -> None:
        self.name = kind.__name__
        self.where = f"state {self.name} of machine {machine}"
        self.run_in = _run_in(kind, self.where)
        self.retry = None if kind.retry is None else check_retry(kind.retry, f"{self.where}: retry")
        self.timeout = None if kind.timeout is None else positive_micros(kind.timeout, f"{self.where}: timeout")
        self.kind = kind
        self._decoder: msgspec.json.Decoder[Any] | None = None

    def read(self, fields: bytes) -> State:
        """Decode a state from its stored fields."""
        if self._decoder is None:
            self._decoder = decoder(self.kind)
        state: State = self._decoder.decode(fields)
        return state

    @functools.cached_property
    def secret(self) -> bool:
        """Whether a field contains a `Secret`."""
        return has_secrets(self.kind)


class StoredState(msgspec.Struct):
    """The stored form of a state."""

    state: str
    fields: msgspec.Raw


class StateSignature:
    """The signature of a run in one state: decodes the state, and interprets what its `run` returns."""

    def __init__(self, machine: MachineSignature, definition: StateDefinition | None, fault: str = "") -> None:
        self._machine = machine
        self._definition = definition
        self._fault = fault

    @property
    def name(self) -> str:
        return "" if self._definition is None else self._definition.name

    @staticmethod
    def fn(ctx: Any, state: Any) -> Any:
        """Run a state."""
        return state.run(ctx)

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode the stored state. Raises BadState if this code can't read it."""
        if self._definition is None:
            raise BadState(self._fault)
        try:
            return (restore_secrets(self._definition.read(bytes(decode(text, StoredState).fields)), text),), {}
        except (msgspec.MsgspecError, RecursionError, TypeError) as error:
            raise BadState(f"{self._definition.where}: the stored state can't be decoded: {error}") from error

    def next_transition(self, value: Any) -> Transition | str:
        """Return the transition, or the JSON of the result, that a state's `run` has returned.

        Raises BadState for any other value, and PayloadError if the result can't be serialized.
        """
        if value is None or isinstance(value, Done):
            return encode(None if value is None else value.value, f"the result of machine {self._machine.task_name}")
        delay, state = (value.delay, value.state) if isinstance(value, After) else (None, value)
        if not isinstance(state, State):
            where = self._machine.task_name if self._definition is None else self._definition.where
            if isinstance(value, After):
                raise BadState(f"{where} returned {value!r}: After takes the next state")
            raise BadState(f"{where} returned {state!r}: return the next state, After(…), Done(…) or None")
        try:
            return Transition(self._machine.encode((state,), {}), delay, type(state).__name__)
        except (BadArguments, PayloadError) as error:
            raise BadState(str(error)) from error


class MachineSignature:
    """The signature of a machine: its only argument is a state."""

    def __init__(self, task_name: str, definitions: Mapping[str, StateDefinition]) -> None:
        self.task_name = task_name
        self._definitions = definitions

    def of(self, args: str) -> tuple[StateSignature, StateDefinition | None]:
        """Return the signature and definition of the stored state."""
        try:
            name = decode(args, StoredState).state
        except PayloadError as error:
            fault = f"machine {self.task_name}: the stored arguments are not a state: {error}"
            return StateSignature(self, None, fault), None
        definition = self._definitions.get(name)
        if definition is None:
            known = ", ".join(self._definitions)
            fault = f"machine {self.task_name}: stored state {name!r} does not exist in this code; it has {known}"
            return StateSignature(self, None, fault), None
        return StateSignature(self, definition), definition

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the name and fields of a state. Raises BadArguments if the machine doesn't have it.

        Callers without the classes, such as the CLI, pass name and fields as a mapping.
        """
        state = args[0] if len(args) == 1 and not kwargs else kwargs
        if isinstance(state, Mapping):
            if set(state) == {"state", "fields"} and str(state["state"]) in self._definitions:
                return dict(state)
            raise BadArguments(f"machine {self.task_name} takes one state, {self._examples()}")
        definition = self._definitions.get(type(state).__name__)
        if definition is None or not isinstance(state, definition.kind):
            raise BadArguments(
                f"machine {self.task_name} has no state {state!r}; it has {', '.join(self._definitions)}"
            )
        return {"state": definition.name, "fields": _fields(state)}

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return self.encode_bound(self.bound(args, kwargs), ())

    def encode_bound(self, bound: dict[str, Any], pending: Collection[str]) -> str:
        """Encode a state. Its field types are checked unless outputs are inserted later."""
        definition = self._definitions[bound["state"]]
        text = encode(bound, definition.where)
        if "fields" not in pending:
            try:
                state = definition.read(bytes(decode(text, StoredState).fields))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise BadArguments(f"{definition.where}: {error}") from error
            if definition.secret:  # Wrap the fields that are annotated as secrets.
                text = encode({**bound, "fields": _fields(state)}, definition.where)
        return text

    def with_defaults(self, text: str) -> str:
        return text

    def decode_result(self, text: str) -> Any:
        """Decode a result as a type that some state's `Done[…]` annotation names, or else as plain JSON."""
        try:
            return decode_value(text, self._result_kind)
        except PayloadError:
            return decode_value(text)

    @functools.cached_property
    def _result_kind(self) -> Any:
        kinds = dict.fromkeys(kind for definition in self._definitions.values() for kind in _done_with(definition.kind))
        try:
            kind: Any = Union[tuple(kinds)] if kinds else Any  # noqa: UP007 - the members are dynamic
            decoder(kind)
        except TypeError:
            return Any
        return kind

    def _examples(self) -> str:
        first, *others = self._definitions
        more = f"; its states are {', '.join(self._definitions)}" if others else ""
        return f'like {first}(…), or as JSON {{"state": "{first}", "fields": {{…}}}}{more}'


class Machine(Task[[S], Any], Generic[S]):
    """A registered state machine, returned by `app.machine`. Usable wherever a task is.

    Example:
        ```python
        run = subscription.enqueue(Trial(customer="ada"))
        ```

    Attributes:
        states: The names of its states.
    """

    durable: ClassVar[bool] = True
    signature: MachineSignature

    def __init__(
        self, declaration: Declaration, states: Collection[type[S]], enqueuer: EnqueuerProtocol, history: int | None
    ) -> None:
        definitions = _definitions_of(declaration.name, states)
        super().__init__(declaration, MachineSignature(declaration.name, definitions), enqueuer)
        self.states = tuple(definitions)
        self._first = next(iter(definitions.values())).kind
        self._uses_threads = any(definition.run_in == "thread" for definition in definitions.values())
        self.history = history
        """How many history entries of a run are kept. None keeps all."""

    @property
    def origin(self) -> Callable[..., Any]:
        run: Callable[..., Any] = self._first.run  # type: ignore[attr-defined]
        return run

    @property
    def uses_threads(self) -> bool:
        return self._uses_threads

    def execution_spec(self, args: str) -> ExecutionSpec:
        signature, definition = self.signature.of(args)
        declared = self.declaration
        if definition is None:
            return ExecutionSpec(signature, declared.retry, declared.timeout, "loop")
        retry = declared.retry if definition.retry is None else definition.retry
        timeout = declared.timeout if definition.timeout is None else definition.timeout
        return ExecutionSpec(signature, retry, timeout, definition.run_in)

    def __repr__(self) -> str:
        return f"<machine {self.name}>"


def _fields(state: Any) -> dict[str, Any]:
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


def _definitions_of(machine: str, states: Collection[Any]) -> dict[str, StateDefinition]:
    if not states:
        raise ConfigError(f"machine {machine} has no states: pass their classes after the name")
    definitions: dict[str, StateDefinition] = {}
    for kind in states:
        if not (isinstance(kind, type) and issubclass(kind, State)):
            raise ConfigError(f"machine {machine}: {kind!r} is not a subclass of State")
        if kind.__name__ in definitions:
            raise ConfigError(f"machine {machine} has two states named {kind.__name__}: rename one")
        definitions[kind.__name__] = StateDefinition(machine, kind)
    return definitions


def _done_with(kind: type[State]) -> list[Any]:
    """Return each T of a `Done[T]` in the return annotation of a state's `run`."""
    run: Callable[..., Any] = kind.run  # type: ignore[attr-defined]
    try:
        returned = resolve(run, inspect.signature(run).return_annotation)
    except Unresolved:
        return []
    members = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned,)
    return [get_args(member)[0] for member in members if get_origin(member) is Done]


def _run_in(kind: type[State], where: str) -> RunIn:
    run: Callable[..., Any] | None = getattr(kind, "run", None)
    if run is None:
        raise TaskError(f"{where} has no run method: add `async def run(self, ctx: Context)`")
    is_async = inspect.iscoroutinefunction(run)
    parameters = list(inspect.signature(run).parameters.values())
    if len(parameters) != 2:
        raise TaskError(f"{where}: run must take exactly self and a context")
    annotation = named(run, parameters[1].annotation)
    if annotation is (SyncContext if is_async else Context):
        other = "Context" if is_async else "SyncContext"
        raise TaskError(f"{where}: {'an async def' if is_async else 'a plain def'} run takes a {other}")
    return "loop" if is_async else "thread"
