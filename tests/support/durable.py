"""Short words for tests of durable functions: draining, what a run's history says, effects that leave a trace."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Holdfast, Run
from tests.support.ledger import Ledger


def drain(app: Holdfast, **settings: Any) -> None:
    """Work until nothing is ready: runs that wait are suspended, and come back by replay at the next drain."""
    app.worker(**settings).drain(timeout=60)


def kinds(run: Run[Any]) -> list[str]:
    return [entry.kind for entry in run.history()]


def state(run: Run[Any]) -> str:
    return run.info().state


class Effects:
    """Functions for steps that write every call into the ledger. Methods have names of their own, closures don't."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def note(self, what: str) -> str:
        self.ledger.write(what)
        return what

    async def anote(self, what: str) -> str:
        self.ledger.write(what)
        return what

    def fail(self, what: str) -> str:
        self.ledger.write(what)
        raise ValueError(what)

    async def afail(self, what: str) -> str:
        self.ledger.write(what)
        raise ValueError(what)

    def fail_until(self, what: str, times: int) -> str:
        """Fails until it was called so many times."""
        self.ledger.write(what)
        if self.ledger.counts()[what] < times:
            raise ValueError(what)
        return what


class Turnstile:
    """Lets the functions of concurrent steps end in an order that the test chooses, and no other."""

    def __init__(self, order: list[str]) -> None:
        self._left = list(order)
        self._events: dict[str, asyncio.Event] = {}

    def _event(self, who: str) -> asyncio.Event:
        return self._events.setdefault(who, asyncio.Event())

    async def through(self, who: str) -> None:
        """Wait for one's turn. It comes when those before have gone through and `passed` was called for them."""
        if self._left and self._left[0] == who:
            self._event(who).set()
        await self._event(who).wait()

    def passed(self, who: str) -> None:
        if who in self._left:
            self._left.remove(who)
        if self._left:
            self._event(self._left[0]).set()
