"""A worker process for tests of cancellation: cancelled.py URL LEDGER, with a lease of 60 s.

Each task writes `began` at its start, and `told` as soon as it notices the cancellation. `in_process` can't, because it
is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Holdfast, SyncContext, stop_requested
from tests.support.ledger import Ledger

url, path = sys.argv[1:3]
app = Holdfast(url)


def note(what: str) -> None:
    Ledger(path).write(what, os.getpid())


async def wait_on_loop() -> None:
    note("began")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note("told")
        raise


def ask_in_thread() -> None:
    note("began")
    while not stop_requested():
        time.sleep(0.01)
    note("told")


@app.task(name="on_loop")
async def on_loop() -> None:
    await wait_on_loop()


@app.task(name="in_thread")
def in_thread() -> None:
    ask_in_thread()


@app.task(name="beside_loop")
async def beside_loop() -> None:
    await asyncio.to_thread(ask_in_thread)


@app.task(name="in_process", run_in="process")
def in_process() -> None:
    note("began")
    time.sleep(600)


@app.task(name="durable_on_loop")
async def durable_on_loop(ctx: Context) -> None:
    await ctx.step(wait_on_loop)


@app.task(name="durable_in_step")
def durable_in_step(ctx: SyncContext) -> None:
    ctx.step(ask_in_thread)


@app.task(name="durable_in_body")
def durable_in_body(ctx: SyncContext) -> None:
    """Stop at the next operation, which raises."""
    note("began")
    try:
        while True:
            time.sleep(0.01)
            ctx.check()
    finally:
        note("told")


@app.task(name="durable_next_step")
def durable_next_step(ctx: SyncContext) -> None:
    try:
        for n in range(10_000):
            ctx.step(pause, n)
    finally:
        note("told")


def pause(n: int) -> None:
    if n == 0:
        note("began")
    time.sleep(0.05)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    app.worker(lease=60, grace=0).run()
