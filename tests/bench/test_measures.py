"""Every measure runs on both databases, counts right and compares what it should. How fast it is doesn't matter."""

from __future__ import annotations

from typing import Any

import pytest


def metrics(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(line["subject"], line["figure"]) for line in found["results"]]


def ratios(found: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(ratio["of"], ratio["to"]) for ratio in found["ratios"]]


def test_jobs_gives_all_values_medians_settings_and_versions(measured):
    found = measured("jobs", "--sqlite", "--count", "60", "--reps", "3", "--concurrency", "20", "--workers", "1")
    [line] = found["results"]
    assert (line["database"], line["subject"], line["figure"], line["unit"]) == (
        "SQLite", "holdfast", "1 worker", "jobs/s",
    )  # fmt: skip
    assert line["n"] == len(line["values"]) == 3
    assert line["median"] == sorted(line["values"])[1]
    assert found["settings"] == {
        "count": 60, "concurrency": 20, "reps": 3, "quick": False, "profiled": False,
    }  # fmt: skip
    assert found["publishable"]
    assert {"python", "holdfast", "cores", "SQLite"} <= found["about"].keys()
    assert {"version", "commit_microseconds"} <= found["about"]["SQLite"].keys()
    assert found["failures"] == []


def test_jobs_are_measured_by_one_worker_and_by_two(measured, chosen):
    found = measured("jobs", *chosen, "--quick", "--count", "60")
    assert metrics(found) == [("holdfast", "1 worker"), ("holdfast", "2 workers")]


def test_a_server_says_that_it_is_durable(measured, durable_server):
    found = measured("jobs", "--postgres", durable_server, "--quick", "--count", "20", "--workers", "1")
    settings = found["about"]["PostgreSQL"]
    assert (settings["fsync"], settings["synchronous_commit"]) == ("on", "on")


def test_steps_are_measured_at_once_and_alone(measured, chosen):
    found = measured("steps", *chosen, "--quick", "--count", "20", "--at-once", "10,1")
    assert metrics(found) == [("holdfast", "10 at once"), ("holdfast", "alone")]
    assert found["settings"]["runs alone"] == 1


def test_latency_gives_the_median_and_the_slowest_percent(measured, chosen):
    found = measured("latency", *chosen, "--quick", "--count", "4")
    assert [(line["figure"], line["unit"], line["n"]) for line in found["results"]] == [
        ("p50", "ms", 1),
        ("p99", "ms", 1),
    ]


def test_enqueue_goes_one_by_one_at_once_and_in_bulk(measured, chosen):
    found = measured("enqueue", *chosen, "--quick", "--count", "500")
    assert metrics(found) == [("holdfast", mode) for mode in ("one by one", "100 at once", "bulk")]
    assert (found["settings"]["one by one"], found["settings"]["100 at once"], found["settings"]["bulk"]) == (
        30, 100, 500,
    )  # fmt: skip


def test_growth_compares_every_kind_with_the_empty_table(measured, chosen):
    kinds = ["ready", "finished", "sleeping"]
    found = measured("growth", *chosen, "--quick", "--count", "30", "--size", "40", "--kinds", ",".join(kinds))
    assert [line["subject"] for line in found["results"]] == ["empty", *kinds]
    assert ratios(found) == [(kind, "empty") for kind in kinds]
    assert [ratio["must"] for ratio in found["ratios"]] == ["0.9", "0.9", "0.9"]
    assert found["settings"]["size"] == 40


def test_growth_has_other_kinds_for_which_there_is_no_goal(measured):
    kinds = ["scheduled", "unknown task", "other queue"]
    found = measured("growth", "--sqlite", "--quick", "--count", "10", "--size", "20", "--kinds", ",".join(kinds))
    assert [line["subject"] for line in found["results"]] == ["empty", *kinds]
    assert [ratio["must"] for ratio in found["ratios"]] == [None, None, None]


def test_a_backlog_is_as_large_in_every_repetition(measured):
    found = measured("growth", "--sqlite", "--count", "30", "--size", "30", "--reps", "2", "--kinds", "ready")
    assert [(line["subject"], line["n"]) for line in found["results"]] == [("empty", 2), ("ready", 2)]


@pytest.mark.parametrize("database", ["SQLite", pytest.param("PostgreSQL", markers=pytest.mark.slow)])
def test_graphs_compare_large_with_small_ones_of_every_shape(measured, database, request):
    where = ["--sqlite"] if database == "SQLite" else ["--postgres", request.getfixturevalue("durable_server")]
    found = measured("graphs", *where, "--quick", "--count", "30", "--concurrency", "20")
    shapes = ["fan", "fan with outputs", "chain", "layered"]
    subjects = [f"{shape} of {size}" for shape in shapes for size in (3, 30)]
    parts = ["build", "submit", "run"]
    assert metrics(found) == [(subject, part) for subject in subjects for part in parts]
    assert [(ratio["of"], ratio["to"], ratio["figure"]) for ratio in found["ratios"]] == [
        (f"{shape} of 30", f"{shape} of 3", part) for shape in shapes for part in parts
    ]


def test_limits_compares_each_kind_with_none(measured, chosen):
    found = measured("limits", *chosen, "--quick", "--count", "30")
    assert [line["subject"] for line in found["results"]] == ["no limit", "one limit", "by key"]
    assert ratios(found) == [("one limit", "no limit"), ("by key", "no limit")]


def test_sustained_compares_the_last_minute_with_the_first(measured, chosen):
    found = measured("sustained", *chosen, "--quick", "--count", "100", "--minutes", "2")
    assert metrics(found) == [("holdfast", "minute 1"), ("holdfast", "minute 2")]
    [ratio] = found["ratios"]
    assert (ratio["figure"], ratio["to_figure"], ratio["must"]) == ("minute 2", "minute 1", "0.85")
    assert (found["settings"]["minutes"], found["settings"]["seconds a minute"]) == (2, 1.0)


def test_memory_is_that_of_an_idle_worker_and_has_the_time_of_the_import(measured, chosen):
    found = measured("memory", *chosen, "--quick", "--count", "2")
    assert [(line["figure"], line["unit"]) for line in found["results"]] == [("idle worker", "MB"), ("import", "ms")]
    assert all(line["median"] > 1 for line in found["results"])
    assert [ratio["must"] for ratio in found["ratios"]] == ["at most 60", "at most 150"]


def test_pages_are_asked_for_among_runs_of_all_kinds(measured, chosen):
    found = measured("pages", *chosen, "--quick", "--count", "1", "--size", "300")
    names = [line["figure"] for line in found["results"]]
    assert {"overview", "gates", "runs: tag that nobody has", "runs: state failed", "API: counts"} <= set(names)
    assert all((line["unit"], line["n"]) == ("ms", 1) for line in found["results"])
    targets = {ratio["must"] for ratio in found["ratios"]}
    assert targets == ({"at most 100"} if "--postgres" in chosen else set())
