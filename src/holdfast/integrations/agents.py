"""What the integrations of agent frameworks share: the current context, step options, approvals at gates, streams.

Imports no framework.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict

from holdfast.errors import ConfigError, Fatal, GateRejected, LimitNotTaken, TaskError, WaitTimeout
from holdfast.model.clock import Duration
from holdfast.model.retry import Retry
from holdfast.model.step_keys import key_name
from holdfast.task.context import Context, active_context
from holdfast.task.scope import current_scope
from holdfast.telemetry import log

CHARS_PER_TOKEN = 4
"""For estimates before a request; its usage is known afterwards."""

MAX_PENDING_CHUNKS = 64
"""How many chunks a model may be ahead of the database. More of them don't make commits any cheaper."""

TOKENS_PER_PRICE = 1_000_000
ANY_MODEL = "*"
"""In a table of prices: all models that it doesn't name."""

Outside = Literal["refuse", "run"]


class StepOptions(TypedDict, total=False):
    """Options of the steps that an agent runs, as in `ctx.options(…)`.

    `cost` of a model request defaults to an estimate of its tokens, and is corrected to the actual number afterwards.
    """

    retry: Retry | None
    timeout: Duration | None
    limits: Sequence[str] | None
    cost: float | Callable[..., float] | None


@dataclass
class Approval:
    """A decision about a tool call, the output of its gate.

    Attributes:
        approved: Whether the tool may run.
        message: What the model receives instead of the tool's result if it may not.
        arguments: Arguments for the tool, instead of those that the model chose.
    """

    approved: bool
    message: str = ""
    arguments: dict[str, Any] | None = None


def body_context() -> Context | None:
    """Return the context if the calling code is the body of an async durable function, else None."""
    scope = current_scope.get()
    return active_context.get() if scope is not None and scope.in_body else None


def step_context() -> Context | None:
    """Return the context if the calling code is a step of an async durable function, else None."""
    scope = current_scope.get()
    return active_context.get() if scope is not None and scope.step is not None else None


_warned: set[tuple[str, str]] = set()


def check_place(agent: str, outside: Outside, *, advice: str) -> None:
    """Refuse to run an agent where nothing is recorded, and warn where it is recorded as a part of one step."""
    scope = current_scope.get()
    if scope is not None and scope.in_body and active_context.get() is not None:
        return
    if scope is not None and scope.durable and scope.step is not None:
        step = key_name(scope.step)
        if (agent, step) not in _warned:
            _warned.add((agent, step))
            log.agent_inside_step(agent, step, advice)
        return
    if outside == "run":
        return
    where = "outside a durable function"
    if scope is not None and scope.durable:
        where = "in a durable function with a SyncContext"
    raise TaskError(
        f"agent {agent} was run {where}, so nothing of it would be recorded: run it in an async def that takes a "
        'Context, or allow it with outside="run"'
    )


async def wait_for_approval(ctx: Context, tool: str, payload: dict[str, Any], timeout: Duration | None) -> Approval:
    """Wait at the gate of a tool call. A rejected gate and a timeout deny the call."""
    try:
        return await ctx.gate(f"approve:{tool}", payload=payload, timeout=timeout, type=Approval)
    except GateRejected as rejected:
        return Approval(False, rejected.error.message)
    except WaitTimeout:
        return Approval(False, "Nobody approved the call in time.")


@dataclass(frozen=True)
class Price:
    """What a model costs per million tokens, in the unit of a budget.

    Attributes:
        input: The price of input tokens.
        output: The price of output tokens.
        cached: The price of input tokens that were read from a cache. Defaults to that of other input tokens.
    """

    input: float
    output: float
    cached: float | None = None

    def amount(self, usage: TokenUsage) -> Decimal:
        """Return what a request costs."""
        cached = self.input if self.cached is None else self.cached
        parts = (
            (usage.input - usage.cached, self.input),
            (usage.cached, cached),
            (usage.output, self.output),
        )
        return sum((Decimal(repr(price)) * tokens for tokens, price in parts), Decimal()) / TOKENS_PER_PRICE


class TokenUsage(NamedTuple):
    """The tokens of a model request. `input` includes those that were read from a cache."""

    input: int
    output: int
    cached: int = 0


class ModelSpending:
    """Adds what model requests cost to a budget: by a table of prices, or the number of their tokens without one."""

    def __init__(self, budget: str | None, prices: Mapping[str, Price] | None) -> None:
        if budget is None and prices is not None:
            raise ConfigError("prices= is given without budget=: name the budget that the agent spends")
        self.budget = budget
        self._prices = prices

    async def spend(self, ctx: Context, model: str, usage: TokenUsage) -> None:
        """Spend what a request has cost. Called in its step: it counts with the step's record."""
        if self.budget is not None:
            await ctx.spend(self.budget, self.amount(model, usage))

    def amount(self, model: str, usage: TokenUsage) -> Decimal:
        if self._prices is None:
            return Decimal(usage.input + usage.output)
        fitting = [name for name in self._prices if model.startswith(name)]
        name = max(fitting, key=len, default=ANY_MODEL)
        if name not in self._prices:
            raise Fatal(
                f"model {model} has no price: add it to prices=, or a price for {ANY_MODEL!r}, all other models"
            )
        return self._prices[name].amount(usage)


async def adjust_limits(ctx: Context, options: StepOptions, tokens: int) -> None:
    """Correct the estimated cost of a model request. Called in its step; limits that count calls stay as they are."""
    for limit in options.get("limits") or ():
        try:
            await ctx.adjust(limit, tokens)
        except LimitNotTaken:
            continue


class ChunkWriter:
    """Writes chunks of a step in order while the model goes on, so that those that come fast share commits."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._pending: deque[asyncio.Future[None]] = deque()

    async def write(self, chunk: Any) -> None:
        """Submit a chunk. Raises what an earlier one failed with."""
        self._pending.append(asyncio.ensure_future(self._ctx.write(chunk)))
        await asyncio.sleep(0)  # the chunk is submitted now, before others that the same code writes itself
        while self._pending and (len(self._pending) > MAX_PENDING_CHUNKS or self._pending[0].done()):
            await self._pending.popleft()

    async def flush(self) -> None:
        """Wait until all chunks are durable."""
        pending = list(self._pending)
        self._pending.clear()
        await asyncio.gather(*pending)

    def cancel(self) -> None:
        """Stop waiting for the chunks that aren't durable."""
        for write in self._pending:
            write.cancel()


@asynccontextmanager
async def chunk_writer(ctx: Context) -> AsyncIterator[ChunkWriter]:
    """Return a writer of chunks for a part of a step, which ends when they are durable."""
    writer = ChunkWriter(ctx)
    try:
        try:
            yield writer
        except Exception:
            await writer.flush()
            raise
        await writer.flush()
    except asyncio.CancelledError:
        writer.cancel()
        raise


async def run_step(
    ctx: Context,
    name: str,
    operation: Callable[..., Coroutine[Any, Any, Any]],
    *identity: str,
    options: StepOptions,
    raises: tuple[type[Exception], ...] = (),
) -> Any:
    """Run an operation of an agent as a step."""
    return await ctx.options(name=name, raises=raises, **options).step(operation, *identity)
