"""The command: output, error messages, and cleanup after an interruption."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import cli
from benchmarks.cli import BENCHMARKS, options_for, parse_arguments
from benchmarks.databases import BenchmarkError, PostgresBackend
from tests.support.benchmark_process import TIMEOUT_S, processes_with_argument, start
from tests.support.wait_until import wait_until


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments)
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1, "one line"
    return output


# Output


def test_json_is_written_to_a_file_and_the_table_to_the_terminal(tmp_path, capsys):
    file = tmp_path / "found.json"
    arguments = ["jobs", "--sqlite", "--quick", "--count", "20", "--workers", "1", "--json", str(file)]
    assert cli.main(arguments) == 0
    table = capsys.readouterr().out
    assert table.startswith("benchmark")
    assert "not publishable" in table
    found = json.loads(file.read_text())
    assert [benchmark["benchmark"] for benchmark in found["benchmarks"]] == ["jobs"]
    assert {"date", "environment"} <= found.keys()


def test_profile_writes_a_flame_graph_of_the_workers(tmp_path, measured):
    file = tmp_path / "flame.svg"
    found = measured("jobs", "--sqlite", "--count", "200", "--reps", "3", "--workers", "1", "--profile", str(file))
    titles = [element.text or "" for element in ElementTree.parse(file).getroot().iter() if "title" in element.tag]
    assert any(title.startswith("holdfast.engine.") for title in titles)
    assert not found["publishable"]
    assert "HOLDFAST_BENCH_PROFILE" not in os.environ


def test_all_runs_every_benchmark_with_its_own_defaults():
    given = parse_arguments(["all", "--sqlite", "--quick", "--peers", "raw"])
    own = {benchmark.name: options_for(benchmark, given) for benchmark in BENCHMARKS}
    assert own["jobs"].workers == [1, 2]
    assert own["growth"].kinds[:3] == ["ready", "finished", "sleeping"]
    assert [own[name].peers for name in ("jobs", "growth")] == [["raw"], []]
    assert {(options.reps, options.sqlite, options.postgres) for options in own.values()} == {(1, True, None)}
    assert [options.count for options in own.values()] == [benchmark.quick_count for benchmark in BENCHMARKS]


@pytest.mark.parametrize("benchmark", [benchmark.name for benchmark in BENCHMARKS])
def test_every_benchmark_has_help(benchmark, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments([benchmark, "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert all(option in output for option in ("--postgres", "--sqlite", "--reps", "--count", "--json", "--profile"))


# Interruption


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_leaves_nothing_behind(tmp_path, how):
    with start("latency", "--sqlite", TMPDIR=str(tmp_path)) as process:
        wait_until(
            lambda: process.poll() is not None or list(tmp_path.glob("*/latency")), TIMEOUT_S
        )  # jobs are running
        assert process.poll() is None
        process.send_signal(how)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "bench: interrupted"
    assert list(tmp_path.iterdir()) == []
    assert processes_with_argument(tmp_path) == []


@pytest.fixture
def reachable_folder() -> Iterator[Path]:
    """A folder that the PostgreSQL user can access."""
    with tempfile.TemporaryDirectory(prefix="holdfast-tests-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_an_interruption_stops_the_server_too(reachable_folder):
    with start("growth", "--postgres", "--size", "10000000", TMPDIR=str(reachable_folder)) as process:
        assert process.stderr is not None
        while "creating" not in (line := process.stderr.readline()):
            assert line, "it exited"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, errors
    assert list(reachable_folder.iterdir()) == []
    assert processes_with_argument(reachable_folder) == []


# Errors


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "BENCHMARK"),
        (["speed"], "'speed'"),
        (["jobs", "--reps", "0"], "--reps must be at least 1"),
        (["jobs", "--count", "many"], "--count"),
        (["jobs", "--workers", "0,1"], "at least 1"),
        (["jobs", "--workers", "one"], "numbers separated by commas"),
        (["jobs", "--workers", "3", "--peers", "raw"], "at most 2 workers"),
        (["latency", "--peers", ","], "at least one name"),
        (["latency", "--peers", "unheard-of"], "choose from: raw, pgqueuer"),
        (["growth", "--peers", "raw"], "--peers"),
        (["growth", "--size", "0"], "--size must be at least 1"),
        (["growth", "--kinds", "odd"], "choose from: ready"),
        (["sustained", "--minutes", "0"], "--minutes must be at least 1"),
        (["all", "--count", "3"], "--count"),
        (["jobs", "--json", "/nowhere/at/all.json"], "does not exist"),
        (["jobs", "--profile", "/nowhere/at/all.svg"], "does not exist"),
        (["publish"], "FILE"),
    ],
)
def test_a_usage_error_is_explained_in_one_line(capsys, arguments, named):
    assert named in usage_error(capsys, *arguments)


def test_both_databases_are_measured_by_default():
    options = parse_arguments(["jobs"])
    assert (options.postgres, options.sqlite, options.reps, options.count) == ("", True, 3, 50_000)


def test_a_server_without_durable_commits_is_rejected(postgres_server_url):
    joint = "&" if "?" in postgres_server_url else "?"
    url = f"{postgres_server_url}{joint}options=-c%20synchronous_commit%3Doff"
    with pytest.raises(BenchmarkError, match=r"has (fsync|synchronous_commit) off"):
        PostgresBackend(url).describe()


def test_an_unreachable_server_is_reported_in_one_line(capsys):
    assert cli.main(["jobs", "--postgres", "postgresql://nobody@127.0.0.1:1/none", "--quick"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "cannot connect" in errors
