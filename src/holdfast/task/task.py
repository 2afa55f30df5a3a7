"""`Task`, a registered function, and `Request`, a call of it to be enqueued later.

A task knows its app only as an `EnqueuerProtocol`. `registry.py` turns functions into tasks.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar, cast

import msgspec

from holdfast.errors import BadArguments, BadMessage, ConfigError, HoldfastError, PayloadError, TaskError
from holdfast.model.clock import Duration
from holdfast.model.codec import MaskedDigest, canonical, canonical_text, decode, digest
from holdfast.model.names import quoted
from holdfast.model.retry import Retry
from holdfast.model.type_variables import P, R_co
from holdfast.task.annotations import shown as type_name
from holdfast.task.options import Declaration, IfTaken, Options, RunIn
from holdfast.task.signature import SignatureProtocol, UntypedSignature

if TYPE_CHECKING:
    from holdfast.client.handle import Run
    from holdfast.task.context import Context
    from holdfast.task.sync_context import SyncContext

A1_contra = TypeVar("A1_contra", contravariant=True)
A2_contra = TypeVar("A2_contra", contravariant=True)
A3_contra = TypeVar("A3_contra", contravariant=True)
A4_contra = TypeVar("A4_contra", contravariant=True)

NO_OPTIONS = Options()


class Request(msgspec.Struct, Generic[R_co], frozen=True):
    """A call of a task to be enqueued later, by `app.enqueue_many`, a schedule, a trigger or a graph.

    Created by `task.request(…)`, which checks the arguments.
    """

    declaration: Declaration
    signature: SignatureProtocol
    args: str
    options: Options = NO_OPTIONS

    @property
    def task(self) -> str:
        return self.declaration.name

    def digests(self) -> tuple[str, str | None]:
        """Return the digest that an idempotency key is compared by, and the one that 0.1 stored if that differs.

        The digest covers the task and its arguments; the tenant is part of the key's scope. It doesn't depend on the
        order of names, the time zone of times, or whether a default was written out. Options say when and how a run
        executes, not what it is. 0.1 included them, and its keys are kept forever, so both forms must be accepted.
        Without options the two are the same. Secrets don't count: a digest of its value would disclose a short one.
        """
        args = decode(canonical_text(self.signature.with_defaults(self.args)))
        options = self.options.canonical()
        plain = self._digest(args, {})
        old = self._digest(args, options) if options else plain
        if isinstance(old, MaskedDigest):
            return str(plain), old.unmasked
        return plain, old if options else None

    def _digest(self, args: Any, options: dict[str, Any]) -> str:
        identity = {"task": self.task, "args": args, "options": options}
        return digest(canonical(identity, f"the request of task {self.task}"))


class ExecutionSpec(NamedTuple):
    """How to execute a task with given arguments: the code and its settings. A machine's depend on its state."""

    signature: Any
    retry: Retry
    timeout: int | None
    run_in: RunIn | None


class EnqueuerProtocol(Protocol):
    """Creates runs of requests. The app's client implements it."""

    def enqueue(self, requests: Sequence[Request[Any]], /, verb: str = "enqueue") -> list[Run[Any]]: ...

    async def aenqueue(self, requests: Sequence[Request[Any]], /) -> list[Run[Any]]: ...


