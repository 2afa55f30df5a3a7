"""Data for the dashboard: a few runs of every kind, or so many that pages must truncate and paginate."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from holdfast import Context, Graph, Holdfast, Retry, Run

LONG = "reconcile_the_ledgers_of_every_subsidiary_with_those_of_the_parent_company_at_the_end_of_the_fiscal_year"
ONCE = Retry(max_attempts=1)


@dataclass
class Approval:
    """The type of a gate."""

    approved: bool
    budget: int = 500
    tier: Literal["basic", "plus", "pro"] = "basic"
    note: str = ""


class Showcase:
    """An app with its tasks, and handles of runs of every kind."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.runs: dict[str, Run[Any]] = {}
        self.called = False
        app.limit("mail", concurrency=5, rate="100/min")
        app.limit("customer", concurrency=1, by="customer")

        @app.task(name="shop.send_email", limits=["mail"])
        def send_email(to: str, subject: str) -> str:
            return f"sent to {to}"

        @app.task(name="shop.charge", retry=ONCE)
        def charge(order: int, amount: float) -> None:
            raise ConnectionError(f"the bank said no to order {order % 3}: card declined")

        @app.task(name=f"shop.finance.{LONG}", retry=ONCE, queue="finance")
        def reconcile(ledger: dict[str, Any]) -> None:
            raise ValueError("ledger_" * 60)

        @app.task(name="shop.index", queue="search")
        def index(part: int) -> dict[str, int]:
            return {"part": part, "documents": part * 17}

        @app.task(name="shop.place_order")
        async def place_order(ctx: Context, order: int) -> Any:
            reserved = await ctx.step(lambda: {"order": order, "shelf": "B12"}, name="reserve the goods")
            for item in range(6):
                await ctx.step(lambda item=item: item, name=f"pack item {item}")
            await ctx.options(name="call the carrier", retry=Retry(max_attempts=3, delay=0)).step(self.call, order)
            await ctx.spawn(send_email, "ada@example.org", f"order {order}")
            await ctx.receive("paid")
            return reserved

        self.send_email, self.charge, self.reconcile = send_email, charge, reconcile
        self.index, self.place_order = index, place_order
        app.schedule("nightly index", index, args=(1,), cron="0 3 * * *", tz="Europe/London")
        app.schedule("newsletter", send_email, args=("all@example.org", "news"), every=timedelta(hours=6))

    def small(self) -> None:
        """Create a few runs of each kind."""
        mail = self.send_email.options(tenant="acme", tags=["welcome"])
        self.runs["done"] = mail.enqueue("ada@example.org", "hello")
        self.runs["failed"] = self.charge.options(tenant="acme").enqueue(42, 9.5)
        self.runs["waiting"] = self.place_order.enqueue(42)
        self.runs["scheduled"] = self.send_email.options(delay=timedelta(hours=2)).enqueue("bob@example.org", "later")
        self.runs["graph"] = self.app.submit(self._release(12))
        self._drain()
        self.runs["ready"] = self.app.remote("shop.elsewhere", queue="elsewhere").enqueue(1)

    def large(self) -> None:
        """Create hundreds of runs, a wide graph, long names and large values."""
        self.small()
        dice = random.Random(5)
        tenants = ["acme", "globex", "initech", "a tenant whose name goes on for quite a while"]
        for tenant in tenants:
            mail = self.send_email.options(tenant=tenant, tags=["bulk", f"campaign-{tenant[:4]}"])
            mail.enqueue_many([(f"user{n}@example.org", "news") for n in range(dice.randrange(40, 120))])
        self.charge.enqueue_many([(n, 1.5) for n in range(25)])
        rows = [{"account": f"{n:06}", "balance": n * 1.25, "note": "carried over " * 3} for n in range(400)]
        self.runs["huge"] = self.reconcile.options(tags=["year-end", LONG]).enqueue({"rows": rows})
        self.runs["wide"] = self.app.submit(self._release(300))
        self._drain()

    def call(self, order: int) -> str:
        """Fail at the first call."""
        if not self.called:
            self.called = True
            raise ConnectionError(f"the carrier doesn't answer about order {order}")
        return "booked"

    def _release(self, parts: int) -> Graph:
        graph = Graph("search release")
        plan = graph.add(self.index, 0, name="plan")
        made = [graph.add(self.index, n, after=[plan], name=f"part {n}") for n in range(parts)]
        check = graph.add(self.index, 1, after=made, name="check " + LONG[:40])
        approve = graph.gate("approve the release", after=[check], type=Approval)
        live = graph.add(self.index, 2, after=[approve], name="switch over")
        graph.add(self.send_email, "ops@example.org", "released", after=[live], name="tell")
        graph.add(self.send_email, "ops@example.org", "it broke", after=[live.failed], name="alarm")
        return graph

    def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.app.worker(concurrency=8).drain()
