"""Write results into docs/benchmarks.md, between two marker lines, and draw its chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import HOLDFAST
from benchmarks.charts import draw_bar_chart
from benchmarks.databases import BenchmarkError
from benchmarks.peers.catalog import PEERS
from benchmarks.report import MIN_REPETITIONS, format_number, format_value

Data = dict[str, Any]

BEGIN = "<!-- results: written by `./dev bench publish`, don't edit -->"
END = "<!-- end of results -->"
DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, CHART = "benchmarks.md", "benchmarks.svg"


def read_results(file: Path) -> Data:
    """Read a file that `--json` wrote."""
    try:
        data: Data = json.loads(file.read_text())
        data["benchmarks"], data["environment"], data["date"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"cannot publish {file.name}: it was not written by --json ({error!r})") from None
    return data


def publish(results: Sequence[Data], docs: Path = DOCS) -> list[Path]:
    """Write results and chart, and return the changed files. Raises before any change if a result isn't publishable."""
    rejected = [each["benchmark"] for data in results for each in data["benchmarks"] if not each["publishable"]]
    if rejected:
        reason = f"measured with --quick, --profile or fewer than {MIN_REPETITIONS} repetitions"
        raise BenchmarkError(f"not published: {', '.join(rejected)}: {reason}")
    page, chart = docs / PAGE, docs / CHART
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchmarkError(f"{PAGE} has no room for results: it needs the lines {BEGIN!r} and {END!r}")
    benchmarks = [each for data in results for each in data["benchmarks"]]
    chart.write_text(draw_bar_chart([(each["benchmark"], result) for each in benchmarks for result in each["results"]]))
    page.write_text(f"{before}{BEGIN}\n\n{format_results(results)}\n{END}{after}")
    return [page.relative_to(docs.parent), chart.relative_to(docs.parent)]


def format_results(results: Sequence[Data]) -> str:
    """Return the Markdown between the marker lines."""
    benchmarks = [benchmark for data in results for benchmark in data["benchmarks"]]
    sections = [
        f"![Throughput of Holdfast and other libraries]({CHART})",
        *_section("Comparison with other libraries", _peer_table(benchmarks)),
        *_section("Holdfast alone", _holdfast_table(benchmarks)),
        *_section("Targets", _target_table(benchmarks)),
        *_section("Skipped and failed", _failures(benchmarks)),
        *_section("Environment", [line for data in results for line in _environment(data)]),
    ]
    return "\n\n".join(sections) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"### {title}", "\n".join(lines)] if lines else []


def _peer_table(benchmarks: list[Data]) -> list[str]:
    """Return a row per metric of Holdfast and a column per subject."""
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for benchmark in benchmarks:
        for result in benchmark["results"]:
            if result["subject"] in (HOLDFAST, *PEERS) and benchmark["benchmark"] != "sustained":
                key = (_title(benchmark, result), result["database"], result["unit"])
                cells.setdefault(key, {})[result["subject"]] = format_number(result["median"])
    subjects = [name for name in (HOLDFAST, *PEERS) if any(name in row for row in cells.values())]
    rows = [[*key, *[row.get(name, "–") for name in subjects]] for key, row in cells.items()]
    return _markdown_table(["benchmark", "database", "unit", *subjects], rows)


def _holdfast_table(benchmarks: list[Data]) -> list[str]:
    rows = [
        [
            _title(benchmark, result),
            result["database"],
            result["subject"],
            format_number(result["median"]),
            result["unit"],
        ]
        for benchmark in benchmarks
        for result in benchmark["results"]
        if result["subject"] not in (HOLDFAST, *PEERS) or benchmark["benchmark"] == "sustained"
    ]
    return _markdown_table(["benchmark", "database", "subject", "median", "unit"], rows)


def _target_table(benchmarks: list[Data]) -> list[str]:
    rows = [
        [
            benchmark["benchmark"],
            ratio["database"],
            ratio["title"],
            f"{ratio['ratio']:.2f}",
            ratio["target"],
            ratio["verdict"],
        ]
        for benchmark in benchmarks
        for ratio in benchmark["ratios"]
        if ratio["target"]
    ]
    return _markdown_table(["benchmark", "database", "ratio", "measured", "target", ""], rows)


def _failures(benchmarks: list[Data]) -> list[str]:
    skipped = dict.fromkeys(each for benchmark in benchmarks for each in benchmark["skipped"].items())
    failed = [
        f"* {benchmark['benchmark']}, {failure['subject']}, {failure['database']}: {failure['why']}"
        for benchmark in benchmarks
        for failure in benchmark["failures"]
    ]
    return [*[f"* {name}: {why}" for name, why in skipped], *failed]


def _environment(data: Data) -> list[str]:
    versions = {
        result["subject"]: ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        for benchmark in data["benchmarks"]
        for result in benchmark["results"]
        if "versions" in result
    }
    return [
        f"* {data['date']}: {', '.join(benchmark['benchmark'] for benchmark in data['benchmarks'])}.",
        *[f"  * {name}: {format_value(value)}" for name, value in data["environment"].items()],
        *[f"  * {benchmark['benchmark']}: {format_value(benchmark['settings'])}" for benchmark in data["benchmarks"]],
        *[f"  * {name}: {text}" for name, text in versions.items()],
    ]


def _title(benchmark: Data, result: Data) -> str:
    return f"{benchmark['benchmark']}, {result['metric']}" if result["metric"] else str(benchmark["benchmark"])


def _markdown_table(headings: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table whose columns are right-aligned from the fourth on, or nothing without rows."""
    if not rows:
        return []
    rule = ["---"] * 3 + ["---:"] * (len(headings) - 3)
    return [f"| {' | '.join(row)} |" for row in (headings, rule, *rows)]
