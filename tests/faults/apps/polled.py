"""A worker process with a trigger: polled.py URL LEDGER [--die-at PLACE] [--ahead SECONDS].

The trigger returns 250 requests, whose runs write their numbers into the ledger. With --die-at the process only polls,
and kills itself at that point of its poll, after it has recorded the point. With --ahead the clock of its
statements is ahead by that many seconds, so that leases of other processes have expired.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Holdfast, Request
from holdfast.store.module import Tx
from tests.support.ledger import Ledger

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("ledger")
parser.add_argument("--die-at", default="")
parser.add_argument("--ahead", type=float, default=0.0)
options = parser.parse_args()

REQUESTS = 250

ledger = Ledger(options.ledger)
app = Holdfast(options.url, clock=lambda: int((time.time() + options.ahead) * 1e6) if options.ahead else None)


@app.task(name="note")
async def note(n: int) -> None:
    ledger.write(n)


@app.trigger("numbers", every=3600)
def numbers() -> Iterator[Request[None]]:
    for n in range(REQUESTS):
        if n == REQUESTS - 20:
            reach("the middle")
        yield note.options(key=f"n{n}").request(n)


def reach(place: str) -> None:
    if place == options.die_at:
        ledger.path.with_name("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Call back after each statement of a transaction and after each commit."""
    for part, names in ((app.store.triggers, ("acquire_due", "finish_poll")), (app.store.enqueuer, ("enqueue",))):
        _watch(part, names)


def _watch(part: Any, names: tuple[str, ...]) -> None:
    class WatchedTx(Tx):
        def execute(self, name: str, /, *, limit: int | None = None, **values: Any) -> Any:
            rows = super().execute(name, limit=limit, **values)
            reach(name)
            return rows

    def watched(connection: Any) -> Tx:
        return WatchedTx(part._context, connection)

    def after(name: str) -> Any:
        method = getattr(part, name)

        def call(*args: Any, **more: Any) -> Any:
            answer = method(*args, **more)
            if answer:
                reach(f"after {name}")
            return answer

        return call

    part._open = watched
    for name in names:
        setattr(part, name, after(name))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    install()
    app.worker(lease=2, grace=1, queues=["nothing"] if options.die_at else None).run()
