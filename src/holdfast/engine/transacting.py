"""One `ctx.transaction` on its way: author code in a thread, and its number among the other results of its run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, cast

from holdfast.engine.calling import Calls
from holdfast.engine.deliveries import Deliveries
from holdfast.engine.effects import Tried
from holdfast.engine.score import Score
from holdfast.engine.trying import Tries, returned
from holdfast.errors import StoreError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store.commands import Record
from holdfast.task.operations import Transaction


class Transacting:
    """`work` is called in the thread, everything else on the loop."""

    def __init__(
        self,
        operation: Transaction,
        key: str,
        score: Score,
        deliveries: Deliveries,
        loop: asyncio.AbstractEventLoop,
        calls: Calls,
    ) -> None:
        self._calls = calls
        self.record = Record(*score.held, 0, key, "step")
        self._call = operation
        self._score = score
        self._deliveries = deliveries
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
        n = self._score.number()
        if not self._given_up:
            self._deliveries.ask(n)
        return n

    async def ended(self, thread: Awaitable[str | None]) -> Tried:
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
        return Tried(text, n=self.record.n)

    def give_up(self) -> None:
        """Author code doesn't wait for it any more: what the thread still does has no turn to wait for."""
        self._given_up = True
        if self.record.n:
            self._deliveries.drop(self.record.n)

    def failed(self, error: BaseException) -> Tried:
        """It was taken back."""
        self.give_up()
        if self.record.n:
            self._score.unused(self.record.n)
        return cast(Tried, Tries(self._call, None, None).failed(error))
