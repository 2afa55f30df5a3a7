"""Figures become tables, goals, a chart and a block of the documentation."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import command, flame
from benchmarks.suite.enqueue import Enqueue
from benchmarks.databases import BenchmarkError
from benchmarks.suite.jobs import Jobs
from benchmarks.suite.memory import Memory
from benchmarks.profiler import folded, gathered
from benchmarks.publish import BEGIN, END, publish, read
from benchmarks.report import Report
from benchmarks.report import Results

ABOUT = {"cores": 2, "PostgreSQL": {"version": "18", "fsync": "on"}}


def jobs_report(reps: int = 3) -> Report:
    report = Report(Jobs(), {"count": 10, "reps": reps, "quick": False})
    for _ in range(reps):
        report.add("PostgreSQL", "pgqueuer", {"1 worker": 10_000.0}, {"versions": {"pgqueuer": "1.6.0"}})
        report.add("PostgreSQL", "holdfast", {"1 worker": 16_000.0})
        report.add("SQLite", "raw", {"1 worker": 40_000.0})
        report.add("SQLite", "holdfast", {"1 worker": 10_000.0})
    report.skip_peer("dbos", "pip couldn't install it")
    return report


@pytest.fixture
def docs(tmp_path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "benchmarks.md").write_text(f"# Before\n\n{BEGIN}\nold figures\n{END}\n\n# After\n")
    return folder


# Tables


def test_the_table_says_what_was_measured_and_whether_goals_were_reached():
    table = jobs_report(1).as_table().splitlines()
    assert table[0].split() == ["measure", "database", "subject", "median", "min", "max", "n", "unit"]
    assert table[1].split()[-7:] == ["PostgreSQL", "holdfast", "16,000", "16,000", "16,000", "1", "jobs/s"]
    pairs_to_compare = [line.split() for line in table if "/ " in line]
    assert pairs_to_compare == [
        ["holdfast", "/", "pgqueuer,", "1", "worker", "PostgreSQL", "1.60", "1.5", "ok"],
        ["holdfast", "/", "raw,", "1", "worker", "SQLite", "0.25", "0.5", "short"],
    ]
    assert "not measured: dbos: pip couldn't install it" in table
    assert table[-1].startswith("not to be published")


def test_many_callers_of_ours_are_held_against_one_of_theirs():
    report = Report(Enqueue(), {"reps": 3, "quick": False})
    report.add("PostgreSQL", "pgqueuer", {"one by one": 1000.0, "100 at once": 2000.0})
    report.add("PostgreSQL", "holdfast", {"one by one": 900.0, "100 at once": 4000.0})
    assert [(found.title, found.value, found.verdict) for found in report.comparisons()] == [
        ("holdfast / pgqueuer, one by one", 0.9, "ok"),
        ("holdfast / pgqueuer, 100 at once", 2.0, ""),
        ("holdfast, 100 at once / pgqueuer, one by one", 4.0, "short"),
    ]


def test_a_goal_may_be_about_a_figure_itself():
    report = Report(Memory(), {"reps": 3, "quick": False})
    report.add("SQLite", "holdfast", {"idle worker": 61.0, "import": 150.0})
    assert [(found.title, found.target and found.target.shown, found.verdict) for found in report.comparisons()] == [
        ("holdfast, idle worker", "at most 60", "short"),
        ("holdfast, import", "at most 150", "ok"),
    ]


# The documentation


def test_published_figures_replace_the_ones_before(docs):
    data = Results(ABOUT, [jobs_report()], "2026-01-31").as_data()
    publish([data], docs)
    assert publish([data], docs) == [Path("docs/benchmarks.md"), Path("docs/benchmarks.charts")]
    page = (docs / "benchmarks.md").read_text()
    assert page.startswith("# Before\n")
    assert page.endswith(f"{END}\n\n# After\n")
    assert "old figures" not in page
    lines = page.splitlines()
    assert "| measure | database | unit | holdfast | raw | pgqueuer |" in lines
    assert "| jobs, 1 worker | PostgreSQL | jobs/s | 16,000 | – | 10,000 |" in lines
    assert "| jobs | PostgreSQL | holdfast / pgqueuer, 1 worker | 1.60 | 1.5 | ok |" in lines
    assert "* dbos: pip couldn't install it" in lines
    assert "* 2026-01-31: jobs." in lines
    assert "  * PostgreSQL: version 18, fsync on" in lines
    assert "  * pgqueuer: pgqueuer 1.6.0" in lines


def test_the_chart_has_a_bar_for_each(docs):
    publish([Results(ABOUT, [jobs_report()]).as_data()], docs)
    texts = [element.text for element in ElementTree.parse(docs / "benchmarks.charts").getroot().iter() if element.text]
    assert "jobs, 1 worker, PostgreSQL (jobs/s)" in texts
    assert [text for text in texts if text in ("holdfast", "raw", "pgqueuer")] == [
        "holdfast", "pgqueuer", "holdfast", "raw",
    ]  # fmt: skip


def test_what_is_not_fit_is_not_published(docs):
    before = (docs / "benchmarks.md").read_text()
    with pytest.raises(BenchmarkError, match="not published: jobs"):
        publish([Results(ABOUT, [jobs_report(reps=2)]).as_data()], docs)
    assert (docs / "benchmarks.md").read_text() == before
    assert not (docs / "benchmarks.charts").exists()


def test_what_failed_before_it_was_repeated_often_enough_is_not_published(docs):
    report = jobs_report()
    report.add("PostgreSQL", "absurd", {"1 worker": 900.0})
    report.fail("PostgreSQL", "absurd", "runs done: 9 of 10")
    with pytest.raises(BenchmarkError, match="not published: jobs"):
        publish([Results(ABOUT, [report]).as_data()], docs)


def test_a_page_without_a_place_for_figures_is_left_alone(docs):
    (docs / "benchmarks.md").write_text("# Nothing\n")
    with pytest.raises(BenchmarkError, match="no place for figures"):
        publish([Results(ABOUT, [jobs_report()]).as_data()], docs)


def test_files_that_json_wrote_can_be_published_later(tmp_path):
    file = tmp_path / "found.json"
    file.write_text(Results(ABOUT, [jobs_report()]).as_json())
    assert read(file)["measures"][0]["measure"] == "jobs"
    file.write_text(json.dumps({"other": 1}))
    with pytest.raises(BenchmarkError, match=r"found\.json can't be published"):
        read(file)


def test_a_file_that_cannot_be_published_is_reported_in_one_line(tmp_path, capsys):
    assert command.main(["publish", str(tmp_path / "none.json")]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "none.json can't be published" in errors


def test_the_page_of_the_project_has_a_place_for_figures():
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text()
    assert page.index(BEGIN) < page.index(END)


# Flame graphs


def test_what_processes_saw_is_put_together(tmp_path):
    (tmp_path / "1.stacks").write_text(folded(Counter({("main", "f"): 2_000_000, ("main", "f", "g"): 1_500_000})))
    (tmp_path / "2.stacks").write_text(folded(Counter({("main", "f"): 1_000_000, ("main",): 10})))
    assert gathered(tmp_path) == {("main", "f"): 3000, ("main", "f", "g"): 1500}


def test_a_box_is_as_wide_as_the_time_in_it_and_its_callees():
    drawing = ElementTree.fromstring(flame.drawn(Counter({("a", "<b>"): 3000, ("a", "c"): 1000}), "title & more"))
    boxes = {}
    for group in drawing.iter("{http://www.w3.org/2000/svg}g"):
        title, rectangle = list(group)[:2]
        boxes[str(title.text)] = float(rectangle.attrib["width"])
    whole = boxes["all: 4 ms, 100.0%"]
    assert boxes["a: 4 ms, 100.0%"] == whole
    assert boxes["<b>: 3 ms, 75.0%"] == pytest.approx(whole * 0.75, abs=0.1)
    assert boxes["c: 1 ms, 25.0%"] == pytest.approx(whole * 0.25, abs=0.1)
