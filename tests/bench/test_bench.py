"""The benchmarks run, count right, clean up and say what is wrong. Nothing here looks at how fast anything is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.bench import command
from holdfast.bench.hosts import PostgresHost, Unusable
from holdfast.bench.jobs import Jobs
from holdfast.bench.report import Report

LONGEST = 120

FAKE_PEERS = """
import json, sys
if "unheard-of" in sys.argv[sys.argv.index("--only") + 1]:
    sys.exit("peers.py: error: unknown: unheard-of")
measure = "latency" if "latency" in sys.argv else "jobs"
def line(variant, figure, value):
    return {"library": "raw", "variant": variant, "measure": f"{measure} {figure}".strip(), "values": [value],
            "count": 7, "settings": {}, "versions": {"apsw": "1"}, "failure": FAILURE}
figures = ("p50", "p99") if measure == "latency" else ("",)
results = [line(variant, figure, 1000.0) for variant in ("", "SQLite") for figure in figures]
print(json.dumps({"about": {}, "unavailable": {}, "results": results}))
"""


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    with start(*arguments, **environment) as process:
        output, errors = process.communicate(timeout=LONGEST)
    return process.returncode, output, errors


def measured(*arguments: str, **environment: str) -> dict[str, Any]:
    code, output, errors = run(*arguments, "--json", **environment)
    assert code == 0, errors
    found: dict[str, Any] = json.loads(output)
    return found


def fake_peers(folder: Path, failure: str | None = None) -> str:
    (folder / "peers.py").write_text(FAKE_PEERS.replace("FAILURE", repr(failure)))
    return str(folder)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        command.parse(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, "one line"
    return said


# What comes out


def test_jobs_gives_all_values_medians_settings_and_versions():
    found = measured("jobs", "--sqlite", "--count", "60", "--reps", "3", "--concurrency", "20")
    [line] = found["results"]
    assert (line["database"], line["subject"], line["figure"], line["unit"]) == ("SQLite", "holdfast", "", "jobs/s")
    assert line["n"] == len(line["values"]) == 3
    assert line["median"] == sorted(line["values"])[1]
    assert found["settings"] == {
        "count": 60, "workers": 1, "concurrency": 20, "reps": 3, "quick": False, "peers": [],
    }  # fmt: skip
    assert {"python", "holdfast", "cores", "SQLite"} <= found["about"].keys()
    assert {"version", "commit_microseconds"} <= found["about"]["SQLite"].keys()
    assert found["failures"] == []


def test_latency_gives_the_median_and_the_slowest_percent():
    found = measured("latency", "--sqlite", "--quick", "--count", "4")
    assert [(line["figure"], line["unit"], line["n"]) for line in found["results"]] == [
        ("p50", "ms", 1),
        ("p99", "ms", 1),
    ]
    assert found["settings"]["count"] == 4


def test_growth_compares_every_kind_with_the_empty_table():
    found = measured("growth", "--sqlite", "--quick", "--count", "30", "--size", "40")
    kinds = ["finished", "scheduled", "unknown task", "other queue"]
    assert [line["subject"] for line in found["results"]] == ["empty", *kinds]
    assert [(ratio["of"], ratio["to"]) for ratio in found["ratios"]] == [(kind, "empty") for kind in kinds]
    assert found["settings"]["size"] == 40


def test_graphs_compare_large_with_small_ones_of_every_shape():
    found = measured("graphs", "--sqlite", "--quick", "--count", "30", "--concurrency", "20")
    shapes = ["fan", "fan with outputs", "chain", "layered"]
    subjects = [f"{shape} of {size}" for shape in shapes for size in (3, 30)]
    figures = ["build", "submit", "run"]
    assert [(line["subject"], line["figure"]) for line in found["results"]] == [
        (subject, figure) for subject in subjects for figure in figures
    ]
    assert [(ratio["of"], ratio["to"], ratio["figure"]) for ratio in found["ratios"]] == [
        (f"{shape} of 30", f"{shape} of 3", figure) for shape in shapes for figure in figures
    ]
    assert found["settings"]["nodes"] == 30


def test_limits_compares_each_kind_with_none():
    found = measured("limits", "--sqlite", "--quick", "--count", "30")
    assert [line["subject"] for line in found["results"]] == ["no limit", "one limit", "by key"]
    assert [(ratio["of"], ratio["to"]) for ratio in found["ratios"]] == [
        ("one limit", "no limit"),
        ("by key", "no limit"),
    ]


@pytest.mark.slow
def test_jobs_are_measured_on_a_durable_server_of_its_own():
    found = measured("jobs", "--postgres", "--quick", "--count", "60", "--workers", "2")
    assert [line["database"] for line in found["results"]] == ["PostgreSQL"]
    settings = found["about"]["PostgreSQL"]
    assert (settings["fsync"], settings["synchronous_commit"], settings["shared_buffers"]) == ("on", "on", "1GB")


def test_the_table_shows_medians_and_warns_of_too_few_repetitions():
    report = Report(Jobs(), {"cores": 2}, {"reps": 1, "quick": False})
    report.add("SQLite", "holdfast", {"": 10_000.0})
    report.add("SQLite", "raw", {"": 40_000.0})
    table = report.as_table().splitlines()
    assert table[0].split() == ["measure", "database", "subject", "median", "min", "max", "n", "unit"]
    assert table[1].split() == ["jobs", "SQLite", "holdfast", "10,000", "10,000", "10,000", "1", "jobs/s"]
    assert "SQLite: holdfast / raw: 0.25" in table
    assert table[-1].startswith("not to be published")


def test_an_interrupted_measurement_leaves_nothing_behind(tmp_path):
    with start("latency", "--sqlite", TMPDIR=str(tmp_path)) as process:
        deadline = time.monotonic() + LONGEST
        while not list(tmp_path.glob("*/latency")):  # jobs are under way
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 130, errors
    assert list(tmp_path.iterdir()) == []
    assert processes_that_name(tmp_path) == []


def processes_that_name(path: Path) -> list[str]:
    listing = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if str(path) in line]


# Peers


def test_peers_are_measured_in_every_round_and_compared_with(tmp_path):
    arguments = ("jobs", "--sqlite", "--count", "30", "--reps", "2", "--peers", "raw")
    found = measured(*arguments, HOLDFAST_PEERS=fake_peers(tmp_path))
    raw, ours = found["results"]
    assert (raw["database"], raw["subject"], raw["values"], raw["count"]) == ("SQLite", "raw", [1000.0, 1000.0], 7)
    [ratio] = found["ratios"]
    assert (ratio["of"], ratio["to"]) == ("holdfast", "raw")
    assert ratio["ratio"] == pytest.approx(ours["median"] / 1000.0)


def test_peers_of_latency_have_both_figures(tmp_path):
    arguments = ("latency", "--sqlite", "--quick", "--count", "3", "--peers", "raw")
    found = measured(*arguments, HOLDFAST_PEERS=fake_peers(tmp_path))
    assert [(ratio["figure"], ratio["to"]) for ratio in found["ratios"]] == [("p50", "raw"), ("p99", "raw")]


def test_a_measurement_that_fails_is_named_and_ends_with_1(tmp_path):
    arguments = ("jobs", "--sqlite", "--quick", "--count", "30", "--peers", "raw", "--json")
    code, output, _ = run(*arguments, HOLDFAST_PEERS=fake_peers(tmp_path, "5 where 7 were expected"))
    assert code == 1
    assert json.loads(output)["failures"] == [
        {"database": "SQLite", "subject": "raw", "why": "5 where 7 were expected"}
    ]


def test_a_missing_folder_of_peers_is_explained(tmp_path):
    code, _, errors = run("jobs", "--sqlite", "--peers", "raw", HOLDFAST_PEERS=str(tmp_path))
    assert code == 1
    assert errors.count("\n") == 1
    assert "HOLDFAST_PEERS" in errors


def test_a_peer_that_nobody_knows_is_refused_before_anything_is_measured(tmp_path):
    code, _, errors = run("jobs", "--sqlite", "--peers", "unheard-of", HOLDFAST_PEERS=fake_peers(tmp_path))
    assert code == 1
    assert errors == "bench: --peers: unknown: unheard-of\n"


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "MEASURE"),
        (["speed"], "'speed'"),
        (["jobs", "--reps", "0"], "--reps must be at least 1"),
        (["jobs", "--count", "many"], "--count"),
        (["jobs", "--workers", "-1"], "--workers must be at least 1"),
        (["jobs", "--workers", "3", "--peers", "raw"], "at most 2 workers"),
        (["latency", "--peers", ","], "at least one name"),
        (["growth", "--peers", "raw"], "--peers"),
        (["growth", "--size", "0"], "--size must be at least 1"),
    ],
)
def test_a_mistake_is_explained_in_one_line(capsys, arguments, named):
    assert named in refusal(capsys, *arguments)


def test_without_a_choice_both_databases_are_measured():
    options = command.parse(["jobs"])
    assert (options.postgres, options.sqlite, options.reps, options.count) == ("", True, 3, 50_000)


def test_a_server_that_may_lose_commits_is_refused(postgres_server_url):
    joint = "&" if "?" in postgres_server_url else "?"
    url = f"{postgres_server_url}{joint}options=-c%20synchronous_commit%3Doff"
    with pytest.raises(Unusable, match=r"has (fsync|synchronous_commit) off"):
        PostgresHost(url).facts()


def test_a_server_that_is_not_there_is_reported_in_one_line():
    code, _, errors = run("jobs", "--postgres", "postgresql://nobody@127.0.0.1:1/none", "--quick")
    assert code == 1
    assert errors.count("\n") == 1
    assert "can't be reached" in errors
