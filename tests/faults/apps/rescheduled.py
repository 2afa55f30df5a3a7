"""A worker process with one slot: rescheduled.py URL LEDGER. Its runs reschedule themselves until the file `stop`
exists beside the ledger, and write a line whenever they begin or wake."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Done, Holdfast, Retry, State, SyncContext
from tests.support.ledger import Ledger

app = Holdfast(sys.argv[1])
ledger = Ledger(sys.argv[2])


def goes_on() -> bool:
    ledger.write("again")
    return not ledger.path.with_name("stop").exists()


class Round(State):
    async def run(self, ctx: Context) -> Round | Done[None]:
        return Round() if goes_on() else Done()


app.machine("machine", Round, history=10)


@app.task(name="retry", retry=Retry(max_attempts=1_000_000, delay=0))
async def retry() -> None:
    if goes_on():
        raise OSError("once more")


@app.task(name="sleeper")
async def sleeper(ctx: Context) -> None:
    while goes_on():
        await ctx.sleep(0.001)


@app.task(name="sync_sleeper")
def sync_sleeper(ctx: SyncContext) -> None:
    while goes_on():
        ctx.sleep(0.001)


@app.task(name="job")
async def job(n: int) -> None:
    ledger.write("job", n)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast.worker").setLevel(logging.INFO)
    app.worker(concurrency=1, grace=1).run()
