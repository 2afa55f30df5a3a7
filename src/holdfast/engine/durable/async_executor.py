"""Carries out the operations of an `async def` durable function on the event loop.

A branch that waits never raises: it awaits a future. When nothing is left but waits, and nothing has moved for a
moment, the context is closed and the run's tasks are cancelled; whatever comes out of them counts as the suspension.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, cast

from holdfast.engine.durable import plans as fx
from holdfast.engine.durable.delivery import Branches, OrderedDelivery
from holdfast.engine.durable.executor import BUSY_SUSPEND_DELAY_S, QUIET_ITERATIONS, Executor, SuspendDelay
from holdfast.engine.durable.plans import OperationPlans, StepResult
from holdfast.engine.durable.steps import StepCalls, StepRetries, returned
from holdfast.engine.services import WorkerServices
from holdfast.engine.write_queue import PendingWrite, WriteResult
from holdfast.errors import Fatal, StoreError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.step_keys import key_label
from holdfast.store.commands import Command, Open, Outcome, Record, Wait, Withdraw, Wrote
from holdfast.store.waking import recorded_as
from holdfast.task.operations import Operation, Step, Transaction
from holdfast.task.scope import current_scope

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt


MAX_REJECTED_CALLS = 10_000


class Refusal:
    """What the closed context of one attempt answers."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times = 0

    async def answer(self) -> NoReturn:
        """A loop without an end that catches even this would keep the event loop from all other runs."""
        self._times += 1
        if self._times > MAX_REJECTED_CALLS:
            await asyncio.get_running_loop().create_future()
        raise asyncio.CancelledError("the run is suspended or over; its context can't be used any more")


CALLBACKS = {"_on_timeout", "_release_waiter", "_timeout"}
PACKAGES = {"asyncio", "anyio", "async_timeout"}
MAX_KEPT = 16
"""With this many timers, those that have expired or were cancelled are removed."""

OpenWaits: TypeAlias = Mapping[str, tuple[fx.WaitEffect, asyncio.Future[Any]]]


class Timer(NamedTuple):
    """A timer of the event loop that cancels the code of a timeout block."""

    handle: asyncio.TimerHandle
    callback: Callable[..., Any]
    args: tuple[Any, ...]


class EnclosingTimeouts:
    """The timeouts that the body of one attempt has set."""

    __slots__ = ("_loop", "_timers")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: list[Timer] = []
        timeouts.set(self)

    def add(self, timer: Timer) -> None:
        if len(self._timers) >= MAX_KEPT:
            self._timers = self.pending()
        self._timers.append(timer)

    def pending(self) -> list[Timer]:
        """Return the timeouts that haven't expired and whose block hasn't ended."""
        now = self._loop.time()
        return [timer for timer in self._timers if not timer.handle.cancelled() and timer.handle.when() > now]

    def check(self, wait: Wait, plans: OperationPlans) -> None:
        """Refuse a wait of the current task inside a timeout."""
        if self._timers:
            task = asyncio.current_task(self._loop)
            if task is not None and any(_encloses(timer, task) for timer in self.pending()):
                plans.unused(wait.n)
                raise refusal(wait.key)

    def refuse(self, waits: OpenWaits, withdraw: Callable[[fx.Effect], None]) -> bool:
        """Fail all waits if a timeout is pending while the run does nothing but wait; return whether it is."""
        if not self.pending():
            return False
        for key, (effect, future) in list(waits.items()):
            withdraw(effect)
            if not future.done():
                future.set_exception(refusal(key))
        return True


timeouts: ContextVar[EnclosingTimeouts | None] = ContextVar("holdfast_timeouts", default=None)


def refusal(key: str) -> Fatal:
    return Fatal(
        f"{key_label(key)}: a durable wait can't be inside asyncio.timeout, asyncio.wait_for or another timeout of the "
        "event loop, which doesn't survive a suspension: give the wait itself a timeout=… (ctx.wait_for, ctx.receive), "
        "or let it race with ctx.sleep"
    )


def _encloses(timer: Timer, task: asyncio.Task[Any]) -> bool:
    """Return whether the task is what the timeout would cancel."""
    if timer.callback.__name__ == "_release_waiter":  # asyncio.wait_for of Python 3.11 waits for a task of its own
        callbacks = getattr(task, "_callbacks", None) or ()
        return any(isinstance(each, partial) and each.args == timer.args for each, _ in callbacks)
    owner = getattr(timer.callback, "__self__", None)
    return task in (getattr(owner, "_task", None), getattr(owner, "_host_task", None))


