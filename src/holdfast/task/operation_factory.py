"""Create the operations of `Context` and `SyncContext` from their arguments, checked. Nothing is executed here.

The digests that identify steps and children are computed here too. Tests pin them: a different digest for the same
arguments would run the finished steps of in-flight runs again.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError, GraphError, HoldfastError, NotSerializable, TaskError
from holdfast.model.budget import Amount, to_units
from holdfast.model.clock import Duration, time_to_micros, to_micros
from holdfast.model.codec import (
    DIGEST_VERSION,
    MASKED_DIGEST_VERSION,
    MaskedDigest,
    canonical,
    decode,
    digest,
    digest_base,
    encode,
    has_secrets,
    masked_text,
)
from holdfast.model.metadata import check_metadata
from holdfast.model.names import check_name
from holdfast.model.retry import Retry
from holdfast.model.topics import FieldValue, check_topic, check_where
from holdfast.policy.admission import check_cost
from holdfast.task import operations
from holdfast.task.annotations import payload_type
from holdfast.task.declared_limits import Cost, check_cost_rule
from holdfast.task.fakes import active_fakes, fake_function
from holdfast.task.functions import (
    STEP_OPTIONS,
    FunctionInfo,
    cached_info,
    given_name,
    inspect_function,
    own_name,
    plain_function,
    refuse_async,
    shown,
)
from holdfast.task.graph import Graph
from holdfast.task.graph_compiler import compile_graph, graph_digest, result_name
from holdfast.task.options import Options, check_limits, check_retry, positive_micros
from holdfast.task.resources import bind_resources
from holdfast.task.task import Request, Task

MAX_MAP_ITEMS = 100_000

_USE_CONTEXT = "write it as a plain def, or call it from an async def with a Context"


class StepSettings(msgspec.Struct):
    """The options of a step. `timeout` is in microseconds."""

    name: str | None = None
    retry: Retry | None = None
    timeout: int | None = None
    undo: Callable[[Any], Any] | None = None
    raises: tuple[type[Exception], ...] = ()
    limits: tuple[str, ...] | None = None
    cost: Cost | None = None
    executor: str | None = None


NO_SETTINGS = StepSettings()
NOTHING: Mapping[str, Any] = {}


# Identity

LENGTH = len(DIGEST_VERSION) + 16
"""The version and 64 bits in hexadecimal: enough to distinguish the calls of one function in one run."""

_HINT = "pass plain values; or let the function look the object up, or capture it in a closure and set name=…"


def _short(text: str) -> str:
    found = digest(text)
    return found.shortened(LENGTH) if isinstance(found, MaskedDigest) else found[:LENGTH]


NO_ARGUMENTS = _short(canonical([[], {}]))


def arguments_digest(step: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the digest of a step's arguments."""
    if not args and not kwargs:
        return NO_ARGUMENTS
    try:
        return _short(canonical([args, kwargs], f"the arguments of step {step}"))
    except NotSerializable as error:
        raise NotSerializable(f"{error}; {_HINT}") from error


def child_digest(task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options) -> str:
    """Return the digest of a child's arguments by name, with defaults, and of its options.

    Computed from the values, not from the stored text, in which the members of a set have no fixed order.
    """
    bound = canonical(task.signature.bound(args, kwargs), f"the arguments of task {task.name}")
    named = decode(task.signature.with_defaults(bound))
    return _short(canonical([named, options.canonical()]))


def items_digest(task: Task[..., Any], items: Iterable[Any], options: Options) -> str:
    """Return the digest of the items of a `map`, item by item: together they may exceed a payload."""
    whole = hashlib.sha256(canonical(options.canonical()).encode())
    masked, are_secret = whole.copy(), False
    for item in items:
        text = canonical(item, f"the arguments of task {task.name}")
        whole.update(f"\n{text}".encode())
        is_secret = has_secrets(text)
        masked.update(f"\n{masked_text(text) if is_secret else text}".encode())
        are_secret |= is_secret
    found = (DIGEST_VERSION + whole.hexdigest())[:LENGTH]
    return MaskedDigest.of((MASKED_DIGEST_VERSION + masked.hexdigest())[:LENGTH], found) if are_secret else found


# Functions


