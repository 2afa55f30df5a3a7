"""The dashboard's pages as served: contents and forms."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Secret, Topic
from holdfast.control import graphs
from holdfast.web.pages import runs as runs_pages
from tests.support.web import Visitor
from tests.web.conftest import NASTY

PLAIN = ["/", *(f"/{name}" for name in (
    "runs", "gates", "tasks", "queues", "tenants", "events", "topics", "schedules", "limits", "budgets", "workers",
))]  # fmt: skip


class Reader(HTMLParser):
    """The elements of a page, and what a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize("path", PLAIN)
def test_empty_page_says_what_to_do(open_visitor, path):
    answer = open_visitor.get(path)
    assert answer.status == 200
    assert re.search(r"<pre|No failed runs", answer.text), "nothing to type"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("POST", "/runs", 405)])
def test_unknown_page_shows_html_error(open_visitor, method, path, status):
    answer = open_visitor.ask(method, path, headers={"accept": "text/html,*/*;q=0.8"})
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "Go to overview" in answer.text
    assert ("allow" in answer.headers) == (status == 405)


def test_a_run_that_existed_before_it_was_enqueued_is_marked(shop, open_visitor):
    @shop.app.task(name="order")
    async def order(ctx: Context) -> None:
        await ctx.enqueue(shop.add.options(key="old"), 1, 2)
        await ctx.enqueue(shop.add.options(key="new"), 1, 2)

    shop.add.options(key="old").enqueue(1, 2)
    run = order.enqueue()
    shop.drain()
    assert Reader(open_visitor.get(f"/runs/{run.id}").text).text.count("already existed") == 1


def test_user_text_is_escaped_everywhere(shop, open_visitor, fill):
    runs = fill()
    nasty = NASTY.replace("\n", "")
    run = shop.app.remote(nasty, queue=nasty[:20]).options(tenant=nasty, tags=[nasty], unique=nasty).enqueue(nasty)
    open_visitor.post(f"/api/v1/runs/{runs['waiting'].id}/cancel", {"reason": nasty})
    paths = [*PLAIN, f"/runs/{run.id}", f"/runs/{runs['failed'].id}", f"/runs/{runs['waiting'].id}"]
    paths += [f"/runs?task={nasty}", f"/runs?error={nasty}", f"/find?q={nasty}"]
    for path in paths:
        page = Reader(open_visitor.get(path).text)
        assert [tag for tag, given in page.tags if tag == "script" and "src" not in given] == [], path
        assert [given for _, given in page.tags if any(name.startswith("on") for name in given)] == [], path
        assert {given.get("src") for tag, given in page.tags if tag == "img"} <= {
            given.get("href") for tag, given in page.tags if tag == "link"
        }, path
    assert nasty in Reader(open_visitor.get(f"/runs/{runs['failed'].id}").text).text


def test_run_page_shows_its_history(shop, open_visitor, fill):
    runs = fill()
    failed = Reader(open_visitor.get(f"/runs/{runs['failed'].id}").text).text
    assert "ValueError" in failed
    assert "Retry" in failed
    waiting = Reader(open_visitor.get(f"/runs/{runs['waiting'].id}").text).text
    assert "Waiting for" in waiting
    assert "topic" in waiting
    done = Reader(open_visitor.get(f"/runs/{runs['done'].id}").text).text
    assert "Result 3" in done


def test_failed_tries_of_steps_are_on_the_page_and_in_the_api(shop, open_visitor):
    failed = set()

    async def charge(order: int, card: Secret[str]) -> str:
        if order not in failed:
            failed.add(order)
            raise ConnectionError("refused")
        return "charged"

    @shop.app.task(name="order")
    async def order(ctx: Context) -> str:
        step = ctx.options(name="charge", retry=Retry(max_attempts=3, delay=0))
        return await step.step(charge, 42, Secret("4711"))

    run = order.enqueue()
    shop.drain()
    page = Reader(open_visitor.get(f"/runs/{run.id}").text).text
    assert 'order=42, card="***"' in page
    assert "1 failed try" in page
    assert "Arguments are recorded for steps that failed" not in page
    assert "step retrying 1" in page
    assert "ConnectionError: refused · charge, try 1 of 3, next try " in page
    answer = open_visitor.get(f"/api/v1/runs/{run.id}/steps").json
    ((step,), unfinished) = answer["steps"], answer["unfinished"]
    assert (step["args"], unfinished) == ({"order": 42, "card": "***"}, [])
    assert [(each["number"], each["of"], each["error"]["message"]) for each in step["tries"]] == [(1, 3, "refused")]


