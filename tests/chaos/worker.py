"""A worker of a chaos run, which exits with its parent.

worker.py URL LEDGER --lease S --concurrency N --clock-off S [--label NAME]
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import sys
import threading
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("ledger")
parser.add_argument("--lease", type=float, required=True)
parser.add_argument("--concurrency", type=int, required=True)
parser.add_argument("--clock-off", type=float, default=0.0)
parser.add_argument("--label")


def main() -> None:
    options = parser.parse_args()
    if options.clock_off:
        real_time, real_time_ns = time.time, time.time_ns
        time.time = lambda: real_time() + options.clock_off
        time.time_ns = lambda: real_time_ns() + int(options.clock_off * 1e9)
    if "FAKETIME" in os.environ:  # libfaketime 0.9.10 passes times to clock_nanosleep that it rejects
        time.sleep = lambda seconds: select.select([], [], [], seconds) and None
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from holdfast import Holdfast
    from holdfast.errors import StoreUnavailable
    from tests.chaos.workload import Workload
    from tests.support.ledger import Ledger

    threading.Thread(target=exit_with_parent, daemon=True).start()
    logging.basicConfig(format="%(at)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger().handlers[0].addFilter(_timed)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    workload = Workload(Holdfast(options.url), Ledger(options.ledger), options.lease)
    try:
        labels = {options.label: "yes"} if options.label else None
        workload.app.worker(lease=options.lease, grace=1, concurrency=options.concurrency, labels=labels).run()
    except StoreUnavailable as error:
        sys.exit(f"not started: {error}")  # The pool starts another one.


def _timed(record: logging.LogRecord) -> bool:
    """Add the time of the ledger, which is right even if our clock is skewed."""
    record.at = f"{time.monotonic():.2f}"
    return True


def exit_with_parent() -> None:
    """Exit when standard input closes, which happens when the parent process exits."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main()