def step_settings(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    undo: Callable[[Any], object] | None = None,
    raises: type[Exception] | tuple[type[Exception], ...] = (),
    limits: Iterable[str] | None = None,
    cost: Cost | None = None,
    run_in: str | None = None,
) -> StepSettings:
    named = None if limits is None else check_limits(limits, "ctx.options: limits")
    if cost is not None and not named:
        raise ConfigError("ctx.options: cost= is given without limits=")
    return StepSettings(
        name=None if name is None else given_name(name),
        retry=None if retry is None else check_retry(retry, "the retry of a step"),
        timeout=None if timeout is None else positive_micros(timeout, "the timeout of a step"),
        undo=None if undo is None else plain_function("step: undo", undo),
        raises=_exceptions(raises),
        limits=named,
        cost=None if cost is None else check_cost_rule(cost, "ctx.options: cost"),
        executor=None if run_in is None else check_name(run_in, "ctx.options: run_in"),
    )


def step(fn: Any, args: tuple[Any, ...], given: dict[str, Any], *, blocking: bool) -> operations.Step:
    """Create the step of `ctx.step(…)`. Keyword arguments named like step options are options."""
    if not given:
        return step_with(NO_SETTINGS, fn, args, NOTHING, blocking=blocking)
    if len(given) == 1 and type(name := given.get("name")) is str:
        operation = step_with(_named(name), fn, args, NOTHING, blocking=blocking)
    elif STEP_OPTIONS.isdisjoint(given):
        return step_with(NO_SETTINGS, fn, args, given, blocking=blocking)
    else:
        options = {name: value for name, value in given.items() if name in STEP_OPTIONS}
        kwargs = {name: value for name, value in given.items() if name not in STEP_OPTIONS}
        operation = step_with(step_settings(**options), fn, args, kwargs, blocking=blocking)
    if operation.function_info.option_like_names:
        _refuse_unfilled(operation, operation.function_info.option_like_names.intersection(given))
    return operation


@lru_cache(maxsize=1024)
def _named(name: str) -> StepSettings:
    """Cache the settings of steps that have only a name, the most common kind."""
    return step_settings(name=name)


def step_with(
    settings: StepSettings, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, blocking: bool
) -> operations.Step:
    """Create the step of `ctx.options(…).step(…)`."""
    info, given = (None if active_fakes else cached_info(fn)), fn
    name = settings.name or (None if info is None else info.name)
    if info is None or name is None:
        name, fn, info = _called("step", fn, settings.name)
    base = f"{name}-{NO_ARGUMENTS}"
    if args or kwargs:
        base = digest_base(f"{name}-", arguments_digest(name, args, kwargs))
    operation = operations.Step(
        name, base, fn, info, args, kwargs, settings.retry, settings.timeout, settings.undo, settings.raises,
        settings.limits, settings.cost, settings.executor,
    )  # fmt: skip
    if settings.executor is not None:
        _check_remote(operation)
        if active_fakes and fn is not given:  # a fake runs where the test is
            operation.executor = None
    if info.injections:
        operation.fn = bind_resources(fn, info.injections, kwargs, f"step {name}")
    if operation.undo is not None and (undone_by := inspect_function(operation.undo).injections):
        operation.undo = bind_resources(operation.undo, undone_by, NOTHING, f"the compensation of step {name}")
    if active_fakes and operation.undo is not None:
        own = getattr(operation.undo, "__name__", None)
        names = (f"undo {name}",) if own is None else (own, f"undo {name}")
        operation.undo = fake_function(names, operation.undo)
    if blocking:
        refuse_async("step", operation.fn, _USE_CONTEXT)
        if operation.undo is not None:
            refuse_async("step: undo", operation.undo, _USE_CONTEXT)
    return operation


def _check_remote(step: operations.Step) -> None:
    """Raise if the function of a step can't run in an executor."""
    refuse_async("step", step.fn, f"the executor {step.executor} takes a def")
    if step.function_info.injections:
        parameter = step.function_info.injections[0].parameter
        raise TaskError(
            f"step {step.name}: {parameter} can't be injected in the executor {step.executor}: the resources are in the"
            " worker's process. Open what it needs in the function"
        )


def undo(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, blocking: bool) -> operations.Undo:
    name, function, info = _called("undo", fn)
    base = digest_base(f"$undo:{name}-", arguments_digest(name, args, kwargs))
    if info.injections:
        function = bind_resources(function, info.injections, kwargs, f"compensation {name}")
    operation = operations.Undo(name, base, function, info, args, kwargs)
    if blocking:
        refuse_async("undo", operation.fn, _USE_CONTEXT)
    return operation


