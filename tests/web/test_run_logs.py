"""Log lines of a run on its page and in the API."""

from __future__ import annotations

import logging

import pytest

from holdfast import Logs
from tests.web.conftest import NASTY
from tests.web.test_pages import Reader

logger = logging.getLogger("tests.web")


@pytest.fixture
def run(shop):
    logger.setLevel(logging.INFO)
    shop.app._logs = Logs("info", max_lines=400)

    @shop.app.task(name="talk")
    def talk() -> None:
        for number in range(500):
            logger.info("line %d", number)
        logger.error("%s", NASTY)

    found = talk.enqueue()
    shop.drain()
    yield found
    logger.setLevel(logging.NOTSET)


def test_the_page_shows_the_last_lines_and_how_many_are_missing(open_visitor, run):
    page = Reader(open_visitor.get(f"/runs/{run.id}").text).text
    kept = len(run.logs())
    assert f"Showing the last 200 lines; {kept - 200} earlier lines are in the API" in page
    assert f"{501 - kept} lines were dropped" in page
    assert NASTY in page
    assert "line 499" in page
    assert f"line {500 - 200}" not in page


def test_a_page_without_lines_says_how_to_keep_them(open_visitor, shop, fill):
    runs = fill()
    assert 'Holdfast(logs="info") keeps' in Reader(open_visitor.get(f"/runs/{runs['done'].id}").text).text
    assert 'Holdfast(logs="info")' not in Reader(open_visitor.get(f"/runs/{runs['graph'].id}").text).text


def test_the_api_filters_and_pages_lines(open_visitor, run):
    at = f"/api/v1/runs/{run.id}/logs"
    first = open_visitor.get(f"{at}?limit=100").json
    assert (len(first["lines"]), first["after"]) == (100, first["lines"][-1]["seq"])
    assert first["dropped"] == 501 - len(run.logs())
    seen, page = list(first["lines"]), first
    while page["after"] is not None:
        page = open_visitor.get(f"{at}?limit=100&after={page['after']}").json
        seen += page["lines"]
    assert [line["message"] for line in seen] == [line.message for line in run.logs()]
    (error,) = open_visitor.get(f"{at}?level=error").json["lines"]
    assert (error["level"], error["logger"], error["attempt"], error["message"]) == ("ERROR", "tests.web", 1, NASTY)
    assert [line["message"] for line in open_visitor.get(f"{at}?search=LINE+499").json["lines"]] == ["line 499"]
    for wrong in ("level=loud", "limit=0", "limit=1000", "after=-1", "other=1"):
        assert open_visitor.get(f"{at}?{wrong}").status == 422, wrong


def test_the_page_filters_lines_by_level_and_text(open_visitor, run):
    page = Reader(open_visitor.get(f"/runs/{run.id}?log_level=error").text).text
    assert NASTY in page
    assert "line 499" not in page
    found = Reader(open_visitor.get(f"/runs/{run.id}?log_search=LINE+49").text).text
    assert ("line 499" in found, "line 301" in found) == (True, False)
    assert "No lines match." in Reader(open_visitor.get(f"/runs/{run.id}?log_search=gone").text).text
    assert NASTY in Reader(open_visitor.get(f"/runs/{run.id}?log_level=loud").text).text
