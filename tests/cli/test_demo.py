"""`demo`: a worker is killed, nothing is lost, nothing is left behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from types import SimpleNamespace

import pytest

from holdfast.cli.demo.display import FIRST_RUN, FIRST_TASK, FIRST_WORKER
from holdfast.cli.demo.scenario import Scenario
from holdfast.cli.demo.state import DemoResult, DemoState, WorkerKill, WorkerView
from tests.support.processes import Processes
from tests.support.session_processes import running
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.no_tables

JOBS = 60


@pytest.fixture
def start_demo(tmp_path, monkeypatch):
    """Start the demo with its temporary folders inside the test's own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    processes = Processes(tmp_path)
    yield lambda *options: processes.start("-m", "holdfast.cli", "demo", "--jobs", JOBS, *options)
    processes.close()


def folders(tmp_path):
    return list((tmp_path / "tmp").iterdir())


def killed_holding(log):
    """Return the invoices that the killed worker had, from the demo's output."""
    (numbers,) = re.findall(r"worker \d killed \(kill -9\) while running ([\d, ]+)", log)
    return {int(number) for number in numbers.split(", ")}


def options_for(url):
    return ["--postgres", url] if url.startswith("postgres") else []


def test_the_demo_kills_a_worker_loses_nothing_and_can_be_inspected(database_url, start_demo, tmp_path):
    options = options_for(database_url)
    demo = start_demo("--keep", *options)
    assert demo.wait(120) == 0, demo.log
    held = killed_holding(demo.log)
    assert 1 <= len(held) <= 5  # what it works at, and the ends that it is writing
    (folder,) = folders(tmp_path)
    lines = [line.split() for line in (folder / "ledger").read_text().splitlines()]
    begun = Counter(int(number) for what, number, _ in lines if what == "begun")
    made = sum(map(int, re.findall(r"(\d+) invoices enqueued", demo.log)))
    assert made in range(JOBS, 10 * JOBS, JOBS)  # more than once where all was done before a worker was seen at it
    assert {int(number) for what, number, _ in lines if what == "done"} == set(range(1, made + 1))
    assert len(list((folder / "invoices").iterdir())) == made
    assert {number for number, times in begun.items() if times > 1} <= held
    assert "Nothing was lost, and no finished invoice ran again." in demo.log
    assert not running(demo.pid)
    (command,) = re.findall(r"holdfast (runs --url .*)", demo.log)
    found = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *command.split(), "--json"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "demo.invoice" in found.stdout


def test_more_jobs_are_enqueued_if_no_worker_was_busy():
    play = Scenario.__new__(Scenario)
    play._state = DemoState(JOBS, "")
    seen, enqueued = iter([None, None, "a worker"]), []
    play._wait_for = lambda _reached: None
    play._busiest = lambda: next(seen)
    play._enqueue = enqueued.append
    assert play._victim() == "a worker"
    assert enqueued == [JOBS, JOBS]


def test_results_sent_before_the_kill_are_not_awaited():
    """The database may commit the result after the demo has read the claims."""
    play = Scenario.__new__(Scenario)
    play._state = DemoState(2, "", workers=[WorkerView(1, 77)])
    play._children = [SimpleNamespace(number=1, pid=77)]
    play._ledger = SimpleNamespace(done_last_by={1: 77, 2: 78})
    play._numbers = {"a": 1, "b": 2}
    play._infos = [SimpleNamespace(id=i, state="done", worker=None, attempt=n) for i, n in (("a", 1), ("b", 2))]
    play._wait_for = lambda reached: None if reached() else pytest.fail("it waits")
    assert play._watch_recovery(WorkerKill(1, 0.0, frozenset({1}), frozenset())) is None
    assert play._watch_recovery(WorkerKill(1, 0.0, frozenset({1, 2}), frozenset())) is not None
    assert [event for _, event in play._state.events] == ["its lease expired: 2 ready again", "2 done by other workers"]


