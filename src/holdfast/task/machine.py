"""State machines: states are typed classes, and what their `run` returns is the next one. Only the current state is
kept, as the arguments of the run, so that a machine may go on for years.
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
from holdfast.model.codec import decode, decoder, encode
from holdfast.model.retry import Retry
from holdfast.task.annotations import Unresolved, has_secrets, named, resolve
from holdfast.task.context import Context
from holdfast.task.options import Declaration, RunIn, check_retry, positive_micros
from holdfast.task.sync_context import SyncContext
from holdfast.task.task import Enqueuer, ExecutionSpec, Task

R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S", bound="State")

_SETTINGS = ("retry", "timeout", "run")


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class _StateMeta(type):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _StateMeta:
        made: Any = super().__new__(cls, name, bases, body)
        if not bases:
            return cast(_StateMeta, made)
        for setting in _SETTINGS:
            if setting in body.get("__annotations__", {}) and "ClassVar" not in str(body["__annotations__"][setting]):
                raise TaskError(
                    f"state {name}: {setting} is a setting of states, not a field: leave out its annotation, or give "
                    "the field another name"
                )
        dataclasses.dataclass(kw_only=True)(made)  # changes the class itself
        return cast(_StateMeta, made)


class State(metaclass=_StateMeta):
    """A state of a machine. Annotated names are its fields, given by keyword; `retry` and `timeout` are settings.

    Its `run`, an async def with a Context or a def with a SyncContext, returns the next state, `After(delay, state)`,
    or `Done(value)`; None is `Done(None)`.
    """

    retry: ClassVar[Retry | None] = None
    timeout: ClassVar[Duration | None] = None


class Done(Generic[R_co]):
    """The end of a machine, with its result."""

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
    """The next state, after a while. Meanwhile the run is `scheduled`."""

    __slots__ = ("delay", "state")

    def __init__(self, delay: Duration, state: R_co) -> None:
        self.delay = to_micros(delay, "the delay of After")
        self.state = state

    def __repr__(self) -> str:
        return f"After({self.delay / 1_000_000:g}, {self.state!r})"


class Transition(NamedTuple):
    """A transition: the kept text of the next state, and after how many microseconds."""

    args: str
    delay: int | None
    to: str


class StateDefinition:
    """One state's class as the engine uses it."""

    def __init__(self, machine: str, kind: type[State]) -> None:
        self.name = kind.__name__
        self.where = f"state {self.name} of machine {machine}"
        self.run_in = _run_in(kind, self.where)
        self.retry = None if kind.retry is None else check_retry(kind.retry, f"{self.where}: retry")
        self.timeout = None if kind.timeout is None else positive_micros(kind.timeout, f"{self.where}: timeout")
        self.kind = kind
        self._decoder: msgspec.json.Decoder[Any] | None = None

    def read(self, fields: bytes) -> State:
        """The state of kept fields."""
        if self._decoder is None:
            self._decoder = decoder(self.kind)
        state: State = self._decoder.decode(fields)
        return state

    @functools.cached_property
    def secret(self) -> bool:
        """Whether there is a `Secret` in its fields."""
        return has_secrets(self.kind)


class StoredState(msgspec.Struct):
    """A state as it is kept."""

    state: str
    fields: msgspec.Raw


class StateSignature:
    """What the engine needs of a run that is in one of the states: the function to call, and what its return means."""

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
        """The state that is kept; raises BadState when it can't be read."""
        if self._definition is None:
            raise BadState(self._fault)
        try:
            return (self._definition.read(bytes(decode(text, StoredState).fields)),), {}
        except (msgspec.MsgspecError, RecursionError, TypeError) as error:
            raise BadState(f"{self._definition.where} can't be read from what is kept: {error}") from error

    def next_transition(self, value: Any) -> Transition | str:
        """What a state returned: the next one, or the text of the result; raises BadState where it is neither, and
        PayloadError where the result can't be kept."""
        if value is None or isinstance(value, Done):
            return encode(None if value is None else value.value, f"the result of machine {self._machine.task_name}")
        delay, state = (value.delay, value.state) if isinstance(value, After) else (None, value)
        if not isinstance(state, State):
            where = self._machine.task_name if self._definition is None else self._definition.where
            if isinstance(value, After):
                raise BadState(f"{where} returned {value!r}: After takes the state that comes next")
            raise BadState(f"{where} returned {state!r}: return the next state, After(…), Done(…) or None")
        try:
            return Transition(self._machine.encode((state,), {}), delay, type(state).__name__)
        except (BadArguments, PayloadError) as error:
            raise BadState(str(error)) from error


