"""What the page of a run says about what it waits for."""

from __future__ import annotations

import asyncio

import msgspec

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


def test_python_and_rest_give_the_same_reasons(shop, open_visitor):
    waiting = shop.wait.enqueue("paid")
    graph = shop.graph()
    shop.drain()
    for run in (waiting, graph):
        listed = open_visitor.get(f"/api/v1/runs/{run.id}/why").json["reasons"]
        assert msgspec.to_builtins(run.why()) == listed
        assert asyncio.run(run.awhy()) == run.why()
    gate = graph.why()[0]
    assert str(gate) == f"waiting for approval of gate approve: holdfast gate {graph.id} approve complete OUTPUT"
    page = open_visitor.get(f"/runs/{graph.id}").text
    assert ("approval of gate approve" in page, "holdfast gate" in page) == (True, False)
