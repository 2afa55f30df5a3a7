"""The family of a run over time: the chart, its critical path and zoom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from holdfast.model.run import RunInfo
from holdfast.web.pages.tree_chart import CHART_WIDTH, LABEL_WIDTH, build_chart

BEGIN = datetime(2026, 11, 19, 3, tzinfo=UTC)


def at(seconds):
    return None if seconds is None else BEGIN + timedelta(seconds=seconds)


def run(n, parent, started, finished, created=0, state="done"):
    return RunInfo(
        id=UUID(int=n), task=f"task{n}", queue="default", state=state, attempt=1, crashes=0, priority=0,
        created_at=at(created), started_at=at(started), finished_at=at(finished),
        parent=None if parent is None else UUID(int=parent),
    )  # fmt: skip


def test_the_chart_is_a_tree_over_time_with_its_critical_path():
    runs = [
        run(1, None, 0, 100), run(2, 1, 0, 40), run(3, 1, 10, 30), run(4, 1, 40, 90, created=40),
        run(5, 4, 50, 90, created=45), run(6, 1, None, 95, created=50, state="skipped"),
    ]  # fmt: skip
    chart = build_chart(runs, UUID(int=1), at(200), 2)
    assert [(row.name, row.depth) for row in chart.rows] == [
        ("task1", 0), ("task2", 1), ("task3", 1), ("task4", 1), ("task5", 2), ("task6", 1),
    ]  # fmt: skip
    assert {row.name for row in chart.rows if row.is_critical} == {"task1", "task2", "task4", "task5"}
    assert chart.rows[3].ran == (LABEL_WIDTH + 2 * CHART_WIDTH * 0.4, CHART_WIDTH)
    assert chart.rows[5].ran is None


def test_unfinished_runs_last_until_now():
    chart = build_chart([run(1, None, 0, None, state="running")], UUID(int=1), at(50), 1)
    assert chart.rows[0].took == 50
    assert chart.rows[0].ran == (LABEL_WIDTH, CHART_WIDTH)


def test_the_page_shows_the_tree_and_zooms(shop):
    graph = shop.graph(tenant="acme")
    shop.drain()
    visitor = shop.browser("viewer", "acme")
    page = visitor.get(f"/runs/{graph.id}/family").text
    nodes = shop.control.graphs.read(graph.id).nodes
    assert all(page.count(f'href="/runs/{node.id}"') == 2 for node in nodes)  # in the chart and in the table
    assert f'href="/runs/{graph.id}/family?zoom=2"' in page
    assert f'href="/runs/{graph.id}/family?zoom=8"' in visitor.get(f"/runs/{graph.id}/family?zoom=4").text
    assert "Zoom in" not in visitor.get(f"/runs/{graph.id}/family?zoom=16").text
    assert visitor.get(f"/runs/{graph.id}/family?zoom=99999999").status == 200
    assert f'href="/runs/{graph.id}/family"' in visitor.get(f"/runs/{nodes[0].id}").text
    assert f'href="/runs/{graph.id}?zoom=2"' in visitor.get(f"/runs/{graph.id}").text
    assert shop.browser("viewer", "other").get(f"/runs/{graph.id}/family").status == 404
