"""What the page of a run says about what it waits for."""

from __future__ import annotations

from tests.web.test_pages import Reader


def test_waits_have_a_time_and_a_link_to_where_one_acts(shop, open_visitor):
    waiting = shop.wait.options(tenant="acme").enqueue("paid")
    graph = shop.graph()
    shop.drain()
    page = open_visitor.get(f"/runs/{waiting.id}").text
    text = " ".join(Reader(page).text.split())
    assert "event paid of tenant acme since" in text
    assert '<a href="/events">events</a>' in page
    gate = shop.control.graphs.gates(graph.id)[0].id
    assert f'<a href="/gates/{gate}">review</a>' in open_visitor.get(f"/runs/{graph.id}").text
    (reason,) = open_visitor.get(f"/api/v1/runs/{waiting.id}/why").json["reasons"]
    assert reason["data"]["tenant"] == "acme"
    assert reason["data"]["since"].endswith("Z")
