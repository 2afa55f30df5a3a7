"""`holdfast move`: what it prints, and how it is interrupted, continued and aborted."""

from __future__ import annotations

import json

import pytest

from holdfast import Holdfast, StoreMoved
from holdfast.cli import move as command
from holdfast.control import move

pytestmark = pytest.mark.no_tables


@pytest.fixture
def urls(tmp_path):
    source = f"sqlite:///{tmp_path}/a.db"
    with Holdfast(source) as app:
        app.remote("shop.pay").enqueue_many([(1,), (2,)])
    return source, f"sqlite:///{tmp_path}/b.db"


def test_a_dry_run_a_move_and_a_repetition_say_what_they_did(shell, urls):
    source, target = urls
    planned = shell("move", source, target, "--dry-run")
    assert planned.exit_code == 0
    assert planned.stdout.startswith("would be moved: 2 runs (0 in flight), 3 rows in 35 tables\n")
    refused = shell("move", source, target)
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    moved = shell("move", source, target, "--yes")
    assert moved.exit_code == 0
    assert moved.stdout.startswith("moved and verified: 2 runs (0 in flight), 3 rows in 35 tables, in ")
    assert moved.stderr.splitlines() == ["fencing both databases", "copying", "verifying"]
    again = shell("move", source, target, "--json")
    assert json.loads(again.stdout)["state"] == "already moved"
    listed = shell("runs", "--url", target)
    assert listed.stdout.count("shop.pay") == 2
    late = shell("enqueue", "--url", source, "--remote", "shop.pay", "3")
    assert late.exit_code == 2
    assert f"the data was moved to {target}; use that URL" in late.stderr


def test_an_interrupted_move_says_how_to_go_on_and_can_be_continued_or_aborted(shell, urls, monkeypatch):
    source, target = urls

    def interrupt(_progress):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command._Display, "show", lambda self, progress: progress.stage == "copy" and interrupt(self))
        stopped = shell("move", source, target, "--yes")
    assert stopped.exit_code == 130
    assert "Repeat the command to continue, or add --abort" in stopped.stderr
    with Holdfast(source) as app, pytest.raises(StoreMoved):
        app.remote("shop.pay").enqueue(3)
    assert shell("move", source, target, "--abort").stdout == f"aborted: {source} is used again\n"
    with Holdfast(source) as app:
        app.remote("shop.pay").enqueue(3)
    assert shell("move", source, target, "--yes").exit_code == 0
    assert shell("move", source, target, "--abort").exit_code == 2


def test_wrong_urls_are_one_line(shell, urls, tmp_path):
    source, target = urls
    for given in (("sqlite:///missing.db", target), (source, "mysql://host/db"), (source, source)):
        result = shell("move", *given, "--yes")
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (move.MoveProgress("copy", "runs", 50, 200), "copying   [#######                       ]  25% 50 rows runs"),
        (move.MoveProgress("verify", "runs", 0, 0), "verifying [                              ]   0% 0 rows runs"),
        (move.MoveProgress("wait", seconds_left=41.6), "waiting for the leases of the source's workers: 42 s"),
    ],
)
def test_the_progress_bar_shows_the_stage_and_the_share(progress, line):
    assert command._line(progress) == line
