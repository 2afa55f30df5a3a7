"""Reports, targets, charts, and the results in the documentation."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import cli
from benchmarks.charts import draw_flame_graph
from benchmarks.databases import BenchmarkError
from benchmarks.profiler import format_stacks, read_stacks
from benchmarks.publish import BEGIN, END, publish, read_results
from benchmarks.report import Report, Results
from benchmarks.suite.enqueue import Enqueue
from benchmarks.suite.jobs import Jobs
from benchmarks.suite.memory import Memory

ABOUT = {"cores": 2, "PostgreSQL": {"version": "18", "fsync": "on"}}


def jobs_report(reps: int = 3) -> Report:
    report = Report(Jobs(), {"count": 10, "reps": reps, "quick": False})
    for _ in range(reps):
        report.add("PostgreSQL", "pgqueuer", {"1 worker": 10_000.0}, {"versions": {"pgqueuer": "1.6.0"}})
        report.add("PostgreSQL", "holdfast", {"1 worker": 16_000.0})
        report.add("SQLite", "raw", {"1 worker": 40_000.0})
        report.add("SQLite", "holdfast", {"1 worker": 10_000.0})
    report.skip_peer("dbos", "pip failed")
    return report


@pytest.fixture
def docs(tmp_path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "benchmarks.md").write_text(f"# Before\n\n{BEGIN}\nold results\n{END}\n\n# After\n")
    return folder


# Tables


def test_the_table_shows_results_and_targets():
    table = jobs_report(1).as_table().splitlines()
    assert table[0].split() == ["benchmark", "database", "subject", "median", "min", "max", "n", "unit"]
    assert table[1].split()[-7:] == ["PostgreSQL", "holdfast", "16,000", "16,000", "16,000", "1", "jobs/s"]
    ratios = [line.split() for line in table if "/ " in line]
    assert ratios == [
        ["holdfast", "/", "pgqueuer,", "1", "worker", "PostgreSQL", "1.60", "1.5", "ok"],
        ["holdfast", "/", "raw,", "1", "worker", "SQLite", "0.25", "0.5", "short"],
    ]
    assert "skipped: dbos: pip failed" in table
    assert table[-1].startswith("not publishable")


def test_concurrent_callers_are_also_compared_with_a_single_caller_of_a_peer():
    report = Report(Enqueue(), {"reps": 3, "quick": False})
    report.add("PostgreSQL", "pgqueuer", {"one by one": 1000.0, "100 at once": 2000.0})
    report.add("PostgreSQL", "holdfast", {"one by one": 900.0, "100 at once": 4000.0})
    assert [(found.title, found.value, found.verdict) for found in report.comparisons()] == [
        ("holdfast / pgqueuer, one by one", 0.9, "ok"),
        ("holdfast / pgqueuer, 100 at once", 2.0, ""),
        ("holdfast, 100 at once / pgqueuer, one by one", 4.0, "short"),
    ]


def test_a_target_can_be_an_absolute_value():
    report = Report(Memory(), {"reps": 3, "quick": False})
    report.add("SQLite", "holdfast", {"idle worker": 61.0, "import": 150.0})
    assert [(found.title, found.target and found.target.text, found.verdict) for found in report.comparisons()] == [
        ("holdfast, idle worker", "at most 60", "short"),
        ("holdfast, import", "at most 150", "ok"),
    ]


# Documentation


def test_published_results_replace_the_previous_ones(docs):
    data = Results(ABOUT, [jobs_report()], "2026-01-31").as_data()
    publish([data], docs)
    assert publish([data], docs) == [Path("docs/benchmarks.md"), Path("docs/benchmarks.svg")]
    page = (docs / "benchmarks.md").read_text()
    assert page.startswith("# Before\n")
    assert page.endswith(f"{END}\n\n# After\n")
    assert "old results" not in page
    lines = page.splitlines()
    assert "| benchmark | database | unit | holdfast | raw | pgqueuer |" in lines
    assert "| jobs, 1 worker | PostgreSQL | jobs/s | 16,000 | – | 10,000 |" in lines
    assert "| jobs | PostgreSQL | holdfast / pgqueuer, 1 worker | 1.60 | 1.5 | ok |" in lines
    assert "* dbos: pip failed" in lines
    assert "* 2026-01-31: jobs." in lines
    assert "  * PostgreSQL: version 18, fsync on" in lines
    assert "  * pgqueuer: pgqueuer 1.6.0" in lines


def test_the_chart_has_a_bar_for_each_subject(docs):
    publish([Results(ABOUT, [jobs_report()]).as_data()], docs)
    texts = [element.text for element in ElementTree.parse(docs / "benchmarks.svg").getroot().iter() if element.text]
    assert "jobs, 1 worker, PostgreSQL (jobs/s)" in texts
    assert [text for text in texts if text in ("holdfast", "raw", "pgqueuer")] == [
        "holdfast", "pgqueuer", "holdfast", "raw",
    ]  # fmt: skip


def test_too_few_repetitions_are_not_published(docs):
    before = (docs / "benchmarks.md").read_text()
    with pytest.raises(BenchmarkError, match="not published: jobs"):
        publish([Results(ABOUT, [jobs_report(reps=2)]).as_data()], docs)
    assert (docs / "benchmarks.md").read_text() == before
    assert not (docs / "benchmarks.svg").exists()


def test_a_metric_that_failed_before_enough_repetitions_is_not_published(docs):
    report = jobs_report()
    report.add("PostgreSQL", "absurd", {"1 worker": 900.0})
    report.add_failure("PostgreSQL", "absurd", "runs done: 9 of 10")
    with pytest.raises(BenchmarkError, match="not published: jobs"):
        publish([Results(ABOUT, [report]).as_data()], docs)


def test_a_page_without_marker_lines_is_left_unchanged(docs):
    (docs / "benchmarks.md").write_text("# Nothing\n")
    with pytest.raises(BenchmarkError, match="no room for results"):
        publish([Results(ABOUT, [jobs_report()]).as_data()], docs)


def test_files_written_by_json_can_be_published_later(tmp_path):
    file = tmp_path / "found.json"
    file.write_text(Results(ABOUT, [jobs_report()]).as_json())
    assert read_results(file)["benchmarks"][0]["benchmark"] == "jobs"
    file.write_text(json.dumps({"other": 1}))
    with pytest.raises(BenchmarkError, match=r"cannot publish found\.json"):
        read_results(file)


def test_a_file_that_cannot_be_published_is_reported_in_one_line(tmp_path, capsys):
    assert cli.main(["publish", str(tmp_path / "none.json")]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "cannot publish none.json" in errors


def test_the_documentation_has_the_marker_lines():
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text()
    assert page.index(BEGIN) < page.index(END)


# Flame graphs


def test_stacks_of_all_processes_are_added_up(tmp_path):
    (tmp_path / "1.stacks").write_text(
        format_stacks(Counter({("main", "f"): 2_000_000, ("main", "f", "g"): 1_500_000}))
    )
    (tmp_path / "2.stacks").write_text(format_stacks(Counter({("main", "f"): 1_000_000, ("main",): 10})))
    assert read_stacks(tmp_path) == {("main", "f"): 3000, ("main", "f", "g"): 1500}


def test_a_frame_is_as_wide_as_the_time_in_it_and_its_callees():
    drawing = ElementTree.fromstring(draw_flame_graph(Counter({("a", "<b>"): 3000, ("a", "c"): 1000}), "title & more"))
    boxes = {}
    for group in drawing.iter("{http://www.w3.org/2000/svg}g"):
        title, rectangle = list(group)[:2]
        boxes[str(title.text)] = float(rectangle.attrib["width"])
    whole = boxes["all: 4 ms, 100.0%"]
    assert boxes["a: 4 ms, 100.0%"] == whole
    assert boxes["<b>: 3 ms, 75.0%"] == pytest.approx(whole * 0.75, abs=0.1)
    assert boxes["c: 1 ms, 25.0%"] == pytest.approx(whole * 0.25, abs=0.1)
