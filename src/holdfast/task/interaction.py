"""`Ask` and `SyncAsk`: asks that a durable function has received. `serve`: call a handler for each ask."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.errors import AskRejected, Fatal, PayloadError, StoreError, TaskError
from holdfast.model.asks import ReceivedAsk, Rejection, encode_rejection
from holdfast.model.clock import Duration
from holdfast.model.codec import decode_value, encode
from holdfast.model.failure import MAX_MESSAGE_BYTES, truncate_end
from holdfast.model.names import check_name, type_name
from holdfast.task import operation_factory
from holdfast.task.annotations import Unresolved, check, resolve
from holdfast.task.functions import plain_function, refuse_async, shown
from holdfast.task.operations import (
    AsyncExecutorProtocol,
    NewAnswer,
    Operation,
    ReceiveAsk,
    ReplyAsk,
    SyncExecutorProtocol,
)
from holdfast.task.task import Task

T_co = TypeVar("T_co", covariant=True)


class _ReceivedAsk(Generic[T_co]):
    """What `Ask` and `SyncAsk` have in common."""

    __slots__ = ("_answered", "_executor", "_received", "payload")

    def __init__(self, executor: Any, received: ReceivedAsk, payload: T_co) -> None:
        self._executor = executor
        self._received = received
        self._answered = False
        self.payload = payload

    @property
    def name(self) -> str:
        """The name of the ask."""
        return self._received.name

    @property
    def key(self) -> str:
        """The key of the ask: the one that the caller chose, or else a random one."""
        return self._received.key

    def _answer(self, answer: NewAnswer) -> ReplyAsk:
        if self._answered:
            raise TaskError(f"ask {self.name!r} was answered before: an ask has one answer")
        self._answered = True
        return ReplyAsk(answer)

    def _reply(self, value: Any) -> ReplyAsk:
        return self._answer(NewAnswer(self._received, "reply", encode(value, f"the reply to ask {self.name!r}")))

    def _reject(self, reason: str, data: Any) -> ReplyAsk:
        if not isinstance(reason, str):
            raise TaskError(f"the reason of a rejection must be a str, not {type(reason).__name__}")
        return self._answer(NewAnswer(self._received, "rejected", encode_rejection(Rejection(reason, None, data))))

    def __repr__(self) -> str:
        return f"<ask {self.name} {self.key}>"


class Ask(_ReceivedAsk[T_co]):
    """An ask that a durable function has received with `ctx.receive_ask`. It has one answer.

    Attributes:
        payload: What the caller has passed, decoded as the expected type.
    """

    __slots__ = ()

    async def reply(self, value: Any = None) -> None:
        """Answer with a value, which `run.ask` returns. Must be JSON-serializable."""
        await self._executor.perform(self._reply(value))

    async def reject(self, reason: str, *, data: Any = None) -> None:
        """Reject it: `run.ask` raises `AskRejected` with this reason and data."""
        await self._executor.perform(self._reject(reason, data))


class SyncAsk(_ReceivedAsk[T_co]):
    """An ask that a durable function with a `SyncContext` has received. It has the methods of [`Ask`][holdfast.Ask]."""

    __slots__ = ()

    def reply(self, value: Any = None) -> None:
        """Answer with a value, which `run.ask` returns. Must be JSON-serializable."""
        self._executor.perform(self._reply(value))

    def reject(self, reason: str, *, data: Any = None) -> None:
        """Reject it: `run.ask` raises `AskRejected` with this reason and data."""
        self._executor.perform(self._reject(reason, data))


# Serve


class _Handler(NamedTuple):
    """A function that handles the asks of one name. `takes_payload`: whether it has a parameter, of type `type`."""

    fn: Callable[..., Any]
    takes_payload: bool
    type: Any


class Server:
    """The handlers of one `ctx.serve`, and whether one of them has stopped it."""

    __slots__ = ("_handlers", "is_stopped", "result")

    def __init__(self, task: Task[..., Any], handlers: Mapping[str, Any], *, blocking: bool) -> None:
        if not handlers:
            raise TaskError("ctx.serve needs a handler: ctx.serve(add=add)")
        self._handlers = {name: _handler(task, name, fn, blocking=blocking) for name, fn in handlers.items()}
        self.is_stopped = False
        self.result: Any = None

    def stop(self, result: Any) -> None:
        """End `serve` with this result when the handler has returned."""
        self.is_stopped, self.result = True, result

    async def handle(self, ask: ReceivedAsk) -> tuple[NewAnswer, Fatal | None]:
        """Call the handler of an ask; return the answer, and the error that ends the run if the handler raised one.

        Only a `Fatal` ends the run. An error of the database isn't an answer: the next attempt handles the ask.
        """
        self.is_stopped = False
        fatal: Fatal | None = None
        try:
            value = self._call(ask)
            if inspect.isawaitable(value):
                value = await value
            return NewAnswer(ask, "reply", encode(value, f"the reply to ask {ask.name!r}")), None
        except StoreError:
            raise
        except Exception as error:
            self.is_stopped = False
            fatal = error if isinstance(error, Fatal) else None
            return NewAnswer(ask, "rejected", _rejection_text(error)), fatal

    def _call(self, ask: ReceivedAsk) -> Any:
        handler = self._handlers.get(ask.name)
        if handler is None:
            raise AskRejected(f"there is no such ask; the function serves {', '.join(sorted(self._handlers))}")
        if not handler.takes_payload:
            if ask.payload != "null":
                raise AskRejected("it takes no payload")
            return handler.fn()
        try:
            payload = decode_value(ask.payload, handler.type)
        except PayloadError as error:
            raise AskRejected(f"its payload doesn't have the expected type: {error}") from error
        return handler.fn(payload)


def _handler(task: Task[..., Any], name: str, fn: Any, *, blocking: bool) -> _Handler:
    check_name(name, "the name of an ask")
    plain_function("serve", fn)
    if blocking:
        refuse_async("serve", fn, "write it as a plain def, or use an async def with a Context")
    parameters = [each for each in inspect.signature(fn).parameters.values() if each.kind is not each.VAR_KEYWORD]
    required = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    if len(required) > 1 or any(each.kind is each.KEYWORD_ONLY for each in required):
        raise TaskError(f"ctx.serve: handler {shown(fn)} must have at most one parameter, which takes the payload")
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        return _Handler(fn, False, None)
    declared, annotation = task.declaration.asks.get(name), parameters[0].annotation
    if annotation is inspect.Parameter.empty:
        return _Handler(fn, True, Any if declared is None else declared)
    where = f"ctx.serve: parameter {parameters[0].name} of handler {shown(fn)} is"
    try:
        kind = resolve(fn, annotation)
        check(where, annotation, kind)
    except Unresolved as error:
        raise TaskError(f"{where} {annotation}, which can't be resolved: {error}; define it in the module") from error
    return _Handler(fn, True, kind)


def _rejection_text(error: Exception) -> str:
    """Return a rejection with the type and message of an exception, and its data if it has any."""
    reason = truncate_end(str(error), MAX_MESSAGE_BYTES)
    if isinstance(error, AskRejected):
        rejection = Rejection(truncate_end(error.reason, MAX_MESSAGE_BYTES), error.type, error.data)
    else:
        rejection = Rejection(reason, type_name(type(error)), error.data if isinstance(error, Fatal) else None)
    try:
        return encode_rejection(rejection)
    except PayloadError as unstorable:
        return encode_rejection(Rejection(f"{reason} (its data can't be stored: {unstorable})", rejection.type))


async def _serve(perform: Callable[[Operation], Awaitable[Any]], server: Server, first: ReceiveAsk) -> Any:
    """Answer asks one after the other until a handler stops it. An answer becomes durable with the next wait."""
    answer: NewAnswer | None = None
    while True:
        ask = await perform(ReceiveAsk(timeout=first.timeout, answer=answer))
        answer, fatal = await server.handle(ask)
        if fatal is not None or server.is_stopped:
            await perform(ReplyAsk(answer))
            if fatal is not None:
                raise fatal
            return server.result


def new_server(current: Server | None, task: Task[..., Any], handlers: Mapping[str, Any], *, blocking: bool) -> Server:
    """Return the server of a `ctx.serve`, unless another one serves in the same function."""
    if current is not None:
        raise TaskError("ctx.serve was called while the function serves already: pass all handlers to one call")
    return Server(task, handlers, blocking=blocking)


def serve(executor: AsyncExecutorProtocol, server: Server, timeout: Duration | None) -> Coroutine[Any, Any, Any]:
    """Serve in an `async def`."""
    return _serve(executor.perform, server, operation_factory.serve(timeout))


def serve_blocking(executor: SyncExecutorProtocol, server: Server, timeout: Duration | None) -> Any:
    """Serve in a plain `def`: the coroutine never suspends, because all that it awaits blocks."""

    async def perform(operation: Operation) -> Any:
        return executor.perform(operation)

    try:
        _serve(perform, server, operation_factory.serve(timeout)).send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a coroutine of a sync context was suspended")
