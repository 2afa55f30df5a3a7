"""Debounced calls for fault tests: debounced.py URL LEDGER (work | call CLIENT KEYS CALLS DELAY).

A client calls its own keys in turn with increasing numbers. It records each call before it is made and after it was
acknowledged, so that a restarted client continues with a greater number.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Holdfast
from tests.support.ledger import Ledger

url, path, role, *numbers = sys.argv[1:]
app = Holdfast(url)
ledger = Ledger(path)


@app.task(name="index", max_crashes=1000)
async def index(key: str, number: int) -> int:
    ledger.write("ran", key, number)
    return number


def call(client: int, keys: int, calls: int, delay: float) -> None:
    mine = Ledger(f"{path}.{client}")
    begin = 1 + max((int(words[2]) for words in mine.words()), default=-1)
    for number in range(begin, calls):
        key = f"{client}-{number % keys}"
        mine.write("calling", key, number, time.time())
        index.options(debounce=key, delay=delay).enqueue(key, number)
        mine.write("called", key, number, time.time())


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    if role == "work":
        app.worker(lease=2.0, grace=1.0).run()
    else:
        call(*map(int, numbers[:3]), delay=float(numbers[3]))