def watch_timers(loop: asyncio.AbstractEventLoop) -> None:
    """Make the loop report the timeouts that bodies of durable functions set. Does nothing the second time."""
    if getattr(loop, "_holdfast_watched", False):
        return
    with suppress(AttributeError):  # a loop that can't be changed: there a timeout around a wait isn't noticed
        loop._holdfast_watched = True  # type: ignore[attr-defined]
        loop.call_at = _watched(loop.call_at)  # type: ignore[assignment, method-assign]
        loop.call_later = _watched(loop.call_later)  # type: ignore[assignment, method-assign]


def _watched(call: Callable[..., asyncio.TimerHandle]) -> Callable[..., asyncio.TimerHandle]:
    @wraps(call)
    def watched(when: float, callback: Callable[..., Any], *args: Any, **context: Any) -> asyncio.TimerHandle:
        handle = call(when, callback, *args, **context)
        if getattr(callback, "__name__", None) in CALLBACKS and callback.__module__.partition(".")[0] in PACKAGES:
            known, now = timeouts.get(), current_scope.get()
            if known is not None and now is not None and now.in_body:
                known.add(Timer(handle, callback, args))
        return handle

    return watched


class TransactionCall:
    """`work` is called in the thread, everything else on the loop."""

    def __init__(
        self,
        operation: Transaction,
        key: str,
        plans: OperationPlans,
        delivery: OrderedDelivery,
        loop: asyncio.AbstractEventLoop,
        calls: StepCalls,
    ) -> None:
        self._calls = calls
        self.record = Record(*plans.run_token, 0, key, "step")
        self._call = operation
        self._plans = plans
        self._delivery = delivery
        self._loop = loop
        self._given_up = False
        self._started = time.monotonic()

    def work(self, connection: Any) -> str:
        """The author's function; the text of its result. Its number is taken when it is to be recorded, so that it has
        its place among the others; the same again when it is repeated."""
        call = self._call
        tried = returned(call, call.fn(connection, *call.args, **call.kwargs), self._calls.payloads)
        if tried.exception is not None:
            raise tried.exception
        self.record.took = int((time.monotonic() - self._started) * MICROS_PER_SECOND)
        if not self.record.n:
            self.record.n = asyncio.run_coroutine_threadsafe(self._take_number(), self._loop).result()
        return tried.text or "null"

    async def _take_number(self) -> int:
        n = self._plans.number()
        if not self._given_up:
            self._delivery.ask(n)
        return n

    async def ended(self, thread: Awaitable[str | None]) -> StepResult:
        """What the thread came to. Neither text nor error: the run was lost, and the transaction taken back."""
        try:
            text = await thread
        except BaseException as error:
            if self._calls.stopped(error):
                self.give_up()
                raise
            failed = self.failed(error)
            if isinstance(error, StoreError):
                raise
            return failed
        return StepResult(text, n=self.record.n)

    def give_up(self) -> None:
        """Author code doesn't wait for it any more: what the thread still does has no turn to wait for."""
        self._given_up = True
        if self.record.n:
            self._delivery.drop(self.record.n)

    def failed(self, error: BaseException) -> StepResult:
        """It was taken back."""
        self.give_up()
        if self.record.n:
            self._plans.unused(self.record.n)
        return cast(StepResult, StepRetries(self._call, None, None).failed(error))


