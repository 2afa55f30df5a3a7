"""`why` and `limits`, and what `show` says of parked runs and of machines."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import Done, Holdfast, State, SyncContext
from tests.cli.conftest import EVIL


class Limited:
    """A full keyed limit, the run that holds it, and one that waits."""

    def __init__(self, url):
        self.url = url
        self.app = Holdfast(url)
        self.app.limit("customer", concurrency=1, rate="100/min", by="customer")
        task = self.app.task(name="work", limits=["customer"])(work)
        self.at_work, self.parked = (task.enqueue(EVIL).id for _ in range(2))
        self.app.store.sessions.open("host:1:abc", "host:1", 60_000_000, "{}")
        self.app.store.claims.claim_limited("host:1:abc", list(self.app.store.lanes.refresh()), 8)


def work(customer: str) -> None: ...


@pytest.fixture
def limited(shell, database_url):
    limited = Limited(database_url)
    yield limited
    limited.app.close()


# why


def test_why_says_which_limit_is_full_and_who_holds_it(shell, limited):
    lines = shell("why", limited.parked, "--url", limited.url).stdout.splitlines()
    assert lines[0] == f"{limited.parked}  ready  work"
    assert lines[1].startswith("  limit customer for ")
    assert lines[1].endswith(f"is full: its only permit is held by {limited.at_work}")
    assert "\x1b" not in "".join(lines)


def test_why_as_json(shell, limited):
    told = shell.json("why", limited.parked, "--url", limited.url)
    (reason,) = told["reasons"]
    assert (told["id"], told["state"], reason["code"]) == (str(limited.parked), "ready", "limit")
    assert msgspec.to_builtins(limited.app.get_run(limited.parked).why()) == told["reasons"]
    assert reason["data"]["key"] == EVIL
    assert reason["data"]["holders"] == [{"run": str(limited.at_work), "task": "work", "worker": "host:1:abc"}]


def test_why_takes_the_beginning_of_an_id_and_says_who_runs_it(shell, busy):
    assert "running on worker host:1 since" in shell("why", busy.running, "--url", busy.url).stdout
    assert shell.json("why", busy.scheduled, "--url", busy.url)["reasons"][0]["code"] == "time"
    assert shell.json("why", busy.failed, "--url", busy.url)["reasons"][0]["code"] == "ended"


def test_why_of_a_run_that_isnt_there(shell, empty):
    result = shell("why", "0199aaaa", "--url", empty)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "0199aaaa" in result.stderr


# limits


def test_limits_without_any(shell, empty):
    result = shell("limits", "--url", empty)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == 'no limits: declare app.limit("name", concurrency=…) and start a worker\n'
    assert shell.json("limits", "--url", empty) == []


def test_limits_are_listed_with_what_is_in_use_and_who_waits(shell, limited):
    head, line = shell("limits", "--url", limited.url).stdout.splitlines()
    assert head.split() == ["LIMIT", "KEY", "USED", "MAX", "STARTED", "RATE", "WAITING"]
    assert line.split()[0] == "customer"
    assert line.split()[-8:] == ["1", "1", "1", "100", "per", "1", "min", "1"]
    assert "\x1b" not in line


def test_limits_as_json_and_by_name(shell, limited):
    (told,) = shell.json("limits", "customer", "--url", limited.url)
    assert (told["name"], told["concurrency"], told["rate"], told["period"]) == ("customer", 1, 100, 60)
    assert told["counters"] == [{"key": EVIL, "used": 1, "started": 1, "parked": 1, "waiting_steps": 0}]


def test_a_limit_is_shown_with_the_runs_that_hold_its_permits(shell, limited):
    line = shell("limits", "customer", "--url", limited.url).stdout.splitlines()[-1]
    assert line.startswith("held for ")
    assert f"by {limited.at_work}  work, on host:1:abc, taken " in line
    assert "\x1b" not in line
    (told,) = shell.json("limits", "customer", "--url", limited.url)
    assert [(each["run"], each["key"]) for each in told["holders"]] == [(str(limited.at_work), EVIL)]
    assert "held" not in shell("limits", "--url", limited.url).stdout


def test_undeclared_limit_is_an_error(shell, limited):
    result = shell("limits", "openai", "--url", limited.url)
    assert result.exit_code == 2
    assert result.stderr == "holdfast: limit 'openai' does not exist; known limits: customer\n"


# show


def test_show_says_that_the_limit_of_a_parked_run_is_full(shell, limited):
    (line,) = [
        line for line in shell("show", limited.parked, "--url", limited.url).stdout.splitlines() if "held" in line
    ]
    assert line.split()[:4] == ["held", "limit", "customer", "for"]
    assert line.endswith("is full")
    assert shell.json("show", limited.parked, "--url", limited.url)["full_limit"].startswith("customer for ")
    assert "held" not in shell("show", limited.at_work, "--url", limited.url).stdout


class Count(State):
    left: int

    def run(self, ctx: SyncContext) -> Count | Rest:
        return Count(left=self.left - 1) if self.left else Rest()


class Rest(State):
    def run(self, ctx: SyncContext) -> Done[str]:
        return Done("rested")


def test_show_lists_the_moves_of_a_machine(shell, database_url):
    with Holdfast(database_url) as app:
        run = app.machine("counting", Count, Rest).enqueue(Count(left=1))
        app.worker().drain(timeout=60)
    out = shell("show", run.id, "--url", database_url).stdout
    moves = [line for line in out.splitlines() if " moved " in line]
    assert ["from Count to Count" in moves[0], "from Count to Rest" in moves[1]] == [True, True]
    assert '"rested"' in out
