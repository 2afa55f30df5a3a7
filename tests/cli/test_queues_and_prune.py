"""`queues`, `pause`, `resume`, `workers`, `migrate`, `roles`, `prune` and `completion`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.commands import holdfast
from holdfast.cli.options import DURATION
from holdfast.cli.output import TableColumn, escape_control, fit
from holdfast.database.migrate import migrations, newest_version
from tests.support.terminal import open_terminal

pytestmark = pytest.mark.no_tables

# Queues and workers


def test_queues_are_listed_with_what_waits_in_them(shell, busy):
    lines = shell("queues", "--url", busy.url).stdout.splitlines()
    assert lines[0].split()[2:6] == ["READY", "RUNNING", "WAITING", "SCHEDULED"]
    assert lines[1].split()[:6] == ["default", "active", "1", "1", "0", "0"]
    assert lines[2].split() == ["mail", "paused", "0", "0", "0", "1", "-"]


def test_queues_as_json(shell, busy):
    default, mail = shell.json("queues", "--url", busy.url)
    assert (default["name"], default["paused"], default["runs"]) == ("default", False, {"ready": 1, "running": 1})
    assert default["oldest_ready"] >= 0
    assert (mail["paused"], mail["paused_at"][-1]) == (True, "Z")


def test_pause_and_resume_change_a_queue_and_say_so(shell, busy):
    lane = list(busy.app.store.lanes.refresh())
    assert shell("pause", "default", "mail", "--url", busy.url).stdout == "default  paused\nmail  already paused\n"
    assert busy.app.store.claims.claim(busy.session, lane, 1) == []
    assert shell("resume", "default", "other", "--url", busy.url).stdout == "default  resumed\nother  was not paused\n"
    assert len(busy.app.store.claims.claim(busy.session, lane, 1)) == 1


def test_unknown_queue_may_be_paused_with_a_note(shell, busy):
    result = shell("pause", "biling", "--url", busy.url)
    assert result.exit_code == 0
    assert "queue biling has never had a run" in result.stderr
    assert "default, mail" in result.stderr


def test_unknown_task_may_be_paused_with_a_note(shell, busy):
    result = shell("pause", "--task", "shop.chrage", "--url", busy.url)
    assert result.exit_code == 0
    assert "task shop.chrage has never had a run" in result.stderr


def test_pause_and_resume_as_json(shell, busy):
    assert shell.json("pause", "a", "mail", "--url", busy.url) == [
        {"queue": "a", "paused": True, "changed": True},
        {"queue": "mail", "paused": True, "changed": False},
    ]
    assert shell.json("resume", "a", "--url", busy.url) == [{"queue": "a", "paused": False, "changed": True}]


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_invalid_queue_is_rejected(shell, busy, verb):
    result = shell(verb, "a\x1b[31mb", "--url", busy.url)
    assert result.exit_code == 2
    assert "control character" in result.stderr


def test_workers_are_listed_with_what_they_hold(shell, busy):
    lines = shell("workers", "--url", busy.url).stdout.splitlines()
    assert lines[1].split()[:5] == [busy.session, "working", "1", "5", "default"]
    (told,) = shell.json("workers", "--url", busy.url)
    assert (told["session"], told["runs"], told["queues"]) == (busy.session, 1, ["default"])
    assert 0 < told["lease_left"] <= 60


# Migrate


def test_migrate_makes_the_tables_and_says_which(shell, database_url):
    names = [migration.name for migration in migrations()]
    result = shell("migrate", "--url", database_url)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:-1] == [f"applied {name}" for name in names]
    assert f"version {newest_version()}" in result.stdout
    again = shell.json("migrate", "--url", database_url)
    assert again == {"version": newest_version(), "newest": newest_version(), "pending": [], "applied": []}


def test_migrate_check_changes_nothing_and_says_when_the_tables_are_behind(shell, database_url):
    if database_url.startswith("sqlite"):
        Path(database_url.removeprefix("sqlite:///")).touch()
    for _ in range(2):
        result = shell("migrate", "--check", "--url", database_url)
        assert result.exit_code == 1
        assert "pending: 0001_runs.sql" in result.stdout
    shell("migrate", "--url", database_url)
    result = shell("migrate", "--check", "--url", database_url)
    assert result.exit_code == 0
    assert "up to date" in result.stdout


def test_migrate_into_a_folder_that_is_not_there_says_so(shell):
    result = shell("migrate", "--url", "sqlite:///no/such/folder/x.db")
    assert result.exit_code == 2
    assert "folder" in result.stderr


# Prune


def test_prune_deletes_old_runs_when_told_yes(shell, busy):
    result = shell("prune", "--older-than", "0", "--yes", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, "2 runs deleted\n")
    assert len(busy.app.runs()) == 3


def test_prune_without_an_age_deletes_what_is_due(shell, busy):
    assert shell.json("prune", "--yes", "--url", busy.url) == {"pruned": 0}
    assert len(busy.app.runs()) == 5


def test_a_dry_run_only_counts(shell, busy):
    assert shell("prune", "--older-than", "0", "--dry-run", "--url", busy.url).stdout == "2 runs would be deleted\n"
    assert shell.json("prune", "--older-than", "0", "--dry-run", "--yes", "--url", busy.url) == {"would_prune": 2}
    assert shell.json("prune", "--older-than", "7d", "--dry-run", "--url", busy.url) == {"would_prune": 0}
    assert len(busy.app.runs()) == 5


def test_prune_refuses_when_nobody_can_be_asked(shell, busy):
    result = shell("prune", "--older-than", "0", "--url", busy.url)
    assert result.exit_code == 2
    assert "2 runs would be deleted: confirm" in result.stderr
    assert len(busy.app.runs()) == 5


@pytest.mark.parametrize(("answer", "left"), [("n\n", 5), ("y\n", 3)])
def test_prune_asks_at_a_terminal(shell, busy, answer, left):
    master, slave = open_terminal()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "prune", "--older-than", "0", "--url", busy.url],
        cwd=shell.folder, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(slave)
    os.write(master, answer.encode())
    _, told = process.communicate(timeout=60)
    os.close(master)
    assert "Delete 2 finished runs" in told
    assert len(busy.app.runs()) == left
    assert process.returncode == (0 if left == 3 else 130)


def test_nothing_to_prune_needs_no_answer(shell, empty):
    assert shell("prune", "--url", empty).stdout == "0 runs deleted\n"


# Completion


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_and_how_to_install_it(shell, name):
    result = shell("completion", name)
    assert result.exit_code == 0
    assert result.stdout.startswith("# To install: ")
    assert "_HOLDFAST_COMPLETE" in result.stdout
    program = shutil.which(name)
    if program:
        checked = subprocess.run([program, "-n"], input=result.stdout, text=True, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def completed(shell, line, **environment):
    words = line.split(" ")
    asked = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    told = shell.run(env={**os.environ, **asked, **environment})
    assert told.stderr == ""
    return {answer.split(",")[1] for answer in told.stdout.splitlines() if answer}


def test_commands_options_tasks_and_queues_complete(shell, busy, shop):
    assert completed(shell, "holdfast wor") == {"worker", "workers"}
    assert "--older-than" in completed(shell, "holdfast prune --")
    assert completed(shell, "holdfast runs --state f") == {"failed"}
    trusted = {"HOLDFAST_TRUSTED_FOLDERS": f"/nowhere:{shell.folder.parent}"}
    assert completed(shell, f"holdfast --app {shop} enqueue b", **trusted) == {"boom"}
    assert completed(shell, "holdfast pause m", HOLDFAST_URL=busy.url) == {"mail"}
    assert completed(shell, "holdfast enqueue shop.b", HOLDFAST_URL=busy.url) == {"shop.boom"}


@pytest.mark.parametrize("trusted", ["", "relative", ".", "{folder}/other", "{folder}x"])
@pytest.mark.parametrize("line", ["enqueue b", "pause m", "--app evil:app enqueue b", "runs --task b", "show 0"])
def test_completion_imports_no_app_of_an_untrusted_folder(shell, line, trusted, monkeypatch):
    """The shell runs it whenever the user presses Tab, for example in a repository that they have just cloned."""
    (shell.folder / "evil.py").write_text("from pathlib import Path; Path('executed').touch()")
    (shell.folder / "pyproject.toml").write_text('[tool.holdfast]\napp = "evil:app"')
    monkeypatch.setenv("HOLDFAST_TRUSTED_FOLDERS", trusted.format(folder=shell.folder))
    monkeypatch.setenv("HOLDFAST_APP", "evil:app")
    from click.shell_completion import ShellComplete

    *before, typed = line.split(" ")
    ShellComplete(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE").get_completions(before, typed)
    assert not (shell.folder / "executed").exists()
    monkeypatch.setenv("HOLDFAST_TRUSTED_FOLDERS", str(shell.folder))
    ShellComplete(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE").get_completions(["pause"], "m")
    assert (shell.folder / "executed").exists()
    sys.modules.pop("evil", None)


def test_completion_without_an_app_or_a_database_is_empty_and_silent(shell):
    assert completed(shell, "holdfast enqueue b") == set()
    assert completed(shell, "holdfast pause m") == set()
    assert list(shell.folder.iterdir()) == []


# Words and numbers


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5h", 5400), ("15m", 900), ("2H", 7200), ("7d", 604_800), ("0", 0)],
)
def test_durations_are_written_with_a_unit_or_in_seconds(text, seconds):
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "-1", "h", "1w", "1 h 2 m", "nan", "inf", "1e3", "999999d"])
def test_invalid_duration_is_rejected(shell, text):
    result = shell("prune", f"--older-than={text}", "--dry-run")
    assert result.exit_code == 2
    assert "duration" in result.stderr or "too long" in result.stderr


def test_escaped_text_keeps_printable_characters():
    assert escape_control("Zoë ☂ [bold]\u00a0x") == "Zoë ☂ [bold]\u00a0x"
    assert escape_control("a\x1bb\nc\td") == "a\\x1bb\\nc\\td"
    assert escape_control("a\x1bb\nc\td", lines=True) == "a\\x1bb\nc\td"
    assert escape_control("\ud800") == "\\ud800"


def test_narrow_terminal_drops_and_truncates_columns():
    columns = [
        TableColumn("RUN", whole=True),
        TableColumn("TASK"),
        TableColumn("QUEUE", drop=1),
        TableColumn("TOOK", drop=2),
    ]
    rows = [["x" * 36, "t" * 30, "q" * 5, "12 s"]]
    assert fit(columns, rows, 200) == {0: 36, 1: 30, 2: 5, 3: 4}
    assert fit(columns, rows, 70) == {0: 36, 1: 19, 2: 5, 3: 4}
    assert fit(columns, rows, 60) == {0: 36, 1: 15, 2: 5}
    assert fit(columns, rows, 50) == {0: 36, 1: 12}
    assert fit(columns, rows, 20) == {0: 36, 1: 12}


def test_the_list_of_commands_fits_the_modules_that_are_imported():
    assert set(holdfast.commands) >= {"runs", "queues", "tasks", "migrate", "completion"}


# Roles


def test_roles_prints_sql_without_a_connection(shell):
    sql = shell("roles", "--url", "postgresql://nowhere.invalid/shop", "--schema", "jobs", "--tenant", "acme").stdout
    assert sql.startswith("-- ")
    assert 'grant select on "jobs".meta to "jobs_enqueue";' in sql
    made = shell.json("roles", "--prefix", "web", "--tenant", "acme")
    assert made["roles"]["tenant acme"] == "web_tenant_acme"
    assert made["sql"].endswith("commit;\n")


@pytest.mark.parametrize("options", [["--url", "sqlite:///x.db"], ["--prefix", "a b"], ["--schema", ""]])
def test_roles_refuses_what_it_cannot_do(shell, options):
    refused = shell("roles", *options)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 1


def test_workers_lost_lists_recovered_runs(shell, busy):
    assert shell("workers", "--lost", "--url", busy.url).stdout == "no worker was lost\n"
    assert "--since needs --lost" in shell("workers", "--since", "2h", "--url", busy.url).stderr
    sessions = busy.app.store.sessions
    sessions.expire([busy.session])
    sessions.recover(sessions.find_dead(), "{}")
    lines = shell("workers", "--lost", "--since", "2h", "--url", busy.url).stdout.splitlines()
    assert lines[0].startswith(f"{busy.session}  lost ")
    assert lines[0].endswith("1 requeued, 0 failed")
    assert lines[1] == f"  {busy.running}  requeued, ready  shop.add"
    (told,) = shell.json("workers", "--lost", "--url", busy.url)
    assert (told["session"], told["runs"][0]["id"]) == (busy.session, str(busy.running))
