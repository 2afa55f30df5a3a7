"""CPU-bound work in processes: compute an image on all cores, with a timeout and a memory limit.

    python cpu_work.py

The program draws the Mandelbrot set. Each band of rows is a job with `run_in="process"`, so bands run in parallel and a
job can be killed without affecting others. One job never ends: after its timeout, its process is killed.
When the image is finished, another start only prints it; delete `cpu.db` to compute it again.
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
    """Compute a band of rows. The process imports this file, so everything it needs is defined at module level."""
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
        sys.exit("stopped; run the same command to continue")
