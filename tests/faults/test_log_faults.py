"""Log lines of a worker that is killed around a flush: no line of a committed flush is lost, and none is kept twice."""

from __future__ import annotations

import json

from tests.faults.conftest import APPS

FLUSHES = [["begins", "in a"], ["between", "in b"], ["ends"]]
"""What each commit with lines has: those before the two checkpoints, and those with the end."""


def test_a_kill_around_a_flush_loses_no_committed_line_and_repeats_none(database_url, processes, tmp_path):
    process = processes.start(APPS / "logged.py", database_url, tmp_path)
    assert process.wait(timeout=300) == 0, process.log
    points = [json.loads(line) for line in (tmp_path / "facts").read_text().splitlines()]
    assert [(point["when"], point["at"]) for point in points] == [
        (w, n) for w in ("before", "after") for n in (1, 2, 3)
    ]
    for point in points:
        assert point["code"] == -9, point
        lines = [tuple(line) for line in point["lines"]]
        assert len(set(lines)) == len(lines), f"a line is kept twice: {point}"
        assert point["dropped"] == 0
        assert {message for _, message in lines} == {message for flush in FLUSHES for message in flush}, point
        committed = FLUSHES[: point["at"] - (point["when"] == "before")]
        first = [message for attempt, message in lines if attempt == 1]
        assert first == [message for flush in committed for message in flush], f"not what was committed: {point}"