class AsyncExecutor(Executor):
    """One attempt of an `async def` durable function."""

    __slots__ = (
        "_begun",
        "_branches",
        "_closed",
        "_delivery",
        "_ended",
        "_futures",
        "_lingering",
        "_loop",
        "_moved",
        "_open",
        "_refusal",
        "_services",
        "_timeouts",
        "calls",
        "current",
        "plans",
        "unrecorded",
    )  # fmt: skip

    def __init__(
        self, attempt: Attempt, plans: OperationPlans, services: WorkerServices, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.current = attempt
        self.plans = plans
        self._services = services
        self._loop = loop
        self._delivery = OrderedDelivery(loop, plans.history.numbers)
        self._open: dict[str, tuple[fx.WaitEffect, asyncio.Future[Any]]] = {}
        self._futures: set[asyncio.Future[Any]] = set()
        self._branches = Branches(self._delivery)
        self._begun = self._ended = self._moved = 0  # author code, commands and reads; and what else happened
        self._closed = False
        self._refusal = Refusal()
        self._lingering = SuspendDelay()
        self._timeouts = EnclosingTimeouts(loop)
        self.unrecorded: list[str] = []
        self.calls = StepCalls(attempt, plans.history, services, loop)
        for record in [] if plans.replay_only else plans.history.settled:
            self._tell(record)

    # For the context

    async def perform(self, operation: Operation) -> Any:
        current = self.current
        if self._closed or current.order is not None:
            await self._refusal.answer()
        task = asyncio.current_task(self._loop)  # given the loop, it needs no system call to find it
        if task is not current.handle and task is not None:
            self._branches.add(task)
        if type(operation) is not Step or (key := self.plans.new_step(operation)) is None:
            return await self._carry_out(self.plans.plan(operation))
        # The plan of a new step, written out: it is most of what happens, and costs half as much
        if self._delivery.several:
            self._delivery.opened()
        self._begun += 1
        try:
            tried = await self.calls.run(self, operation, key)
        except BaseException:
            self.finish()
            raise
        if tried.text is None or tried.kept is None:
            self.finish()
            return await self._carry_out(self.plans.tried(operation, key, tried))
        record = self.plans.step_record(key, tried)
        self._futures.add(future := self._loop.create_future())
        self._delivery.ask(record.n)
        self._services.submit(
            PendingWrite(current, record, self._kept, True, future, len(tried.kept), is_checkpoint=True)
        )
        try:
            await future
        finally:
            self._settle(future)
        return operation.function_info.decode(tried.text)

    async def _carry_out(self, plan: fx.Plan) -> Any:
        try:
            effect = next(plan)
            while True:
                work = _EFFECTS[type(effect)](self, effect)
                if self._delivery.several:
                    self._delivery.opened()
                try:
                    came = await work
                except asyncio.CancelledError:
                    self._withdraw(effect)
                    raise
                finally:
                    self._settle(work)
                effect = plan.send(came)
        except StopIteration as end:
            return end.value

    async def write(self, command: Command) -> Any:
        """Have something written, and wait until it is durable."""
        return await self._awaited(self._written_soon(command))

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way, and nothing on its way to author code."""
        return self._begun == self._ended and self._delivery.idle

    @property
    def moves(self) -> int:
        return self._begun + self._ended + self._moved

    def check(self) -> None:
        if self._closed or self.current.order is not None:
            raise asyncio.CancelledError("the run is suspended or over")

    # Effects

    async def _replay(self, effect: fx.ReplayEffect) -> Any:
        """A turn later: tasks that author code made before begin before it is answered, as they did the first time."""
        await asyncio.sleep(0)
        n, data = effect.kept.n, None
        self._delivery.ask(n, recorded=True)
        if effect.read is not None:
            try:
                data = await self._read(effect.read)
            except BaseException:  # this branch was cancelled: nobody may wait for its turn
                self._delivery.drop(n)
                raise
        return await self._awaited(self._delivered(n, data))

    def _delivered(self, n: int, value: Any) -> asyncio.Future[Any]:
        """A result that is here already, when its turn comes."""
        future = self._future()
        self._delivery.deliver(n, future, value)
        return future

    def _future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._futures.add(future)
        return future

    async def _awaited(self, future: asyncio.Future[Any]) -> Any:
        """Await something of ours inside of what a plan awaits."""
        self._delivery.opened()
        try:
            return await future
        finally:
            self._settle(future)

    def _settle(self, work: Any) -> None:
        """A branch, of perhaps several, has what it awaited."""
        self._futures.discard(work)
        self._moved += 1
        if self._open:
            self._consider()  # this branch may be at its end, and the others wait

    def _written_soon(self, command: Command) -> asyncio.Future[Any]:
        """Have a command written; done when it is durable, and its turn has come."""
        self._begun += 1
        future = self._future()
        n: int | None = getattr(command, "n", None)
        if n is not None:
            self._delivery.ask(n)
        self._services.submit(PendingWrite.of(self.current, command, self._written, True, future))
        return future

    def _kept(self, write: PendingWrite, answer: WriteResult) -> None:
        """The answer to the checkpoint of a step."""
        if type(answer) is Wrote and not self._open:
            self._ended += 1
            self._delivery.deliver(write.command.n, write.context, None)  # type: ignore[union-attr, arg-type]
        else:
            self._written(write, answer)

    def _written(self, write: PendingWrite, answer: WriteResult) -> None:
        n, future = getattr(write.command, "n", None), write.context
        self.finish()
        if type(answer) is Wrote:
            if n is not None:
                self._delivery.deliver(n, future, answer.value)
            elif not future.done():
                future.set_result(answer.value)
        elif isinstance(answer, Exception):
            if n is not None:
                self._delivery.drop(n)
            if not future.done():
                future.set_exception(answer)
        # lost: author code is being stopped, and nothing more reaches it

    def _tell(self, command: Command) -> None:
        """Have a command written that nobody waits for: what it says is durable elsewhere."""
        self._begun += 1
        self._services.submit(PendingWrite.of(self.current, command, self.finish, True))

    def finish(self, *_told: Any) -> None:
        self._ended += 1
        if self._open:
            self._consider()

    async def _read(self, read: Callable[[], Any]) -> Any:
        """A blocking look at the database."""
        return await self._under_way(self.calls.in_thread(read))

    # Waiting

    def _wait(self, effect: fx.WaitEffect) -> asyncio.Future[Any]:
        wait, history = effect.wait, self.plans.history
        self._timeouts.check(wait, self.plans)
        future = self._future()
        known = history.open.pop(wait.key, None)
        if known is not None or wait.key in history.withdrawn:
            self.plans.unused(wait.n)
            self._opened(effect, future, None if known is None else known.due_in)
        else:
            self._register(effect, future)
        return future

    def _register(self, effect: fx.WaitEffect, future: asyncio.Future[Any]) -> None:
        """A turn later: of a branch that was cancelled before this call, what it withdraws is said first."""
        self._delivery.ask(effect.wait.n)
        self._begun += 1
        write = PendingWrite.of(self.current, effect.wait, self._registered, True, (effect, future))
        self._loop.call_soon(self._services.submit, write)

    def _registered(self, write: PendingWrite, answer: WriteResult) -> None:
        effect, future = write.context
        self.finish()
        n = effect.wait.n
        if isinstance(answer, Open):
            self._delivery.drop(n)
            self.plans.unused(n)
            self._opened(effect, future, answer.due_in)
        elif isinstance(answer, Outcome):
            self._came(n, future, answer, effect.read)
        elif isinstance(answer, Exception):
            self._delivery.drop(n)
            if not future.done():
                future.set_exception(answer)

    def _opened(self, effect: fx.WaitEffect, future: asyncio.Future[Any], due_in: int | None) -> None:
        wait = effect.wait
        self._open[wait.key] = (effect, future)
        future.add_done_callback(lambda _: self._open.pop(wait.key, None))
        self._moved += 1
        self._lingering.opened(wait.kind, due_in, self._loop.time())
        self._services.watch(self)
        self._consider()

    def hear(self, key: str, kind: str, outcome: Outcome) -> None:  # noqa: ARG002 - a wait has one kind
        self._loop.call_soon_threadsafe(self._settled, key, outcome)

    def _settled(self, key: str, outcome: Outcome) -> None:
        """One of our waits has come to something."""
        opened = self._open.pop(key, None)
        if opened is None or self._closed:
            return
        effect, future = opened
        self._lingering.resumed()
        n = self.plans.number()
        self._delivery.ask(n)
        self._tell(Record(*self.plans.run_token, n, key, *recorded_as(effect.wait.kind, outcome), waited=True))
        self._came(n, future, outcome, effect.read)

    def _withdraw(self, effect: fx.Effect) -> None:
        """A branch was cancelled where it awaits. If that was author code's doing, its wait is over."""
        key = fx.waits_by(effect)
        stopped = self._closed or self.current.order is not None or self.plans.replay_only
        if key is not None and key not in self.plans.history.withdrawn and not stopped:
            self._tell(Withdraw(self.plans.run_token, self.plans.number_aside(), key))

    def _came(self, n: int, future: asyncio.Future[Any], outcome: Outcome, read: Callable[[], Any] | None) -> None:
        if read is None:
            self._delivery.deliver(n, future, fx.WaitResult(n, outcome))
            return
        reading = self._loop.create_task(self._read(read))
        self._branches.add(reading)

        def done(task: asyncio.Task[Any]) -> None:
            if task.cancelled() or future.done():
                self._delivery.drop(n)
            elif error := task.exception():
                self._delivery.drop(n)
                future.set_exception(error)
            else:
                self._delivery.deliver(n, future, fx.WaitResult(n, outcome, task.result()))

        reading.add_done_callback(done)

    # Suspension

    def _consider(self) -> None:
        """When nothing is left but waits, look again in a moment."""
        if self._open and self._begun == self._ended and not self._closed:
            seconds = self._lingering.seconds(self._loop.time(), self._services.has_room())
            self._loop.call_later(seconds, self._suspend_if_quiet, self.moves, 0)

    def _suspend_if_quiet(self, moves: int, turns: int) -> None:
        if self.moves != moves or self._begun != self._ended or not self._open or self._closed:
            return
        if not self._delivery.idle:
            self._loop.call_later(BUSY_SUSPEND_DELAY_S, self._suspend_if_quiet, moves, 0)
            return
        if turns < QUIET_ITERATIONS:
            self._loop.call_soon(self._suspend_if_quiet, moves, turns + 1)
            return
        if again := self._open.keys() & self.plans.history.withdrawn:
            self._wait_again(again)
            return
        if self._timeouts.refuse(self._open, self._withdraw):
            return
        self.current.waits_for = sorted(self._open)
        self.close()
        self._services.stop(self.current, "suspend")

    def _wait_again(self, keys: set[str]) -> None:
        """Author code cancelled these waits once, and this time it doesn't: so they are waits like any other."""
        self.plans.history.withdrawn -= keys
        for key in sorted(keys):
            effect, future = self._open.pop(key)
            effect.wait.n = self.plans.number()
            self._register(effect, future)

    def close(self) -> None:
        """Nothing more happens in this context: whoever still waits in it is cancelled."""
        self._closed = True
        for future in list(self._futures):
            future.cancel()
        self._branches.cancel()

    def reopen(self) -> None:
        """For compensations, when the function itself is closed."""
        self._closed = False

    async def _restart(self, effect: fx.RestartEffect) -> Any:
        self.current.restart_args = effect.args
        self.close()
        self._services.stop(self.current, "restart")
        await self._never()

    async def _never(self) -> NoReturn:
        await self._future()  # until author code is cancelled
        raise asyncio.CancelledError

    def _be_stuck(self, effect: fx.UnrecordedEffect) -> asyncio.Future[Any]:
        if effect.key not in self.plans.history.withdrawn:
            self.unrecorded.append(effect.key)
        self._moved += 1
        return self._future()

    # Author code

    def run_step(self, effect: fx.StepEffect) -> Coroutine[Any, Any, fx.StepResult]:
        return self._under_way(self.calls.run(self, effect.step, effect.key))

    def given_up(self, key: str, tried: fx.StepResult) -> None:
        """Record a step with an undo that ended in its thread after its caller was cancelled: its effect is there."""
        if tried.error is None:
            self._tell(self.plans.record(key, tried, undo=1))

    async def _under_way(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A branch does something that isn't waiting."""
        self._begun += 1
        self._delivery.opened()
        try:
            return await work
        finally:
            self.finish()

    async def _transact(self, effect: fx.TransactionEffect) -> fx.StepResult:
        transacting = TransactionCall(effect.operation, effect.key, self.plans, self._delivery, self._loop, self.calls)
        transact = partial(self._services.transact, self.current, transacting.record, transacting.work)
        tried = await transacting.ended(self._under_way(self.calls.run_in_thread(transact, effect.key)))
        if tried.error is None:
            if tried.text is None:
                return await self._never()
            await self._awaited(self._delivered(tried.n, None))
        return tried


_EFFECTS: dict[type[Any], Callable[[AsyncExecutor, Any], Awaitable[Any]]] = {
    fx.ReplayEffect: AsyncExecutor._replay,
    fx.WriteEffect: lambda self, effect: self._written_soon(effect.command),
    fx.WaitEffect: AsyncExecutor._wait,
    fx.StepEffect: AsyncExecutor.run_step,
    fx.TransactionEffect: AsyncExecutor._transact,
    fx.RestartEffect: AsyncExecutor._restart,
    fx.UnrecordedEffect: AsyncExecutor._be_stuck,
}
