"""A nightly import as a graph: extract two sources in parallel, join them, wait for an approval, load.

    python nightly_etl.py

It runs last night's graph and asks you before it loads. You can take days to answer: leave with Ctrl-C, and the same
command asks again. You can also answer from elsewhere, with `holdfast gate RUN approve complete --url sqlite:///etl.db`
or in the dashboard. Each night is imported once; delete `etl.db` to start over.

In production, run `holdfast worker --app nightly_etl:app`; the schedule submits the graph.
"""

import asyncio
import sys
import time
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypedDict

from holdfast import Graph, Holdfast, Retry, Run, RunFailed, SyncContext

app = Holdfast("sqlite:///etl.db")


class Table(TypedDict):
    name: str
    rows: list[dict[str, Any]]


class Report(TypedDict):
    good: list[dict[str, Any]]
    bad: int


@app.task(retry=Retry(max_attempts=5, delay=10))
async def extract(name: str, day: date) -> Table:
    """Stands for a download. Store large data in a file and return its path."""
    await asyncio.sleep(0.2)
    print(f"extracting {name} of {day}")
    if name == "customers":
        return {"name": name, "rows": [{"customer": number, "town": f"town {number % 3}"} for number in range(20)]}
    return {"name": name, "rows": [{"order": n, "customer": n % 22, "cents": n * 100} for n in range(200)]}


@app.task
def join_tables(orders: Table, customers: Table) -> Report:
    towns = {row["customer"]: row["town"] for row in customers["rows"]}
    good = [{**row, "town": towns[row["customer"]]} for row in orders["rows"] if row["customer"] in towns]
    return {"good": good, "bad": len(orders["rows"]) - len(good)}


@app.task
def load(report: Report, day: date) -> int:
    """Replace the rows of a night in one transaction, so that loading it twice has no second effect."""
    with app.transaction() as connection:
        connection.execute("create table if not exists sales (day text, number integer, town text, cents integer)")
        connection.execute("delete from sales where day = ?", (day.isoformat(),))
        for row in report["good"]:
            values = (day.isoformat(), row["order"], row["town"], row["cents"])
            connection.execute("insert into sales values (?, ?, ?, ?)", values)
    print(f"loaded {len(report['good'])} rows")
    return len(report["good"])


@app.task
async def warn(day: date) -> None:
    print(f"{day} was not loaded")  # or notify the person on call


@app.task
async def clean_up(day: date) -> None:
    print(f"temporary files of {day} deleted")


def graph_of(day: date) -> Graph:
    g = Graph("nightly-etl", key=day.isoformat())  # the key: one graph per night
    orders = g.add(extract, "orders", day, name="orders")
    customers = g.add(extract, "customers", day, name="customers")
    joined = g.add(join_tables, orders.output, customers.output, name="join")
    approve = g.gate("approve", after=[joined], timeout=timedelta(days=3))
    loaded = g.add(load, joined.output, day, after=[approve], name="load")
    g.add(warn, day, after=[approve.failed], name="warn")
    g.add(clean_up, day, after=[loaded.finished], name="clean up")
    return g


@app.task
def nightly(ctx: SyncContext) -> None:
    assert ctx.scheduled_for is not None  # the slot, even if the run starts hours later
    ctx.step(submit, ctx.scheduled_for.date() - timedelta(days=1))


def submit(day: date) -> None:
    app.submit(graph_of(day))


app.schedule("nightly-etl", nightly, cron="0 3 * * *", tz="Europe/London", catch_up="all")


def main() -> None:
    day = datetime.now(UTC).date() - timedelta(days=1)
    run = app.submit(graph_of(day))
    with app.worker(lease=5, grace=1):  # a short lease, so that a killed run resumes within 5 s; the default is 60
        while not (info := run.info()).final and info.state != "waiting":
            time.sleep(0.05)
        if info.state == "waiting":  # only the gate is open
            ask(run)
        try:
            print(f"{day}: {run.result()['load']} rows are in the sales table")
        except RunFailed as failed:
            print(f"{day}: {failed.error.message}")


def ask(run: Run[Any]) -> None:
    """Ask at the terminal. Another process can answer as well."""
    report = run.nodes()["join"].result
    assert report is not None
    print(f"{len(report['good'])} rows are good, {report['bad']} have no customer")
    try:
        answer = input("load them? [y/n] ").strip().lower()
    except EOFError:
        sys.exit(f"\nno answer; to approve later: holdfast gate {run.id} approve complete --url {app.url}")
    if answer.startswith("y"):
        run.gate("approve").complete()
    else:
        run.gate("approve").fail("too many orders without a customer")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstopped; run the same command to continue")
