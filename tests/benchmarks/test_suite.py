"""Every benchmark runs on both databases and reports the right metrics and ratios. Speed doesn't matter here."""

from __future__ import annotations

from typing import Any

import pytest


def metrics(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(line["subject"], line["metric"]) for line in found["results"]]


def ratios(found: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(ratio["of"], ratio["to"]) for ratio in found["ratios"]]


def test_jobs_reports_values_medians_settings_and_versions(measured):
    found = measured("jobs", "--sqlite", "--count", "60", "--reps", "3", "--concurrency", "20", "--workers", "1")
    [line] = found["results"]
    assert (line["database"], line["subject"], line["metric"], line["unit"]) == (
        "SQLite", "holdfast", "1 worker", "jobs/s",
    )  # fmt: skip
    assert line["n"] == len(line["values"]) == 3
    assert line["median"] == sorted(line["values"])[1]
    assert found["settings"] == {
        "count": 60, "concurrency": 20, "reps": 3, "quick": False, "profiled": False,
    }  # fmt: skip
    assert found["publishable"]
    assert {"python", "holdfast", "cores", "SQLite"} <= found["environment"].keys()
    assert {"version", "commit_microseconds"} <= found["environment"]["SQLite"].keys()
    assert found["failures"] == []


def test_jobs_are_measured_with_one_worker_and_two(measured, chosen):
    found = measured("jobs", *chosen, "--quick", "--count", "60")
    assert metrics(found) == [("holdfast", "1 worker"), ("holdfast", "2 workers")]


def test_the_environment_shows_that_the_server_is_durable(measured, durable_server):
    found = measured("jobs", "--postgres", durable_server, "--quick", "--count", "20", "--workers", "1")
    settings = found["environment"]["PostgreSQL"]
    assert (settings["fsync"], settings["synchronous_commit"]) == ("on", "on")


def test_steps_are_measured_concurrently_and_alone(measured, chosen):
    found = measured("steps", *chosen, "--quick", "--count", "20", "--at-once", "10,1")
    assert metrics(found) == [("holdfast", "10 at once"), ("holdfast", "alone")]
    assert found["settings"]["runs alone"] == 1


def test_latency_reports_p50_and_p99(measured, chosen):
    found = measured("latency", *chosen, "--quick", "--count", "4")
    assert [(line["metric"], line["unit"], line["n"]) for line in found["results"]] == [
        ("p50", "ms", 1),
        ("p99", "ms", 1),
    ]


def test_enqueue_is_measured_one_by_one_concurrently_and_in_bulk(measured, chosen):
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
    assert [ratio["target"] for ratio in found["ratios"]] == ["0.9", "0.9", "0.9"]
    assert found["settings"]["size"] == 40


def test_growth_has_other_kinds_without_a_target(measured):
    kinds = ["scheduled", "unknown task", "other queue"]
    found = measured("growth", "--sqlite", "--quick", "--count", "10", "--size", "20", "--kinds", ",".join(kinds))
    assert [line["subject"] for line in found["results"]] == ["empty", *kinds]
    assert [ratio["target"] for ratio in found["ratios"]] == [None, None, None]


@pytest.mark.parametrize(
    "names",
    [
        ["queues", "messages received", "event waiters", "uncounted runs"],
        pytest.param(["gather", "tasks", "declared tasks", "messages sent", "finished runs"], marks=pytest.mark.slow),
    ],
    ids=["some", "others"],
)
def test_scale_compares_two_sizes_of_each_measure(measured, chosen, names):
    sizes = ["--shrink", "10", "--grow", "2"]
    found = measured("scale", *chosen, "--quick", "--count", "60", *sizes, "--only", ",".join(names))
    assert any(ratio["metric"].endswith(("event waiters, 10 to 400", "gather, 5 to 40")) for ratio in found["ratios"])
    assert [line["subject"] for line in found["results"]] == ["small", "large"] * len(names)
    assert [ratio["metric"].split(",")[0] for ratio in found["ratios"]] == names
    assert ratios(found) == [("large", "small")] * len(names)
    assert {ratio["target"] for ratio in found["ratios"]} == {"at most 1.25"}
    assert {ratio["verdict"] for ratio in found["ratios"]} <= {"ok", "short"}
    assert found["failures"] == []


