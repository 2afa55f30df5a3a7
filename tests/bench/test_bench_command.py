"""The command says what is wrong, writes what it is asked to, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import command
from benchmarks.databases import PostgresBackend, BenchmarkError
from benchmarks.cli import BENCHMARKS, options_of, parse
from tests.support.benching import LONGEST, processes_that_name, start
from tests.support.waiting import wait_until


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    last_output = capsys.readouterr().err
    assert last_output.count("\n") == 1, "one line"
    return last_output


# What comes out


def test_json_goes_into_a_file_and_the_table_to_the_terminal(tmp_path, capsys):
    file = tmp_path / "found.json"
    arguments = ["jobs", "--sqlite", "--quick", "--count", "20", "--workers", "1", "--json", str(file)]
    assert command.main(arguments) == 0
    table = capsys.readouterr().out
    assert table.startswith("measure")
    assert "not to be published" in table
    found = json.loads(file.read_text())
    assert [benchmark["measure"] for benchmark in found["measures"]] == ["jobs"]
    assert {"date", "about"} <= found.keys()


def test_a_profile_is_a_flame_graph_of_our_processes(tmp_path, measured):
    file = tmp_path / "flame.svg"
    found = measured("jobs", "--sqlite", "--count", "200", "--reps", "3", "--workers", "1", "--profile", str(file))
    titles = [element.text or "" for element in ElementTree.parse(file).getroot().iter() if "title" in element.tag]
    assert any(title.startswith("holdfast.engine.") for title in titles)
    assert not found["publishable"]
    assert "HOLDFAST_BENCH_PROFILE" not in os.environ


def test_all_takes_every_measure_with_its_own_defaults():
    given = parse(["all", "--sqlite", "--quick", "--peers", "raw"])
    own = {benchmark.name: options_of(benchmark, given) for benchmark in BENCHMARKS}
    assert own["jobs"].workers == [1, 2]
    assert own["growth"].kinds[:3] == ["ready", "finished", "sleeping"]
    assert [own[name].peers for name in ("jobs", "growth")] == [["raw"], []]
    assert {(options.reps, options.sqlite, options.postgres) for options in own.values()} == {(1, True, None)}
    assert [options.count for options in own.values()] == [benchmark.quick_count for benchmark in BENCHMARKS]


@pytest.mark.parametrize("measure", [benchmark.name for benchmark in BENCHMARKS])
def test_every_measure_has_help(benchmark, capsys):
    with pytest.raises(SystemExit) as ended:
        parse([benchmark, "--help"])
    assert ended.value.code == 0
    last_output = capsys.readouterr().out
    assert all(option in last_output for option in ("--postgres", "--sqlite", "--reps", "--count", "--json", "--profile"))


# Interruption


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_measurement_leaves_nothing_behind(tmp_path, how):
    with start("latency", "--sqlite", TMPDIR=str(tmp_path)) as process:
        wait_until(
            lambda: process.poll() is not None or list(tmp_path.glob("*/latency")), LONGEST
        )  # jobs are under way
        assert process.poll() is None
        process.send_signal(how)
        _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "bench: stopped"
    assert list(tmp_path.iterdir()) == []
    assert processes_that_name(tmp_path) == []


@pytest.fixture
def reachable_folder() -> Iterator[Path]:
    """A folder that the user of the server can reach, whoever that is."""
    with tempfile.TemporaryDirectory(prefix="holdfast-tests-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_an_interruption_ends_the_server_too(reachable_folder):
    with start("growth", "--postgres", "--size", "10000000", TMPDIR=str(reachable_folder)) as process:
        assert process.stderr is not None
        while "making" not in (line := process.stderr.readline()):
            assert line, "it ended by itself"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 130, errors
    assert list(reachable_folder.iterdir()) == []
    assert processes_that_name(reachable_folder) == []


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "MEASURE"),
        (["speed"], "'speed'"),
        (["jobs", "--reps", "0"], "--reps must be at least 1"),
        (["jobs", "--count", "many"], "--count"),
        (["jobs", "--workers", "0,1"], "at least 1"),
        (["jobs", "--workers", "one"], "numbers with commas"),
        (["jobs", "--workers", "3", "--peers", "raw"], "at most 2 workers"),
        (["latency", "--peers", ","], "at least one name"),
        (["latency", "--peers", "unheard-of"], "there are: raw, pgqueuer"),
        (["growth", "--peers", "raw"], "--peers"),
        (["growth", "--size", "0"], "--size must be at least 1"),
        (["growth", "--kinds", "odd"], "there are: ready"),
        (["sustained", "--minutes", "0"], "--minutes must be at least 1"),
        (["all", "--count", "3"], "--count"),
        (["jobs", "--json", "/nowhere/at/all.json"], "there is no folder"),
        (["jobs", "--profile", "/nowhere/at/all.svg"], "there is no folder"),
        (["publish"], "FILE"),
    ],
)
def test_a_mistake_is_explained_in_one_line(capsys, arguments, named):
    assert named in refusal(capsys, *arguments)


def test_without_a_choice_both_databases_are_measured():
    options = parse(["jobs"])
    assert (options.postgres, options.sqlite, options.reps, options.count) == ("", True, 3, 50_000)


def test_a_server_that_may_lose_commits_is_refused(postgres_server_url):
    joint = "&" if "?" in postgres_server_url else "?"
    url = f"{postgres_server_url}{joint}options=-c%20synchronous_commit%3Doff"
    with pytest.raises(BenchmarkError, match=r"has (fsync|synchronous_commit) off"):
        PostgresBackend(url).describe()


def test_a_server_that_is_not_there_is_reported_in_one_line(capsys):
    assert command.main(["jobs", "--postgres", "postgresql://nobody@127.0.0.1:1/none", "--quick"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "can't be reached" in errors
