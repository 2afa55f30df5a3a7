"""The form that enqueues a run: its fields, checks, options and what a token may do with it."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.support.web import Visitor
from tests.web.test_pages import Reader, submit


@pytest.fixture
def sell(shop):
    @shop.app.task(name="sell")
    def sell(order: int, country: Literal["NO", "SE"], /, express: bool, note: str = "none") -> str:
        return f"{order} {country} {express} {note}"

    shop.add.enqueue(1, 1)
    return sell


def test_a_form_has_a_field_per_parameter_and_enqueues_the_run(shop, sell):
    browser = shop.browser()
    assert 'href="/enqueue?task=sell"' in browser.get("/enqueue").text
    assert 'href="/enqueue?task=sell"' in browser.get("/tasks/sell").text
    page = Reader(browser.get("/enqueue?task=sell").text)
    names = [given["name"] for tag, given in page.tags if given.get("name", "").startswith("field:")]
    assert names == ["field:order", "field:country", "field:express", "field:note"]
    fields = {"field:order": "42", "field:country": '"NO"', "field:express": "true", "field:note": "gift"}
    given = fields | {"task": "sell", "priority": "-3", "key": "o-42", "tags": "a, b", "tenant": "acme", "delay": "0"}
    status, address = submit(browser, "/enqueue", **given)
    assert (status, address.endswith("?did=created")) == (303, True)
    run = shop.app.get_run(address.partition("?")[0].rpartition("/")[2])
    shop.drain()
    info = run.info()
    assert (info.result, info.priority, info.key, info.tags, info.tenant) == (
        "42 NO True gift", -3, "o-42", ("a", "b"), "acme",
    )  # fmt: skip
    assert submit(browser, "/enqueue", **given)[1] == f"/runs/{run.id}?did=existed"
    assert [entry.subject for entry in shop.control.audit.page(action="enqueue run").entries] == ["sell", "sell"]


def test_more_options_are_those_of_an_enqueue(shop, sell):
    browser = shop.browser()
    assert '<details class="more"><summary>More options' in browser.get("/enqueue?task=add").text
    given = {"task": "add", "field:a": "1", "field:b": "2"}

    def enqueued(**options):
        status, address = submit(browser, "/enqueue", **given | options)
        assert status == 303, address
        return shop.app.get_run(address.partition("?")[0].rpartition("/")[2]), address.partition("did=")[2]

    first, did = enqueued(unique="sync", start_by="3600", metadata='order=42\r\nnote=two = 2\r\n\r\nbig="7"')
    assert (did, dict(first.info().metadata)) == ("created", {"order": 42, "note": "two = 2", "big": "7"})
    details = shop.control.runs.details(first.id)
    assert (details.unique, details.start_by is not None) == ("sync", True)
    assert enqueued(unique="sync") == (first, "existed")
    second, did = enqueued(unique="sync", if_taken="cancel")
    assert (second != first, did, first.info().state) == (True, "created", "cancelled")
    assert enqueued(unique="sync", if_taken="replace", **{"field:b": "5"}) == (second, "replaced")
    third, did = enqueued(debounce="user-7", delay="60", max_delay="90")
    assert (did, third.info().state) == ("created", "scheduled")
    assert enqueued(debounce="user-7", delay="60", **{"field:b": "9"}) == (third, "replaced")
    assert third.info().args == {"a": 1, "b": 9}
    assert "has the new arguments" in browser.get(f"/runs/{third.id}?did=replaced").text


def test_options_that_cannot_be_are_refused_and_shown_again(shop, sell):
    browser = shop.browser()
    for options, said in (
        ({"debounce": "x"}, "debounce needs delay="),
        ({"unique": "x", "if_taken": "explode"}, "if_taken must be one of"),
        ({"start_by": "soon"}, "the time to start must be a whole number"),
        ({"start_by": "5", "delay": "9"}, "start_by must be later than delay"),
        ({"metadata": "order"}, "metadata must have the form name=value"),
    ):
        given = {"task": "sell", "field:order": "1", "field:country": '"NO"', "field:express": "false"}
        status, page = submit(browser, "/enqueue", **given | options)
        assert (status, said in page.replace("&#39;", "'"), '<details class="more" open>' in page) == (422, True, True)
    assert shop.app.runs(task="sell") == []


def test_a_form_is_shown_again_with_what_is_wrong(shop, sell):
    browser = shop.browser()
    status, page = submit(browser, "/enqueue", task="sell", **{"field:order": "x", "field:country": '"NO"'})
    assert status == 422
    for said in ("Nothing was enqueued", "Order must be a whole number", "Express is required", 'value="x"'):
        assert said in page.replace("&#39;", "'")
    good = {"field:order": "1", "field:country": '"NO"', "field:express": "false"}
    assert submit(browser, "/enqueue", task="sell", priority="high", **good)[0] == 422
    assert submit(browser, "/enqueue", task="sell", **good | {"field:country": '"DK"'})[0] == 422
    assert browser.get("/enqueue?task=nobody").status == 404
    assert shop.app.runs(task="sell") == []


def test_a_token_enqueues_only_what_it_covers(shop, sell):
    viewer = shop.visitor("viewer")
    assert "needs the role operator" in viewer.get("/enqueue?task=sell").text
    token = shop.control.tokens.create("operator", "acme", tasks=["add"]).token
    limited = Visitor(shop.site())
    limited.cookie = limited.submit("/login", {"token": token}).headers["set-cookie"].partition(";")[0]
    page = limited.get("/enqueue").text
    assert ("task=add" in page, "task=sell" in page) == (True, False)
    assert limited.get("/enqueue?task=sell").status == 404
    csrf = limited.get("/").text.partition('name="csrf_token" value="')[2].partition('"')[0]
    form = {"csrf_token": csrf, "task": "add", "field:a": "1", "field:b": "2"}
    assert limited.submit("/enqueue", form | {"task": "sell"}).status == 404
    assert limited.submit("/enqueue", form | {"queue": "invented"}).status == 403
    assert limited.submit("/enqueue", form | {"priority": "5"}).status == 403
    made = limited.submit("/enqueue", form | {"tenant": "other"}).headers["location"]
    assert shop.app.get_run(made.partition("?")[0].rpartition("/")[2]).info().tenant == "acme"


def test_the_message_form_offers_the_topics_that_a_run_waits_for(shop):
    run = shop.listen.enqueue()
    browser = shop.browser()
    shop.drain()
    page = Reader(browser.get(f"/runs/{run.id}").text)
    assert "It waits for a message on topic." in page.text
    assert [given.get("value") for tag, given in page.tags if given.get("id") == "a-topic"] == ["topic"]
    assert ("option", {"value": "topic"}) in page.tags
