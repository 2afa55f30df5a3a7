"""Durable functions for fault tests. Every effect is a line of the ledger: mark, name, idempotency key, process.

As a program, a worker for them: durable.py URL LEDGER [--lease S] [--grace S] [--concurrency N] [--clock-off S]. What
waits for the test does so for files beside the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

real_time, real_time_ns = time.time, time.time_ns

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Fatal, Holdfast, Retry, SyncContext, WaitTimeout, idempotency_key  # noqa: E402
from tests.support.ledger import Ledger  # noqa: E402

ONCE = Retry(max_attempts=1)
ITEMS = ["m1", "m2", "m3", "m4", "m5"]
TABLE = "create table if not exists effects (mark text, name text)"


class Effects:
    """What steps, jobs and transactions do to the world outside."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def plain(self, mark: str, name: str, *_more: Any) -> str:
        self.ledger.write(mark, name, idempotency_key(), os.getpid())
        return name

    async def awaited(self, mark: str, name: str) -> str:
        await asyncio.sleep(0)
        return self.plain(mark, name)

    def reserve(self, mark: str, name: str) -> list[str]:
        return [mark, self.plain(mark, name)]

    def release(self, reserved: list[str]) -> None:
        self.plain(reserved[0], f"undo-{reserved[1]}")

    async def release_async(self, reserved: list[str]) -> None:
        self.release(reserved)

    def insert(self, connection: Any, mark: str, name: str) -> str:
        """Rows of the user's own, in the same database."""
        place = "?, ?" if "Sqlite" in type(connection).__name__ else "%s, %s"
        connection.execute(f"insert into effects (mark, name) values ({place})", (mark, name))
        return name

    def hold(self, mark: str, name: str) -> str:
        """An effect, and then nothing until the test allows it."""
        begun = sum(words[:2] == [mark, name] for words in self.ledger.words())
        self.plain(mark, name)
        while not self.ledger.path.with_name(f"{name}{begun}").exists():
            time.sleep(0.01)
        return name


def make_app(url: str, ledger: Ledger) -> Holdfast:
    app = Holdfast(url)
    do = Effects(ledger)
    settings: dict[str, Any] = {"max_crashes": 1000, "retry": ONCE}

    @app.task(name="child", **settings)
    async def child(both: str) -> str:
        return do.plain(*both.split())

    @app.task(name="alone", **settings)
    def alone(mark: str, name: str) -> str:
        return do.plain(mark, name)

    @app.task(name="talker", **settings)
    def talker(ctx: SyncContext, mark: str, parent: UUID) -> str:
        """A plain durable child that emits an event, and sends its parent a message."""
        ctx.step(do.plain, mark, "talks", name="talks")
        ctx.emit(f"go {mark}", "gone")
        ctx.sleep(0.02)
        ctx.options(name="sends").step(send, mark, parent)
        return str(ctx.transaction(do.insert, mark, "t2"))

    def send(mark: str, parent: UUID) -> None:
        """May be done twice, like every effect; the parent takes one."""
        app.get_run(parent).send("note", "second")
        do.plain(mark, "sends")

    @app.task(name="everything", **settings)
    async def everything(ctx: Context, mark: str) -> list[Any]:
        out: list[Any] = []
        out.append(await ctx.step(do.plain, mark, "s1", name="s1"))
        out.append(await ctx.step(do.awaited, mark, "s2", name="s2"))
        out += await asyncio.gather(
            ctx.step(do.plain, mark, "g1", name="g1"),
            ctx.step(do.awaited, mark, "g2", name="g2"),
            ctx.call(child, f"{mark} c1"),
            ctx.transaction(do.insert, mark, "t1"),
        )
        spawned = await ctx.spawn(talker, mark, ctx.run_id)
        out.append(await ctx.wait_for(f"go {mark}"))
        out += [await ctx.receive("note"), await ctx.receive("note")]
        out.append(await ctx.join(spawned))
        out += await ctx.map(child, [f"{mark} {item}" for item in ITEMS], concurrency=2)
        chance = await ctx.random()
        out.append(await ctx.step(do.plain, mark, "r1", chance, name="r1"))
        await ctx.enqueue(alone, mark, "e1")
        await ctx.enqueue(alone.options(key=mark), mark, "e2")
        await ctx.write("piece")
        try:
            await ctx.wait_for(f"never {mark}", timeout=0.02)
        except WaitTimeout:
            out.append("timeout")
        out.append((await asyncio.gather(ctx.sleep(0.07), ctx.step(do.plain, mark, "g3", name="g3")))[1])
        return out

    @app.task(name="plainly", **settings)
    def plainly(ctx: SyncContext, mark: str) -> list[Any]:
        out: list[Any] = [ctx.step(do.plain, mark, "s1", name="s1")]
        out.append(ctx.transaction(do.insert, mark, "t1"))
        spawned = ctx.spawn(talker, mark, ctx.run_id)
        out.append(ctx.wait_for(f"go {mark}"))
        out += [ctx.receive("note"), ctx.receive("note"), ctx.join(spawned)]
        out += ctx.map(child, [f"{mark} {item}" for item in ITEMS], concurrency=3)
        out.append(ctx.call(child, f"{mark} c1"))
        ctx.enqueue(alone, mark, "e1")
        ctx.sleep(0.07)
        out.append(ctx.step(do.plain, mark, "s2", name="s2"))
        return out

    @app.task(name="sleeper", **settings)
    async def sleeper(ctx: Context, mark: str) -> None:
        await ctx.wait_for(f"never {mark}")

    @app.task(name="undoing", **settings)
    async def undoing(ctx: Context, mark: str) -> None:
        await ctx.step(do.reserve, mark, "u1", name="u1", undo=do.release)
        await ctx.undo(do.plain, mark, "undo-plain")
        await ctx.step(do.reserve, mark, "u2", name="u2", undo=do.release_async)
        await ctx.transaction(do.insert, mark, "t1")
        await ctx.call(child, f"{mark} c1")
        await ctx.spawn(sleeper, mark)
        await ctx.sleep(0.07)
        await ctx.step(do.reserve, mark, "u3", name="u3", undo=do.release)
        raise Fatal("enough")

    @app.task(name="undoing_plainly", **settings)
    def undoing_plainly(ctx: SyncContext, mark: str) -> None:
        ctx.step(do.reserve, mark, "u1", name="u1", undo=do.release)
        ctx.undo(do.plain, mark, "undo-plain")
        ctx.step(do.reserve, mark, "u2", name="u2", undo=do.release)
        ctx.transaction(do.insert, mark, "t1")
        ctx.call(child, f"{mark} c1")
        ctx.spawn(sleeper, mark)
        ctx.sleep(0.07)
        ctx.step(do.reserve, mark, "u3", name="u3", undo=do.release)
        raise Fatal("enough")

    return app
