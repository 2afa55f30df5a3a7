"""A checkout that never stops halfway: it reserves stock, charges the card and ships, or undoes all of it.

    python checkout.py

There are three orders. One succeeds, one has an empty card, one can't be delivered; the effects of the last two are
undone. Kill the program at any time (`kill -9`) and start it again: it resumes where it stopped, and no customer pays
twice. When all orders are finished, another start only prints the results.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Context, Fatal, Holdfast, Retry, RunFailed, idempotency_key

app = Holdfast("sqlite:///checkout.db")


@dataclass
class Order:
    number: int
    item: str
    cents: int
    card: str
    town: str


class CardDeclined(Exception):
    pass


# The durable function. If it fails for good or is cancelled, its compensations run in reverse order.


@app.task
async def checkout(ctx: Context, order: Order) -> str:
    await ctx.undo(release, order.number)  # before the effect, so it must handle stock that was never reserved
    left = await ctx.transaction(reserve, order.number, order.item)

    paying = ctx.options(
        retry=Retry(max_attempts=5, never_on=CardDeclined), timeout=30, undo=refund, raises=CardDeclined
    )
    try:
        payment = await paying.step(charge, order.number, order.cents, card=order.card)
    except CardDeclined as declined:
        raise Fatal(str(declined)) from declined

    parcel = await ctx.step(ship, order.number, order.town)
    return f"{parcel}, paid with {payment}, {left} left in stock"


# Stock: your own tables in the same file, changed exactly once.


def create_tables() -> None:
    with app.transaction() as connection:
        connection.execute("create table if not exists stock (item text primary key, left integer not null)")
        connection.execute("create table if not exists taken (number integer primary key, item text not null)")
        connection.execute("insert into stock values ('rope', 10), ('anchor', 2) on conflict do nothing")


def reserve(connection: Any, number: int, item: str) -> int:
    found = list(connection.execute("select left from stock where item = ?", (item,)))
    if not found or found[0][0] == 0:
        raise Fatal(f"{item} is sold out")
    connection.execute("update stock set left = left - 1 where item = ?", (item,))
    connection.execute("insert into taken values (?, ?)", (number, item))
    return int(found[0][0]) - 1


def release(number: int) -> None:
    with app.transaction() as connection:  # idempotent: it returns only what was reserved
        for (item,) in list(connection.execute("delete from taken where number = ? returning item", (number,))):
            connection.execute("update stock set left = left + 1 where item = ?", (item,))
            say(f"order {number}: {item} is back in stock")


# The bank stands for a payment service that accepts idempotency keys. It stores them in a file.

BANK = Path("bank.txt")


def charge(number: int, cents: int, card: str) -> str:
    time.sleep(0.3)  # leaves time to kill the program
    if card == "empty":
        raise CardDeclined(f"the bank declined {cents / 100:.2f}")
    key = idempotency_key()  # the same in every try of this step
    payment = f"payment-{number}"
    if key in bank():
        say(f"order {number}: the bank has this payment already")
    else:
        note(f"{key} {payment}")
        say(f"order {number}: {cents / 100:.2f} charged")
    return payment


def refund(payment: str) -> None:
    if f"refund {payment}" not in bank():
        note(f"refund {payment}")
        say(f"{payment} was refunded")


def bank() -> str:
    return BANK.read_text() if BANK.exists() else ""


def note(line: str) -> None:
    with BANK.open("a") as file:
        file.write(line + "\n")


# The courier


def ship(number: int, town: str) -> str:
    time.sleep(0.3)
    if town == "Atlantis":
        raise Fatal(f"no courier delivers to {town}")
    say(f"order {number}: on its way to {town}")
    return f"parcel-{number}"


ORDERS = [
    Order(1, "rope", 4200, "good", "Oslo"),
    Order(2, "anchor", 9900, "empty", "Bergen"),
    Order(3, "anchor", 9900, "good", "Atlantis"),
]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")  # one write, because several threads print


def main() -> None:
    create_tables()
    runs = {order.number: checkout.options(key=f"order-{order.number}").enqueue(order) for order in ORDERS}
    with app.worker(lease=5, grace=1):  # a short lease, so that a killed run resumes within 5 s; the default is 60
        for number, run in runs.items():
            try:
                print(f"order {number}: {run.result()}")
            except RunFailed as failed:
                print(f"order {number}: {failed.error.message}; everything was undone")
    with app.transaction() as connection:
        print("stock:", dict(connection.execute("select item, left from stock order by item")))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command to continue")