def test_long_values_are_folded(shop, open_visitor):
    run = shop.app.remote("far").enqueue("x" * 1000, short=1)
    text = open_visitor.get(f"/runs/{run.id}").text
    assert re.search(r"<details class=\"value\"><summary>Arguments", text)


def test_filters_are_part_of_the_url(shop, open_visitor, fill):
    runs = fill()
    failed, done = str(runs["failed"].id), str(runs["done"].id)
    for query in ("state=failed", "task=boom", "error=onerror", f"id_prefix={failed}", "state=failed&tenant=acme"):
        text = open_visitor.get(f"/runs?{query}").text
        assert failed in text, query
        assert done not in text, query
    assert done in open_visitor.get("/runs?tag=t&queue=default&created_from=2020-01-01T00:00").text
    assert done not in open_visitor.get("/runs?created_to=2020-01-01T00:00").text
    assert str(runs["graph"].nodes()["load"].id) in open_visitor.get(f"/runs?parent={runs['graph'].id}").text
    for wrong in ("state=odd", "created_from=noon", "id_prefix=xyz"):
        assert open_visitor.get(f"/runs?{wrong}").status == 422


def test_long_list_continues_on_the_next_page(shop, open_visitor):
    ids = [str(run.id) for run in shop.add.enqueue_many([(n, n) for n in range(60)])]
    first = open_visitor.get("/runs?task=add").text
    following = re.search(r'href="([^"]+)" rel="next"', first)
    assert following is not None
    second = open_visitor.get(html.unescape(following[1])).text
    assert all((id in first) != (id in second) for id in ids)


def test_a_run_is_found_by_the_beginning_of_its_id(shop, fill):
    runs = fill()
    visitor = shop.visitor("read", "acme")
    answer = visitor.get(f"/find?q={runs['done'].id}")
    assert (answer.status, answer.headers["location"]) == (303, f"/runs/{runs['done'].id}")
    assert str(runs["other"].id) not in visitor.get(f"/find?q={str(runs['other'].id)[:8]}").text
    assert "No runs found" in visitor.get(f"/find?q={runs['other'].id}").text


def test_runs_are_found_by_their_key(shop, open_visitor):
    run = shop.add.options(key="order/1", tenant="acme").enqueue(41, 1)
    other = shop.add.options(key="order/2", tenant="other").enqueue(42, 1)
    listed = Reader(open_visitor.get("/runs?key=order%2F1").text).text
    assert "order/1" in listed
    assert "a=41, b=1" in listed
    assert "a=42" not in listed
    assert "Key order/1" in Reader(open_visitor.get(f"/runs/{run.id}").text).text
    visitor = shop.visitor("read", "acme")
    assert visitor.get("/find?q=order%2F1").headers["location"] == f"/runs/{run.id}"
    assert str(other.id) not in visitor.get("/find?q=order%2F2").text
    shop.boom.options(key="order/1").enqueue("x")
    assert shop.visitor("read").get("/find?q=order%2F1").headers["location"] == "/runs?key=order%2F1"


def submit(visitor: Visitor, path: str, **form: str):
    answer = visitor.submit(path, {"csrf_token": visitor.csrf_token(), **form})
    return answer.status, answer.headers.get("location", answer.text)


def test_the_forms_of_a_run_do_what_they_say(shop, fill):
    runs = fill()
    browser = shop.browser()
    at = f"/runs/{runs['waiting'].id}"
    assert submit(browser, f"{at}/send", topic="topic", payload="{no")[0] == 422
    assert submit(browser, f"{at}/cancel", reason="enough") == (303, f"{at}?did=cancelled")
    assert submit(browser, f"{at}/cancel") == (303, f"{at}?did=had-ended")
    assert submit(browser, f"{at}/retry") == (303, f"{at}?did=retried")
    assert submit(browser, f"{at}/send", topic="topic", payload='{"n": 5}') == (303, f"{at}?did=sent")
    shop.drain()
    assert runs["waiting"].info().result == [3, {"n": 5}]
    status, to = submit(browser, f"{at}/fork", from_step="first")
    assert (status, to.endswith("?did=forked")) == (303, True)
    page = Reader(browser.get(to).text).text
    assert "This is the new run." in page
    assert "by operate None" in page


