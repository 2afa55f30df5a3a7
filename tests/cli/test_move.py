"""`holdfast move`: what it prints, and how it is interrupted, continued and aborted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holdfast import Holdfast, StoreMoved, TenantMoved
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


@pytest.fixture
def tenants(urls):
    """The same with runs of two tenants, and a target with another one."""
    source, target = urls
    for url, names in ((source, ("acme", "other")), (target, ("there",))):
        with Holdfast(url) as app:
            for tenant in names:
                app.remote("shop.pay").options(tenant=tenant).enqueue_many([(1,), (2,), (3,)])
    return source, target


def test_a_tenant_is_moved_with_a_dry_run_and_a_report(shell, tenants):
    source, target = tenants
    planned = shell("move", source, target, "--tenant", "acme", "--dry-run")
    assert planned.stdout.startswith("would be moved: 3 runs of tenant acme (0 in flight), 3 rows in 20 tables\n")
    assert shell("move", source, target, "--tenant", "acme").exit_code == 2
    moved = shell("move", source, target, "--tenant", "acme", "--yes")
    assert moved.exit_code == 0
    assert moved.stdout.startswith("moved and verified: 3 runs of tenant acme (0 in flight), 3 rows in 20 tables, in ")
    assert moved.stdout.splitlines()[-1] == "Give the new URL to all programs of tenant acme."
    stages = ["fencing both databases", "taking the rows out of the source", "copying", "verifying"]
    assert moved.stderr.splitlines() == [*stages, "putting the rows into the target"]
    again = shell("move", source, target, "--tenant", "acme", "--json")
    assert json.loads(again.stdout)["state"] == "already moved"
    assert shell("runs", "--url", target, "--tenant", "acme").stdout.count("shop.pay") == 3
    assert shell("runs", "--url", target, "--tenant", "there").stdout.count("shop.pay") == 3
    assert shell("runs", "--url", source).stdout.count("shop.pay") == 5
    late = shell("enqueue", "--url", source, "--remote", "shop.pay", "3", "--tenant", "acme")
    assert late.exit_code == 2
    assert f"tenant acme was moved to {target}; use that URL for this tenant" in late.stderr
    aborted = shell("move", source, target, "--tenant", "acme", "--abort")
    assert (aborted.exit_code, "is finished" in aborted.stderr) == (2, True)


def test_an_interrupted_move_of_a_tenant_says_how_to_go_on_and_can_be_aborted(shell, tenants, monkeypatch):
    source, target = tenants

    def interrupt(_progress):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command._Display, "show", lambda self, progress: progress.stage == "copy" and interrupt(self))
        stopped = shell("move", source, target, "--tenant", "acme", "--yes")
    assert stopped.exit_code == 130
    assert "refuses tenant acme" in stopped.stderr
    assert "Repeat the command to continue, or add --abort" in stopped.stderr
    with Holdfast(source) as app, pytest.raises(TenantMoved):
        app.remote("shop.pay").options(tenant="acme").enqueue(3)
    aborted = shell("move", source, target, "--tenant", "acme", "--abort")
    assert aborted.stdout == f"aborted: {source} is used again for tenant acme\n"
    with Holdfast(source) as app:
        app.remote("shop.pay").options(tenant="acme").enqueue(3)
    assert shell("move", source, target, "--tenant", "acme", "--yes").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_ahead", [False, True], ids=["to PostgreSQL", "from PostgreSQL"])
def test_a_move_of_a_tenant_that_is_killed_in_each_stage_continues(urls, postgres_url, is_ahead):
    source, target = (postgres_url, urls[1]) if is_ahead else (urls[0], postgres_url)
    with Holdfast(source) as app:
        app.remote("shop.pay").options(tenant="acme").enqueue_many([(number,) for number in range(5000)])
        app.remote("shop.pay").options(tenant="other").enqueue_many([(number,) for number in range(10)])
    command_line = [sys.executable, "-m", "holdfast.cli", "move", source, target, "--tenant", "acme", "--yes"]
    stages = ["taking the rows", "copying", "verifying", "putting the rows"]
    for stage in stages:
        with subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True) as process:
            assert any(line.startswith(stage) for line in process.stderr), "it ended before this stage"
            process.kill()
    finished = subprocess.run(command_line, check=True, capture_output=True, text=True, timeout=120)
    assert "moved" in finished.stdout
    for url, tenant, runs in ((target, "acme", 5000), (source, "acme", 0), (source, "other", 10)):
        with Holdfast(url) as app:
            found, page = 0, app.runs(tenant=tenant, limit=1000)
            while page:
                found += len(page)
                page = app.runs(tenant=tenant, limit=1000, after=page.after) if page.after else []
            assert found == runs


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (move.MoveProgress("copy", "runs", 50, 200), "copying   [#######                       ]  25% 50 rows runs"),
        (move.MoveProgress("verify", "runs", 0, 0), "verifying [                              ]   0% 0 rows runs"),
        (move.MoveProgress("wait", seconds_left=41.6), "waiting for the leases of the source's workers: 42 s"),
        (move.MoveProgress("drain", running=3), "waiting for running runs: 3"),
        (move.MoveProgress("put in"), "putting the rows into the target"),
    ],
)
def test_the_progress_bar_shows_the_stage_and_the_share(progress, line):
    assert command._line(progress) == line
