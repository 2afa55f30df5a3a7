"""Durable functions for fault tests. Every effect is a line of the ledger: mark, name, idempotency key, process.

As a program, a worker for them: durable.py URL LEDGER [--lease S] [--queues a,b] [--clock-off S] [--linger S]. Tasks
that wait for the test poll for files beside the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import (
    Batch,
    BatchFailed,
    Context,
    Fatal,
    Graph,
    Holdfast,
    Retry,
    RunEnd,
    SyncContext,
    Task,
    WaitTimeout,
    idempotency_key,
)
from holdfast.engine.durable import async_executor, executor
from tests.support.history_queries import fetch
from tests.support.ledger import Ledger
from tests.support.step_functions import step_function

ONCE = Retry(max_attempts=1)
TWICE = Retry(max_attempts=2, delay=0)
ITEMS = ["m1", "m2", "m3", "m4", "m5"]
NEAR = {"near": "yes"}
TABLE = "create table if not exists effects (mark text, name text)"


class Effects:
    """Effects of steps, jobs and transactions on outside systems."""

    between: Callable[[int], None] = staticmethod(lambda _number: None)

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.tried: set[tuple[str, str]] = set()

    @step_function
    def plain(self, mark: str, name: str, *_more: Any) -> str:
        self.ledger.write(mark, name, idempotency_key(), os.getpid())
        return name

    def at_second_try(self, mark: str, name: str) -> str:
        """Fail at the first try in each process."""
        if (mark, name) not in self.tried:
            self.tried.add((mark, name))
            raise ConnectionError(name)
        return self.plain(mark, name)

    async def awaited(self, mark: str, name: str) -> str:
        await asyncio.sleep(0)
        return self.plain(mark, name)

    def reserve(self, mark: str, name: str) -> list[str]:
        return [mark, self.plain(mark, name)]

    def release(self, reserved: list[str]) -> None:
        self.plain(reserved[0], f"undo-{reserved[1]}")

    async def release_async(self, reserved: list[str]) -> None:
        self.release(reserved)

    @step_function
    def insert(self, connection: Any, mark: str, name: str) -> str:
        """Insert user rows in the same database."""
        place = "?, ?" if "Sqlite" in type(connection).__name__ else "%s, %s"
        connection.execute(f"insert into effects (mark, name) values ({place})", (mark, name))
        return name

    @step_function
    def pay(self, connection: Any, mark: str) -> str:
        """Execute several statements; the process may die before, between and after them."""
        for number, name in enumerate(["p1", "p2", "p3"]):
            self.between(number)
            self.insert(connection, mark, name)
        self.between(3)
        return "paid"

    def begin(self, mark: str) -> int:
        """Note the start and return how often it started before."""
        before = sum(words[:2] == [mark, "began"] for words in self.ledger.words())
        self.ledger.write(mark, "began", "-", os.getpid())
        return before

    def released(self, number: int) -> bool:
        return self.ledger.path.with_name(f"release{number}").exists()

    @step_function
    def hold(self, mark: str) -> str:
        """Write an effect, then block until the test continues."""
        number = sum(words[:2] == [mark, "held"] for words in self.ledger.words())
        self.plain(mark, "held")
        while not self.released(number):
            time.sleep(0.01)
        return "held"

    @step_function
    async def hold_async(self, mark: str) -> str:
        return await asyncio.to_thread(self.hold, mark)


def make_app(url: str, ledger: Ledger) -> Holdfast:  # noqa: C901 - a list of tasks
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
        """Sync durable child that emits an event and sends its parent a message."""
        ctx.step(do.plain, mark, "talks", name="talks")
        ctx.emit(f"go {mark}", "gone")
        ctx.sleep(0.02)
        ctx.options(name="sends").step(send, mark, parent)
        return str(ctx.transaction(do.insert, mark, "t2"))

    def send(mark: str, parent: UUID) -> None:
        """May run twice, like every effect; the parent receives one message."""
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
        flaky = ctx.options(name="g3", retry=TWICE)
        out.append((await asyncio.gather(ctx.sleep(0.07), flaky.step(do.at_second_try, mark, "g3")))[1])
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
        out.append(ctx.options(name="s2", retry=TWICE).step(do.at_second_try, mark, "s2"))
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

    def send_number(mark: str, run: UUID, number: int) -> None:
        """May run twice; the receiver detects a repeated message."""
        app.get_run(run).send("number", number)
        do.plain(mark, f"n{number}")

    def awaited_or_sent(run: UUID) -> bool:
        """Return whether the run waits for a number, or got the last one in an earlier attempt."""
        waiting = f"select 1 from {{}}waits where run = '{run}' and target = 'number' and outcome is null"
        return bool(fetch(app, f"{waiting} union all select 1 from {{}}messages where run = '{run}' and payload = '4'"))

    @app.task(name="cutting", **settings)
    async def cutting(ctx: Context, mark: str) -> list[int]:
        """Cancel a receive whose message may have arrived, one without a message, and one whose message is unseen."""
        got: list[int] = []
        for number in (1, 2, 3):
            receiving, idle = (asyncio.ensure_future(ctx.receive(topic)) for topic in ("number", "nothing"))
            sending = asyncio.ensure_future(ctx.step(send_number, mark, ctx.run_id, number, name=f"n{number}"))
            await asyncio.wait([receiving, sending], return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                got.append(receiving.result())
            receiving.cancel()
            idle.cancel()
            await sending
        while got[-1:] != [3]:
            got.append(await ctx.receive("number"))
        unseen = asyncio.ensure_future(ctx.receive("number"))

        async def send_unseen() -> None:
            """Send to a run that cancels its wait before the loop delivers the message."""
            while not (unseen.done() or awaited_or_sent(ctx.run_id)):
                await asyncio.sleep(0.01)
            with ThreadPoolExecutor() as threads:
                threads.submit(copy_context().run, send_number, mark, ctx.run_id, 4).result()
            unseen.cancel()

        await ctx.step(send_unseen, name="n4")
        unseen.cancel()
        while got[-1:] != [4]:
            got.append(await ctx.receive("number"))
        return list(dict.fromkeys(got)) if got == sorted(got) else got

    @app.task(name="paying", **settings)
    async def paying(ctx: Context, mark: str) -> str:
        return await ctx.transaction(do.pay, mark)

    @app.task(name="paying_plainly", **settings)
    def paying_plainly(ctx: SyncContext, mark: str) -> str:
        return ctx.transaction(do.pay, mark)

    add_graphs(app, do, settings, child)
    add_flow_control(app, do, settings, alone)
    add_tasks_that_wait(app, do, settings)
    return app


def add_flow_control(app: Holdfast, do: Effects, settings: dict[str, Any], alone: Task[[str, str], str]) -> None:
    """Declare a function that uses limits of steps, metadata, values, batches, debounce, names, labels and a hook."""
    app.limit("tokens", rate="1000000/s", concurrency=2, cost=5)

    @app.task(name="ended", **settings)
    def ended(end: RunEnd) -> str:
        ((args,),) = fetch(app, f"select args from {{}}runs where id = '{end.id}'")
        return do.plain(json.loads(args)["mark"], "ended")

    @app.task(name="near", queue="near", prefers=NEAR, **settings)
    async def near(mark: str, name: str) -> str:
        return do.plain(mark, name)

    @app.task(name="bulk", batch=Batch(max_size=3), max_crashes=1000, retry=TWICE)
    def bulk(items: list[str]) -> list[str]:
        """The first call with the second item fails for it. A key belongs to a call, so the effects have others."""
        names, failed = [item.split() for item in items], {}
        for at, (mark, name) in enumerate(names):
            if name == "b2" and ["failed", mark] not in [words[:2] for words in do.ledger.words()]:
                do.ledger.write("failed", mark, name, os.getpid())
                failed[at] = ValueError(name)
            else:
                do.ledger.write(mark, name, name, os.getpid())
        if failed:
            raise BatchFailed(failed, [name for _, name in names])
        return [name for _, name in names]

    @app.task(name="flowing", on_end=ended, **settings)
    async def flowing(ctx: Context, mark: str) -> list[str]:
        tokens = ["tokens"]
        out = [await ctx.options(name="l1", limits=tokens).step(do.plain, mark, "l1")]
        await ctx.adjust("tokens", 2)
        await ctx.annotate(mark=mark, stage="limited")
        await ctx.set("stage", "limited")
        out += await asyncio.gather(
            ctx.options(name="l2", limits=tokens).step(do.plain, mark, "l2"),
            ctx.options(name="l3", limits=tokens, cost=1).step(do.awaited, mark, "l3"),
            ctx.options(name="l4", limits=tokens).step(do.awaited, mark, "l4"),
        )
        for name in ("d0", "d1"):
            await ctx.enqueue(alone.options(debounce=mark, delay=3600), mark, name)
        for name in ("q0", "q1"):
            await ctx.enqueue(alone.options(unique=mark, if_taken="queue"), mark, name)
        await ctx.enqueue(alone.options(key=mark, key_ttl=3600), mark, "k1")
        out.append(await ctx.call(near, mark, "p1"))
        out += await ctx.map(bulk, [f"{mark} b1", f"{mark} b2", f"{mark} b3"])
        await ctx.annotate(stage="sent")
        await ctx.set("stage", "sent")
        return out


def add_graphs(app: Holdfast, do: Effects, settings: dict[str, Any], child: Task[[str], str]) -> None:
    """Declare graphs as children, one with a gate, conditions and a nested graph."""

    def conclude(mark: str, run: UUID) -> None:
        """May run twice; the gate is completed once, perhaps before it opens."""
        app.get_run(run).gate("ok").complete("yes", by="me")
        do.plain(mark, "concludes")

    @app.task(name="graphing", **settings)
    async def graphing(ctx: Context, mark: str) -> dict[str, Any]:
        inner = Graph("inner")
        x = inner.add(child, f"{mark} n2", name="x")
        inner.add(child, f"{mark} n3", name="y", after=[x])
        outer = Graph("outer")
        a = outer.add(child, f"{mark} n1", name="a")
        ok = outer.gate("ok", after=[a], type=str)
        outer.add(child, f"{mark} n4", name="b", after=[ok], when=a.output == "n1")
        outer.add(child, f"{mark} never", name="c", after=[ok], when=ok.output == "no")
        n = outer.add(inner, name="n", after=[ok])
        outer.add(child, f"{mark} n5", name="z", after=[n, outer.node("c").finished])
        run = await ctx.submit(outer)
        await ctx.step(conclude, mark, run.id, name="concludes")
        return await ctx.join(run)


def add_tasks_that_wait(app: Holdfast, do: Effects, settings: dict[str, Any]) -> None:  # noqa: C901 - a list of tasks
    """Declare functions that a test stops, kills or resumes at a chosen point."""
    ledger = do.ledger

    @app.task(name="late", **settings)
    async def late(ctx: Context, mark: str) -> int:
        """Wait in the body, then do what the mark says."""
        number = do.begin(mark)
        try:
            while not do.released(number):
                await asyncio.sleep(0.01)
            if mark != "finish":
                await getattr(ctx, mark)(*late_arguments(mark))
        except asyncio.CancelledError:
            ledger.write(mark, "cancelled", "-", os.getpid())
            raise
        ledger.write(mark, "passed", "-", os.getpid())
        return os.getpid()

    @app.task(name="late_plainly", **settings)
    def late_plainly(ctx: SyncContext, mark: str) -> int:
        number = do.begin(mark)
        while not do.released(number):
            time.sleep(0.01)
        if mark != "finish":
            getattr(ctx, mark)(*late_arguments(mark))
        ledger.write(mark, "passed", "-", os.getpid())
        return os.getpid()

    @app.task(name="bystander", **settings)
    async def bystander(mark: str) -> None:
        ledger.write(mark, "bystander", "-", os.getpid())

    def late_arguments(mark: str) -> tuple[Any, ...]:
        return {
            "step": (step,),
            "spawn": (bystander, mark),
            "enqueue": (bystander, mark),
            "emit": ("late", os.getpid()),
            "transaction": (do.insert, mark, str(os.getpid())),
            "write": (os.getpid(),),
        }[mark]

    def step() -> int:
        return os.getpid()

    @app.task(name="holding", **settings)
    async def holding(ctx: Context, mark: str) -> list[str]:
        return [await ctx.step(do.plain, mark, "s1"), await ctx.step(do.hold_async, mark)]

    @app.task(name="holding_plainly", **settings)
    def holding_plainly(ctx: SyncContext, mark: str) -> list[str]:
        return [ctx.step(do.plain, mark, "s1"), ctx.step(do.hold, mark)]

    @app.task(name="waiting", **settings)
    async def waiting(ctx: Context, mark: str) -> Any:
        await ctx.step(do.plain, mark, "s1")
        return await ctx.wait_for(f"go {mark}")

    @app.task(name="waiting_plainly", **settings)
    def waiting_plainly(ctx: SyncContext, mark: str) -> Any:
        ctx.step(do.plain, mark, "s1")
        return ctx.receive("go")

    @app.task(name="held_job", queue="children", **settings)
    def held_job(mark: str) -> int:
        number = do.begin(mark)
        while not do.released(number):
            time.sleep(0.01)
        return os.getpid()

    @app.task(name="parent", queue="parents", **settings)
    async def parent(ctx: Context, mark: str) -> list[int]:
        return [await ctx.step(os.getpid, name="pid"), await ctx.call(held_job, mark)]

    @app.task(name="timed", **settings)
    async def timed(ctx: Context, seconds: float) -> list[float]:
        """Return the durations of a sleep and a timeout by the database's clock."""
        start = await ctx.now()
        await ctx.sleep(seconds)
        slept = await ctx.now()
        with contextlib.suppress(WaitTimeout):
            await ctx.wait_for("never", timeout=seconds)
        over = await ctx.now()
        await ctx.sleep_until(over + timedelta(seconds=seconds))
        times = [start, slept, over, await ctx.now()]
        return [(after - before).total_seconds() for before, after in pairwise(times)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("ledger")
    parser.add_argument("--lease", type=float, default=2.0)
    parser.add_argument("--queues")
    parser.add_argument("--clock-off", type=float, default=0.0)
    parser.add_argument("--linger", type=float)
    options = parser.parse_args()
    if options.clock_off:
        real_time, real_time_ns = time.time, time.time_ns
        time.time = lambda: real_time() + options.clock_off
        time.time_ns = lambda: real_time_ns() + int(options.clock_off * 1e9)
    if options.linger is not None:
        for module in (executor, async_executor):
            module.SUSPEND_DELAY_S = module.BUSY_SUSPEND_DELAY_S = options.linger  # type: ignore[attr-defined]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    app = make_app(options.url, Ledger(options.ledger))
    queues = options.queues.split(",") if options.queues else None
    app.worker(lease=options.lease, grace=1, concurrency=20, queues=queues).run()


if __name__ == "__main__":
    main()
