"""The search box, the columns and the selection of the runs list, and the search of the REST API."""

from __future__ import annotations

import re

from holdfast.store import run_list
from tests.web.conftest import NASTY


def test_the_search_page_says_what_matched_and_how_far_it_searched(shop, open_visitor, fill, monkeypatch):
    runs = fill()
    page = open_visitor.get("/find?q=alert").text
    assert str(runs["failed"].id) in page
    assert str(runs["done"].id) not in page
    for field in ("argument text", "error"):
        assert f'<span class="tag">{field}</span>' in page
    assert "Searched all runs for IDs, keys, tags, metadata and tasks." in page
    assert "Searched the arguments and errors of all 8 runs" in page
    tasks = open_visitor.get("/find?q=list").text
    assert 'href="/runs?task=listen"' in tasks
    assert NASTY not in open_visitor.get("/find").text
    assert open_visitor.get("/find?q=").status == 422
    assert open_visitor.get(f"/find?q={'x' * 300}").status == 422
    monkeypatch.setattr(run_list, "MAX_SCANNED_RUNS", 3)
    monkeypatch.setattr(run_list, "SCAN_SIZES", (2,))
    partial = open_visitor.get("/find?q=absent").text
    assert re.search(r"Searched the arguments and errors of 3 runs, created since\s+<time", partial)
    older = re.search(r'href="(/find\?[^"]*after=[^"]*)" rel="next">Search older runs', partial)
    assert "all 8 runs" not in open_visitor.get(older[1].replace("&amp;", "&")).text


def test_search_over_rest_finds_within_the_tenant_and_the_time_it_may_take(shop, open_visitor, fill):
    runs = fill()
    found = open_visitor.get("/api/v1/search?text=alert&seconds=1").json
    assert [(each["run"]["id"], each["matched"]) for each in found["runs"]] == [
        (str(runs["failed"].id), ["error", "argument text"])
    ]
    assert (found["scanned"], found["since"], found["hidden"], found["after"]) == (8, None, 0, None)
    assert open_visitor.get("/api/v1/search?text=t&seconds=60").json["code"] == "invalid"
    assert open_visitor.get("/api/v1/search").status == 422
    assert [each["id"] for each in open_visitor.get("/api/v1/runs?search=alert").json["runs"]] == [
        str(runs["failed"].id)
    ]
    theirs = shop.visitor("read", "other")
    assert theirs.get("/api/v1/search?text=alert").json["runs"] == []
    assert theirs.get("/api/v1/search?text=boom").json["tasks"] == []
    assert theirs.get("/api/v1/search?text=t&tenant=acme").json["scanned"] == 0


def test_filters_and_order_are_in_the_address_and_other_columns_are_refused(shop, open_visitor, fill):
    runs = fill()
    page = open_visitor.get("/runs?top_level=1&sort=created&within=1h&search=alert").text
    assert str(runs["failed"].id) in page
    assert str(runs["graph"].id) not in page
    for selected in ("top-level runs only", "oldest first", "last hour"):
        assert f" selected>{selected}</option>" in page
    assert 'aria-sort="ascending"' in page
    assert "created_from=" in re.search(r'href="(/bulk[^"]*)"', page)[1], "the period doesn't move with the time"
    nodes = {str(info.id) for info in shop.app.runs() if info.parent is not None}
    assert nodes
    whole = open_visitor.get("/runs?top_level=1").text
    assert not [id for id in nodes if id in whole]
    refused = open_visitor.get("/runs?sort=attempt&task=boom")
    assert refused.status == 422
    assert "can&#39;t be sorted by &#39;attempt&#39;" in refused.text
    assert open_visitor.get("/runs?within=ever").status == 422
    assert open_visitor.get("/api/v1/runs?sort=attempt").json["code"] == "config_error"


def test_selected_runs_are_previewed_and_only_they_change(shop, open_visitor, fill):
    runs = fill()
    second = shop.boom.enqueue("again")
    shop.drain()
    chosen = f"/bulk?verb=retry&run={runs['failed'].id}&run={runs['done'].id}"
    preview = open_visitor.get(chosen).text
    assert "Retry selected runs" in preview
    assert "it starts from the beginning" in preview
    assert "everything that the function did before it ended" in preview
    assert "add: is done" in preview
    query = re.search(r'name="query" value="([^"]*)"', preview)[1].replace("&amp;", "&")
    form = {"csrf_token": open_visitor.csrf_token(), "query": query}
    assert open_visitor.submit("/bulk", form).status == 303
    assert (runs["failed"].info().state, second.info().state) == ("ready", "failed")
    many = "&".join(f"run={second.id}" for _ in range(201))
    assert open_visitor.get(f"/bulk?verb=retry&{many}").status == 422
    viewer = shop.browser("read").get("/runs").text
    assert 'type="checkbox"' not in viewer
    assert 'type="checkbox"' in shop.browser("operate").get("/runs").text
