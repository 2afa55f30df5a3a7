"""A worker process for tests that end its connections: terminated.py URL LEDGER. Its effects go to the ledger."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Holdfast, Retry
from tests.support.ledger import Ledger

app = Holdfast(sys.argv[1])
ledger = Ledger(sys.argv[2])
app.limit("few", concurrency=3)
ONCE = Retry(max_attempts=1)


@app.task(name="job", retry=ONCE)
async def job(n: int) -> int:
    ledger.write("job", n, os.getpid())
    await asyncio.sleep(0.02)
    return n


@app.task(name="limited", limits=["few"], retry=ONCE)
async def limited(n: int) -> int:
    ledger.write("limited", n, os.getpid())
    await asyncio.sleep(0.02)
    return n


@app.task(name="function", retry=Retry(max_attempts=1000, delay=0.01, max_delay=0.1))
async def function(ctx: Context, n: int) -> list[int]:
    """Run steps, a child, an event, a sleep and a transaction."""
    first = await ctx.step(note, "first", n)
    child = await ctx.call(job, -n - 1)
    await ctx.emit(f"ready {n}", n)
    heard = await ctx.wait_for(f"ready {n}")
    told = await ctx.wait_for(f"go {n}")
    await ctx.sleep(0.05)
    await ctx.transaction(pay, n)
    return [first, child, heard, told, await ctx.step(note, "last", n)]


def pay(connection: Any, n: int) -> None:
    """Fail when the task's own connection is terminated, so that the run is retried."""
    connection.execute("insert into paid (n) values (%s)", (n,))


def note(what: str, n: int) -> int:
    ledger.write(what, n, os.getpid())
    return n


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    app.worker(lease=6, grace=1, concurrency=10).run()
