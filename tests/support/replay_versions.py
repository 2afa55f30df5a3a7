"""Old and new versions of a durable function, and replay checks of runs of one against the code of the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from holdfast import Context, Holdfast, Retry
from holdfast.control import Control
from holdfast.control.replay_check import CheckReport
from tests.support.durable import drain
from tests.support.ledger import Ledger
from tests.support.store_harness import StoreHarness

TABLES = ("runs", "checkpoints", "waits", "events", "messages", "chunks", "history", "workers", "lanes", "keys", "meta")

Body = Callable[..., Any]


class Effects:
    """The ledger to which steps write, and an event that unblocks `block`."""

    ledger: Ledger
    unblock = threading.Event()


def block() -> None:
    """Block the thread until the test sets `unblock`."""
    ledger = Effects.ledger  # the next test replaces it
    Effects.unblock.wait(60)
    ledger.write("went on")


def act(what: Any) -> Any:
    Effects.ledger.write("act", what)
    return what


def undo(what: Any) -> None:
    Effects.ledger.write("undo", what)


class Deployed:
    """An app on the test's database with a durable function `walk` that has this body, and a child task."""

    def __init__(self, url: str, body: Body | None, name: str = "walk") -> None:
        self.app = Holdfast(url)
        self.child = self.app.task(name="child")(act_child)
        if body is not None:
            self.walk = self.app.task(name=name, retry=Retry(max_attempts=1))(body)

    def __enter__(self) -> Deployed:
        return self

    def __exit__(self, *_: object) -> None:
        self.app.close()

    def check(self, **asked: Any) -> CheckReport:
        return Control(self.app.store, self.app.registry).check.run(**{"timeout": 20, **asked})


def remote_child() -> Any:
    return Holdfast("sqlite:///:memory:").remote("child")


def act_child(n: int) -> int:
    return n * 10


def begin(url: str, body: Body, *args: Any) -> Any:
    """Enqueue a run, execute it with this code until it waits, and return its id."""
    with Deployed(url, body) as old:
        run = old.walk.enqueue(*args)
        drain(old.app)
        return run.id


def found(url: str, body: Body | None, **asked: Any) -> list[tuple[str, str]]:
    """Check the only run against this code and return the kind and position of each difference."""
    with Deployed(url, body) as new:
        report = new.check(**asked)
    assert report.checked == 1
    runs = [*report.different, *report.unchecked]
    return [(finding.kind, finding.where) for run in runs for finding in run.findings]


def dump(url: str) -> dict[str, list[Any]]:
    """Return the content of all tables."""
    harness = StoreHarness(url)
    try:
        return {table: sorted(harness.sql(f"select * from {{schema}}{table}"), key=repr) for table in TABLES}
    finally:
        harness.close()


# Old and new code


async def walk(ctx: Context) -> str:
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 2, name="second", undo=undo)
    await ctx.wait_for("dawn")
    return await ctx.step(act, 3, name="third")


async def walk_and_cut(ctx: Context) -> str:
    """Cancel a receive when the concurrent step is done."""
    lost = asyncio.ensure_future(ctx.receive("lost"))
    await ctx.step(act, 1, name="first")
    lost.cancel()
    await ctx.step(act, 2, name="second", undo=undo)
    await ctx.wait_for("dawn")
    return await ctx.step(act, 3, name="third")


async def walk_without_second(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    await ctx.wait_for("dawn")


async def walk_with_more(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 9, name="new")
    await ctx.step(act, 2, name="second", undo=undo)
    await ctx.wait_for("dawn")


async def walk_with_two_more(ctx: Context) -> None:
    """Add steps with the arguments of the recorded one that follows; use only parts of their results."""
    await ctx.step(act, 1, name="first")
    about = await ctx.step(act, 2, name="look")
    run = await ctx.spawn(remote_child(), 7)
    await ctx.step(act, [about.x["y"], await ctx.join(run)], name="note")
    await ctx.sleep(60)
    await ctx.step(act, 2, name="second", undo=undo)
    await ctx.wait_for("dawn")


async def walk_with_a_condition(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    if await ctx.step(act, 2, name="look"):
        await ctx.step(act, 2, name="second", undo=undo)
    await ctx.wait_for("dawn")


async def walk_renamed(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    second = await ctx.step(act, 2, name="zweiter", undo=undo)
    await ctx.wait_for("dawn")
    return await ctx.step(act, second, name="third")


async def walk_replaced(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 2, 2, name="twice", undo=undo)
    await ctx.wait_for("dawn")


async def walk_with_results(ctx: Context) -> None:
    first = await ctx.step(act, 1, name="first")
    second = await ctx.step(act, first, name="second")
    await ctx.step(act, second, name="third")
    await ctx.call(remote_child(), 3)
    await ctx.wait_for("dawn")


async def walk_with_renamed_results(ctx: Context) -> None:
    first = await ctx.step(act, 1, name="erster")
    second = await ctx.step(act, first, name="second")
    await ctx.step(act, second, name="third")
    await ctx.call(remote_child(), 4)
    await ctx.wait_for("dawn")


async def walk_in_circles(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    while True:
        await ctx.step(act, 5, name="round")
        await ctx.sleep(60)


async def walk_otherwise(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 22, name="second", undo=undo)
    await ctx.wait_for("dawn")


async def walk_and_raise(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    raise KeyError("oh")


async def walk_to_dusk(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 2, name="second", undo=undo)
    await ctx.wait_for("dusk")


async def walk_to_the_end(ctx: Context) -> str:
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 2, name="second", undo=undo)
    return "done"


async def walk_and_fall(ctx: Context) -> str:
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 2, name="second", undo=undo)
    raise ValueError("fell")


async def walk_in_two_ways(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 2, name="second", undo=undo)
    await asyncio.gather(ctx.wait_for("dawn"), ctx.step(act, 9, name="new"))


async def walk_without_undo(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 2, name="second")
    await ctx.wait_for("dawn")


async def walk_with_arguments(ctx: Context, n: int) -> None:
    await ctx.wait_for("dawn")


async def walk_and_wait_by_itself(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    await asyncio.Event().wait()


async def walk_and_block(ctx: Context) -> None:
    await ctx.step(act, 1, name="first")
    block()


def walk_no_more() -> None:
    """A job."""


async def walk_renamed_later(ctx: Context) -> None:
    """Change only code after the last checkpoint."""
    await ctx.step(act, 1, name="first")
    await ctx.step(act, 2, name="second", undo=undo)
    await ctx.wait_for("dawn")
    await ctx.step(act, 33, name="fourth")
