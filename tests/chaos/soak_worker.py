"""The worker of a soak test: soak_worker.py URL KEEP. Exits with its parent process."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast import Context, Holdfast
from tests.chaos.worker import exit_with_parent

STEPS = 3


def make_app(url: str, keep: float) -> Holdfast:
    """Return the app; finished runs are kept for `keep` seconds."""
    app = Holdfast(url, keep=keep)

    @app.task(name="noop")
    async def noop(number: int) -> int:
        return number

    @app.task(name="probe")
    async def probe(number: int) -> int:
        return number

    @app.task(name="steps")
    async def steps(ctx: Context, number: int) -> int:
        for step in range(STEPS):
            number = await ctx.step(plus, number, step)
        return await ctx.call(noop, number)

    return app


async def plus(number: int, more: int) -> int:
    return number + more


if __name__ == "__main__":
    threading.Thread(target=exit_with_parent, daemon=True).start()
    make_app(sys.argv[1], float(sys.argv[2])).worker(concurrency=200, lease=10).run()
