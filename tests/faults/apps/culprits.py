"""A worker process for tests of culprits and innocents: culprits.py URL LEDGER [--lease S] [--concurrency N].

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


def note(what: str) -> int:
    """Write an effect; how often it was written before."""
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


@app.task(name="swallow", retry=SOON, timeout=0.3)
async def swallow() -> str:
    """Swallow every cancellation, the first time."""
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
