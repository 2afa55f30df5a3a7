"""A program that uses a SQLite store, for tests of its locks and files: writers.py URL LEDGER ROLE [--lease S] [...].

Roles: `loop` holds one transaction after the other; `enqueue` enqueues and notes each acknowledged run in the ledger;
`worker` works on both tasks. Each runs until the file `stop` appears beside the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("ledger")
parser.add_argument("role", choices=["loop", "enqueue", "worker"])
parser.add_argument("--lease", type=float, default=6.0)
parser.add_argument("--also", choices=["read", "copy", "sqlite3"], help="what it does to the file after each enqueue")
parser.add_argument("--hold", type=float, default=0.1, help="seconds that a transaction takes")
options = parser.parse_args()

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Holdfast  # noqa: E402
from holdfast.errors import ConfigError, HoldfastError  # noqa: E402
from tests.support.ledger import Ledger  # noqa: E402

app = Holdfast(options.url)
ledger = Ledger(options.ledger)
STOP = Path(options.ledger).with_name("stop")


@app.task(name="count")
async def count(n: int, seconds: float = 0.0) -> int:
    ledger.write("ran", n)
    await asyncio.sleep(seconds)
    return n


@app.task(name="transact")
async def transact(ctx: Context, n: int, times: int) -> int:
    for _ in range(times):
        await ctx.transaction(insert, n)
    return n


def insert(connection: Any, n: int) -> None:
    connection.execute("insert into effects (n) values (?)", (n,))
    time.sleep(options.hold)


def loop() -> None:
    while not STOP.exists():
        try:
            with app.transaction() as connection:
                connection.execute("insert into effects (n) values (0)")
                time.sleep(options.hold)
        except HoldfastError as error:
            ledger.write("error", type(error).__name__)
            raise
        ledger.write("held")


def enqueue() -> None:
    n = 0
    while not STOP.exists():
        n += 1
        began = time.monotonic()
        run = count.enqueue(n)
        ledger.write("acknowledged", run.id, f"{time.monotonic() - began:.3f}", time.monotonic())
        also()


def also() -> None:
    path = Path(options.url.removeprefix("sqlite:///"))
    if options.also == "read":  # opens another connection, the first time
        app.runs(limit=1)
    elif options.also == "copy":
        path.with_name("copy").write_bytes(path.read_bytes())
    elif options.also == "sqlite3":
        try:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("select count(*) from sqlite_schema").fetchall()
        except ConfigError:
            ledger.write("refused")


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    if options.role == "worker":
        app.worker(lease=options.lease, grace=1).run()
    else:
        {"loop": loop, "enqueue": enqueue}[options.role]()