def transaction(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: str | None) -> operations.Transaction:
    """Create the operation of `ctx.transaction`; `given` is its name, if the caller chose one."""
    if given is not None:
        _refuse_name_argument(fn)
    if not kwargs.keys().isdisjoint(STEP_OPTIONS):
        _refuse_step_options(fn, kwargs)
    name, function, info = _called("transaction", fn, None if given is None else given_name(given))
    base = digest_base(f"{name}-", arguments_digest(name, args, kwargs))
    if info.injections:
        function = bind_resources(function, info.injections, kwargs, f"transaction {name}")
    operation = operations.Transaction(name, base, function, info, args, kwargs)
    refuse_async("transaction", operation.fn, "transactions run in a thread: write it as a plain def")
    return operation


# Waiting


def sleep(duration: Duration, name: str | None) -> operations.Sleep:
    return operations.Sleep(name=_wait_name(name), delay=to_micros(duration, "the duration of ctx.sleep"))


def sleep_until(time: datetime, name: str | None) -> operations.Sleep:
    return operations.Sleep(name=_wait_name(name), until=time_to_micros(time, "the time of ctx.sleep_until"))


def wait_for(event: str, timeout: Duration | None, type: Any) -> operations.WaitFor:
    check_name(event, "the event of ctx.wait_for")
    return operations.WaitFor(event, _wait_timeout(timeout, "wait_for"), payload_type(type, "ctx.wait_for: type="))


def receive(task: Task[..., Any], topic: str, timeout: Duration | None, type: Any) -> operations.Receive:
    """Create the wait of `ctx.receive`. Without a type, the one that the task declares for the topic applies."""
    check_name(topic, "the topic of ctx.receive")
    expected = task.declaration.receives.get(topic) if type is None else payload_type(type, "ctx.receive: type=")
    return operations.Receive(topic, _wait_timeout(timeout, "receive"), expected)


def receive_ask(task: Task[..., Any], name: str, timeout: Duration | None, type: Any) -> operations.ReceiveAsk:
    """Create the wait of `ctx.receive_ask`. Without a type, the one that the task declares for the ask applies."""
    check_name(name, "the name of an ask")
    expected = task.declaration.asks.get(name) if type is None else payload_type(type, "ctx.receive_ask: type=")
    return operations.ReceiveAsk(name, _wait_timeout(timeout, "receive_ask"), expected)


def serve(timeout: Duration | None) -> operations.ReceiveAsk:
    """Create the first wait of `ctx.serve`."""
    return operations.ReceiveAsk(timeout=_wait_timeout(timeout, "serve"))


def emit(event: str, payload: Any) -> operations.Emit:
    check_name(event, "the event of ctx.emit")
    return operations.Emit(event, encode(payload, f"the payload of event {event}"))


def publish(topic: str, payload: Any) -> operations.Publish:
    name = check_topic(topic, "the topic of ctx.publish")
    return operations.Publish(name, encode(payload, f"the message on topic {name!r}"))


def next_message(
    topic: str, where: Mapping[str, FieldValue] | None, timeout: Duration | None, type: Any
) -> operations.Next:
    """Create the wait of `ctx.next`."""
    name = check_topic(topic, "the topic of ctx.next")
    values = check_where({} if where is None else where, "ctx.next: where")
    expected = None if type is None else payload_type(type, "ctx.next: type=")
    return operations.Next(name, values, _wait_timeout(timeout, "next"), expected)


# Other runs


