"""`publish` and `topics`: what is published, who subscribes and who waits; `why` names what a function waits for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Holdfast, Topic


@pytest.fixture
def shop(database_url: str) -> Any:
    with Holdfast(database_url, name="shop") as app:

        @app.task(name="deliver", on=Topic("orders.*", where={"country": "NO"}))
        def deliver(order: Any) -> None: ...

        @app.task(name="follow")
        async def follow(ctx: Context) -> Any:
            return await ctx.next("orders.paid", where={"id": 7}, type=dict[str, Any])

        run = follow.options(tenant="acme").enqueue()
        app.worker().drain(timeout=30)
        yield database_url, run, app


def test_publish_says_whom_the_message_reached(shell, shop):
    url, run, app = shop
    text = '{"id": 7, "country": "NO"}'
    result = shell("publish", "orders.paid", text, "--url", url, "--tenant", "acme", "--key", "k")
    assert result.stdout == "orders.paid  published: 1 run created, delivered to 1 function\n"
    result = shell("publish", "orders.paid", text, "--url", url, "--tenant", "acme", "--key", "k")
    assert "published before with this key" in result.stdout
    assert shell("publish", "orders.paid", "1", "--url", url, "--tenant", "acme", "--key", "k").exit_code == 2
    assert shell("publish", "orders.*", "--url", url).exit_code == 2
    assert shell.json("publish", "nobody", "--url", url)["runs"] == 0
    app.worker().drain(timeout=30)
    assert run.result(timeout=30) == {"id": 7, "country": "NO"}


def test_topics_lists_what_is_subscribed_published_and_awaited(shell, shop):
    url, run, app = shop
    app.publish("orders.paid", {"id": 8, "country": "NO"})
    app.publish("stock.low", {"item": "rope"})
    found = shell("topics", "--url", url).stdout
    assert 'orders.* country="NO"' in found
    assert "orders.paid id=7" in found
    assert str(run.id) in found
    assert "stock.low" in found
    only = shell.json("topics", "orders.paid", "--url", url)
    assert [(each["topic"], each["messages"], each["runs"]) for each in only["topics"]] == [("orders.paid", 1, 1)]
    assert [each["task"] for each in only["subscriptions"]] == ["deliver"]
    assert [each["where"] for each in only["functions"]] == [{"id": 7}]
    assert [each["payload"] for each in only["messages"]] == [{"id": 8, "country": "NO"}]
    assert shell.json("topics", "stock.low", "--url", url)["subscriptions"] == []
    assert shell.json("topics", "--tenant", "acme", "--url", url)["messages"] == []
    nothing = shell("topics", "orderz", "--url", url)
    assert "nothing was published to orderz" in nothing.stdout + nothing.stderr
    assert "no task subscribes to orderz" in nothing.stdout + nothing.stderr
    extra = shell("topics", "orders.paid", "stock.low", "--url", url)
    assert "argument (stock.low). See `" in extra.stderr


def test_why_and_show_name_the_awaited_message_and_what_was_set_aside(shell, shop):
    url, run, app = shop
    app.publish("orders.paid", {"id": 7}, tenant="acme")
    app.worker().drain(timeout=30)
    other = app.registry.get("follow").options(tenant="acme").enqueue()
    app.worker().drain(timeout=30)
    assert run.result(timeout=30) == {"id": 7}
    assert "waiting for a message on topic orders.paid id=7" in shell("why", str(other.id), "--url", url).stdout
    assert "orders.paid id=7" in shell("show", str(other.id), "--url", url).stdout
