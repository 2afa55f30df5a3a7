"""`schedules`: list, show, pause, resume and run."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from click.shell_completion import ShellComplete

from holdfast import Holdfast
from holdfast.cli.commands import holdfast
from tests.cli.conftest import Shell


@pytest.fixture
def timed(shell: Shell, database_url: str) -> Iterator[Holdfast]:
    """An app with two schedules and a trigger that a worker has seen."""
    app = Holdfast(database_url, name="shop")

    @app.task(name="report")
    def report() -> str:
        return "done"

    app.schedule("nightly", report, cron="0 3 * * *", tz="Europe/London")
    app.schedule("often", report, every=90, jitter=5)

    @app.trigger("files", every=3600)
    def files():
        yield report.options(key="a").request()

    app.worker().drain(timeout=60)
    yield app
    app.close()


def test_schedules_are_listed(shell, timed):
    lines = shell("schedules", "--url", timed.url).stdout.splitlines()
    assert lines[0].split() == ["SCHEDULE", "STATE", "TASK", "WHEN", "ZONE", "NEXT", "LAST", "LAST", "RUN"]
    files, nightly, often = (re.split(r" {2,}", line) for line in lines[1:])
    assert files[:5] == ["files", "on", "trigger", "every 1 h", "-"]
    assert files[6:] == ["1 new", "-"]
    assert nightly[:5] == ["nightly", "on", "report", "At 03:00 every day", "Europe/London"]
    assert nightly[5].startswith("in ")
    assert nightly[6:] == ["-", "-"]
    assert often[3] == "every 1 min 30 s"


def test_as_json(shell, timed):
    files, nightly, _ = shell.json("schedules", "--url", timed.url)
    assert (nightly["name"], nightly["state"], nightly["tz"], nightly["app"]) == (
        "nightly",
        "on",
        "Europe/London",
        "shop",
    )
    assert nightly["next_at"].endswith("Z")
    assert (files["kind"], files["last_poll"]["made"]) == ("trigger", 1)


def test_pause_resume_and_run_say_what_they_did(shell, timed):
    def told(*words: str) -> str:
        result = shell("schedules", *words, "--url", timed.url)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    assert told("pause", "nightly", "often") == "nightly  paused\noften  paused\n"
    assert told("pause", "nightly") == "nightly  already paused\n"
    assert "nightly   paused" in told()
    assert told("resume", "nightly", "files") == "nightly  resumed\nfiles  was not paused\n"
    id = told("run", "nightly").strip()
    assert timed.get_run(id).info().state == "ready"
    line = next(line for line in told().splitlines() if line.startswith("nightly"))
    assert line.split()[-2:] == ["ready", id]
    assert shell.json("schedules", "pause", "often", "--url", timed.url) == [
        {"schedule": "often", "paused": True, "changed": False}
    ]
    assert shell.json("schedules", "run", "files", "--url", timed.url) == [{"schedule": "files", "run": None}]


def test_schedule_shows_recent_runs_and_next_slots(shell, timed):
    id = shell("schedules", "run", "nightly", "--url", timed.url).stdout.strip()
    shown = shell("schedules", "show", "nightly", "files", "--url", timed.url).stdout
    assert re.search(r"^when +At 03:00 every day \(Europe/London\)$", shown, re.MULTILINE)
    assert len(re.findall(r"03:00:00 (?:GMT|BST) \(in ", shown)) == 5
    assert re.search(rf"UTC  {id}  ready  operator$", shown, re.MULTILINE)
    assert re.search(r"^trigger +files$", shown, re.MULTILINE)
    assert re.search(r"UTC +[\d.]+ m?s +1 +1  -$", shown, re.MULTILINE)
    told = shell("show", id, "--url", timed.url).stdout
    assert re.search(r"^schedule +nightly$", told, re.MULTILINE)
    assert re.search(r"^slot +\d{4}-\d\d-\d\d .* UTC \(.*(ago|now)\)$", told, re.MULTILINE)
    assert "options" not in told
    nightly, files = shell.json("schedules", "show", "nightly", "files", "--url", timed.url)
    assert [run["id"] for run in nightly["runs"]] == [id]
    assert [poll["found"] for poll in files["polls"]] == [1]


def test_a_schedule_is_created_changed_backfilled_and_deleted(shell, timed):
    url = ("--url", timed.url)
    made = shell.json("schedules", "create", "mine", "--task", "report", "--remote", "--every", "1h", *url)
    assert (made["name"], made["app"], made["every"], made["state"]) == ("mine", None, 3600, "on")
    changed = shell.json("schedules", "update", "mine", "--cron", "0 8 * * *", "--tz", "Europe/Oslo", *url)
    assert (changed["cron"], changed["tz"], changed["every"]) == ("0 8 * * *", "Europe/Oslo", None)
    days = ("--start", "2026-11-02", "--end", "2026-11-05", "--by", "ada")
    assert len(shell("schedules", "backfill", "mine", *days, *url).stdout.split()) == 3
    assert "no slot of the range is without a run" in shell("schedules", "backfill", "mine", *days, *url).stderr
    assert "backfilled 2026-11-02" in shell("schedules", "show", "mine", *url).stdout
    assert "is declared by app shop" in shell("schedules", "delete", "nightly", *url).stderr
    assert shell("schedules", "delete", "mine", *url).stdout == "mine  deleted\n"
    assert "mine" not in shell("schedules", *url).stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["create", "x", "--every", "60"], "Pass the task that each slot runs"),
        (["pause", "nightly", "--cron", "@daily"], "--cron doesn't apply to `holdfast schedules pause`"),
        (["backfill", "nightly", "--end", "1h"], "Give the range"),
        (["pause", "nightyl"], "schedule 'nightyl' does not exist; known schedules: nightly"),
        (["run"], "Name the schedules, for example `holdfast schedules run nightly`"),
        (["stop", "nightly"], "'stop' is not one of 'show', 'create', 'update', 'pause'"),
    ],
)
def test_impossible_action_is_reported_in_one_line(shell, timed, words, says):
    result = shell("schedules", *words, "--url", timed.url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_empty_list_says_what_to_declare(shell, empty):
    assert 'declare app.schedule("nightly", report, cron="0 3 * * *")' in shell("schedules", "--url", empty).stderr


def test_names_are_completed(shell, timed, monkeypatch):
    monkeypatch.setenv("HOLDFAST_URL", timed.url)
    complete = ShellComplete(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE")
    assert [item.value for item in complete.get_completions(["schedules", "pause"], "n")] == ["nightly"]
    assert [item.value for item in complete.get_completions(["schedules"], "p")] == ["pause"]
