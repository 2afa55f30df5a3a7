"""The tasks of the mixed load: all kinds of innocent ones, and culprits. Each writes lines to the ledger:

    did  MARK STEP PID TIME    an effect
    end  MARK -    PID TIME    the last effect of a root
    harm MARK KIND PID TIME    a culprit is about to harm its worker

A root's mark is its kind and a number. The time is the monotonic clock, the same for all processes. Workers find the
app as `tests.support.mixed_worker:app`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from typing import Any, NamedTuple

from holdfast import Context, Done, Graph, Holdfast, State, SyncContext
from tests.support.culprits import add_culprits
from tests.support.ledger import Ledger

SHORTEST_WORK_S, LONGEST_WORK_S = 0.05, 0.5
KINDS: dict[str, tuple[str, ...]] = {
    "job": ("job",),
    "thread": ("job",),
    "order": ("s1", "s2", "s3", "c1", "c2", "c3"),
    "plain": ("s1", "s2", "c1"),
    "machine": ("first", "second"),
    "graph": ("a", "b", "c", "d"),
}
"""The innocent kinds, with the effects that each must have had in the end."""
IN_A_ROW = {"job": 1, "thread": 1, "order": 5, "plain": 3, "machine": 2, "graph": 3}
"""How many effects of a kind come one after the other: so long a root takes at least."""
CYCLE = (*["job"] * 5, *["thread"] * 3, "order", "plain", "machine", "graph")
RUNS_PER_CYCLE = 20
ledger: Ledger


class Line(NamedTuple):
    """One line of the ledger."""

    kind: str
    mark: str
    what: str
    pid: int
    at: float

    @classmethod
    def read(cls, text: str) -> Line:
        kind, mark, what, pid, at = text.split()
        return cls(kind, mark, what, int(pid), float(at))


def note(kind: str, mark: str, what: str) -> None:
    ledger.write(kind, mark, what, os.getpid(), f"{time.monotonic():.4f}")


def do(mark: str, step: str) -> str:
    time.sleep(random.uniform(SHORTEST_WORK_S, LONGEST_WORK_S))
    note("did", mark, step)
    return step


async def ado(mark: str, step: str) -> str:
    await asyncio.sleep(random.uniform(SHORTEST_WORK_S, LONGEST_WORK_S))
    note("did", mark, step)
    return step


def end(mark: str) -> str:
    note("end", mark, "-")
    return mark


class First(State):
    """A state on the event loop."""

    mark: str

    async def run(self, ctx: Context) -> Second:
        await ctx.step(partial(ado, self.mark, "first"), name="first")
        return Second(mark=self.mark)


class Second(State):
    """A state in a thread."""

    mark: str

    def run(self, ctx: SyncContext) -> Done[str]:
        ctx.step(partial(do, self.mark, "second"), name="second")
        return Done(end(self.mark))


class Mixed:
    """The tasks of an app, and the requests that enqueue a root of each kind."""

    def __init__(self, app: Holdfast, path: str) -> None:
        global ledger  # states are classes, so they find the ledger here
        ledger = Ledger(path)
        self.app = app
        self._tasks: dict[str, Any] = {**_add_small_tasks(app), **add_culprits(app, partial(note, "harm"))}
        self._tasks |= _add_functions(app, self._tasks["part"], self._tasks["part_in_thread"])
        self._machine = app.machine("machine", First, Second)

    def request(self, kind: str, mark: str, seconds: float) -> Any:
        """Return the request for a root of any kind except graphs. `seconds`: how long the harm of a culprit lasts."""
        if kind == "machine":
            return self._machine.options(key=mark).request(First(mark=mark))
        arguments = (mark,) if kind in KINDS else (mark, seconds)
        return self._tasks[kind].options(key=mark).request(*arguments)

    def graph(self, mark: str) -> Graph:
        """Return a graph of four nodes: one, two concurrent ones, one."""
        part, part_in_thread = self._tasks["part"], self._tasks["part_in_thread"]
        small = Graph("small", key=mark)
        a = small.add(part, mark, "a", name="a")
        b = small.add(part_in_thread, mark, "b", name="b", after=[a])
        c = small.add(part, mark, "c", name="c", after=[a])
        small.add(self._tasks["last_part"], mark, "d", name="d", after=[b, c])
        return small


def _add_small_tasks(app: Holdfast) -> dict[str, Any]:
    @app.task(name="job")
    async def job(mark: str) -> str:
        await ado(mark, "job")
        return end(mark)

    @app.task(name="thread")
    def thread(mark: str) -> str:
        do(mark, "job")
        return end(mark)

    @app.task(name="part")
    async def part(mark: str, step: str) -> str:
        return await ado(mark, step)

    @app.task(name="part_in_thread")
    def part_in_thread(mark: str, step: str) -> str:
        return do(mark, step)

    @app.task(name="last_part")
    async def last_part(mark: str, step: str) -> str:
        await ado(mark, step)
        return end(mark)

    return {task.name: task for task in (job, thread, part, part_in_thread, last_part)}


def _add_functions(app: Holdfast, part: Any, part_in_thread: Any) -> dict[str, Any]:
    @app.task(name="order")
    async def order(ctx: Context, mark: str) -> str:
        await ctx.step(partial(ado, mark, "s1"), name="s1")
        spawned = await ctx.spawn(part_in_thread, mark, "c1")
        await ctx.step(partial(do, mark, "s2"), name="s2")
        await asyncio.gather(ctx.call(part, mark, "c2"), ctx.step(partial(ado, mark, "s3"), name="s3"))
        await ctx.join(spawned)
        await ctx.call(part, mark, "c3")
        return end(mark)

    @app.task(name="plain")
    def plain(ctx: SyncContext, mark: str) -> str:
        ctx.step(partial(do, mark, "s1"), name="s1")
        ctx.call(part_in_thread, mark, "c1")
        ctx.step(partial(do, mark, "s2"), name="s2")
        return end(mark)

    return {"order": order, "plain": plain}
