"""CPU work in processes: rows of a picture on all cores, with a limit of time and memory that kills what goes too far.

    python cpu_work.py

Draws the Mandelbrot set. Each band of rows is a job with `run_in="process"`: real parallel work, which can be killed
without harm to anyone else. One job that never ends shows it: its time runs out, and its process is killed.
A finished picture is only shown; delete `cpu.db` to compute anew.
"""

import os
import sys

from holdfast import Context, Holdfast, Retry, RunFailed

app = Holdfast("sqlite:///cpu.db")
WIDTH, HEIGHT, BAND = 78, 32, 4
MOST_ROUNDS = 3000
SHADES = " .:-=+*%#@"


@app.task(run_in="process", timeout=60, memory=512 * 1024 * 1024)
def draw_band(first: int) -> list[str]:
    """Some rows. It runs in a process of its own, which imports this file: what it needs is defined at the top."""
    return ["".join(shade(column, row) for column in range(WIDTH)) for row in range(first, min(first + BAND, HEIGHT))]


def shade(column: int, row: int) -> str:
    point = complex(column / WIDTH * 3 - 2.2, row / HEIGHT * 2.4 - 1.2)
    value = 0j
    for rounds in range(MOST_ROUNDS):
        value = value * value + point
        if abs(value) > 2:
            return SHADES[rounds % (len(SHADES) - 1)]
    return SHADES[-1]


@app.task(run_in="process", timeout=1, retry=Retry(max_attempts=1))
def never_ends() -> None:
    while True:
        pass


@app.task
async def picture(ctx: Context) -> list[str]:
    bands = await ctx.map(draw_band, range(0, HEIGHT, BAND), concurrency=os.cpu_count() or 1)
    return [line for band in bands for line in band]


def main() -> None:
    drawing = picture.options(key="picture").enqueue()
    stubborn = never_ends.options(key="stubborn").enqueue()
    with app.worker(lease=5, grace=1):
        print("\n".join(drawing.result()))
        try:
            stubborn.result()
        except RunFailed as failed:
            print(f"never_ends: {failed.error.code}: {failed.error.message}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")
