"""`runs`, `show`, `cancel` and `retry`, on a busy database."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime
from uuid import UUID

import pytest

from holdfast import Holdfast


def ids(result):
    return [UUID(line.split()[0]) for line in result.stdout.splitlines()[1:]]


def test_runs_lists_the_newest_first_with_whole_ids(shell, busy):
    result = shell("runs", "--url", busy.url)
    assert result.exit_code == 0
    assert result.stdout.split("\n")[0].split() == [
        "RUN",
        "STATE",
        "TASK",
        "QUEUE",
        "ATTEMPT",
        "CREATED",
        "DURATION",
        "TENANT",
        "KEY",
        "ARGUMENTS",
        "ERROR",
    ]
    assert ids(result) == [busy.scheduled, busy.ready, busy.running, busy.failed, busy.done]
    assert "ValueError" in result.stdout


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["--state", "failed"], ["failed"]),
        (["--task", "shop.add"], ["ready", "running", "done"]),
        (["--queue", "mail"], ["scheduled"]),
        (["--tenant", "acme"], ["done"]),
        (["--tag", "nightly"], ["done"]),
        (["--tag", "never"], []),
        (["--key", "order-1"], ["done"]),
        (["--key", "order"], []),
        (["--metadata", "order=1"], ["done"]),
        (["--metadata", "order=1", "--metadata", "shop=oslo"], ["done"]),
        (["--metadata", "order=2"], []),
        (["--limit", "2"], ["scheduled", "ready"]),
    ],
)
def test_runs_are_filtered(shell, busy, filters, names):
    expected = [str(getattr(busy, name)) for name in names]
    assert [run["id"] for run in shell.json("runs", *filters, "--url", busy.url)] == expected


def test_tenants_keys_and_arguments_tell_runs_apart(shell, busy):
    done = next(line for line in shell("runs", "--url", busy.url).stdout.splitlines() if str(busy.done) in line)
    assert done.endswith("acme    order-1  1, 2")
    assert "TENANT" not in shell("runs", "--state", "failed", "--url", busy.url).stdout
    assert {"key": "order-1", "args": {"*": [1, 2]}}.items() <= shell.json("runs", "--url", busy.url)[-1].items()
    shown = shell("show", busy.done, "--url", busy.url).stdout
    assert re.search(r"^key +order-1$", shown, re.MULTILINE)
    assert shell.json("show", busy.done, "--url", busy.url)["key"] == "order-1"


def test_page_names_its_cursor_and_accepts_a_prefix(shell, busy):
    first = shell("runs", "--limit", "2", "--url", busy.url)
    assert f"--after {busy.ready}" in first.stderr
    rest = shell("runs", "--after", str(busy.ready)[:-1], "--url", busy.url)
    assert ids(rest) == [busy.running, busy.failed, busy.done]
    assert rest.stderr == ""


def test_runs_as_json_are_a_list_with_times_in_utc(shell, busy):
    done = next(run for run in shell.json("runs", "--url", busy.url) if run["id"] == str(busy.done))
    assert (done["state"], done["result"], done["tenant"], done["tags"]) == ("done", None, "acme", ["nightly"])
    assert done["created_at"].endswith("Z")
    assert datetime.fromisoformat(done["finished_at"]) >= datetime.fromisoformat(done["created_at"])


def test_watch_shows_what_came_meanwhile(shell, empty):
    process = shell.start(
        "runs", "--watch", "0.01", "--json", "--url", empty, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "[]\n"
    with Holdfast(empty) as app:
        id = str(app.remote("x").enqueue().id)
    for line in process.stdout:
        if json.loads(line):
            assert [run["id"] for run in json.loads(line)] == [id]
            break
    process.terminate()
    process.communicate(timeout=30)


def test_show_tells_all_about_a_run(shell, busy):
    result = shell("show", busy.done, "--url", busy.url)
    assert result.exit_code == 0
    fields = dict(line.split(None, 1) for line in result.stdout.partition("\n\n")[0].splitlines())
    assert fields["run"] == str(busy.done)
    assert (fields["state"], fields["task"], fields["tenant"], fields["result"]) == ("done", "shop.add", "acme", "3")
    assert "[1, 2]" in fields["arguments"]
    story = result.stdout.partition("\nhistory\n")[2].splitlines()
    assert [line.split()[2] for line in story] == ["enqueued", "started", "done"]
    assert busy.session in story[1]


def test_show_tells_why_a_run_failed_with_its_traceback(shell, busy):
    result = shell("show", busy.failed, "--url", busy.url)
    assert "(error)" not in result.stdout
    assert "Traceback" in result.stdout
    assert "line two" in result.stdout


def test_show_as_json_has_the_runs_fields_and_the_rest_side_by_side(shell, busy):
    told = shell.json("show", busy.scheduled, "--url", busy.url)
    assert (told["id"], told["state"], told["queue"]) == (str(busy.scheduled), "scheduled", "mail")
    assert told["due_at"] > told["created_at"]
    assert told["options"] == {}
    assert [entry["kind"] for entry in told["history"]] == ["enqueued"]


def test_show_takes_the_beginning_of_an_id(shell, busy):
    assert shell.json("show", str(busy.failed)[:-1], "--url", busy.url)["id"] == str(busy.failed)


@pytest.mark.parametrize(
    ("given", "says"),
    [("nonsense", "is not a run id"), ("01", "too short"), ("ffff", "no run id starts with ffff"),
     ("0199aaaa-0000-7000-8000-000000000001", "run 0199aaaa-0000-7000-8000-000000000001 does not exist")],
)  # fmt: skip
def test_show_of_no_run_says_why(shell, busy, given, says):
    result = shell("show", given, "--url", busy.url)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


def test_show_of_an_ambiguous_beginning_names_the_candidates(shell, busy):
    result = shell("show", str(busy.failed)[:4], "--url", busy.url)
    assert result.exit_code == 2
    for id in (busy.done, busy.failed, busy.running, busy.ready, busy.scheduled):
        assert str(id) in result.stderr


def test_cancel_ends_each_run_and_tells_of_each(shell, busy):
    result = shell("cancel", busy.ready, busy.scheduled, busy.done, "--reason", "ordered twice", "--url", busy.url)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{busy.ready}  cancelled",
        f"{busy.scheduled}  cancelled",
        f"{busy.done}  already finished: done",
    ]
    assert busy.app.get_run(busy.ready).info().error.message == "ordered twice"
    assert busy.state(busy.done) == "done"


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_missing_run_does_not_stop_the_others(shell, busy, verb):
    good = busy.ready if verb == "cancel" else busy.failed
    result = shell(verb, "ffff", good, "--url", busy.url)
    assert result.exit_code == 1
    assert result.stdout.startswith(str(good))
    assert result.stderr.startswith("ffff  no run id starts with ffff")
    assert busy.state(good) == ("cancelled" if verb == "cancel" else "ready")


def test_retry_sends_failed_runs_back_and_leaves_unfinished_ones(shell, busy):
    result = shell("retry", busy.failed, busy.running, "--url", busy.url)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{busy.failed}  retried",
        f"{busy.running}  unfinished: running",
    ]
    assert busy.state(busy.failed) == "ready"


def test_retry_of_a_run_that_is_done_is_refused(shell, busy):
    result = shell("retry", busy.done, "--url", busy.url)
    assert result.exit_code == 1
    assert "only failed and cancelled runs can be retried: fork it to run it again" in result.stderr


def test_cancel_and_retry_as_json_tell_of_each_run(shell, busy):
    result = shell("cancel", busy.ready, "ffff", "--json", "--url", busy.url)
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)
    assert first == {"run": str(busy.ready), "changed": True, "outcome": "cancelled", "error": None}
    assert (second["run"], second["changed"]) == ("ffff", False)
    assert "no run" in second["error"]