class Task(Generic[P, R_co]):
    """A registered function, returned by `@app.task`.

    `enqueue` creates a run of it; calling the task calls the plain function.

    Example:
        ```python
        run = charge.enqueue(42)
        charge.options(delay=60, key="order-42").enqueue(42)
        charge(42)  # an ordinary function call
        ```

    Attributes:
        name: The task's name.
        durable: Whether it is a durable function, whose first parameter is a context.
        fn: The function, or None if its code is in another application.
    """

    durable: ClassVar[bool] = False
    name: str
    declaration: Declaration
    signature: SignatureProtocol
    fn: Callable[..., Any] | None

    def __init__(
        self,
        declaration: Declaration,
        signature: SignatureProtocol,
        enqueuer: EnqueuerProtocol,
        fn: Callable[..., Any] | None = None,
    ) -> None:
        if fn is not None:
            functools.update_wrapper(cast(Any, self), fn)
        self.name = declaration.name
        self.declaration = declaration
        self.signature = signature
        self.fn = fn
        self._execution_spec = ExecutionSpec(signature, declaration.retry, declaration.timeout, declaration.run_in)
        self._enqueuer = enqueuer
        self._options = NO_OPTIONS

    @property
    def origin(self) -> Callable[..., Any] | None:
        """The function whose source location identifies the task."""
        return self.fn

    @property
    def uses_threads(self) -> bool:
        """Whether its runs may execute in a thread of the worker."""
        return self.declaration.run_in == "thread"

    def execution_spec(self, _args: str) -> ExecutionSpec:
        """Return how to execute it with these stored arguments."""
        return self._execution_spec

    @property
    def request_options(self) -> Options:
        """The options set with `options`."""
        return self._options

    def check_message(self, topic: str, text: str) -> None:
        """Raise BadMessage if the task declares its messages, but none like this one, which is JSON text."""
        declared = self.declaration.receives
        if declared and topic not in declared:
            raise BadMessage(
                f"task {self.name} receives no messages on topic {quoted(topic)}; it has {', '.join(sorted(declared))}"
            )
        self._check_payload(text, declared.get(topic), f"on topic {topic!r}, and this message")

    def check_ask(self, name: str, text: str) -> None:
        """Raise BadMessage if the task declares its asks, but none like this one, whose payload is JSON text."""
        declared = self.declaration.asks
        if declared and name not in declared:
            raise BadMessage(f"task {self.name} has no ask {quoted(name)}; it has {', '.join(sorted(declared))}")
        self._check_payload(text, declared.get(name), f"with ask {name!r}, and this payload")

    def _check_payload(self, text: str, expected: Any, where: str) -> None:
        if expected is None:
            return
        try:
            decode(text, expected)
        except PayloadError as error:
            raise BadMessage(f"task {self.name} receives {type_name(expected)} {where} doesn't fit: {error}") from error

    def request(self, /, *args: P.args, **kwargs: P.kwargs) -> Request[R_co]:
        """Create a request, to be enqueued later. The arguments are checked now."""
        return Request(self.declaration, self.signature, self.signature.encode(args, kwargs), self._options)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Run[R_co]:
        """Create a run with these arguments.

        Raises:
            BadArguments: The arguments don't match the function's parameters.
        """
        return self._enqueuer.enqueue([self.request(*args, **kwargs)])[0]

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Run[R_co]:
        """Create a run with these arguments. The awaitable form of `enqueue`."""
        return (await self._enqueuer.aenqueue([self.request(*args, **kwargs)]))[0]

    def enqueue_many(self, calls: Iterable[tuple[Any, ...]]) -> list[Run[R_co]]:
        """Create a run per tuple of arguments, in one transaction.

        Example:
            ```python
            send.enqueue_many([("ada@example.org",), ("bob@example.org",)])
            ```
        """
        requests = self._requests(calls)
        return self._enqueuer.enqueue(requests, "enqueue_many") if requests else []

    async def aenqueue_many(self, calls: Iterable[tuple[Any, ...]]) -> list[Run[R_co]]:
        """Create a run per tuple of arguments. The awaitable form of `enqueue_many`."""
        requests = self._requests(calls)
        return await self._enqueuer.aenqueue(requests) if requests else []

    if TYPE_CHECKING:

        def options(
            self,
            *,
            queue: str | None = ...,
            priority: int | None = ...,
            delay: Duration | None = ...,
            run_at: datetime | None = ...,
            key: str | None = ...,
            unique: str | None = ...,
            if_taken: IfTaken | None = ...,
            debounce: str | None = ...,
            max_delay: Duration | None = ...,
            tenant: str | None = ...,
            retry: Retry | None = ...,
            timeout: Duration | None = ...,
            deadline: Duration | datetime | None = ...,
            start_by: Duration | datetime | None = ...,
            key_ttl: Duration | None = ...,
            tags: Sequence[str] | None = ...,
            limits: Sequence[str] | None = ...,
            metadata: Mapping[str, Any] | None = ...,
            connection: object = ...,
        ) -> Self: ...

    else:

        def options(self, **given: Any) -> Self:
            """Return this task with options for the runs that it enqueues. None resets an option.

            Args:
                queue: The queue.
                priority: Runs with a higher priority are claimed first.
                delay: Start after this time.
                run_at: Start at this time.
                key: Idempotency key. The same key and arguments return the existing run; other arguments raise
                    `KeyConflict`.
                unique: At most one unfinished run has this name; a second enqueue returns the existing run.
                if_taken: What to do if an unfinished run has the unique name: "return" it (the default), "queue" one
                    more run behind it, "replace" the arguments of the run that waits, or "cancel" it.
                debounce: Collect calls with this name into one run, which starts when no call came for `delay`. The
                    newest arguments and options count. Once the run has started, a call creates the next one.
                max_delay: Start a debounced run no later than this after its first call.
                tenant: The tenant that the run belongs to.
                retry: When to retry a failed attempt.
                timeout: The limit for one attempt.
                deadline: The limit for the whole run, as a duration or a point in time.
                start_by: Cancel the run unless it starts in time, given as a duration or a point in time.
                key_ttl: How long the idempotency key is used. By default it doesn't expire before the app's keys do.
                tags: Labels to find the run by.
                limits: Limits that replace those of the task.
                metadata: Names and JSON values to find the run by, as in `app.runs(metadata=…)`. Not encrypted.
                connection: A PostgreSQL connection of yours, to enqueue inside its transaction.
            """
            task = copy.copy(self)
            task._options = self._options.merge(**given)
            return task

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def _requests(self, calls: Iterable[tuple[Any, ...]]) -> list[Request[R_co]]:
        if not isinstance(calls, Iterable):
            raise BadArguments(f"task {self.name}: enqueue_many takes a list of tuples, not {type(calls).__name__}")
        requests = [self._row(at, call) for at, call in enumerate(calls)]
        for option in ("key", "unique", "debounce"):
            if len(requests) > 1 and getattr(self._options, option) is not None:
                raise ConfigError(
                    f"task {self.name}: enqueue_many can't use one {option} for {len(requests)} runs; set it per run: "
                    f"app.enqueue_many([task.options({option}=…).request(…), …])"
                )
        return requests

    def _row(self, at: int, call: Any) -> Request[R_co]:
        if not isinstance(call, tuple | list):
            raise BadArguments(
                f"task {self.name}: row {at} of enqueue_many must be a tuple of arguments, not {type(call).__name__}; "
                "write a single argument as (value,)"
            )
        try:
            return Request(self.declaration, self.signature, self.signature.encode(tuple(call), {}), self._options)
        except HoldfastError as error:
            raise type(error)(f"row {at} of enqueue_many: {error}") from error