def test_topics_are_listed_and_published_to(shop, fill):
    fill()

    @shop.app.task(name="deliver", on=Topic("orders.*", where={"country": "NO"}))
    def deliver(order: Any) -> None: ...

    @shop.app.task(name="follow")
    async def follow(ctx: Context) -> Any:
        return await ctx.next("orders.paid", where={"id": 7}, timeout=3600)

    run = follow.enqueue()
    shop.drain()
    browser = shop.browser()
    page = browser.get("/topics").text
    assert "deliver" in page
    assert "orders.* country=&#34;NO&#34;" in page
    assert f"/runs/{run.id}" in page
    assert submit(browser, "/topics", topic="orders.paid", payload='{"id": 7, "country": "NO"}') == (
        303, "/topics?did=published",
    )  # fmt: skip
    assert submit(browser, "/topics", topic="nobody") == (303, "/topics?did=published-to-nobody")
    assert "&#34;country&#34;: &#34;NO&#34;" in browser.get("/topics").text
    assert submit(browser, "/topics", topic="orders.*")[0] == 422
    assert submit(browser, "/topics", topic="orders.paid", payload="{")[0] == 422
    shop.drain()
    assert run.info().result == {"id": 7, "country": "NO"}


def test_events_are_listed_emitted_and_cleared(shop, fill):
    fill()
    waiter = shop.wait.options(tenant="acme").enqueue("paid")
    shop.drain()
    browser = shop.browser()
    page = browser.get("/events").text
    assert f"/runs/{waiter.id}" in page
    assert submit(browser, "/events", name="paid", payload='{"n": 5}') == (303, "/events?did=emitted-elsewhere")
    assert submit(browser, "/events", name="paid") == (303, "/events?did=emitted-before")
    assert "&#34;n&#34;: 5" in browser.get("/events").text
    assert submit(browser, "/events/clear", name="paid") == (303, "/events?did=cleared")
    assert submit(browser, "/events/clear", name="paid") == (303, "/events?did=not-emitted")
    assert submit(browser, "/events", name="paid", payload="{")[0] == 422
    assert submit(browser, "/events", name="")[0] == 422
    assert submit(browser, "/events", name="paid", tenant="acme", payload="7") == (303, "/events?did=emitted")
    shop.drain()
    assert waiter.info().result == 7


def test_queues_are_paused_from_the_overview(shop, fill):
    fill()
    browser = shop.browser()
    assert submit(browser, "/queues", queue="default", verb="pause") == (303, "/?did=paused")
    assert "Resume queue default" in browser.get("/").text
    assert submit(browser, "/queues", queue="default", verb="resume") == (303, "/?did=resumed")


def test_the_overview_groups_failures_and_shows_how_the_last_hour_went(shop, open_visitor, fill):
    fill()
    shop.boom.enqueue_many([("the same",)] * 3)
    shop.drain()
    page = Reader(open_visitor.get("/").text)
    assert "ValueError the same 3 boom" in page.text
    assert "Finished per minute" in page.text
    assert sum(tag == "path" and given["d"] != "" for tag, given in page.tags) >= 6
    assert "Task boom failed 4 times in the last hour: 100% of its runs" in page.text
    assert [page.text.count(f"Last {each}") for each in ("hour", "day", "week")] == [2, 1, 1]
    assert "Finished per hour" in open_visitor.get("/?last=week").text
    for_a_tenant = Reader(shop.visitor("read", "acme").get("/").text).text
    assert "the same" not in for_a_tenant
    assert "Queues" not in for_a_tenant