def test_the_demo_prints_plain_lines_without_a_terminal_and_leaves_nothing_behind(database_url, start_demo, tmp_path):
    demo = start_demo(*options_for(database_url))
    assert demo.wait(120) == 0, demo.log
    assert "\x1b" not in demo.log
    assert "\r" not in demo.log
    assert [line for line in demo.log.splitlines() if line != line.rstrip()] == []
    assert folders(tmp_path) == []
    if database_url.startswith("postgres"):
        assert demo_schemas(database_url) == []


def demo_schemas(url):
    import psycopg

    with psycopg.connect(url) as connection:
        found = connection.execute("select nspname from pg_namespace where nspname like 'holdfast%'").fetchall()
    return [name for (name,) in found]


@pytest.mark.parametrize("moment", ["enqueued in", "workers running", "killed (kill -9)"])
def test_ctrl_c_ends_everything_and_removes_the_folder(moment, start_demo, tmp_path):
    demo = start_demo()
    demo.wait_for(moment, 60)
    demo.signal(signal.SIGINT)
    assert demo.wait() == 130, demo.log
    assert not running(demo.pid)
    assert folders(tmp_path) == []
    assert "Traceback" not in demo.log


def test_sigterm_ends_it_on_postgres_too_and_drops_the_schema(postgres_url, start_demo, tmp_path):
    demo = start_demo("--postgres", postgres_url)
    demo.wait_for("workers running", 60)
    demo.signal(signal.SIGTERM)
    assert demo.wait() == 130, demo.log
    assert not running(demo.pid)
    assert demo_schemas(postgres_url) == []


def test_workers_end_when_the_demo_itself_is_killed(start_demo):
    demo = start_demo()
    demo.wait_for("workers running", 60)
    demo.signal(signal.SIGKILL)
    wait_until(lambda: not running(demo.pid), what="the end of the workers")


def test_a_url_that_is_no_postgres_is_refused(start_demo):
    demo = start_demo("--postgres", "sqlite:///x.db")
    assert demo.wait() == 2
    assert "postgresql://user@host/database" in demo.log


def test_unreachable_server_is_reported_in_one_line(start_demo, tmp_path):
    demo = start_demo("--postgres", "postgresql://127.0.0.1:1/nothing")
    assert demo.wait(60) == 2, demo.log
    assert len(demo.log.splitlines()) == 1
    assert folders(tmp_path) == []


def test_suggested_next_steps_work(tmp_path):
    (tmp_path / "app.py").write_text(FIRST_TASK)
    processes = Processes(tmp_path)
    try:
        worker = processes.start("-m", "holdfast.cli", *FIRST_WORKER.split()[1:])
        worker.wait_for("worker started", 60)
        program = re.fullmatch(r"python -c '(.*)'", FIRST_RUN)
        assert program is not None
        run = processes.start("-c", program[1])
        assert run.wait() == 0, run.log
        assert run.log == "Hello, Ada!\n"
    finally:
        processes.close()


# The verdict


def verdict(**more):
    kill = WorkerKill(worker=2, at=0.0, held=frozenset({3, 4}), finished=frozenset({1, 2}))
    everything = frozenset(range(1, 6))
    settings = {"done_by_database": everything, "done_by_ledger": everything, "begun_again": frozenset({3})}
    return DemoResult(jobs=5, kill=kill, lease=2.0, recovery_s=1.5, **{**settings, **more})


def test_runs_of_the_killed_worker_may_run_again():
    assert verdict().passed
    assert verdict().again == [3]


def test_job_missing_from_ledger_or_database_is_lost():
    assert verdict(done_by_ledger=frozenset({1, 2, 3, 4})).lost == [5]
    assert verdict(done_by_database=frozenset({1, 2, 3, 5})).lost == [4]
    assert not verdict(done_by_database=frozenset({1, 2, 3, 5})).passed


def test_finished_job_that_ran_again_fails_the_demo():
    assert verdict(begun_again=frozenset({1})).finished_again == [1]
    assert not verdict(begun_again=frozenset({1})).passed


def test_job_that_ran_again_for_another_reason_is_counted_separately():
    assert verdict(begun_again=frozenset({5})).others_again == [5]
    assert verdict(begun_again=frozenset({5})).passed