class _AsyncTask(Task[P, R_co]):
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        assert self.fn is not None
        return cast("Coroutine[Any, Any, R_co]", self.fn(*args, **kwargs))


class _SyncTask(Task[P, R_co]):
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        assert self.fn is not None
        return cast(R_co, self.fn(*args, **kwargs))


class _Durable(Task[P, R_co]):
    """A durable function. Calling it directly needs a context."""

    durable = True

    if not TYPE_CHECKING:

        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            if not (args and hasattr(args[0], "run_id")):
                raise TaskError(
                    f"{self.name} is a durable function and needs a context: use ctx.call(task, …) for a child run, "
                    "task(ctx, …) to pass your own context on, or holdfast.testing.context() in tests"
                )
            return self.fn(*args, **kwargs)


class _AsyncDurable(_Durable[P, R_co]):
    if TYPE_CHECKING:

        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...


class _SyncDurable(_Durable[P, R_co]):
    if TYPE_CHECKING:

        def __call__(self, ctx: SyncContext, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class RemoteTask(Task[..., Any]):
    """A task whose code is in another application. It can be enqueued, not called."""

    def __init__(self, declaration: Declaration, enqueuer: EnqueuerProtocol) -> None:
        super().__init__(declaration, UntypedSignature(declaration.name), enqueuer)


# Tasks by the number of arguments that they accept. Type checkers match `Task[[A], R]` too strictly.


class Takes0(Protocol[R_co]):
    """A task that can be called with no argument."""

    name: str

    def request(self) -> Request[R_co]: ...


class Takes1(Protocol[A1_contra, R_co]):
    """A task that can be called with one argument."""

    name: str

    def request(self, a: A1_contra, /) -> Request[R_co]: ...


class Takes2(Protocol[A1_contra, A2_contra, R_co]):
    """A task that can be called with two arguments."""

    name: str

    def request(self, a: A1_contra, b: A2_contra, /) -> Request[R_co]: ...


class Takes3(Protocol[A1_contra, A2_contra, A3_contra, R_co]):
    """A task that can be called with three arguments."""

    name: str

    def request(self, a: A1_contra, b: A2_contra, c: A3_contra, /) -> Request[R_co]: ...


class Takes4(Protocol[A1_contra, A2_contra, A3_contra, A4_contra, R_co]):
    """A task that can be called with four arguments."""

    name: str

    def request(self, a: A1_contra, b: A2_contra, c: A3_contra, d: A4_contra, /) -> Request[R_co]: ...