def test_many_runs_are_retried_after_a_look_at_what_that_would_be(shop, fill):
    fill()
    shop.boom.enqueue_many([("the same",)] * 3)
    shop.drain()
    browser = shop.browser()
    assert "4 runs will be retried" in Reader(browser.get("/bulk?verb=retry&task=boom").text).text
    status, to = submit(browser, "/bulk", query="verb=retry&task=boom")
    assert (status, to) == (303, "/bulk?task=boom&verb=retry&changed=4")
    page = Reader(browser.get(to).text).text
    assert "4 runs retried." in page
    assert "No matching runs to retry." in page
    assert submit(browser, "/bulk", query="verb=cancel&task=boom", reason="enough")[1].endswith("changed=4")
    assert submit(browser, "/bulk", query="verb=prune")[0] == 422


def test_a_graph_is_drawn_with_links_to_its_nodes(shop, open_visitor, fill):
    runs = fill()
    page = Reader(open_visitor.get(f"/runs/{runs['graph'].id}").text)
    links = {given.get("href") for tag, given in page.tags if tag == "a"}
    assert {f"/runs/{node.id}" for node in runs["graph"].nodes().values()} <= links
    assert sum("arrow" in (given.get("class") or "") for _, given in page.tags) == 3


def test_a_very_large_graph_has_a_table_without_a_picture(shop, open_visitor, monkeypatch):
    monkeypatch.setattr(runs_pages, "MAX_DRAWN_NODES", 25)
    monkeypatch.setattr(graphs, "PAGE_NODES", 25)
    monkeypatch.setattr(graphs.GraphControl.page, "__defaults__", (0, 25))
    graph = Graph("wide")
    for number in range(30):
        graph.add(shop.boom if number == 29 else shop.add, *([1, 2] if number < 29 else ["x"]), name=f"n{number}")
    run = shop.app.submit(graph)
    shop.drain()
    page = Reader(open_visitor.get(f"/runs/{run.id}?node_page=2").text)
    assert "too large to be drawn" in page.text
    assert "21 to 30 of 30" in page.text
    links = {given.get("href") for tag, given in page.tags if tag == "a"}
    nodes = run.nodes()
    assert {f"/runs/{nodes[name].id}" for name in ("n29", "n19", "n28")} <= links, "the failed one, and the second page"
    assert f"/runs/{nodes['n18'].id}" not in links
    assert not any("arrow" in (given.get("class") or "") for _, given in page.tags)
    listed = open_visitor.get(f"/api/v1/runs/{run.id}/graph?limit=2&after=27").json
    assert ([node["name"] for node in listed["nodes"]], listed["after"]) == (["n27", "n28"], 29)
    details = open_visitor.get(f"/api/v1/runs/{run.id}").json["graph"]
    assert (len(details["nodes"]), details["more_nodes"]) == (25, 5)


def test_what_failed_is_linked_from_the_error(shop, open_visitor):
    @shop.app.task(name="parent", retry=Retry(max_attempts=1))
    async def parent(ctx: Context) -> None:
        for number in range(50):
            await ctx.spawn(shop.add, number, 1)
        await ctx.call(shop.boom, "the last child")

    graph = Graph("night")
    failed_node = graph.add(shop.boom, "a node", name="load")
    runs = parent.enqueue(), shop.app.submit(graph)
    shop.drain()
    child = shop.control.runs.page(task="boom", parent=runs[0].id)[0]
    node = runs[1].nodes()[failed_node.name]
    for run, culprit in zip(runs, (child, node), strict=True):
        page = Reader(open_visitor.get(f"/runs/{run.id}").text)
        links = [given["href"] for tag, given in page.tags if tag == "a"]
        first = next(link for link in links if link.startswith("/runs/") and not link.startswith(f"/runs/{run.id}"))
        assert first == f"/runs/{culprit.id}", "the error's box comes before tables"
    assert str(child.id) in open_visitor.get(f"/runs?parent={runs[0].id}&state=failed").text
    assert f"/runs?parent={runs[0].id}&amp;state=failed" in open_visitor.get(f"/runs/{runs[0].id}").text


