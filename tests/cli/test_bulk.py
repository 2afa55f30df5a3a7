"""`runs`, `cancel`, `retry` and `prune` by filter, `stats` and `doctor`, on a busy database."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--state", "failed", "--state", "done"], ["failed", "done"]),
        (["--error", "valueerror"], ["failed"]),
        (["--error", "nothing of the kind"], []),
        (["--since", "1h"], ["scheduled", "ready", "running", "failed", "done"]),
        (["--until", "1h"], []),
        (["--since", "2099-01-01"], []),
        (["--finished-since", "1h", "--tenant", "acme"], ["done"]),
        (["--finished-until", "2099-01-01T10:00+02:00"], ["failed", "done"]),
    ],
    ids=" ".join,
)
def test_runs_are_filtered(shell, busy, words, expected):
    found = shell.json("runs", *words, "--url", busy.url)
    assert [run["id"] for run in found] == [str(getattr(busy, name)) for name in expected]


def test_runs_are_found_by_id_and_family(shell, busy):
    assert [run["id"] for run in shell.json("runs", "--id", str(busy.done)[:-1], "--url", busy.url)] == [str(busy.done)]
    assert [run["id"] for run in shell.json("runs", "--family", busy.done, "--url", busy.url)] == [str(busy.done)]
    assert shell.json("runs", "--parent", busy.done, "--url", busy.url) == []


def test_a_partial_page_says_so(shell, busy, monkeypatch):
    monkeypatch.setattr("holdfast.store.run_list.MAX_SCANNED_RUNS", 2)
    monkeypatch.setattr("holdfast.store.run_list.MAX_TAG_LISTS", -1)
    result = shell("runs", "--tag", "nightly", "--url", busy.url)
    assert "no runs" in result.stderr
    assert f"scanned only 2 runs; continue with --after {busy.ready}" in result.stderr


def test_a_dry_run_counts_and_shows_and_changes_nothing(shell, busy):
    result = shell("cancel", "--state", "ready", "--dry-run", "--url", busy.url)
    assert result.stdout.splitlines() == [
        "1 run would be cancelled", f"  {busy.ready}  ready  shop.add", "    isn't executed anymore",
    ]  # fmt: skip
    seen = shell.json("retry", "--error", "ValueError", "--dry-run", "--url", busy.url)
    assert (seen["verb"], seen["count"], len(seen["sample"])) == ("retry", {"value": 1, "exact": True}, 1)
    assert seen["effects"][0]["may_repeat"] == ["everything that the function did before it ended"]
    assert (busy.state(busy.ready), busy.state(busy.failed)) == ("ready", "failed")


def test_matching_runs_are_cancelled_and_history_names_the_operator(shell, busy):
    result = shell("cancel", "--task", "shop.add", "--reason", "moved", "--by", "ada", "--yes", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, "2 runs cancelled\n")
    assert busy.state(busy.scheduled) == "scheduled"
    entry = shell.json("show", busy.ready, "--url", busy.url)["history"][-1]
    assert (entry["kind"], entry["data"]) == ("cancelled", {"reason": "moved", "by": "ada"})


@pytest.mark.parametrize(("verb", "before", "after"), [("cancel", "ready", "cancelled"), ("retry", "failed", "ready")])
def test_named_runs_accept_yes(shell, busy, verb, before, after):
    run = getattr(busy, before)
    assert shell(verb, run, "--yes", "--url", busy.url).exit_code == 0
    assert busy.state(run) == after


def test_a_dry_run_with_named_runs_previews_retries_and_is_refused_for_cancel(shell, busy):
    refused = shell("cancel", busy.ready, "--dry-run", "--url", busy.url)
    assert (refused.exit_code, busy.state(busy.ready)) == (2, "ready")
    assert "--dry-run can't be combined with RUN" in refused.stderr
    shown = shell("retry", busy.failed, busy.done, "--dry-run", "--url", busy.url)
    assert (shown.exit_code, busy.state(busy.failed)) == (1, "failed")
    assert "it starts from the beginning" in shown.stdout
    assert "may happen twice\n    everything that the function did before it ended" in shown.stdout
    assert "only failed and cancelled runs can be retried" in shown.stderr
    (found,) = shell.json("retry", busy.failed, "--dry-run", "--url", busy.url)
    assert (found["run"], found["preview"]["mode"], found["preview"]["kept"]) == (str(busy.failed), "start", [])


def test_by_default_it_was_the_user_of_this_machine(shell, busy):
    shell("cancel", busy.ready, "--url", busy.url)
    assert "@" in shell.json("show", busy.ready, "--url", busy.url)["history"][-1]["data"]["by"]


def test_matching_runs_are_retried(shell, busy):
    assert shell.json("retry", "--state", "failed", "--yes", "--url", busy.url) == {
        "verb": "retry", "changed": 1, "passed_over": 0,
    }  # fmt: skip
    assert busy.state(busy.failed) == "ready"


def test_matching_runs_are_pruned(shell, busy):
    kept = shell("prune", "--task", "shop.boom", "--older-than", "1h", "--yes", "--url", busy.url)
    assert kept.stdout == "0 runs deleted\n"
    assert shell("prune", "--task", "shop.boom", "--yes", "--url", busy.url).stdout == "1 run deleted\n"
    assert len(shell.json("runs", "--url", busy.url)) == 4


@pytest.mark.parametrize("verb", ["cancel", "retry", "prune"])
def test_nothing_changes_without_confirmation(shell, busy, verb):
    state = {"cancel": "ready", "retry": "failed", "prune": "done"}[verb]
    result = shell(verb, "--state", state, "--url", busy.url)
    assert result.exit_code == 2
    assert "confirm with --yes, or preview with --dry-run" in result.stderr
    assert busy.state(getattr(busy, state)) == state


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cancel"], "RUN"),
        (["retry", "--yes"], "or a filter"),
        (["cancel", "0199aaaa", "--task", "t"], "can't be combined"),
        (["runs", "--since", "yesterday"], "2026-11-16T09:30"),
    ],
)
def test_wrong_usage_says_what_to_do(shell, busy, words, says):
    result = shell(*words, "--url", busy.url)
    assert result.exit_code == 2
    assert says in result.stderr


def test_stats_tell_what_ended(shell, busy):
    result = shell("stats", "--url", busy.url)
    first, head, *rows = result.stdout.splitlines()
    assert first == "5 runs: 1 done, 1 failed, 1 ready, 1 running, 1 scheduled"
    assert head.split()[:2] == ["NAME", "RUNS"]
    assert [row.split()[:2] for row in rows] == [["shop.add", "1"], ["shop.boom", "1"]]
    assert "1 (100.0%)" in rows[1]
    data = shell.json("stats", "--by", "all", "--every", "minute", "--last", "5m", "--url", busy.url)
    assert data["counts"]["total"] == {"value": 5, "exact": True}
    assert sum(each["runs"] for each in data["stats"]) == 2
    head, row = shell("stats", "--tenant", "acme", "--url", busy.url).stdout.splitlines()
    assert row.split()[:2] == ["acme", "1"]
    minutes = shell.json("stats", "--tenant", "acme", "--every", "minute", "--url", busy.url)
    assert (sum(each["runs"] for each in minutes["stats"]), minutes["created_since"]) == (1, None)
    assert shell("stats", "--tenant", "acme", "--compare", "--url", busy.url).exit_code == 2
    head, *rows = shell("stats", "--compare", "--url", busy.url).stdout.splitlines()
    assert head.split() == ["NAME", "RUNS", "BEFORE", "FAILED", "BEFORE", "RUN", "P95", "BEFORE", "CHANGE"]
    assert [row.split()[:5] for row in rows] == [
        ["shop.add", "1", "0", "0.0%", "-"],
        ["shop.boom", "1", "0", "100.0%", "-"],
    ]
    compared = shell.json("stats", "--compare", "--name", "shop.boom", "--url", busy.url)
    assert [(each["name"], each["now"]["failed"], each["slowdown"]) for each in compared] == [("shop.boom", 1, None)]
    assert data["stats"][-1]["run"].keys() == {"p50", "p95", "p99"}


def test_empty_stats_say_so(shell, empty):
    result = shell("stats", "--url", empty)
    assert result.stdout == "0 runs\n"
    assert "no runs finished in the last 1 h" in result.stderr


def test_the_doctor_ends_with_1_when_something_is_wrong_and_says_what_to_do(shell, busy):
    result = shell("doctor", "--url", busy.url, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["well"]) == ((0, True) if told["well"] else (1, False))
    busy.app.remote("elsewhere", queue="nobody").enqueue()
    result = shell("doctor", "--url", busy.url)
    assert result.exit_code == 1
    assert "wrong: no worker serves queue nobody" in result.stdout
    assert "  do:    holdfast worker --queues nobody" in result.stdout


@pytest.mark.no_tables
def test_the_doctor_of_a_database_without_tables_says_so_and_makes_none(shell, database_url):
    if database_url.startswith("sqlite"):
        (shell.folder / "new.db").touch()
        database_url = "sqlite:///new.db"
    for _ in range(2):
        result = shell("doctor", "--url", database_url)
        assert (result.exit_code, "the database has no Holdfast tables" in result.stdout) == (1, True)
