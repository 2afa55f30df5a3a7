"""A shopping cart as an object: a durable function that keeps its items in local variables and answers asks.

    python cart.py

Two customers fill their carts and check out; one of them has a card that is declined first. A cart is a run, found by
its key. Between asks it holds no worker, and it survives crashes: kill the program (`kill -9`) and
start it again, and the customers continue where they were. Each ask has a key, so that it is handled once.
"""

import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from holdfast import AskRejected, Context, Holdfast, Run, WaitTimeout, idempotency_key

app = Holdfast("sqlite:///cart.db")

PRICES = {"rope": 25, "anchor": 140, "lamp": 30}
MOST_ASKS = 100


@dataclass
class Item:
    name: str
    count: int


@app.task(asks={"add": Item, "checkout": str})
async def cart(ctx: Context, customer: str, items: dict[str, int]) -> str:
    asks = 0

    async def add(item: Item) -> int:
        """Add an item; return the price of the cart."""
        nonlocal asks
        asks += 1
        if asks > MOST_ASKS:  # start over with the items, so that a replay never takes long; this ask is handled then
            await ctx.restart(customer, items)
        if item.name not in PRICES:
            raise AskRejected("not sold here", data={"items": sorted(PRICES)})
        items[item.name] = items.get(item.name, 0) + item.count
        await ctx.set("total", total(items))
        return total(items)

    async def checkout(card: str) -> str:
        """Pay, and close the cart."""
        payment = await ctx.step(charge, customer, card, total(items))
        return ctx.stop(f"{customer} paid {total(items)} for {', '.join(sorted(items))} ({payment})")

    await ctx.set("total", 0)
    try:
        return await ctx.serve(add=add, checkout=checkout, timeout=timedelta(days=7))
    except WaitTimeout:
        return f"{customer} left the cart"


def total(items: dict[str, int]) -> int:
    return sum(PRICES[name] * count for name, count in items.items())


async def charge(customer: str, card: str, amount: int) -> str:
    """Stands for a payment service. Pass it the idempotency key, which is the same in every try of this step."""
    assert idempotency_key()
    if card == "empty":
        raise ValueError("declined")
    print(f"{customer}: charged {amount}")
    return f"card {card}"


# What customers do. In an application, web handlers do this; they find the run by its key.


def shop(customer: str, run: Run[Any], cards: list[str]) -> str:
    """Fill the cart of a customer and check out. The keys make each ask happen once, however often this is called."""
    for name, count in (("rope", 2), ("anchor", 1), ("boat", 1)):
        try:
            price = run.ask("add", Item(name, count), key=f"{customer} {name}", timeout=30, type=int)
            print(f"{customer}: {count} {name}, now {price}")
        except AskRejected as error:
            print(f"{customer}: {name} is {error.reason}, there are {', '.join(error.data['items'])}")
    for card in cards:
        try:
            return run.ask("checkout", card, key=f"{customer} pays with {card}", timeout=30, type=str)
        except AskRejected as error:
            print(f"{customer}: card {card}: {error.reason}")
    return "not paid"


def main() -> None:
    customers = {"Ada": ["gold"], "Bob": ["empty", "blue"]}
    with app.worker(lease=5, grace=1):
        for customer, cards in customers.items():
            run = cart.options(key=customer).enqueue(customer, {})
            print(shop(customer, run, cards))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command to continue")
