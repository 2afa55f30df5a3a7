"""A worker process whose task waits inside asyncio.timeout: impatient.py URL LEDGER."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Fatal, Holdfast
from tests.support.ledger import Ledger

ledger = Ledger(sys.argv[2])
app = Holdfast(sys.argv[1])


@app.task(name="impatient")
async def impatient(ctx: Context, number: int) -> str:
    await ctx.sleep(0.1)
    try:
        if number % 2:
            await asyncio.wait_for(ctx.wait_for("never"), 3600)
        async with asyncio.timeout(3600):
            await ctx.sleep(7200)
    except Fatal as error:
        ledger.write(number, "timeout=" in str(error))
        return "refused"
    return "waited"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    app.worker(lease=5, concurrency=4).run()
