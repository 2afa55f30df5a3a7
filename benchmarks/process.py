"""The processes that a measurement starts: `python -m benchmarks.process work|send|enqueue …`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import threading
import time
from pathlib import Path

from benchmarks.profile import profiled
from benchmarks.tasks import TEXT, Marks, make_app
from holdfast.task.task import Task

PAUSE_SECONDS = (0.02, 0.06)
BULK = 1000


def main() -> None:
    options = parse()
    threading.Thread(target=end_with_parent, name="bench-parent", daemon=True).start()
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    verbs = {"work": work, "send": send, "enqueue": enqueue}
    verbs[options.verb](options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.process", description=__doc__)
    parser.add_argument("verb", choices=["work", "send", "enqueue"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="the folder for marks")
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--queue", action="append", help="work on this queue only; may be repeated")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--way", choices=["single", "concurrent", "bulk"], default="single")
    parser.add_argument("--callers", type=int, default=1)
    return parser.parse_args()


def end_with_parent() -> None:
    """The other end of our input is held by the process that started us, and by nobody else."""
    while os.read(0, 1):  # not by sys.stdin, whose lock would be held when the interpreter ends
        pass
    os._exit(1)


def work(options: argparse.Namespace) -> None:
    """Work until told to stop."""
    app, _ = make_app(options.url, Marks(options.scratch))
    with app, profiled():
        app.worker(queues=options.queue, concurrency=options.concurrency).run()


def send(options: argparse.Namespace) -> None:
    """Enqueue single jobs with random pauses, each carrying the time at which it was sent."""
    app, noop = make_app(options.url)
    with app:
        for number in range(options.count):
            noop.enqueue(number, TEXT, time.time())
            time.sleep(random.uniform(*PAUSE_SECONDS))


def enqueue(options: argparse.Namespace) -> None:
    """Enqueue as fast as it goes, and tell the rate. What the first call makes and opens is made and opened before."""
    app, noop = make_app(options.url)
    with app, profiled():
        app.store.prepare()
        started = time.perf_counter()
        if options.way == "single":
            for number in range(options.count):
                noop.enqueue(number, TEXT)
        elif options.way == "bulk":
            for first in range(0, options.count, BULK):
                noop.enqueue_many([(number, TEXT) for number in range(first, min(options.count, first + BULK))])
        else:
            asyncio.run(_concurrently(noop, options))
        seconds = time.perf_counter() - started
    print(json.dumps({"rate": options.count / seconds}), flush=True)


async def _concurrently(noop: Task[..., int], options: argparse.Namespace) -> None:
    """Callers side by side, each of which waits for its own enqueue before the next."""

    async def caller(first: int) -> None:
        for number in range(first, options.count, options.callers):
            await noop.aenqueue(number, TEXT)

    await asyncio.gather(*[caller(first) for first in range(options.callers)])


if __name__ == "__main__":
    main()
