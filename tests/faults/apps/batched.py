"""A worker process for fault tests of batches: batched.py URL LEDGER. Item 13 kills its process."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Batch, Holdfast
from tests.support.ledger import Ledger

app = Holdfast(sys.argv[1])
ledger = Ledger(sys.argv[2])


@app.task(name="batched", batch=Batch(max_size=20, max_wait=0.2), max_crashes=0)
async def batched(items: list[int]) -> list[int]:
    ledger.write("call", *items)
    if 13 in items:
        os._exit(9)
    return items


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    app.worker(lease=2.0, grace=1.0).run()
