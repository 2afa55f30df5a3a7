"""Carries out the operations of an `async def` durable function on the event loop.

A branch that waits never raises: it awaits a future. When nothing is left but waits, and nothing has moved for a
moment, the context is closed and the run's tasks are cancelled; whatever comes out of them counts as the suspension.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.engine import effects as fx
from holdfast.engine.branches import Branches
from holdfast.engine.calling import Calls
from holdfast.engine.deliveries import Deliveries
from holdfast.engine.desk import Answer, Ask, Desk
from holdfast.engine.enclosing_timeouts import EnclosingTimeouts
from holdfast.engine.lingering import CROWDED, QUIET_TURNS, Lingering
from holdfast.engine.player import Player
from holdfast.engine.refusing import Refusal
from holdfast.engine.score import Score
from holdfast.engine.transacting import Transacting
from holdfast.store.commands import Command, Open, Outcome, Record, Withdraw, Wrote
from holdfast.store.waking import recorded_as
from holdfast.task.operations import Operation, Step

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt


class Conductor(Player):
    """One attempt of an `async def` durable function."""

    __slots__ = (
        "_begun", "_branches", "_closed", "_deliveries", "_desk", "_ended", "_futures", "_lingering",
        "_loop", "_moved", "_open", "_refusal", "_timeouts", "calls", "current", "score", "stuck",
    )  # fmt: skip

    def __init__(self, attempt: Attempt, score: Score, desk: Desk, loop: asyncio.AbstractEventLoop) -> None:
        self.current = attempt
        self.score = score
        self._desk = desk
        self._loop = loop
        self._deliveries = Deliveries(loop, score.past.numbers)
        self._open: dict[str, tuple[fx.Await, asyncio.Future[Any]]] = {}
        self._futures: set[asyncio.Future[Any]] = set()
        self._branches = Branches(self._deliveries)
        self._begun = self._ended = self._moved = 0  # author code, commands and reads; and what else happened
        self._closed = False
        self._refusal = Refusal()
        self._lingering = Lingering()
        self._timeouts = EnclosingTimeouts(loop)
        self.stuck: list[str] = []
        self.calls = Calls(attempt, score.past, desk, loop)
        for record in [] if score.dry else score.past.settled:
            self._tell(record)

    # For the context

    async def perform(self, operation: Operation) -> Any:
        current = self.current
        if self._closed or current.order is not None:
            await self._refusal.answer()
        task = asyncio.current_task(self._loop)  # given the loop, it needs no system call to find it
        if task is not current.handle and task is not None:
            self._branches.add(task)
        if type(operation) is not Step or (key := self.score.new_step(operation)) is None:
            return await self._carry_out(self.score.plan(operation))
        # The plan of a new step, written out: it is most of what happens, and costs half as much
        if self._deliveries.several:
            self._deliveries.opened()
        self._begun += 1
        try:
            tried = await self.calls.run(self, operation, key)
        except BaseException:
            self.finish()
            raise
        if tried.text is None or tried.kept is None:
            self.finish()
            return await self._carry_out(self.score.tried(operation, key, tried))
        record = self.score.step_record(key, tried)
        self._futures.add(future := self._loop.create_future())
        self._deliveries.ask(record.n)
        self._desk.keep(Ask(current, record, self._kept, True, future, len(tried.kept), plain=True))
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
                if self._deliveries.several:
                    self._deliveries.opened()
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
        return self._begun == self._ended and self._deliveries.idle

    @property
    def moves(self) -> int:
        return self._begun + self._ended + self._moved

    def check(self) -> None:
        if self._closed or self.current.order is not None:
            raise asyncio.CancelledError("the run is suspended or over")

    # Effects

    async def _replay(self, effect: fx.Replay) -> Any:
        """A turn later: tasks that author code made before begin before it is answered, as they did the first time."""
        await asyncio.sleep(0)
        n, data = effect.kept.n, None
        self._deliveries.ask(n, recorded=True)
        if effect.read is not None:
            try:
                data = await self._read(effect.read)
            except BaseException:  # this branch was cancelled: nobody may wait for its turn
                self._deliveries.drop(n)
                raise
        return await self._awaited(self._delivered(n, data))

    def _delivered(self, n: int, value: Any) -> asyncio.Future[Any]:
        """A result that is here already, when its turn comes."""
        future = self._future()
        self._deliveries.deliver(n, future, value)
        return future

    def _future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._futures.add(future)
        return future

    async def _awaited(self, future: asyncio.Future[Any]) -> Any:
        """Await something of ours inside of what a plan awaits."""
        self._deliveries.opened()
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
            self._deliveries.ask(n)
        self._desk.submit_here(Ask.of(self.current, command, self._written, True, future))
        return future

    def _kept(self, ask: Ask, answer: Answer) -> None:
        """The answer to the checkpoint of a step."""
        if type(answer) is Wrote and not self._open:
            self._ended += 1
            self._deliveries.deliver(ask.command.n, ask.about, None)  # type: ignore[union-attr, arg-type]
        else:
            self._written(ask, answer)

    def _written(self, ask: Ask, answer: Answer) -> None:
        n, future = getattr(ask.command, "n", None), ask.about
        self.finish()
        if type(answer) is Wrote:
            if n is not None:
                self._deliveries.deliver(n, future, answer.value)
            elif not future.done():
                future.set_result(answer.value)
        elif isinstance(answer, Exception):
            if n is not None:
                self._deliveries.drop(n)
            if not future.done():
                future.set_exception(answer)
        # lost: author code is being stopped, and nothing more reaches it

    def _tell(self, command: Command) -> None:
        """Have a command written that nobody waits for: what it says is durable elsewhere."""
        self._begun += 1
        self._desk.submit_here(Ask.of(self.current, command, self.finish, True))

    def finish(self, *_told: Any) -> None:
        self._ended += 1
        if self._open:
            self._consider()

    async def _read(self, read: Callable[[], Any]) -> Any:
        """A blocking look at the database."""
        return await self._under_way(self.calls.in_thread(read))

    # Waiting

    def _wait(self, effect: fx.Await) -> asyncio.Future[Any]:
        wait, past = effect.wait, self.score.past
        self._timeouts.check(wait, self.score)
        future = self._future()
        known = past.open.pop(wait.key, None)
        if known is not None or wait.key in past.withdrawn:
            self.score.unused(wait.n)
            self._opened(effect, future, None if known is None else known.due_in)
        else:
            self._register(effect, future)
        return future

    def _register(self, effect: fx.Await, future: asyncio.Future[Any]) -> None:
        """A turn later: of a branch that was cancelled before this call, what it withdraws is said first."""
        self._deliveries.ask(effect.wait.n)
        self._begun += 1
        ask = Ask.of(self.current, effect.wait, self._registered, True, (effect, future))
        self._loop.call_soon(self._desk.submit_here, ask)

    def _registered(self, ask: Ask, answer: Answer) -> None:
        effect, future = ask.about
        self.finish()
        n = effect.wait.n
        if isinstance(answer, Open):
            self._deliveries.drop(n)
            self.score.unused(n)
            self._opened(effect, future, answer.due_in)
        elif isinstance(answer, Outcome):
            self._came(n, future, answer, effect.read)
        elif isinstance(answer, Exception):
            self._deliveries.drop(n)
            if not future.done():
                future.set_exception(answer)

    def _opened(self, effect: fx.Await, future: asyncio.Future[Any], due_in: int | None) -> None:
        wait = effect.wait
        self._open[wait.key] = (effect, future)
        future.add_done_callback(lambda _: self._open.pop(wait.key, None))
        self._moved += 1
        self._lingering.opened(wait.kind, due_in, self._loop.time())
        self._desk.watch(self)
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
        n = self.score.number()
        self._deliveries.ask(n)
        self._tell(Record(*self.score.held, n, key, *recorded_as(effect.wait.kind, outcome), waited=True))
        self._came(n, future, outcome, effect.read)

    def _withdraw(self, effect: fx.Effect) -> None:
        """A branch was cancelled where it awaits. If that was author code's doing, its wait is over."""
        key = fx.waits_by(effect)
        stopped = self._closed or self.current.order is not None or self.score.dry
        if key is not None and key not in self.score.past.withdrawn and not stopped:
            self._tell(Withdraw(self.score.held, self.score.number_aside(), key))

    def _came(self, n: int, future: asyncio.Future[Any], outcome: Outcome, read: Callable[[], Any] | None) -> None:
        if read is None:
            self._deliveries.deliver(n, future, fx.Came(n, outcome))
            return
        reading = self._loop.create_task(self._read(read))
        self._branches.add(reading)

        def done(task: asyncio.Task[Any]) -> None:
            if task.cancelled() or future.done():
                self._deliveries.drop(n)
            elif error := task.exception():
                self._deliveries.drop(n)
                future.set_exception(error)
            else:
                self._deliveries.deliver(n, future, fx.Came(n, outcome, task.result()))

        reading.add_done_callback(done)

    # Suspension

    def _consider(self) -> None:
        """When nothing is left but waits, look again in a moment."""
        if self._open and self._begun == self._ended and not self._closed:
            seconds = self._lingering.seconds(self._loop.time(), self._desk.has_room())
            self._loop.call_later(seconds, self._suspend_if_quiet, self.moves, 0)

    def _suspend_if_quiet(self, moves: int, turns: int) -> None:
        if self.moves != moves or self._begun != self._ended or not self._open or self._closed:
            return
        if not self._deliveries.idle:
            self._loop.call_later(CROWDED, self._suspend_if_quiet, moves, 0)
            return
        if turns < QUIET_TURNS:
            self._loop.call_soon(self._suspend_if_quiet, moves, turns + 1)
            return
        if again := self._open.keys() & self.score.past.withdrawn:
            self._wait_again(again)
            return
        if self._timeouts.refuse(self._open, self._withdraw):
            return
        self.current.waits_for = sorted(self._open)
        self.close()
        self._desk.stop(self.current, "suspend")

    def _wait_again(self, keys: set[str]) -> None:
        """Author code cancelled these waits once, and this time it doesn't: so they are waits like any other."""
        self.score.past.withdrawn -= keys
        for key in sorted(keys):
            effect, future = self._open.pop(key)
            effect.wait.n = self.score.number()
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

    async def _restart(self, effect: fx.Restart) -> Any:
        self.current.restart_args = effect.args
        self.close()
        self._desk.stop(self.current, "restart")
        await self._never()

    async def _never(self) -> NoReturn:
        await self._future()  # until author code is cancelled
        raise asyncio.CancelledError

    def _be_stuck(self, effect: fx.Stuck) -> asyncio.Future[Any]:
        if effect.key not in self.score.past.withdrawn:
            self.stuck.append(effect.key)
        self._moved += 1
        return self._future()

    # Author code

    def run_step(self, effect: fx.Try) -> Coroutine[Any, Any, fx.Tried]:
        return self._under_way(self.calls.run(self, effect.step, effect.key))

    def given_up(self, key: str, tried: fx.Tried) -> None:
        """Record a step with an undo that ended in its thread after its caller was cancelled: its effect is there."""
        if tried.error is None:
            self._tell(self.score.record(key, tried, undo=1))

    async def _under_way(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A branch does something that isn't waiting."""
        self._begun += 1
        self._deliveries.opened()
        try:
            return await work
        finally:
            self.finish()

    async def _transact(self, effect: fx.Transact) -> fx.Tried:
        transacting = Transacting(effect.operation, effect.key, self.score, self._deliveries, self._loop, self.calls)
        transact = partial(self._desk.transact, self.current, transacting.record, transacting.work)
        tried = await transacting.ended(self._under_way(self.calls.run_in_thread(transact, effect.key)))
        if tried.error is None:
            if tried.text is None:
                return await self._never()
            await self._awaited(self._delivered(tried.n, None))
        return tried


_EFFECTS: dict[type[Any], Callable[[Conductor, Any], Awaitable[Any]]] = {
    fx.Replay: Conductor._replay,
    fx.Submit: lambda self, effect: self._written_soon(effect.command),
    fx.Await: Conductor._wait,
    fx.Try: Conductor.run_step,
    fx.Transact: Conductor._transact,
    fx.Restart: Conductor._restart,
    fx.Stuck: Conductor._be_stuck,
}
