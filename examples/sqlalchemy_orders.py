"""SQLAlchemy models in a durable function: each row is written exactly once.

    python sqlalchemy_orders.py

Needs `pip install sqlalchemy`. Invoices are written through a session in `ctx.transaction`. Kill the program anywhere
(`kill -9`) and start it again: each order has one invoice. When all orders are done, another start adds two more.
"""

import sys
import time
from datetime import UTC, datetime

from sqlalchemy import ForeignKey, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from holdfast import Holdfast, SyncContext
from holdfast.integrations.sqlalchemy import with_session

app = Holdfast("sqlite:///sqlalchemy.db")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]
    invoices: Mapped[list["Invoice"]] = relationship(back_populates="order")


class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    at: Mapped[datetime]
    order: Mapped[Order] = relationship(back_populates="invoices")


# Each function runs in one transaction. It takes a session and returns a plain value, which is stored.


def create_tables(session: Session) -> None:
    Base.metadata.create_all(session.connection())


def take_order(session: Session, item: str, cents: int) -> int:
    order = Order(item=item, cents=cents)
    session.add(order)
    session.flush()
    return order.id


def write_invoice(session: Session, order_id: int, at: datetime) -> int:
    order = session.get_one(Order, order_id)
    order.invoices.append(Invoice(at=at))
    session.flush()
    return order.invoices[-1].id


def count(session: Session) -> tuple[int, int]:
    orders = session.scalar(select(func.count(Order.id))) or 0
    return orders, session.scalar(select(func.count(Invoice.id))) or 0


@app.task
def order_something(ctx: SyncContext, item: str, cents: int) -> str:
    ctx.transaction(with_session(create_tables))
    order_id = ctx.transaction(with_session(take_order), item, cents)
    ctx.step(wait_for_payment, order_id)
    invoice = ctx.transaction(with_session(write_invoice), order_id, ctx.now().astimezone(UTC))
    return f"order {order_id} for {item} has invoice {invoice}"


@app.task
def totals(ctx: SyncContext) -> tuple[int, int]:
    return ctx.transaction(with_session(count))


def wait_for_payment(order_id: int) -> None:
    print(f"order {order_id} is being paid")
    time.sleep(0.3)


def main() -> None:
    open_runs = [app.get_run(info.id) for info in app.runs(task=order_something.name) if info.finished_at is None]
    runs = open_runs or [order_something.enqueue("rope", 4200), order_something.enqueue("anchor", 9900)]
    with app.worker(lease=5, grace=1):
        for run in runs:
            print(run.result())
        orders, invoices = totals.enqueue().result()
    print(f"{orders} orders, {invoices} invoices")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command to continue")
