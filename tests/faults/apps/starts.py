"""An app for tests of the start: `HOOK` selects a slow on_start hook, which writes to `LEDGER`."""

import asyncio
import os
import time

from holdfast import Holdfast
from tests.support.ledger import Ledger

app = Holdfast()
ledger = Ledger(os.environ["LEDGER"])


@app.task(name="double")
def double(n: int) -> int:
    return 2 * n


@app.on_start
def opened():
    ledger.write("opened")
    yield
    ledger.write("closed")


@app.on_start
async def opened_too():
    yield
    ledger.write("closed too")


def in_thread() -> None:
    ledger.write("starting")
    time.sleep(600)


async def on_loop() -> None:
    ledger.write("starting")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        ledger.write("interrupted")
        raise


async def blocks_the_loop() -> None:
    ledger.write("starting")
    time.sleep(600)  # noqa: ASYNC251 - that is what it is for


HOOKS = {"in_thread": in_thread, "on_loop": on_loop, "blocks_the_loop": blocks_the_loop}
if os.environ.get("HOOK"):
    app.on_start(HOOKS[os.environ["HOOK"]])
