"""The child processes that benchmarks start: `python -m benchmarks.child work|send|enqueue|…`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.profiler import profile_process
from benchmarks.suite.continuations import measure_operations, measure_results
from benchmarks.suite.scale import measure_in_child
from benchmarks.tasks import PAYLOAD_TEXT, StartMarkers, add_many_tasks, logger, make_app
from holdfast.task.task import Task

PAUSE_RANGE_S = (0.02, 0.06)
BULK_JOBS = 1000


def main() -> None:
    options = parse_arguments()
    threading.Thread(target=exit_with_parent, name="bench-parent", daemon=True).start()
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    ACTIONS[options.action](options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.child", description=__doc__)
    parser.add_argument("action", choices=list(ACTIONS))
    parser.add_argument("--url", required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="folder for marker files")
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--queue", action="append", help="work only on this queue; can be repeated")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--mode", choices=["single", "concurrent", "bulk"], default="single")
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=0, help="register so many more tasks")
    parser.add_argument("--logs", help="keep the lines of runs from this level on")
    parser.add_argument("--measure", help="what `scale` measures")
    return parser.parse_args()


def exit_with_parent() -> None:
    """Exit when standard input closes: only the parent process holds its other end."""
    while os.read(0, 1):  # sys.stdin would hold a lock that the interpreter needs at exit.
        pass
    os._exit(1)


def work(options: argparse.Namespace) -> None:
    """Run a worker until SIGTERM."""
    log_to_file(options.scratch / "lines.log")
    app, _ = make_app(options.url, StartMarkers(options.scratch), options.logs)
    add_many_tasks(app, options.tasks)
    with app, profile_process():
        app.worker(queues=options.queue, concurrency=options.concurrency).run()


def log_to_file(path: Path) -> None:
    """Write the lines of jobs to a file, as applications do."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logging.getLogger().handlers[0].setLevel(logging.WARNING)


def send(options: argparse.Namespace) -> None:
    """Enqueue single jobs with random pauses; each carries the time at which it was sent."""
    app, noop = make_app(options.url)
    with app:
        for number in range(options.count):
            noop.enqueue(number, PAYLOAD_TEXT, time.time())
            time.sleep(random.uniform(*PAUSE_RANGE_S))


def enqueue(options: argparse.Namespace) -> None:
    """Enqueue jobs as fast as possible and print the rate, without the time to connect."""
    app, noop = make_app(options.url)
    with app, profile_process():
        app.store.prepare()
        started = time.perf_counter()
        if options.mode == "single":
            for number in range(options.count):
                noop.enqueue(number, PAYLOAD_TEXT)
        elif options.mode == "bulk":
            for first in range(0, options.count, BULK_JOBS):
                last = min(options.count, first + BULK_JOBS)
                noop.enqueue_many([(number, PAYLOAD_TEXT) for number in range(first, last)])
        else:
            asyncio.run(_enqueue_concurrently(noop, options))
        seconds = time.perf_counter() - started
    print(json.dumps({"rate": options.count / seconds}), flush=True)


async def _enqueue_concurrently(noop: Task[..., int], options: argparse.Namespace) -> None:
    """Run several callers, each of which awaits its own enqueue before the next."""

    async def call(first: int) -> None:
        for number in range(first, options.count, options.callers):
            await noop.aenqueue(number, PAYLOAD_TEXT)

    await asyncio.gather(*[call(first) for first in range(options.callers)])


def continue_work(options: argparse.Namespace) -> None:
    """Measure continuations in this process and print milliseconds by operation."""
    with profile_process():
        metrics = measure_operations(options.url, options.count)
    print(json.dumps(metrics), flush=True)


def await_results(options: argparse.Namespace) -> None:
    """Measure enqueue to result with a worker in another process and print milliseconds."""
    print(json.dumps(measure_results(options.url, options.count)), flush=True)


def measure_scale(options: argparse.Namespace) -> None:
    """Measure one of the durable functions of `scale` and print the seconds of one item."""
    with profile_process():
        seconds = measure_in_child(options.url, options.measure, options.count)
    print(json.dumps({"seconds": seconds}), flush=True)


ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "work": work, "send": send, "enqueue": enqueue, "continue": continue_work, "results": await_results,
    "scale": measure_scale,
}  # fmt: skip

if __name__ == "__main__":
    main()