def test_every_field_and_button_has_a_name(shop, open_visitor, fill):
    runs = fill()
    for path in (*PLAIN, f"/runs/{runs['waiting'].id}", f"/runs/{runs['graph'].id}", "/login"):
        page = Reader(open_visitor.get(path).text)
        labelled = {given.get("for") for tag, given in page.tags if tag == "label"}
        ids = [given["id"] for _, given in page.tags if given.get("id")]
        assert len(ids) == len(set(ids)), path
        for tag, given in page.tags:
            if tag in ("input", "select", "textarea") and given.get("type") != "hidden":
                assert given.get("id") in labelled or given.get("aria-label"), (path, given)


def test_reading_works_where_it_is_mounted_and_links_stay_there(shop, fill):
    runs = fill()
    visitor = Visitor(shop.site(), shop.control.tokens.create("operate").token, root="/ops")
    for path in (*PLAIN, f"/runs/{runs['graph'].id}"):
        page = Reader(visitor.get(path).text)
        links = [given.get("href") or given.get("src") or given.get("action") for _, given in page.tags]
        assert [link for link in links if link and not link.startswith(("/ops/", "#"))] == [], path


def test_a_budget_is_raised_on_its_page(shop, fill):
    fill()
    shop.app.budget("usd", limit=1)

    @shop.app.task(name="agent")
    async def agent(ctx: Context) -> None:
        await ctx.spend("usd", 2.5)

    runs = [agent.enqueue(), agent.enqueue()]
    shop.drain()
    browser = shop.browser()
    page = browser.get("/budgets").text
    assert "2 runs wait." in page
    assert f"/runs/{runs[0].id}" in page
    assert "2.5 usd" in browser.get(f"/runs/{runs[0].id}").text
    for wrong in ({"limit": "much"}, {"limit": "-1"}, {"limit": "5", "key": "nobody"}, {"limit": "5", "key": ""}):
        assert submit(browser, "/budgets", budget="usd", verb="set", **wrong)[0] in (404, 422), wrong
    done = submit(browser, "/budgets", budget="usd", verb="set", limit="2.5", key=str(runs[0].id))
    assert done[1] == "/budgets?did=budget-set"
    shop.drain()
    assert [run.info().state for run in runs] == ["done", "waiting"]
    assert submit(browser, "/budgets", budget="usd", verb="set", limit="10")[1] == "/budgets?did=budget-set"
    shop.drain()
    assert runs[1].info().state == "done"
    assert "The code declares 1." in browser.get("/budgets").text
    assert submit(browser, "/budgets", budget="usd", verb="reset")[1] == "/budgets?did=budget-reset"
    assert "The code declares" not in browser.get("/budgets").text


def test_a_limit_is_changed_on_its_page(shop, fill):
    fill()
    shop.app.limit("tokens", rate="100/min", cost=5)
    shop.drain()
    browser = shop.browser()
    assert (
        submit(browser, "/limits", limit="tokens", verb="set", rate="50/s", concurrency="3")[1]
        == "/limits?did=limit-set"
    )
    page = browser.get("/limits").text
    assert "3 concurrent, cost of 50 per s" in page
    assert "The code declares: cost of 100 per min" in page
    assert submit(browser, "/limits", limit="tokens", verb="set", rate="often")[0] == 422
    assert submit(browser, "/limits", limit="tokens", verb="set", concurrency="few")[0] == 422
    assert submit(browser, "/limits", limit="tokens", verb="reset")[1] == "/limits?did=limit-reset"
    assert "The code declares" not in browser.get("/limits").text


def test_workers_show_their_slots_per_queue_and_labels(shop, open_visitor):
    assert "Labels" not in Reader(open_visitor.get("/workers").text).text
    train = shop.app.task(name="train", requires={"gpu": "a100"})(lambda: None)
    run = train.enqueue()
    with shop.app.worker(queues={"mail": 20, "default": None}, labels={"region": "eu"}):
        shown = Reader(open_visitor.get("/workers").text).text
        page = Reader(open_visitor.get(f"/runs/{run.id}").text).text
        (worker,) = open_visitor.get("/api/v1/workers").json["workers"]
    assert "mail=20, default" in shown
    assert "region=eu" in shown
    assert "no worker has the labels that task train requires, gpu=a100" in page
    assert (worker["queue_slots"], worker["labels"]) == ({"mail": 20}, {"region": "eu"})
