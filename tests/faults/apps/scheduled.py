"""A worker process with a schedule: scheduled.py URL LEDGER [--clock-off S] [--die-at STATEMENT].

Each run writes its slot into the ledger. With --die-at the process kills itself in the transaction of a slot: right
after that statement, before the commit; or right after the commit, with `commit`.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("ledger")
parser.add_argument("--clock-off", type=float, default=0.0)
parser.add_argument("--die-at", default="")
options = parser.parse_args()

real_time, real_time_ns = time.time, time.time_ns
if options.clock_off:
    time.time = lambda: real_time() + options.clock_off
    time.time_ns = lambda: real_time_ns() + int(options.clock_off * 1e9)

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Holdfast, SyncContext  # noqa: E402
from tests.support.ledger import Ledger  # noqa: E402

app = Holdfast(options.url)
ledger = Ledger(options.ledger)


@app.task(name="note", max_crashes=1000)
def note(ctx: SyncContext) -> None:
    assert ctx.scheduled_for is not None
    ledger.write(int(ctx.scheduled_for.timestamp()), os.getpid(), f"{real_time():.3f}")


app.schedule("tick", note, every=1, catch_up="all")


def die() -> None:
    ledger.path.with_name("died").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def install(at: str) -> None:
    """Die at the first slot for which this process creates a run."""
    part: Any = app.store.schedules
    open_transaction, fire = part._open, part.fire

    def watched(connection: Any) -> Any:
        tx = open_transaction(connection)

        def call(name: str, **values: Any) -> Any:
            rows = tx.execute(name, **values)
            if name == at:
                die()
            return rows

        return SimpleNamespace(execute=call, payloads=tx.payloads)

    def fire_and_die() -> Any:
        fired = fire()
        if at == "commit" and fired.created:
            die()
        return fired

    part._open, part.fire = watched, fire_and_die


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    if options.die_at:
        install(options.die_at)
    app.worker(lease=2, grace=1).run()
