"""The ORM in `ctx.transaction`: it commits or rolls back together with the checkpoint."""

from __future__ import annotations

TASKS = """
    from django.db import connection, transaction
    from holdfast import Context, Retry, SyncContext
    from holdfast.integrations.django import app
    from shop.models import Order

    once = Retry(max_attempts=1)
    committed = []

    def ship(raw, number, fail):
        Order.objects.filter(pk=number).update(shipped=True)
        assert raw.execute("select shipped from shop_order where id = %s", (number,)).fetchone() == (True,)
        raw.execute("update shop_order set item = item || '!' where id = %s", (number,))
        with transaction.atomic():
            transaction.on_commit(lambda: committed.append(number))
        if fail == "raise":
            raise ValueError("no")
        if fail == "sql":
            Order.objects.create(pk=number, item="twice")
        if fail == "end":
            raw.execute("commit")
        if fail == "lost" and number not in lost:
            lost.append(number)
            raw.close()
            Order.objects.count()
        return Order.objects.get(pk=number).item

    lost = []

    @app.task(name="async", retry=once)
    async def ship_async(ctx: Context, number: int, fail: str) -> str:
        return await ctx.transaction(ship, number, fail)

    @app.task(name="sync", retry=once)
    def ship_sync(ctx: SyncContext, number: int, fail: str) -> str:
        return ctx.transaction(ship, number, fail)
"""
PROGRAM = """
    from holdfast.integrations.django import app
    from shop.models import Order
    from shop.shipping import committed, ship_async, ship_sync
    for task in (ship_async, ship_sync):
        for fail in ("", "raise", "sql", "end", "lost"):
            order = Order.objects.create(item="rope")
            run = task.enqueue(order.pk, fail)
            app.worker().drain()
            order.refresh_from_db()
            info = run.info()
            causes = ("ValueError", "IntegrityError", "ended the transaction")
            said = info.result if info.state == "done" else [each for each in causes if each in str(info.error)][0]
            print(task.name, fail, info.state, said, order.item, order.shipped, order.pk in committed, sep="|")
            if fail in ("", "lost"):
                steps = app.store.queries.steps(str(run.id))
                assert [step.key.partition("-")[0] for step in steps] == ["ship"], steps
"""


def test_the_orm_takes_part_in_the_transaction_of_a_task(postgres_project):
    postgres_project.add("shop/shipping.py", TASKS)
    postgres_project.manage("migrate")
    said = [line.split("|") for line in postgres_project.run(PROGRAM).splitlines()]
    shipped, unchanged = ["rope!", "True", "True"], ["rope", "False", "False"]
    for task in ("async", "sync"):
        assert [line[1:] for line in said if line[0] == task] == [
            ["", "done", "rope!", *shipped],
            ["raise", "failed", "ValueError", *unchanged],
            ["sql", "failed", "IntegrityError", *unchanged],
            ["end", "failed", "ended the transaction", "rope!", "True", "False"],
            ["lost", "done", "rope!", *shipped],
        ]
