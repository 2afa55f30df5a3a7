"""Contexts without an engine: an executor that only records operations, and tasks for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from holdfast.task import operations as op
from holdfast.task.context import Context
from holdfast.task.registry import Registry, register_task, remote_task
from holdfast.task.sync_context import SyncContext

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@dataclass
class Handle:
    id: UUID
    task: str


RUN = Handle(UUID(int=1), "pay")


class Recorder:
    """Records operations, and returns the results that contexts read."""

    run_id = UUID(int=5)
    attempt = 2
    scheduled_for = NOON

    def __init__(self, task) -> None:
        self.task = task
        self.asked: list[op.Operation] = []
        self.checks = 0

    def check(self) -> None:
        self.checks += 1

    def answer(self, operation):
        self.asked.append(operation)
        return RUN if isinstance(operation, op.Spawn) else "answer"


class Waits(Recorder):
    async def perform(self, operation):
        return self.answer(operation)


class Blocks(Recorder):
    def perform(self, operation):
        return self.answer(operation)


class Asking:
    """A context whose methods return the operation that the call created."""

    def __init__(self, context: type, executor: Any) -> None:
        self.executor = executor
        self.context = context(executor)
        self.blocks = context is SyncContext

    def answer(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        return self.settle(getattr(self.context, verb)(*args, **kwargs))

    def settle(self, given: Any) -> Any:
        return given if self.blocks else asyncio.run(given)

    def __getattr__(self, verb: str) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            self.answer(verb, *args, **kwargs)
            return self.executor.asked.pop()

        return ask


def pay(amount: int, *, note: str = "") -> str:
    return f"{amount}{note}"


async def apay(amount: int) -> str:
    return str(amount)


async def durable(ctx: Context, amount: int) -> int:
    return amount


def register(fn, **settings):
    return register_task(fn, enqueuer=None, registry=Registry(), name=f"app.{fn.__name__}", **settings)


PAY = register(pay)
DURABLE = register(durable)
REMOTE = remote_task("far", enqueuer=None)


def asking(context: type) -> Asking:
    """Return a context of this class, in an attempt of DURABLE."""
    return Asking(context, Blocks(DURABLE) if context is SyncContext else Waits(DURABLE))
