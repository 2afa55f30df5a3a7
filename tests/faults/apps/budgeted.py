"""A worker process for fault tests of budgets: budgeted.py URL LEDGER LIMIT [--lease S].

Runs of all tenants share the budget `usd`. They pay in a step and spend after it, or inside of it. Each payment is
recorded in the ledger.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("ledger")
parser.add_argument("limit", type=float)
parser.add_argument("--lease", type=float, default=2.0)
options = parser.parse_args()

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Holdfast  # noqa: E402
from tests.support.ledger import Ledger  # noqa: E402

app = Holdfast(options.url)
app.budget("usd", limit=options.limit, per="tenant")
ledger = Ledger(options.ledger)


def pay(run: str, number: int, amount: float) -> float:
    ledger.write(run, number, amount)
    return amount


@app.task(name="after", max_crashes=1000)
async def after(ctx: Context, amounts: list[float]) -> int:
    for number, amount in enumerate(amounts):
        await ctx.spend("usd", await ctx.step(pay, str(ctx.run_id), number, amount))
    return len(amounts)


@app.task(name="inside", max_crashes=1000)
async def inside(ctx: Context, amounts: list[float]) -> int:
    for number, amount in enumerate(amounts):

        async def pay_and_spend(number: int = number, amount: float = amount) -> None:
            await ctx.spend("usd", pay(str(ctx.run_id), number, amount))

        await ctx.options(name=f"pay {number}").step(pay_and_spend)
    return len(amounts)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    app.worker(lease=options.lease, concurrency=50).run()
