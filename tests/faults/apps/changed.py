"""A worker process for changes at run time: changed.py URL LEDGER. `work` records its start in the ledger."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Holdfast
from tests.support.ledger import Ledger

app = Holdfast(sys.argv[1])
ledger = Ledger(sys.argv[2])
app.limit("few", concurrency=6)


@app.task(name="work", limits=["few"])
async def work(number: int) -> None:
    ledger.write(number, os.getpid())
    await asyncio.sleep(0.03)


@app.task(name="tick")
async def tick(version: int) -> int:
    return version


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    app.worker(concurrency=4).run()
