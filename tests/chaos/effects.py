"""What the tasks of a chaos run do to the world outside: lines of an append-only ledger, and rows of a table.

    began MARK -    -      ATTEMPT PID TIME    a function was called: at first, and at each replay
    did   MARK STEP KEY    ATTEMPT PID TIME    the effect itself, with its idempotency key
    kept  MARK STEP RESULT ATTEMPT PID TIME    the function has got the step's result, which is durable then
    harm  MARK KIND -      0       PID TIME    a culprit is about to harm its worker

A mark names one run of the workload. Where code can't know the number of its attempt, it is 0. The time is the
system's monotonic one, the same for all processes, whatever their clocks say.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from typing import Any, NamedTuple

from holdfast import Context, SyncContext, idempotency_key
from tests.support.ledger import Ledger

TABLE = "create table if not exists effects (mark text, name text)"
LONGEST = 0.2


class Line(NamedTuple):
    """One line of the ledger."""

    kind: str
    mark: str
    step: str
    word: str
    attempt: int
    pid: int
    at: float

    @classmethod
    def read(cls, text: str) -> Line:
        kind, mark, step, word, attempt, pid, at = text.split()
        return cls(kind, mark, step, word, int(attempt), int(pid), float(at))


def lines_of(ledger: Ledger) -> list[Line]:
    """All lines, in the order in which they were written."""
    return [Line.read(text) for text in ledger.lines()]


class Effects:
    """Writes the lines. What an effect gives back tells who had it: attempt and process."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def began(self, mark: str, attempt: int) -> None:
        self._write("began", mark, "-", "-", attempt)

    def harm(self, mark: str, kind: str) -> None:
        self._write("harm", mark, kind, "-", 0)

    def do(self, mark: str, step: str, attempt: int = 0) -> str:
        """An effect, with time before and after it to die in."""
        time.sleep(random.uniform(0, LONGEST))
        self._write("did", mark, step, idempotency_key(), attempt)
        time.sleep(random.uniform(0, LONGEST))
        return f"{attempt}:{os.getpid()}"

    async def ado(self, mark: str, step: str, attempt: int = 0) -> str:
        await asyncio.sleep(random.uniform(0, LONGEST))
        self._write("did", mark, step, idempotency_key(), attempt)
        await asyncio.sleep(random.uniform(0, LONGEST))
        return f"{attempt}:{os.getpid()}"

    async def step(self, ctx: Context, mark: str, name: str, **options: Any) -> str:
        """A step with an effect, and the note that it is kept."""
        does = random.choice([self.do, self.ado])
        kept = await ctx.step(partial(does, mark, name, ctx.attempt), name=name, **options)
        self._write("kept", mark, name, kept, ctx.attempt)
        return str(kept)

    def plain_step(self, ctx: SyncContext, mark: str, name: str, **options: Any) -> str:
        kept = ctx.step(partial(self.do, mark, name, ctx.attempt), name=name, **options)
        self._write("kept", mark, name, kept, ctx.attempt)
        return str(kept)

    def insert(self, connection: Any, mark: str, name: str) -> str:
        """A row of the user's own, in the same database."""
        place = "?, ?" if "Sqlite" in type(connection).__name__ else "%s, %s"
        connection.execute(f"insert into effects (mark, name) values ({place})", (mark, name))
        return name

    def _write(self, kind: str, mark: str, step: str, word: str, attempt: int) -> None:
        self._ledger.write(kind, mark, step, word, attempt, os.getpid(), f"{time.monotonic():.4f}")
