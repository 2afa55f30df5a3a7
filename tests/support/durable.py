"""Helpers for tests of durable functions: drain a worker, read the history, record effects."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast, Run
from tests.support.ledger import Ledger
from tests.support.step_functions import step_function


def drain(app: Holdfast, **settings: Any) -> None:
    """Run a worker until nothing is ready. Runs that wait are suspended; the next drain replays them."""
    app.worker(**settings).drain(timeout=60)


def kinds(run: Run[Any]) -> list[str]:
    return [entry.kind for entry in run.history()]


def state(run: Run[Any]) -> str:
    return run.info().state


class Effects:
    """Step functions that write every call into the ledger. Methods, because closures have no stable names."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    @step_function
    def note(self, what: str) -> str:
        self.ledger.write(what)
        return what

    @step_function
    async def anote(self, what: str) -> str:
        self.ledger.write(what)
        return what

    @step_function
    def fail(self, what: str) -> str:
        self.ledger.write(what)
        raise ValueError(what)

    @step_function
    async def afail(self, what: str) -> str:
        self.ledger.write(what)
        raise ValueError(what)

    @step_function
    def fail_until(self, what: str, times: int) -> str:
        """Fail until it was called this many times."""
        self.ledger.write(what)
        if self.ledger.counts()[what] < times:
            raise ValueError(what)
        return what
