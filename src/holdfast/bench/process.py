"""The processes that a measurement starts: `python -m holdfast.bench.process work|send …`."""

from __future__ import annotations

import argparse
import logging
import os
import random
import threading
import time
from pathlib import Path

from holdfast.bench.tasks import TEXT, Marks, make_app

PAUSE_SECONDS = (0.02, 0.06)


def main() -> None:
    options = parse()
    threading.Thread(target=end_with_parent, name="bench-parent", daemon=True).start()
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    if options.verb == "work":
        work(options)
    else:
        send(options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m holdfast.bench.process", description=__doc__)
    parser.add_argument("verb", choices=["work", "send"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="the folder for marks")
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--queue", action="append", help="work on this queue only; may be repeated")
    parser.add_argument("--count", type=int, default=0)
    return parser.parse_args()


def end_with_parent() -> None:
    """The other end of our input is held by the process that started us, and by nobody else."""
    while os.read(0, 1):  # not by sys.stdin, whose lock would be held when the interpreter ends
        pass
    os._exit(1)


def work(options: argparse.Namespace) -> None:
    """Work until told to stop."""
    app, _ = make_app(options.url, Marks(options.scratch))
    with app:
        app.worker(queues=options.queue, concurrency=options.concurrency).run()


def send(options: argparse.Namespace) -> None:
    """Enqueue single jobs with random pauses, each carrying the time at which it was sent."""
    app, noop = make_app(options.url)
    with app:
        for number in range(options.count):
            noop.enqueue(number, TEXT, time.time())
            time.sleep(random.uniform(*PAUSE_SECONDS))


if __name__ == "__main__":
    main()
