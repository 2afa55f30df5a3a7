"""Orders by events: a shop publishes what happens, and the payment, the warehouse and a report react to it.

    python event_driven_orders.py

The shop stores each order and publishes it in one transaction. It knows none of the functions that subscribe: they
could be in other programs, and a new one needs no change of the shop. Kill the program (`kill -9`) and start it again:
each subscriber gets each message once, and the report misses none.
"""

import sys
import time
from dataclasses import dataclass

from holdfast import Context, Holdfast, Topic, idempotency_key

app = Holdfast("sqlite:///event_driven_orders.db")


@dataclass
class Order:
    id: int
    item: str
    price: int
    country: str


ORDERS = [Order(1, "rope", 25, "SE"), Order(2, "anchor", 140, "NO"), Order(3, "lamp", 30, "NO")]


def place(order: Order) -> None:
    """Store an order and publish it, both or neither. Repeating it changes nothing."""
    with app.transaction() as connection:
        connection.execute("create table if not exists orders (id integer primary key, item text)")
        connection.execute("insert or ignore into orders values (?, ?)", (order.id, order.item))
        app.publish("orders.placed", order, key=f"order-{order.id}")


@app.task(on="orders.placed")
async def pay(ctx: Context, order: Order) -> None:
    await ctx.step(charge, order.id, order.price)
    await ctx.publish("orders.paid", order)


def charge(order: int, price: int) -> str:
    time.sleep(0.3)
    print(f"order {order}: {price} charged (key {idempotency_key()[:8]})")
    return f"payment of order {order}"


@app.task(on="orders.paid")
async def deliver(ctx: Context, order: Order) -> None:
    await ctx.sleep(0.3, name="on its way")
    await ctx.publish("orders.delivered", order)


@app.task(on=Topic("orders.paid", where={"country": "NO"}))
def declare_customs(order: Order) -> str:
    return f"order {order.id} declared"


@app.task(on="orders.*")
def audit(anything: dict[str, object]) -> None:
    """Gets every message about orders, also of topics that don't exist yet."""


@app.task
async def report(ctx: Context, orders: int) -> str:
    """Add up the orders until that many have been delivered."""
    revenue = 0
    for done in range(1, orders + 1):
        order = await ctx.next("orders.delivered", type=Order)
        revenue += order.price
        await ctx.set("progress", f"{done} of {orders} delivered")
    return f"{orders} orders delivered, {revenue} earned"


def main() -> None:
    with app.worker(lease=5, grace=1):
        summary = report.options(key="report").enqueue(len(ORDERS))
        while summary.info().state in ("ready", "running"):
            time.sleep(0.05)  # until it waits for the first message: it gets what is published from then on
        for order in ORDERS:
            place(order)
        for progress in summary.watch("progress"):
            print(progress)
        print(summary.result())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command to continue")