def spawn(verb: str, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> operations.Spawn:
    """Create the child of `ctx.spawn` or `ctx.call`."""
    request = _request(verb, task, args, kwargs)
    _refuse_once(verb, request)
    return operations.Spawn(request, child_digest(task, args, kwargs, request.options))


def submit(graph: Any, result: Any) -> operations.Submit:
    """Create the child graph of `ctx.submit`."""
    plan = compile_graph(graph)
    if plan.graph.key is not None:
        raise GraphError(
            f"ctx.submit: graph {plan.graph.name} has a key: remove it, a child is created exactly once anyway"
        )
    if plan.graph.options.unique is not None:
        raise GraphError(f"ctx.submit: graph {plan.graph.name} has a unique name: submit it inside a step instead")
    named = result_name(plan, result)
    digest = graph_digest(plan, named)
    short = digest.shortened(LENGTH) if isinstance(digest, MaskedDigest) else digest[:LENGTH]
    return operations.Submit(plan, named, short)


def gate(name: str, payload: Any, timeout: Duration | None, type: Any) -> operations.FunctionGate:
    """Create the gate of `ctx.gate`."""
    graph = Graph(check_name(name, "the name of ctx.gate"))
    graph.gate(name, timeout=timeout, payload=payload, type=type)
    return operations.FunctionGate(compile_graph(graph), name, "", payload_type(type, "ctx.gate: type="))


def enqueue(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> operations.Enqueue:
    request = _request("enqueue", task, args, kwargs)
    return operations.Enqueue(request, child_digest(task, args, kwargs, request.options))


def join(run: Any) -> operations.Join:
    id, task = getattr(run, "id", None), getattr(run, "task", None)
    if not isinstance(id, UUID) or not isinstance(task, str):
        if inspect.iscoroutine(run):
            run.close()
            raise TaskError("ctx.join takes a run, not a coroutine: write `run = await ctx.spawn(…)` first")
        raise TaskError(f"ctx.join takes a run returned by ctx.spawn, not {type(run).__name__}")
    return operations.Join(id, task)


def fan_out(task: Any, items: Any, concurrency: int | None, errors: Any) -> operations.Map:
    """Create the children of `ctx.map(…)`."""
    _refuse_no_task("map", task)
    if concurrency is not None and (isinstance(concurrency, bool) or not isinstance(concurrency, int)):
        raise ConfigError(f"ctx.map: concurrency must be an int or None, not {type(concurrency).__name__}")
    if concurrency is not None and concurrency < 1:
        raise ConfigError(f"ctx.map: concurrency must be at least 1, not {concurrency}")
    if errors not in ("raise", "return"):
        raise ConfigError(f'ctx.map: errors must be "raise" or "return", not {errors!r}')
    given = _items(items)
    requests = [_item_request(task, at, item) for at, item in enumerate(given)]
    if requests:
        _refuse_connection("map", requests[0])
        _refuse_once("map", requests[0])
        digest = items_digest(task, given, requests[0].options)
    else:
        digest = arguments_digest(task.name, (), {})
    return operations.Map(task.name, requests, digest, concurrency, errors)


# This run

NOW = operations.Value("now")
RANDOM = operations.Value("random")
NEW_UUID = operations.Value("uuid")


def progress(done: float, total: float | None, note: str | None) -> operations.ProgressReport:
    for what, number in (("done", done), ("total", total)):
        if what == "total" and number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ConfigError(f"ctx.progress: {what} must be a finite number, not {number!r}")
    if note is not None and not isinstance(note, str):
        raise ConfigError(f"ctx.progress: note must be a str, not {type(note).__name__}")
    return operations.ProgressReport(encode({"done": done, "total": total, "note": note}, "the progress"))


def annotate(values: Mapping[str, Any]) -> operations.Annotate:
    return operations.Annotate(check_metadata(values, "the values of ctx.annotate"))


def adjust(limit: str, used: float) -> operations.Adjust:
    name = check_name(limit, "the limit of ctx.adjust")
    return operations.Adjust(name, check_cost(used, f"ctx.adjust: what was used of limit {name}"))


def spend(budget: str, amount: Amount) -> operations.SpendAmount:
    name = check_name(budget, "the budget of ctx.spend")
    return operations.SpendAmount(name, to_units(amount, f"ctx.spend: the amount of budget {name}"))


def read_budget(budget: str) -> operations.ReadBudget:
    return operations.ReadBudget(check_name(budget, "the budget of ctx.budget"))


def set_value(name: str, value: Any) -> operations.SetValue:
    return operations.SetValue(check_name(name, "the name of a value"), encode(value, f"the value {name!r}"))


def write(chunk: Any) -> operations.Write:
    return operations.Write(encode(chunk, "the chunk of ctx.write"))


def restart(task: Task[..., Any], args: tuple[Any, ...]) -> operations.Restart:
    return operations.Restart(task.signature.encode(args, {}))


# Checks


def _called(verb: str, fn: Any, given: str | None = None) -> tuple[str, Callable[..., Any], FunctionInfo]:
    """Return the name of a function, the function to call (a fake in tests), and its info."""
    function = plain_function(verb, fn)
    name = own_name(verb, function) if given is None else given
    if active_fakes:
        function = fake_function((name,), function)
    return name, function, inspect_function(function)


def _exceptions(raises: Any) -> tuple[type[Exception], ...]:
    classes = raises if isinstance(raises, tuple | list) else (raises,)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ConfigError(f"ctx.options: raises= takes exception classes, not {kind!r}")
    return tuple(classes)


def _refuse_unfilled(step: operations.Step, given: Collection[str]) -> None:
    """Reject a step whose function needs an argument that was taken as a step option."""
    fn = step.fn
    try:
        if given:
            inspect.signature(fn).bind(*step.args, **step.kwargs)
    except TypeError:
        name = min(given)
        raise TaskError(
            f"ctx.step: {name}= is a step option, but {shown(fn)} needs an argument of that name: use "
            f"ctx.options(…).step({getattr(fn, '__name__', 'fn')}, {name}=…), which passes every argument on"
        ) from None


def _refuse_name_argument(fn: Any) -> None:
    """Reject a name for a function that has a parameter called name, which the caller may have meant."""
    with suppress(TypeError, ValueError):  # Some callables have no signature.
        if "name" in inspect.signature(fn).parameters:
            raise TaskError(
                f"ctx.transaction: name= names the transaction, but {shown(fn)} has a parameter of that name: pass it "
                "by position, or rename the parameter"
            )


def _refuse_step_options(fn: Any, kwargs: Mapping[str, Any]) -> None:
    """Reject options of steps that a transaction doesn't have, unless its function has a parameter of that name."""
    with suppress(TypeError, ValueError):  # Some callables have no signature.
        parameters = inspect.signature(fn).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return
        for name in sorted(kwargs.keys() & set(STEP_OPTIONS) - {parameter.name for parameter in parameters}):
            hint = "register a compensation with ctx.undo after it" if name == "undo" else "only steps have it"
            raise TaskError(f"ctx.transaction has no {name}=: {hint}")


def _wait_name(name: str | None) -> str | None:
    return None if name is None else check_name(name, "the name of a sleep")


def _wait_timeout(timeout: Duration | None, verb: str) -> int | None:
    return None if timeout is None else to_micros(timeout, f"the timeout of ctx.{verb}")


def _refuse_no_task(verb: str, task: Any) -> None:
    if not isinstance(task, Task):
        hint = ": decorate it with @app.task, or run it with ctx.step" if callable(task) else ""
        raise TaskError(f"ctx.{verb} takes a task, not {shown(task)}{hint}")


def _request(verb: str, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request[Any]:
    _refuse_no_task(verb, task)
    request: Request[Any] = task.request(*args, **kwargs)
    _refuse_connection(verb, request)
    return request


def _refuse_connection(verb: str, request: Request[Any]) -> None:
    if request.options.connection is not None:
        raise ConfigError(f"ctx.{verb}: remove connection=: the context creates runs in its own transaction")


def _refuse_once(verb: str, request: Request[Any]) -> None:
    for option in ("key", "unique", "debounce"):
        if getattr(request.options, option) is not None:
            raise TaskError(
                f"ctx.{verb}: remove option {option}: a child is created exactly once anyway; "
                f"for an independent run with {option}= use ctx.enqueue"
            )
    if request.options.start_by is not None or request.options.start_by_at is not None:
        raise TaskError(f"ctx.{verb}: remove option start_by: it is for independent runs; use ctx.enqueue")


def _items(items: Any) -> list[Any]:
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise ConfigError(f"ctx.map takes a list of items, not {type(items).__name__}")
    if isinstance(items, set | frozenset):
        raise ConfigError("ctx.map: a set has a different order at every replay; pass sorted(items)")
    given = list(islice(items, MAX_MAP_ITEMS + 1))
    if len(given) > MAX_MAP_ITEMS:
        raise ConfigError(
            f"ctx.map takes at most {MAX_MAP_ITEMS:,} items; pass batches to the children, or call map several times"
        )
    return given


def _item_request(task: Task[..., Any], at: int, item: Any) -> Request[Any]:
    try:
        return task.request(item)
    except HoldfastError as error:
        raise type(error)(f"item {at} of ctx.map: {error}") from error
