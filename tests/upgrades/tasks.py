"""Tasks whose runs are kept in flight from release to release. Never change what is here: add.

Every effect is a line of the ledger: mark and name. What is to be caught in the middle holds until its release comes,
a file beside the ledger. As a program, a worker for them: tasks.py URL LEDGER [next]. With `next` it is of the next
release, whose tables have something more.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast import After, Context, Done, Fatal, Graph, Holdfast, Retry, State, SyncContext
from holdfast.database import migrate
from tests.support.ledger import Ledger

AWAY = 20.0
"""Seconds until what waits for a time is due."""
SETTINGS: dict[str, Any] = {"max_crashes": 100, "retry": Retry(max_attempts=1)}
ledger: Ledger


def effect(mark: str, name: str) -> str:
    ledger.write(mark, name)
    return name


def hold(mark: str, name: str) -> str:
    effect(mark, name)
    while not ledger.path.with_name("release").exists():
        time.sleep(0.02)
    return name


def undo(mark: str, name: str, _result: str = "") -> None:
    hold(mark, name)


class Begin(State):
    """Leads to the last one, after a while."""

    mark: str

    async def run(self, ctx: Context) -> After[Finish]:
        await ctx.step(effect, self.mark, "begin")
        return After(AWAY, Finish(mark=self.mark))


class Finish(State):
    """Ends."""

    mark: str
    more: int = 1

    def run(self, ctx: SyncContext) -> Done[str]:
        return Done(ctx.step(effect, self.mark, "finish"))


def make_app(url: str, path: Path | str) -> Holdfast:
    global ledger
    ledger = Ledger(path)
    app = Holdfast(url, name="upgrades")

    @app.task(name="job", **SETTINGS)
    def job(mark: str) -> str:
        return effect(mark, "job")

    @app.task(name="who", **SETTINGS)
    async def who(ctx: Context, mark: str) -> int:
        await ctx.step(effect, mark, "first")
        await ctx.sleep(0.2)
        await ctx.step(effect, mark, "second")
        return os.getpid()

    @app.task(name="held", **SETTINGS)
    def held(mark: str) -> str:
        return hold(mark, "held")

    @app.task(name="function", **SETTINGS)
    async def function(ctx: Context, mark: str, waits_for: str) -> Any:
        waits: dict[str, Callable[[], Any]] = {
            "event": lambda: ctx.wait_for(f"go {mark}"),
            "message": lambda: ctx.receive("note"),
            "child": lambda: ctx.call(function, f"{mark}-child", "event"),
            "map": lambda: ctx.map(job, [f"{mark}-1", f"{mark}-2"]),
            "step": lambda: ctx.step(hold, mark, "held"),
            "time": lambda: ctx.sleep(AWAY),
        }
        await ctx.step(effect, mark, "before")
        came = await waits[waits_for]()
        if waits_for == "map":
            await ctx.sleep(AWAY)
        await ctx.step(effect, mark, "after")
        return came

    @app.task(name="plain", **SETTINGS)
    def plain(ctx: SyncContext, mark: str) -> Any:
        ctx.step(effect, mark, "before")
        came = ctx.receive("note")
        ctx.step(effect, mark, "after")
        return came

    @app.task(name="undoing", **SETTINGS)
    async def undoing(ctx: Context, mark: str) -> None:
        await ctx.options(name="one", undo=lambda _: undo(mark, "undo-one")).step(effect, mark, "one")
        await ctx.options(name="two", undo=lambda _: undo(mark, "undo-two")).step(effect, mark, "two")
        raise Fatal("enough")

    app.machine("machine", Begin, Finish, max_crashes=100)
    return app


def graph(app: Holdfast, mark: str) -> Graph:
    job = app.registry.get("job")
    made = Graph("graph", key=mark)
    a = made.add(job, f"{mark}-a", name="a")
    ok = made.gate("ok", after=[a], type=str)
    made.add(job, f"{mark}-b", name="b", after=[ok], when=ok.output == "yes")
    made.add(job, f"{mark}-c", name="c", after=[ok], when=ok.output == "no")
    return made


def become_next() -> None:
    """Have one migration more than there is."""
    known = migrate.migrations()
    text = "create table {schema}later (x int); alter table {schema}runs add column later text default 'x';"
    later = migrate.Migration(known[-1].number + 1, "9999_later.sql", text)
    migrate.migrations = lambda: (*known, later)  # type: ignore[assignment]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if sys.argv[3:] == ["next"]:
        become_next()
    make_app(sys.argv[1], sys.argv[2]).worker(lease=2, concurrency=30).run()
