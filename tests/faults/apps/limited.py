"""A worker process for fault tests of limits: limited.py URL LEDGER RATE [--lease S].

`alone`, and the step of `stepped`, must run at most once per key at a time. It creates a file per key, exclusively,
with its process id. A file of a dead process may be removed; a file of a live process is a violation.

`few`, and the step of `stepped_few`, may run three times per key at once. A file for each of them names its process;
they are counted under a file lock, which a dead process doesn't hold.

`weighted`, and the step of `metered`, count a cost against the rate. They record which attempt has started.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("ledger")
parser.add_argument("rate")
parser.add_argument("--lease", type=float, default=2.0)
options = parser.parse_args()

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Holdfast, Retry  # noqa: E402
from holdfast.telemetry.log_format import current_attempt  # noqa: E402
from tests.support.ledger import Ledger  # noqa: E402

app = Holdfast(options.url)
app.limit("alone", concurrency=1, by="key")
app.limit("few", concurrency=3, by="key")
app.limit("often", rate=options.rate)
app.limit("tokens", rate=options.rate, cost="cost")
ledger = Ledger(options.ledger)
mine = ledger.path.with_name(f"pid {os.getpid()}")
mine.write_text(str(os.getpid()))


def enter(key: str) -> Path:
    """Create the file of a key, or record the live process that created it."""
    lock = ledger.path.with_name(f"lock {key}")
    while True:
        with contextlib.suppress(FileExistsError):
            os.link(mine, lock)  # exclusive like O_EXCL, and complete at once
            return lock
        with contextlib.suppress(FileNotFoundError):
            holder = lock.read_text()
            if alive(int(holder)):
                ledger.write("clash", key, holder, os.getpid())
                return lock
            lock.unlink()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@app.task(name="alone", limits=["alone"], max_crashes=1000, retry=Retry(max_attempts=1))
async def alone(key: str, number: int, seconds: float) -> int:
    lock = enter(key)
    ledger.write("began", number, os.getpid())
    await asyncio.sleep(seconds)
    lock.unlink(missing_ok=True)
    return number


async def hold(key: str, number: int, seconds: float) -> int:
    return await alone.fn(key, number, seconds)


@app.task(name="stepped", max_crashes=1000, retry=Retry(max_attempts=1))
async def stepped(ctx: Context, key: str, number: int, seconds: float) -> int:
    return await ctx.options(limits=["alone"]).step(hold, key, number, seconds)


def count_in(key: str, number: int) -> tuple[int, Path]:
    """Create a file for a run of this key; return how many runs of the key execute in live processes, with this one."""
    folder = ledger.path.with_name(f"few {key}")
    folder.mkdir(exist_ok=True)
    with ledger.path.with_name("counting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = 0
        for file in list(folder.iterdir()):
            with contextlib.suppress(FileNotFoundError):  # a run that ends isn't waited for: it still has its permit
                if alive(int(file.read_text())):
                    others += 1
                else:
                    file.unlink()
        own = folder / str(number)
        os.link(mine, own)
        return others + 1, own


async def be_counted(key: str, number: int, seconds: float) -> int:
    count, own = count_in(key, number)
    ledger.write("together", number, count)
    await asyncio.sleep(seconds)
    own.unlink()
    return number


@app.task(name="few", limits=["few"], max_crashes=1000, retry=Retry(max_attempts=1))
async def few(key: str, number: int, seconds: float) -> int:
    return await be_counted(key, number, seconds)


@app.task(name="stepped_few", max_crashes=1000, retry=Retry(max_attempts=1))
async def stepped_few(ctx: Context, key: str, number: int, seconds: float) -> int:
    return await ctx.options(limits=["few"]).step(be_counted, key, number, seconds)


@app.task(name="often", limits=["often"])
async def often(number: int) -> int:
    return number


async def spend(number: int, seconds: float, hangs: bool) -> int:
    """Record the start, between two pauses. The first attempt of a run that hangs ends with its process."""
    attempt = current_attempt.get()
    assert attempt is not None
    await asyncio.sleep(seconds)
    ledger.write(attempt.run, attempt.attempt, os.getpid())
    await asyncio.sleep(3600 if hangs and attempt.attempt == 1 else seconds)
    return number


@app.task(name="weighted", limits=["tokens"], max_crashes=1000, retry=Retry(max_attempts=1))
async def weighted(number: int, cost: int, used: int, seconds: float, hangs: bool) -> int:
    return await spend(number, seconds, hangs)


@app.task(name="metered", max_crashes=1000, retry=Retry(max_attempts=1))
async def metered(ctx: Context, number: int, cost: int, used: int, seconds: float, hangs: bool) -> int:
    await ctx.options(limits=["tokens"], cost=cost).step(spend, number, seconds, hangs)
    await ctx.adjust("tokens", used)
    return number


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    app.worker(lease=options.lease, grace=1.0, concurrency=20).run()
