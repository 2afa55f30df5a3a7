"""A worker process for fault tests: work.py URL LEDGER [--lease S] [--grace S] [--concurrency N] [--clock-off S]
[--clock-jumps S] [--embedded]. A clock with --clock-jumps S is alternately S seconds ahead and behind, a few times per
second.

Its tasks write every effect into the ledger. Tasks that wait poll for files beside the ledger, which the test creates.
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

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("ledger")
parser.add_argument("--lease", type=float, default=2.0)
parser.add_argument("--grace", type=float, default=1.0)
parser.add_argument("--concurrency", type=int, default=10)
parser.add_argument("--clock-off", type=float, default=0.0)
parser.add_argument("--clock-jumps", type=float, default=0.0)
parser.add_argument("--embedded", action="store_true", help="work in the background of a program that waits for ever")
options = parser.parse_args()

real_time, real_time_ns = time.time, time.time_ns


def clock_off() -> float:
    return float(options.clock_off) + options.clock_jumps * (-1) ** int(real_time() * 5)


if options.clock_off or options.clock_jumps:
    time.time = lambda: real_time() + clock_off()
    time.time_ns = lambda: real_time_ns() + int(clock_off() * 1e9)

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Holdfast, Retry  # noqa: E402
from tests.support.ledger import Ledger  # noqa: E402

app = Holdfast(options.url)
ledger = Ledger(options.ledger)
ONCE = Retry(max_attempts=1)


def note(what: str) -> int:
    """Write an effect with time and process; return how often it was written before."""
    before = sum(words[0] == what for words in ledger.words())
    ledger.write(what, os.getpid(), f"{real_time():.6f}")
    return before


def open_now(n: int) -> bool:
    return ledger.path.with_name(f"release{n}").exists()


@app.task(name="count", max_crashes=1000, retry=ONCE)
async def count(n: int, seconds: float = 0.0) -> int:
    ledger.write(n, os.getpid())
    await asyncio.sleep(seconds)
    return n


@app.task(name="count_in_thread", max_crashes=1000, retry=ONCE)
def count_in_thread(n: int, seconds: float = 0.0) -> int:
    ledger.write(n, os.getpid())
    time.sleep(seconds)
    return n


@app.task(name="hold", retry=ONCE)
async def hold() -> int:
    n = note("began")
    try:
        while not open_now(n):
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    note("ended")
    return n


@app.task(name="hold_in_thread", retry=ONCE)
def hold_in_thread() -> int:
    n = note("began")
    while not open_now(n):
        time.sleep(0.01)
    note("ended")
    return n


@app.task(name="hold_the_loop", retry=ONCE)
async def hold_the_loop() -> int:
    return hold_in_thread.fn()


@app.task(name="try_twice", retry=Retry(max_attempts=2, delay=2, jitter=0))
async def try_twice() -> int:
    if not (n := note("tried")):
        raise OSError("the first time")
    return n


@app.task(name="hang", timeout=1, retry=ONCE)
async def hang() -> None:
    note("hung")
    await asyncio.Event().wait()


@app.task(name="hold_the_gil", retry=ONCE)
async def hold_the_gil(pipe: str) -> int:
    """In the first attempt, hold the GIL until the test writes into the pipe."""
    n = note("began")
    if n == 0:
        while not open_now(n):
            await asyncio.sleep(0.01)
        ctypes.PyDLL(None).read(os.open(pipe, os.O_RDWR), ctypes.create_string_buffer(1), 1)
    note("ended")
    return n


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    worker = app.worker(lease=options.lease, grace=options.grace, concurrency=options.concurrency)
    if options.embedded:
        with worker:
            threading.Event().wait()
    else:
        worker.run()