def test_the_backlog_is_refilled_for_every_repetition(measured):
    found = measured("growth", "--sqlite", "--count", "30", "--size", "30", "--reps", "2", "--kinds", "ready")
    assert [(line["subject"], line["n"]) for line in found["results"]] == [("empty", 2), ("ready", 2)]


@pytest.mark.parametrize("database", ["SQLite", pytest.param("PostgreSQL", marks=pytest.mark.slow)])
def test_graphs_compares_large_and_small_graphs_of_every_shape(measured, database, request):
    where = ["--sqlite"] if database == "SQLite" else ["--postgres", request.getfixturevalue("durable_server")]
    found = measured("graphs", *where, "--quick", "--count", "30", "--concurrency", "20")
    shapes = ["fan", "fan with outputs", "chain", "layered"]
    subjects = [f"{shape} of {size}" for shape in shapes for size in (3, 30)]
    phases = ["build", "submit", "run"]
    assert metrics(found) == [(subject, phase) for subject in subjects for phase in phases]
    assert [(ratio["of"], ratio["to"], ratio["metric"]) for ratio in found["ratios"]] == [
        (f"{shape} of 30", f"{shape} of 3", phase) for shape in shapes for phase in phases
    ]


def test_limits_compares_each_kind_with_no_limit(measured, chosen):
    found = measured("limits", *chosen, "--quick", "--count", "30")
    assert [line["subject"] for line in found["results"]] == ["no limit", "one limit", "by key"]
    assert ratios(found) == [("one limit", "no limit"), ("by key", "no limit")]


def test_flow_compares_batches_with_single_jobs(measured, chosen):
    found = measured("flow", *chosen, "--quick", "--count", "30")
    assert ratios(found) == [("batches of 100", "one by one")]


def test_sustained_compares_the_last_minute_with_the_first(measured, chosen):
    found = measured("sustained", *chosen, "--quick", "--count", "100", "--minutes", "2")
    assert metrics(found) == [("holdfast", "minute 1"), ("holdfast", "minute 2")]
    [ratio] = found["ratios"]
    assert (ratio["metric"], ratio["to_metric"], ratio["target"]) == ("minute 2", "minute 1", "0.85")
    assert (found["settings"]["minutes"], found["settings"]["seconds per minute"]) == (2, 1.0)


def test_memory_reports_an_idle_worker_and_the_import(measured, chosen):
    found = measured("memory", *chosen, "--quick", "--count", "2")
    assert [(line["metric"], line["unit"]) for line in found["results"]] == [("idle worker", "MB"), ("import", "ms")]
    assert all(line["median"] > 1 for line in found["results"])
    assert [ratio["target"] for ratio in found["ratios"]] == ["at most 60", "at most 150"]


def test_pages_are_requested_with_runs_of_all_kinds(measured, chosen):
    found = measured("pages", *chosen, "--quick", "--count", "1", "--size", "300")
    names = [line["metric"] for line in found["results"]]
    assert {"overview", "gates", "runs: tag without matches", "runs: state failed", "API: counts"} <= set(names)
    assert all((line["unit"], line["n"]) == ("ms", 1) for line in found["results"])
    targets = {ratio["target"] for ratio in found["ratios"]}
    assert targets == {"at most 100"}


@pytest.mark.slow
def test_workers_compares_many_and_idle_ones_with_few_and_measures_an_idle_worker(measured, durable_server):
    sizes = ("--few", "1", "--many", "2", "--idle", "1")
    found = measured("workers", "--postgres", durable_server, "--quick", "--count", "30", *sizes)
    names = [metric for _, metric in metrics(found)]
    assert names[:4] == ["1 workers", "connections of a busy worker", "2 workers", "1 busy, 1 idle"]
    compared = {(ratio["metric"], ratio["to_metric"]) for ratio in found["ratios"] if ratio["to"]}
    assert compared >= {("2 workers", "1 workers"), ("1 busy, 1 idle", "1 workers")}
    assert {"CPU of an idle worker", "wake-ups of an idle worker", "connections of an idle worker"} <= set(names)


def test_an_idle_worker_is_measured_on_sqlite(measured):
    found = measured("workers", "--sqlite", "--quick", "--count", "30")
    assert [metric for _, metric in metrics(found)] == ["CPU of an idle worker", "wake-ups of an idle worker"]
