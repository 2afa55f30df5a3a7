"""The external effects of a chaos run's tasks: lines of an append-only ledger, and rows of a table.

    began MARK -    -      ATTEMPT PID TIME    a function was called, for the first time or to replay
    did   MARK STEP KEY    ATTEMPT PID TIME    the effect, with its idempotency key
    kept  MARK STEP RESULT ATTEMPT PID TIME    the function received the step's result, which is durable
    harm  MARK KIND -      0       PID TIME    a culprit is about to harm its worker

A mark identifies one run of the workload. Code that can't know the number of its attempt writes 0. The time is the
monotonic clock, which is the same for all processes even if their wall clocks are skewed.
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
from tests.support.step_functions import step_function

TABLE = "create table if not exists effects (mark text, name text)"
MAX_PAUSE_S = 0.2


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


def read_lines(ledger: Ledger) -> list[Line]:
    """Return all lines in the order of writing."""
    return [Line.read(text) for text in ledger.lines()]


class Effects:
    """Writes the lines. The result of an effect names its attempt and process."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def began(self, mark: str, attempt: int) -> None:
        self._write("began", mark, "-", "-", attempt)

    def harm(self, mark: str, kind: str) -> None:
        self._write("harm", mark, kind, "-", 0)

    def do(self, mark: str, step: str, attempt: int = 0) -> str:
        """Write an effect, with pauses before and after in which the worker can die."""
        time.sleep(random.uniform(0, MAX_PAUSE_S))
        self._write("did", mark, step, idempotency_key(), attempt)
        time.sleep(random.uniform(0, MAX_PAUSE_S))
        return f"{attempt}:{os.getpid()}"

    async def ado(self, mark: str, step: str, attempt: int = 0) -> str:
        await asyncio.sleep(random.uniform(0, MAX_PAUSE_S))
        self._write("did", mark, step, idempotency_key(), attempt)
        await asyncio.sleep(random.uniform(0, MAX_PAUSE_S))
        return f"{attempt}:{os.getpid()}"

    async def do_batch(self, marks: list[str], step: str) -> None:
        """Write an effect of each run of a batch. A call has one idempotency key, so the marks take its place."""
        await asyncio.sleep(random.uniform(0, MAX_PAUSE_S))
        for mark in marks:
            self._write("did", mark, step, mark, 0)
        await asyncio.sleep(random.uniform(0, MAX_PAUSE_S))

    async def step(self, ctx: Context, mark: str, name: str, **options: Any) -> str:
        """Run a step with an effect and record that its result was received."""
        does = random.choice([self.do, self.ado])
        kept = await ctx.options(name=name, **options).step(partial(does, mark, name, ctx.attempt))
        self._write("kept", mark, name, kept, ctx.attempt)
        return str(kept)

    def sync_step(self, ctx: SyncContext, mark: str, name: str, **options: Any) -> str:
        kept = ctx.step(partial(self.do, mark, name, ctx.attempt), name=name, **options)
        self._write("kept", mark, name, kept, ctx.attempt)
        return str(kept)

    @step_function
    def insert(self, connection: Any, mark: str, name: str) -> str:
        """Insert a row into a table of the application."""
        place = "?, ?" if "Sqlite" in type(connection).__name__ else "%s, %s"
        connection.execute(f"insert into effects (mark, name) values ({place})", (mark, name))
        return name

    def _write(self, kind: str, mark: str, step: str, word: str, attempt: int) -> None:
        self._ledger.write(kind, mark, step, word, attempt, os.getpid(), f"{time.monotonic():.4f}")
