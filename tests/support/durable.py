"""Short words for tests of durable functions: draining, what a run's history says, effects that leave a trace."""

from __future__ import annotations

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
