"""Writes figures into the documentation: tables between two marks of docs/benchmarks.md, and a chart beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import chart
from benchmarks.hosts import Unusable
from benchmarks.measure import OURS
from benchmarks.peers.catalog import PEERS
from benchmarks.report import FEWEST, flat, number

Data = dict[str, Any]

BEGIN = "<!-- figures: made by `./dev bench publish`, don't edit -->"
END = "<!-- end of figures -->"
DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, CHART = "benchmarks.md", "benchmarks.svg"


def read(file: Path) -> Data:
    """What `--json` wrote."""
    try:
        found: Data = json.loads(file.read_text())
        found["measures"], found["about"], found["date"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{file.name} can't be published: it isn't what --json writes ({error!r})") from None
    return found


def publish(found: Sequence[Data], docs: Path | None = None) -> list[Path]:
    """Put all of it into the page, and draw the chart. Refuses what isn't fit for it, before it changes anything."""
    unfit = [each["measure"] for data in found for each in data["measures"] if not each["publishable"]]
    if unfit:
        raise Unusable(
            f"not published: {', '.join(unfit)}: taken with --quick, --profile or fewer than {FEWEST} repetitions"
        )
    docs = docs or DOCS
    page, picture = docs / PAGE, docs / CHART
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise Unusable(f"{PAGE} has no place for figures: the lines {BEGIN!r} and {END!r}")
    results = [(each["measure"], line) for data in found for each in data["measures"] for line in each["results"]]
    picture.write_text(chart.drawn(results))
    page.write_text(f"{before}{BEGIN}\n\n{block(found)}\n{END}{after}")
    return [page.relative_to(docs.parent), picture.relative_to(docs.parent)]


def block(found: Sequence[Data]) -> str:
    """What stands between the marks."""
    measures = [measure for data in found for measure in data["measures"]]
    parts = [
        f"![Figures of Holdfast and others]({CHART})",
        *_section("Beside others, in the same run", _beside_others(measures)),
        *_section("By itself", _by_itself(measures)),
        *_section("What must be reached", _goals(measures)),
        *_section("What was not measured, or failed", _missing(measures)),
        *_section("How it was measured", [line for data in found for line in _conditions(data)]),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"### {title}", "\n".join(lines)] if lines else []


def _beside_others(measures: list[Data]) -> list[str]:
    """A row per figure that we have, a column for each who has any."""
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for measure in measures:
        for line in measure["results"]:
            if line["subject"] in (OURS, *PEERS) and measure["measure"] != "sustained":
                place = (_titled(measure, line), line["database"], line["unit"])
                cells.setdefault(place, {})[line["subject"]] = number(line["median"])
    subjects = [name for name in (OURS, *PEERS) if any(name in row for row in cells.values())]
    rows = [[*place, *[row.get(name, "–") for name in subjects]] for place, row in cells.items()]
    return _markdown(["measure", "database", "unit", *subjects], rows, 3)


def _by_itself(measures: list[Data]) -> list[str]:
    rows = [
        [_titled(measure, line), line["database"], line["subject"], number(line["median"]), line["unit"]]
        for measure in measures
        for line in measure["results"]
        if line["subject"] not in (OURS, *PEERS) or measure["measure"] == "sustained"
    ]
    return _markdown(["measure", "database", "of", "median", "unit"], rows, 3)


def _goals(measures: list[Data]) -> list[str]:
    rows = [
        [
            measure["measure"],
            ratio["database"],
            ratio["title"],
            f"{ratio['ratio']:.2f}",
            ratio["must"],
            ratio["verdict"],
        ]
        for measure in measures
        for ratio in measure["ratios"]
        if ratio["must"]
    ]
    return _markdown(["measure", "database", "compared", "measured", "must reach", ""], rows, 3)


def _missing(measures: list[Data]) -> list[str]:
    peers = dict.fromkeys(each for measure in measures for each in measure["not measured"].items())
    failed = [
        f"* {measure['measure']}, {failure['subject']}, {failure['database']}: {failure['why']}"
        for measure in measures
        for failure in measure["failures"]
    ]
    return [*[f"* {name}: {why}" for name, why in peers], *failed]


def _conditions(data: Data) -> list[str]:
    versions = {
        line["subject"]: ", ".join(f"{name} {version}" for name, version in line["versions"].items())
        for measure in data["measures"]
        for line in measure["results"]
        if "versions" in line
    }
    return [
        f"* {data['date']}: {', '.join(measure['measure'] for measure in data['measures'])}.",
        *[f"  * {name}: {flat(value)}" for name, value in data["about"].items()],
        *[f"  * {measure['measure']}: {flat(measure['settings'])}" for measure in data["measures"]],
        *[f"  * {name}: {told}" for name, told in versions.items()],
    ]


def _titled(measure: Data, line: Data) -> str:
    return f"{measure['measure']}, {line['figure']}" if line["figure"] else str(measure["measure"])


def _markdown(headings: list[str], rows: list[list[str]], words: int) -> list[str]:
    if not rows:
        return []
    rule = ["---"] * words + ["---:"] * (len(headings) - words)
    return [f"| {' | '.join(row)} |" for row in (headings, rule, *rows)]
