"""Worker processes that die are started again; those that can't start at all make the supervisor give up."""

from __future__ import annotations

import os
import random
import re
import signal

import pytest

from tests.support.session_processes import children, session_processes
from tests.support.wait_until import wait_until


def at_work(supervisor):
    """The workers that work now, by number: what the log says last of each."""
    last = {}
    for number, pid in re.findall(r"worker (\d+) \| .*worker started session=[^:]+:(\d+):", supervisor.log):
        last[number] = int(pid)
    alive = {child.pid for child in children(supervisor.pid) if not child.zombie}
    return {number: pid for number, pid in last.items() if pid in alive}


def four_at_work(supervisor, killed):
    """Four workers at work, none of them one that was killed and hasn't quite died."""
    workers = {number: pid for number, pid in at_work(supervisor).items() if pid not in killed}
    return workers if len(workers) == 4 else None


def survive_kills(app, start, ledger, kills):
    supervisor = start("hasty.py", 4, 5)
    chance = random.Random(kills)
    killed = []
    for kill in range(kills):
        workers = wait_until(lambda: four_at_work(supervisor, killed), 60, "four at work")
        app.remote("nap").enqueue_many([(n, 0.01) for n in range(kill * 20, kill * 20 + 20)])
        killed.append(workers[chance.choice(sorted(workers))])
        os.kill(killed[-1], signal.SIGKILL)
    wait_until(lambda: four_at_work(supervisor, killed), 60, "four at work")
    assert [child for child in children(supervisor.pid) if child.zombie] == []
    wait_until(lambda: not app.runs(state="ready") and not app.runs(state="running"), 60, "the end of all runs")
    os.killpg(supervisor.pid, signal.SIGINT)
    assert supervisor.wait() == 0, supervisor.log
    assert session_processes(supervisor.pid) == []
    assert len(re.findall(r'session=\S+ reason="was killed by SIGKILL" restart_in=', supervisor.log)) == kills
    assert {int(words[1]) for words in ledger.words() if words[0] == "done"} == set(range(kills * 20))


def test_a_supervisor_survives_random_kills_of_its_workers(app, start, ledger):
    survive_kills(app, start, ledger, 3)


@pytest.mark.slow
def test_a_supervisor_survives_fifty_random_kills_of_its_workers(app, start, ledger):
    survive_kills(app, start, ledger, 50)


def test_each_death_in_a_row_makes_the_pause_longer(supervise):
    supervisor = supervise(1)
    for deaths in (1, 2):
        os.kill(wait_until(lambda: at_work(supervisor), what="a worker")["1"], signal.SIGKILL)
        wait_until(lambda deaths=deaths: supervisor.log.count("worker started") > deaths, what="another worker")
    assert re.findall(r"restart_in=([\d.]+)s", supervisor.log) == ["0.5", "1.0"]


def test_a_worker_that_exits_by_itself_is_restarted(supervise):
    supervisor = supervise(1)
    os.kill(at_work(supervisor)["1"], signal.SIGTERM)
    wait_until(lambda: supervisor.log.count("worker started") == 2, what="another worker")
    assert 'reason="exited with code 0" restart_in=' in supervisor.log


def test_the_supervisor_gives_up_an_app_that_cannot_be_imported(start):
    supervisor = start("-m", "holdfast.cli", "worker", "--app", "nothing_here:app", "--processes", "2")
    assert supervisor.wait(60) == 2, supervisor.log
    (line,) = [line for line in supervisor.log.splitlines() if "supervisor gave up" in line]
    assert re.search(r'worker=\d attempts=3 last="exited with code 2"', line), line
    assert "module 'nothing_here' is neither in" in supervisor.log
    assert session_processes(supervisor.pid) == []


def test_a_worker_killed_while_it_starts_is_no_reason_to_give_up(start):
    supervisor = start("hasty.py", 1, 5)
    for starts in range(1, 6):
        wait_until(lambda starts=starts: supervisor.log.count("worker process restarted") == starts - 1, what="a start")
        os.kill(wait_until(lambda: children(supervisor.pid), what="a child")[0].pid, signal.SIGKILL)
        wait_until(lambda starts=starts: supervisor.log.count("was killed by SIGKILL") == starts, what="its death")
    supervisor.wait_for("worker started", 60)
    assert "supervisor gave up" not in supervisor.log
