"""No page, problem or help text uses words that were replaced by conventional ones, or shows internal names."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import click
import pytest

from holdfast import Context
from holdfast.cli.commands import holdfast
from holdfast.web.pages.overview import OverviewProblem
from holdfast.web.pages.routes import PAGES
from holdfast.web.responses import TITLES
from holdfast.web.site import OPERATIONS

BANNED = re.compile(
    r"About it|\bMade\b|\bmade (?:by|of|at|from|since|before)\b|Why it is where|95 of 100|What happened"
    r"|\bMore\b(?! filters)|Let it fail|All that fit|that fit\b|Text in the error|Kept until|somebody|whoever"
    r"|its parent|its beginning|\bTRY\b|so many|\$graph|\$join|\$submit|code error|goes on\b|go on\b|on record"
    r"|Who are you|Can't be done|any more\b|\b1 runs\b"
)


class PageText(HTMLParser):
    """The visible words and the labels of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.words += [value or "" for name, value in attrs if name in ("aria-label", "title", "placeholder")]


def banned_in(text: str) -> list[str]:
    return BANNED.findall(text)


@pytest.fixture
def filled(shop, fill):
    """One run of each kind, also a function that submitted a graph and waits for it, and pages for all of them."""
    runs = fill()

    @shop.app.task(name="parent")
    async def parent(ctx: Context) -> Any:
        graph = shop.make_graph()
        child = await ctx.submit(graph)
        return await child

    runs["parent"] = parent.enqueue()
    shop.drain()
    return runs


def test_pages_use_conventional_words(shop, open_visitor, filled):
    paths = [page.path for page in PAGES if "{" not in page.path]
    paths += ["/runs?task=none", "/bulk?verb=retry", "/bulk?verb=cancel", "/find?q=ffff", "/nowhere", "/login"]
    ids = [str(run.id) for run in filled.values()] + [str(run.id) for run in shop.control.runs.page(limit=100)]
    for path in [*paths, *(f"/runs/{id}" for id in ids)]:
        page = open_visitor.get(path).text
        assert banned_in(" ".join(PageText(page).words)) == [], path


def test_pages_of_an_empty_database_use_conventional_words(open_visitor):
    for page in PAGES:
        if "{" not in page.path:
            assert banned_in(" ".join(PageText(open_visitor.get(page.path).text).words)) == [], page.path


def test_problems_and_the_api_document_use_conventional_words(open_visitor):
    assert banned_in(" ".join([*TITLES.values(), *(each.summary for each in OPERATIONS)])) == []
    assert banned_in(open_visitor.get("/api/v1/openapi.json").text) == []


def test_help_uses_conventional_words():
    for name, command in holdfast.commands.items():
        assert banned_in(command.get_help(click.Context(command, info_name=name))) == [], name


def test_a_command_on_the_overview_can_be_copied():
    shown = {
        "holdfast resume mail": ("", "holdfast resume mail"),
        "find out why: holdfast why 7": ("find out why", "holdfast why 7"),
        "run `holdfast migrate`, or check the URL": ("run `holdfast migrate`, or check the URL", None),
    }
    for do, (advice, command) in shown.items():
        problem = OverviewProblem("note", "what", do, "/", "label")
        assert (problem.advice, problem.command) == (advice, command)
