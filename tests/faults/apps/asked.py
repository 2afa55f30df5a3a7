"""A worker for functions that serve asks: asked.py URL LEDGER [--lease S].

Each handled ask is a line of the ledger: the run, the key of the ask, its place among those of the run, the idempotency
key of the effect. A file `die-PLACE` beside the ledger kills the worker that first handles an ask at that place: at
once at an even place, before the effect is recorded, and at an odd one after a random time.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Holdfast, idempotency_key
from tests.support.ledger import Ledger

RESTART_AFTER = 15
"""How many asks a function handles before it restarts, so that its history stays small."""


def die_if_told(told: Path, place: int) -> None:
    try:
        told.unlink()
    except FileNotFoundError:
        return
    if place % 2 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(random.random() * 0.03, os.kill, (os.getpid(), signal.SIGKILL)).start()


def make_app(url: str, ledger: Ledger) -> Holdfast:
    app = Holdfast(url)

    @app.task(name="serving", max_crashes=1000)
    async def serving(ctx: Context, handled: int) -> int:
        last = handled + RESTART_AFTER

        def take_effect(key: str, place: int) -> None:
            ledger.write(ctx.run_id, key, place, idempotency_key())
            die_if_told(ledger.path.with_name(f"die-{place}"), place)

        async def add(key: str) -> int:
            nonlocal handled
            if handled == last:
                await ctx.restart(handled)
            await ctx.step(take_effect, key, handled, name="effect")
            handled += 1
            await ctx.set("handled", handled)
            return handled

        return await ctx.serve(add=add, count=lambda: handled, close=lambda: ctx.stop(handled))

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("ledger")
    parser.add_argument("--lease", type=float, default=1.0)
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    app = make_app(options.url, Ledger(options.ledger))
    app.worker(lease=options.lease, grace=1, concurrency=20).run()


if __name__ == "__main__":
    main()
