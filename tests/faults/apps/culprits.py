"""A worker process for tests of runs that harm their worker: culprits.py URL LEDGER [--lease S] [--concurrency N].

Every effect goes into the ledger, with the process that had it. Also importable as an app: `HOLDFAST_URL`, `LEDGER`.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Holdfast, Retry, SyncContext
from tests.support.ledger import Ledger

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("ledger")
parser.add_argument("--lease", type=float, default=2.0)
parser.add_argument("--concurrency", type=int, default=200)
given = sys.argv[1:] if __name__ == "__main__" else [os.environ["HOLDFAST_URL"], os.environ["LEDGER"]]
options = parser.parse_args(given)

app = Holdfast(options.url)
ledger = Ledger(options.ledger)
ONCE = Retry(max_attempts=1)
SOON = Retry(max_attempts=3, delay=0.01, jitter=0)
for_ever = threading.Event()
ready_together = asyncio.Event()


def note(what: str) -> int:
    """Write an effect and return how often it was written before."""
    before = sum(words[0] == what for words in ledger.words())
    ledger.write(what, os.getpid())
    return before


def is_open(name: str) -> bool:
    return ledger.path.with_name(name).exists()


async def until_open(name: str) -> None:
    while not is_open(name):
        await asyncio.sleep(0.01)


@app.task(name="innocent", retry=ONCE, max_crashes=0)
async def innocent(n: int) -> int:
    note(f"innocent{n}")
    await until_open("release")
    note(f"finished{n}")
    return n


@app.task(name="innocent_step", retry=ONCE, max_crashes=0)
async def innocent_step(ctx: Context, n: int) -> int:
    note(f"innocent{n}")
    await ctx.step(until_open, "release")
    note(f"finished{n}")
    return n


@app.task(name="killer", retry=ONCE, max_crashes=1)
async def killer() -> None:
    note("killer")
    await asyncio.sleep(0.2)
    os._exit(9)


@app.task(name="block", retry=ONCE, max_crashes=0)
async def block() -> None:
    note("block")
    for_ever.wait()


@app.task(name="block_in_step", retry=ONCE, max_crashes=0)
async def block_in_step(ctx: Context) -> None:
    async def wait() -> None:
        note("block")
        for_ever.wait()

    await asyncio.gather(ctx.step(wait), ctx.step(until_open, "never"))


@app.task(name="block_in_task", retry=ONCE, max_crashes=0)
async def block_in_task() -> None:
    """Block in a separate asyncio task, as `gather` creates them."""

    async def wait() -> None:
        note("block")
        for_ever.wait()

    await asyncio.gather(wait(), until_open("never"))


@app.task(name="block_in_callback", retry=ONCE, max_crashes=0)
async def block_in_callback() -> None:
    note("block")
    asyncio.get_running_loop().call_later(0.1, for_ever.wait)
    await until_open("never")


@app.task(name="block_briefly", retry=ONCE, max_crashes=0)
async def block_briefly(n: int) -> int:
    note(f"brief{n}")
    await ready_together.wait()
    for_ever.wait(0.3)
    await asyncio.sleep(0.01)
    return n


@app.task(name="start_together")
async def start_together() -> None:
    ready_together.set()


@app.task(name="block_with_timeout", retry=SOON, timeout=0.5)
async def block_with_timeout() -> str:
    if note("block") == 0:
        for_ever.wait()
    return "second try"


@app.task(name="hang", retry=SOON, timeout=0.3)
def hang() -> str:
    if note("hang") < 2:
        for_ever.wait()
    return "third try"


@app.task(name="hang_in_step")
async def hang_in_step(ctx: Context) -> str:
    def wait() -> str:
        if note("hang") < 2:
            for_ever.wait()
        return "third try"

    return await ctx.options(timeout=0.3, retry=SOON).step(wait)


@app.task(name="hang_in_sync_step")
def hang_in_sync_step(ctx: SyncContext) -> str:
    def wait() -> str:
        if note("hang") < 2:
            for_ever.wait()
        return "third try"

    return ctx.options(timeout=0.3, retry=SOON).step(wait)


@app.task(name="hang_for_good", retry=ONCE, timeout=0.2)
def hang_for_good(n: int) -> None:
    note(f"hang{n}")
    for_ever.wait()


@app.task(name="hang_once_released", retry=ONCE, timeout=0.3)
def hang_once_released() -> None:
    note("hang")
    while not is_open("release"):
        time.sleep(0.01)
    for_ever.wait()


@app.task(name="kill_after_timeout", retry=ONCE, timeout=0.5)
def kill_after_timeout(seconds: float) -> None:
    """Kill the process after the timeout, right before or after the thread is abandoned."""
    time.sleep(seconds)
    os._exit(9)


@app.task(name="hang_in_transaction", retry=ONCE, timeout=0.5)
async def hang_in_transaction(ctx: Context, n: int) -> None:
    def wait(connection: object) -> None:
        note(f"hang{n}")
        for_ever.wait()

    await ctx.transaction(wait, name="wait")


@app.task(name="write", retry=ONCE)
async def write(ctx: Context) -> str:
    def work(connection: object) -> str:
        return "written"

    return await ctx.transaction(work)


@app.task(name="swallow", retry=SOON, timeout=0.3)
async def swallow() -> str:
    """Swallow every cancellation in the first attempt."""
    first = note("swallow") == 0
    while first:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue
    return "second try"


@app.task(name="hold_gil", retry=ONCE, max_crashes=0)
def hold_gil(seconds: int) -> None:
    note("hold")
    ctypes.PyDLL(None).usleep(seconds * 1_000_000)
    for_ever.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    app.worker(lease=options.lease, concurrency=options.concurrency, grace=0).run()
