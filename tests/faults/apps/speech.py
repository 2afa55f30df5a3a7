"""A worker whose runs stream words, a step at a time: `speech.py URL`."""

from __future__ import annotations

import asyncio
import sys

from holdfast import Context, Holdfast


def make_app(url: str) -> Holdfast:
    app = Holdfast(url)

    @app.task(name="speak", max_crashes=10)
    async def speak(ctx: Context, steps: int, words: int, pause: float) -> str:
        async def say(step: int) -> None:
            for word in range(words):
                await ctx.write(f"{step}.{word} ")
                await asyncio.sleep(pause)

        for step in range(steps):
            await ctx.write(f"step {step}: ")
            await ctx.step(say, step, name="say")
        return "said"

    return app


def transcript(steps: int, words: int) -> str:
    """Return what a reader of the run must have in the end."""
    return "".join(f"step {step}: " + "".join(f"{step}.{word} " for word in range(words)) for step in range(steps))


if __name__ == "__main__":
    make_app(sys.argv[1]).worker(lease=3, grace=0, concurrency=50).run()