class MachineSignature:
    """The arguments of a machine: one state."""

    def __init__(self, task_name: str, definitions: Mapping[str, StateDefinition]) -> None:
        self.task_name = task_name
        self._definitions = definitions

    def of(self, args: str) -> tuple[StateSignature, StateDefinition | None]:
        """What the engine needs to run the state that is kept."""
        try:
            name = decode(args, StoredState).state
        except PayloadError as error:
            return StateSignature(self, None, f"machine {self.task_name}: what is kept is no state: {error}"), None
        definition = self._definitions.get(name)
        if definition is None:
            known = ", ".join(self._definitions)
            fault = f"machine {self.task_name} has no state {name!r}, which is kept; it has {known}"
            return StateSignature(self, None, fault), None
        return StateSignature(self, definition), definition

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The state by its name and fields; raises BadArguments when it is none of the machine's. Those who have no
        classes, such as the command line, give name and fields themselves."""
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

    def encode_bound(self, bound: dict[str, Any], waiting: Collection[str]) -> str:
        """The JSON text of a state; checked by its types, unless some of its fields are filled in later."""
        definition = self._definitions[bound["state"]]
        text = encode(bound, definition.where)
        if "fields" not in waiting:
            try:
                state = definition.read(bytes(decode(text, StoredState).fields))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise BadArguments(f"{definition.where}: {error}") from error
            if definition.secret:  # fields that are annotated as secrets become such
                text = encode({**bound, "fields": _fields(state)}, definition.where)
        return text

    def with_defaults(self, text: str) -> str:
        return text

    def decode_result(self, text: str) -> Any:
        """The result as what states are annotated to be done with; plain JSON where they don't say, or it doesn't
        fit."""
        try:
            return decode(text, self._result_kind)
        except PayloadError:
            return decode(text)

    @functools.cached_property
    def _result_kind(self) -> Any:
        kinds = dict.fromkeys(kind for definition in self._definitions.values() for kind in _done_with(definition.kind))
        try:
            kind: Any = Union[tuple(kinds)] if kinds else Any  # noqa: UP007 - of a list that isn't known beforehand
            decoder(kind)
        except TypeError:
            return Any
        return kind

    def _examples(self) -> str:
        first, *others = self._definitions
        more = f"; its states are {', '.join(self._definitions)}" if others else ""
        return f'like {first}(…), or as JSON {{"state": "{first}", "fields": {{…}}}}{more}'


class Machine(Task[[S], Any], Generic[S]):
    """A registered machine. `enqueue` begins one in a state. It can be used wherever a task can."""

    durable: ClassVar[bool] = True
    signature: MachineSignature

    def __init__(
        self, declaration: Declaration, states: Collection[type[S]], enqueuer: Enqueuer, history: int | None
    ) -> None:
        definitions = _definitions_of(declaration.name, states)
        super().__init__(declaration, MachineSignature(declaration.name, definitions), enqueuer)
        self.states = tuple(definitions)
        self._first = next(iter(definitions.values())).kind
        self.history = history
        """How many entries of a run's history are kept; None for all."""

    @property
    def origin(self) -> Callable[..., Any]:
        run: Callable[..., Any] = self._first.run  # type: ignore[attr-defined]
        return run

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
        raise ConfigError(f"machine {machine} has no states: give its classes after the name")
    definitions: dict[str, StateDefinition] = {}
    for kind in states:
        if not (isinstance(kind, type) and issubclass(kind, State)):
            raise ConfigError(f"machine {machine}: {kind!r} is no class of a State")
        if kind.__name__ in definitions:
            raise ConfigError(f"machine {machine} has two states named {kind.__name__}")
        definitions[kind.__name__] = StateDefinition(machine, kind)
    return definitions


def _done_with(kind: type[State]) -> list[Any]:
    """Each T of a `Done[T]` that a state's run is annotated to return."""
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
        raise TaskError(f"{where} has no run: write `async def run(self, ctx: Context)`, or a def with a SyncContext")
    is_async = inspect.iscoroutinefunction(run)
    parameters = list(inspect.signature(run).parameters.values())
    if len(parameters) != 2:
        raise TaskError(f"{where}: run takes self and a context, and nothing else")
    annotation = named(run, parameters[1].annotation)
    if annotation is (SyncContext if is_async else Context):
        other = "Context" if is_async else "SyncContext"
        raise TaskError(f"{where}: an {'async def' if is_async else 'plain def'} run takes a {other}")
    return "loop" if is_async else "thread"
